"""What a collective's time is made of: the critical path that the simulator finds, counted.

The path leads from the start to the end of the last rank; each of its messages begins when the
one before it has ended, has been reduced, or has left a port free.  So under the costs that it was
found with, the time of the collective is exactly the sum over the path, and under other costs it
is linear in them as long as the path stays the same.  Predictions count on paths under the costs of
all algorithms together; a fit begins with those of :func:`reference`, and finds the paths again
under what it has found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from mpicoll import algorithms
from mpicoll.registry import Algorithm
from mpicoll.schedule import Channel, Copy, RecvReduce, Send, blocks
from mpicoll.schedule.layout import even
from mpicoll.schedule.parameters import Value
from mpicoll.simulate.clock import RoundPlace, Transfer, trace
from mpicoll.simulate.costs import INTER, INTRA, Costs, Piece
from mpicoll.simulate.machine import Machine

# Picoseconds; most of a latency keeps no port busy.
_STEP, _ALPHA, _BETA, _GAMMA = 900_000, 100_000, 100, 50
_UNIT = 10**15  # of a second, where costs are given
#: How many times as much a message costs between nodes.
_FAR = 10
#: Messages up to which they are found message by message.
MOST_MESSAGES = 30_000


class TooManyMessages(ValueError):
    """A path that would take too long to find; :mod:`mpicoll.simulate` has faster ways."""


# Bytes of a block from which on all are counted as long as the longest, at most 1 % too much.
_LONG = 128


@dataclass(frozen=True)
class Path:
    """What happens one after the other until the last rank is done.

    Attributes:
        rounds: rounds in which a rank receives.
        messages: number of messages by link and bytes.
        reduced: bytes reduced.
        ranks: how many there are.
    """

    rounds: int
    messages: Mapping[tuple[str, int], int]
    reduced: int
    ranks: int

    def seconds(self, costs: Costs) -> float:
        """The time of a call."""
        total = costs.call + self.rounds * costs.step + self.reduced * costs.gamma
        for (link, nbytes), count in self.messages.items():
            piece = costs.piece(nbytes, link)
            total += count * (piece.alpha + nbytes * piece.beta)
        return total * costs.factors.get(self.ranks, 1.0)


def reference(nodes: tuple[int, ...] = ()) -> Machine:
    """The costs under which paths are found where none are given, for ranks on some nodes."""
    if len(set(nodes)) < 2:
        return Machine(_ALPHA, _BETA, _GAMMA, step=_STEP)
    near, far = Piece(None, _ALPHA, _BETA), Piece(None, _FAR * _ALPHA, _FAR * _BETA)
    return Machine(0, 0, _GAMMA, step=_STEP, links={INTRA: (near,), INTER: (far,)}, nodes=nodes)


def _under(costs: Costs, nodes: tuple[int, ...]) -> Machine:
    """Costs in integers, no message without time: of two that follow one another one is later."""
    machine = Machine.of(costs, _UNIT)
    links = {
        kind: tuple(replace(piece, alpha=max(piece.alpha, 1)) for piece in pieces)
        for kind, pieces in machine.links.items()
    }
    return replace(machine, links=links, nodes=nodes, call=0)


@lru_cache(maxsize=1 << 14)
def critical_path(
    collective: str,
    name: str,
    size: int,
    nbytes: int,
    parameters: tuple[tuple[str, Value], ...] = (),
    root: int = 0,
    nodes: tuple[int, ...] = (),
    costs: Costs | None = None,
) -> Path:
    """The critical path of an algorithm.

    Args:
        collective, name, parameters: the algorithm.
        size: number of ranks.
        nbytes: bytes of the whole vector, see :func:`evened`.
        root: of a rooted collective.
        nodes: the node of each rank; none: all ranks are on one.
        costs: under which it is found, if not :func:`reference`.

    Raises:
        ValueError: unknown names, or a value out of range.
        TooManyMessages: more than :data:`MOST_MESSAGES`, and the ranks are not all alike.
    """
    algorithm = algorithms.find(collective, name)
    given = dict(parameters)
    machine = reference(nodes) if costs is None else _under(costs, nodes)
    if size == 1:
        return Path(0, {}, 0, 1)
    many = algorithm.count_of("messages", size, root, given) > MOST_MESSAGES
    nbytes = evened(algorithm, size, nbytes)
    equal = nbytes % max(1, algorithm.blocks(size)) == 0
    if algorithm.symmetric and len(set(nodes)) in (0, 1, size) and (many or equal):
        channels = algorithm.channels(0, size, 0, given)
        if len(channels) == 1:
            return _of_any_rank(algorithm, size, nbytes, channels[0], machine)
    if many:
        raise _too_many(algorithm, size)
    return _Walk(algorithm, size, nbytes, root, given, machine).path()


def evened(algorithm: Algorithm, size: int, nbytes: int) -> int:
    """The bytes of which a path is found: where blocks are long, all as long as the longest.

    Ranks take turns at ports.  A message that lasts a byte longer than others comes late for its
    turn, and keeps several from theirs; no network is as strict.
    """
    nblocks = max(1, algorithm.blocks(size))
    return nbytes + -nbytes % nblocks if nbytes >= _LONG * nblocks else nbytes


def _too_many(algorithm: Algorithm, size: int) -> TooManyMessages:
    return TooManyMessages(
        f"{algorithm.collective} {algorithm.name} on {size} ranks has more than {MOST_MESSAGES} "
        "messages"
    )


class _Walk:
    """The way back from the end of the last rank."""

    def __init__(
        self,
        algorithm: Algorithm,
        size: int,
        nbytes: int,
        root: int,
        parameters: Mapping[str, Value],
        machine: Machine,
    ) -> None:
        self.machine, self.size = machine, size
        self.last: dict[RoundPlace, Transfer] = {}
        self.reduced: Counter[RoundPlace] = Counter()
        self.receive: set[RoundPlace] = set()
        self.ended: dict[tuple[str, int, int], Transfer] = {}
        for transfer in trace(algorithm, size, root, parameters, nbytes, machine):
            for side in transfer.rounds:
                if side not in self.last or self.last[side].end < transfer.end:
                    self.last[side] = transfer
            at_receiver = transfer.rounds[1]
            self.receive.add(at_receiver)
            if transfer.reduces:
                self.reduced[at_receiver] += self._message(transfer)[1]
            self.ended["out", transfer.sender, transfer.end] = transfer
            self.ended["in", transfer.receiver, transfer.end] = transfer
        self.opened: dict[tuple[int, int], RoundPlace] = {
            (place[0], self.done(place)): place for place in self.last
        }

    def done(self, place: RoundPlace) -> int:
        """When a rank has stored and reduced what a round received."""
        step = self.machine.step if place in self.receive else 0
        return self.last[place].end + step + self.machine.gamma * self.reduced[place]

    def path(self) -> Path:
        """The path, counted."""
        messages: Counter[tuple[str, int]] = Counter()
        if not self.last:
            return Path(0, {}, 0, self.size)
        place: RoundPlace | None = max(self.last, key=self.done)
        rounds = reduced = 0
        while place is not None:
            rounds += place in self.receive
            reduced += self.reduced[place]
            transfer: Transfer = self.last[place]
            place = None
            while True:
                messages[self._message(transfer)] += 1
                if not transfer.start:
                    break
                place = self._round_before(transfer)
                if place is not None:
                    break
                transfer = self._port_before(transfer)
        return Path(rounds, dict(messages), reduced, self.size)

    def _message(self, transfer: Transfer) -> tuple[str, int]:
        """The link of a message, and its bytes."""
        return self.machine.link(transfer.sender, transfer.receiver), transfer.nbytes

    def _round_before(self, transfer: Transfer) -> RoundPlace | None:
        """The round whose end let a message start, if one did."""
        before = [self._before(side) for side in transfer.rounds]
        for place in before:
            if place is not None and self.done(place) == transfer.start:
                return place
        for (rank, _, _), place in zip(transfer.rounds, before, strict=True):
            if place is None and ("out", rank, transfer.start) not in self.ended:
                opened = self.opened.get((rank, transfer.start))  # a segment within the window
                if opened is not None:
                    return opened
        return None

    def _before(self, place: RoundPlace) -> RoundPlace | None:
        """The round with messages before one of the same channel."""
        rank, channel, number = place
        earlier = ((rank, channel, index) for index in range(number - 1, -1, -1))
        return next((place for place in earlier if place in self.last), None)

    def _port_before(self, transfer: Transfer) -> Transfer:
        """The message that a message waited for, because it had the port."""
        found = self.ended.get(("in", transfer.receiver, transfer.start))
        return found or self.ended["out", transfer.sender, transfer.start]


def _of_any_rank(
    algorithm: Algorithm, size: int, nbytes: int, channel: Channel, machine: Machine
) -> Path:
    """The path of a symmetric algorithm: all ranks do the same, so rank 0's rounds are it.

    Where the ranks do not divide the bytes, blocks are as long as the longest.
    """
    nblocks, nscratch = algorithm.blocks(size), algorithm.scratch(size)
    block = even(nbytes, nblocks).counts[0] if nblocks else 0
    messages: Counter[tuple[str, int]] = Counter()
    rounds = reduced = 0
    for steps in channel.rounds:
        length = [
            (step, block * len(blocks(step.block, nblocks, nscratch)))
            for step in steps
            if not isinstance(step, Copy)
        ]
        rounds += any(not isinstance(step, Send) for step, _ in length)
        for step, nbytes in length:
            if isinstance(step, Send):
                messages[machine.link(0, step.peer), nbytes] += 1
            elif isinstance(step, RecvReduce):
                reduced += nbytes
    return Path(rounds, dict(messages), reduced, size)
