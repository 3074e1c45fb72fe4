"""Core trees, for short vectors: up to a few ranks, an exchange among those, and down again.

Of c core ranks, a power of two, each is the root of a tree up and a tree down that have the ranks
of its own in them; recursive doubling among the core makes the sum.  One core rank: a tree up and a
tree down.  Trees grow by the edge whose message arrives first, and are then changed at random as
long as the clock says that all ranks are done earlier.  Where changes no longer help, others grow,
on a machine whose times are changed at random (a greedy randomized adaptive search procedure: Feo
and Resende 1995).

Folds go by the rank of the sender, so the ranks of a core must stand in order: in each exchange of
two halves the same half must have the lower rank of every pair.  Then all of them make the same
expression, and get the same bits.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from mpicoll.schedule import Block, Recv, RecvReduce, Round, Send
from mpicoll.schedule.topology import doubling
from mpicoll.simulate.machine import Machine
from mpicoll.synthesis.bound import DOWN, UP
from mpicoll.synthesis.forest import Program
from mpicoll.synthesis.pack import Tree

#: What goes up and what goes down in the collectives that have core trees.
WAYS = {"allreduce": (UP, DOWN), "allgather": (UP, DOWN), "bcast": (DOWN,), "reduce": (UP,)}
#: Sizes of cores.
_SIZES = (1, 2, 4, 8)
#: Changes in a row that do not help, after which other trees grow.
_PATIENCE = 15

#: Of a schedule, when the last rank is done and the sum over all ranks: what is to be small.
Cost = tuple[int, int]


@dataclass(frozen=True)
class Core:
    """Trees and their roots.

    Attributes:
        core: the ranks that exchange, in order.
        up, down: the parent of each rank, a core rank's is itself; None: nothing goes that way.
        order: of the children of each rank, those that come first are sent to first.
    """

    core: tuple[int, ...]
    up: Tree | None
    down: Tree | None
    order: tuple[int, ...]


def programs(core: Core, gathers: bool = False) -> list[Program]:
    """The schedule of each rank: one strand of one channel.

    ``gathers``: every rank has a block of its own, and a message carries those that its sender has
    gathered; else there is one block.
    """
    ranks = len(core.order)
    return [[[list(_rounds(core, rank, _Blocks(core, gathers)))]] for rank in range(ranks)]


class _Blocks:
    """What messages carry."""

    def __init__(self, core: Core, gathers: bool) -> None:
        self.core, self.gathers = core, gathers
        self.every = range(len(core.order))
        self.receive = Recv if gathers else RecvReduce

    def _gathered(self, tree: Tree, rank: int) -> set[int]:
        return {other for other in self.every if rank in _path(tree, other)}

    def up(self, child: int) -> Block:
        """To the parent: what is below."""
        if not self.gathers or self.core.up is None:
            return 0
        return tuple(sorted(self._gathered(self.core.up, child)))

    def across(self, place: int, distance: int) -> Block:
        """To another of the core: what those nearer have had."""
        if not self.gathers or self.core.up is None:
            return 0
        near = [p for p in range(len(self.core.core)) if p // distance == place // distance]
        every = [self._gathered(self.core.up, self.core.core[p]) for p in near]
        return tuple(sorted(set().union(*every)))

    def down(self, child: int) -> Block:
        """To a child: what it and those below it have not had."""
        if not self.gathers or self.core.down is None or self.core.up is None:
            return 0
        # What went up from a rank it has; those below it by another tree need not have it.
        below = self._gathered(self.core.down, child)
        has = set.intersection(*(self._gathered(self.core.up, rank) for rank in below))
        return tuple(sorted(set(self.every) - has))


def _rounds(core: Core, rank: int, blocks: _Blocks) -> Iterator[Round]:
    if core.up is not None:
        below = _children(core.up, core.order, rank)
        if below:
            yield tuple(blocks.receive(child, blocks.up(child)) for child in below)
        if core.up[rank] != rank:
            yield (Send(core.up[rank], blocks.up(rank)),)
    if rank in core.core:
        place = core.core.index(rank)
        for distance in doubling(len(core.core)):
            peer = core.core[place ^ distance]
            has, gets = blocks.across(place, distance), blocks.across(place ^ distance, distance)
            yield (Send(peer, has), blocks.receive(peer, gets))
    if core.down is not None:
        if core.down[rank] != rank:
            yield (Recv(core.down[rank], blocks.down(rank)),)
        below = [
            child for child in _children(core.down, core.order, rank) if blocks.down(child) != ()
        ]
        if below:
            yield tuple(Send(child, blocks.down(child)) for child in below)


def _children(tree: Tree, order: Sequence[int], rank: int) -> list[int]:
    return [child for child in order if tree[child] == rank and child != rank]


def in_order(core: Sequence[int]) -> bool:
    """Whether the same half has the lower rank of every pair, in all exchanges of two halves."""
    distance = 1
    while distance < len(core):
        for first in range(0, len(core), 2 * distance):
            lower = [
                core[place] < core[place + distance] for place in range(first, first + distance)
            ]
            if len(set(lower)) > 1:
                return False
        distance *= 2
    return True


def search(
    collective: str,
    machine: Machine,
    nbytes: int,
    root: int | None,
    cost: Callable[[Core], Cost],
    evaluations: int,
    seed: int,
) -> list[Core]:
    """The best core of each size.

    Args:
        collective: one of :data:`WAYS`.
        machine: with a network.
        nbytes: bytes of the whole vector.
        root: of a rooted collective; else None.
        cost: asks the clock.
        evaluations: how often it is asked, all sizes together.
        seed: of the dice.
    """
    network = machine.network
    assert network is not None
    sizes = [1] if root is not None else [n for n in _SIZES if n <= network.ranks]
    length = nbytes // network.ranks if collective == "allgather" else nbytes
    found = []
    for size in sizes:
        dice = random.Random(f"{seed} {collective} {nbytes} {size}")
        core = (root,) if root is not None else _spread(network.hosts, size)
        here = best = _start(collective, machine, length, core)
        reached = least = cost(best)
        waits = 0
        for _ in range(evaluations // len(sizes) - 1):
            if waits == _PATIENCE:
                here, waits = _start(collective, machine, length, core, dice), 0
                reached = cost(here)
            else:
                other = changed(here, dice)
                if other == here or not allowed(other, root):
                    continue
                now, waits = cost(other), waits + 1
                if now < reached:
                    waits = 0
                if now <= reached:
                    here, reached = other, now
            if reached < least:
                best, least = here, reached
        found.append(best)
    return found


def _spread(hosts: Sequence[int], count: int) -> tuple[int, ...]:
    """Ranks for a core, on as many hosts as can be."""
    turn = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    return tuple(sorted(sorted(range(len(hosts)), key=lambda rank: (turn[rank], rank))[:count]))


def _start(
    collective: str,
    machine: Machine,
    nbytes: int,
    core: tuple[int, ...],
    dice: random.Random | None = None,
) -> Core:
    """Trees that grow from the core by the message that arrives first; with dice, by other times.

    Args:
        dice: Each message takes up to twice its time, by chance; None: its time.
    """
    grown = {way: _grown(core, _times(machine, nbytes, way, dice)) for way in WAYS[collective]}
    order = next(iter(grown.values()))[1]
    trees = {way: tree for way, (tree, _) in grown.items()}
    # Who was reached first has the most below, and comes first.
    return Core(core, trees.get(UP), trees.get(DOWN), (*order, *core))


#: Between two ranks: how long a message takes, and how long it keeps the sender's port.
_Times = dict[tuple[int, int], tuple[float, float]]


def _times(machine: Machine, nbytes: int, way: str, dice: random.Random | None) -> _Times:
    """From the rank that is nearer to the core to the one that is farther."""
    network = machine.network
    assert network is not None
    found = {}
    for near, far in itertools.permutations(range(network.ranks), 2):
        pair = (near, far) if way == DOWN else (far, near)
        held = max(time for time, _, _ in network.held(*pair, nbytes))
        factor = 1 if dice is None else 1 + dice.random()
        found[near, far] = (factor * network.message(*pair, nbytes), factor * held / machine.ports)
    return found


def _grown(core: tuple[int, ...], times: _Times) -> tuple[Tree, list[int]]:
    """A tree from each rank of the core, and the ranks in the order in which they are reached."""
    ranks = max((*core, *(far for _, far in times))) + 1
    parent = list(range(ranks))
    ready = dict.fromkeys(core, 0.0)  # when a rank can send next
    order = []
    while len(ready) < ranks:
        arrivals = [
            (free + times[near, far][0], near, far)
            for near, free in ready.items()
            for far in range(ranks)
            if far not in ready
        ]
        arrives, near, far = min(arrivals)
        ready[near] += times[near, far][1]
        ready[far] = arrives
        parent[far] = near
        order.append(far)
    return tuple(parent), order


def changed(core: Core, dice: random.Random) -> Core:
    """The same with another parent of a rank, two ranks in each other's place, or another order."""
    ranks = len(core.order)
    move = dice.randrange(3)
    if move == 0:
        way = dice.choice([way for way in (UP, DOWN) if getattr(core, way) is not None])
        tree = list(getattr(core, way))
        rank = dice.choice([r for r in range(ranks) if r not in core.core] or [core.core[0]])
        above = dice.randrange(ranks)
        if rank in core.core or rank in _path(tree, above):
            return core
        tree[rank] = above
        return replace(core, **{way: tuple(tree)})
    one, other = dice.sample(range(ranks), 2)
    if move == 1:
        order = list(core.order)
        order[one], order[other] = order[other], order[one]
        return replace(core, order=tuple(order))

    def name(rank: int) -> int:
        return other if rank == one else one if rank == other else rank

    def renamed(tree: Tree | None) -> Tree | None:
        return None if tree is None else tuple(name(tree[name(rank)]) for rank in range(ranks))

    return Core(
        tuple(map(name, core.core)),
        renamed(core.up),
        renamed(core.down),
        tuple(map(name, core.order)),
    )


def _path(tree: Sequence[int], rank: int) -> list[int]:
    """A rank and those above it."""
    path = [rank]
    while tree[path[-1]] != path[-1]:
        path.append(tree[path[-1]])
    return path


def allowed(core: Core, root: int | None) -> bool:
    """Whether a core may be used: in order, and with its root where there is one."""
    return in_order(core.core) and (root is None or core.core == (root,))
