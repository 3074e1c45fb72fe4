"""From trees to schedules: the rounds of a channel follow the levels of its trees."""

from __future__ import annotations

from collections.abc import Sequence

from mpicoll.registry import COMMUTATIVE, SAME_BITS
from mpicoll.schedule import Channels, Recv, RecvReduce, Round, Send, Step, channels, strands
from mpicoll.schedule.collectives import COLLECTIVES
from mpicoll.schedule.matching import Matching
from mpicoll.schedule.memory import Blank
from mpicoll.simulate import compiled
from mpicoll.simulate.clock import clock
from mpicoll.simulate.machine import Machine, Sizes
from mpicoll.synthesis.pack import Forest, Part, Tree

#: Of a rank: of each strand the channels, of each the rounds.
Program = list[list[list[Round]]]


def programs(forest: Forest, ranks: int, apart: bool = False) -> list[Program]:
    """The schedule of each rank.

    Args:
        forest: the trees.
        ranks: how many there are.
        apart: whether each block has a channel of its own, so that none waits for another one;
            else a strand is one channel, and blocks that go the same way share their messages.
    """
    strands_of = [
        [_channel(group, ranks) for group in ([[part] for part in parts] if apart else [parts])]
        for parts in forest.strands
    ]
    return [
        [[rounds[rank] for rounds in of_strand] for of_strand in strands_of]
        for rank in range(ranks)
    ]


def promises(collective: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What trees need of a call, and what they promise."""
    reduces = COLLECTIVES[collective].reduces
    # Each part of a sum is made at one root.
    return (COMMUTATIVE,) if reduces else (), (SAME_BITS,) if reduces else ()


def blocks(collective: str, ranks: int) -> int:
    """How many blocks the schedules have."""
    return ranks if COLLECTIVES[collective].block_per_rank else 1


def _channel(parts: Sequence[Part], ranks: int) -> list[list[Round]]:
    """The rounds of each rank: those of all levels up, the deepest first, then of all down."""
    found: list[list[Round]] = [[] for _ in range(ranks)]
    ups = [(part.block, part.up) for part in parts if part.up is not None]
    downs = [(part.block, part.down) for part in parts if part.down is not None]
    for level in reversed(_levels(ups)):
        _add(found, level, up=True)
    for level in _levels(downs):
        _add(found, level, up=False)
    return found


#: A message along an edge of a tree: child, parent, block, and how high the child's subtree is.
_Edge = tuple[int, int, int, int]


def _levels(trees: Sequence[tuple[int, Tree]]) -> list[list[_Edge]]:
    """The edges by the level of the child, nearest to the roots first."""
    levels: list[list[_Edge]] = []
    for block, tree in trees:
        depth = [_depth(tree, rank) for rank in range(len(tree))]
        height = [0] * len(tree)
        for rank in sorted(range(len(tree)), key=lambda rank: -depth[rank]):
            if tree[rank] != rank:
                height[tree[rank]] = max(height[tree[rank]], height[rank] + 1)
        for rank, parent in enumerate(tree):
            if rank != parent:
                while len(levels) < depth[rank]:
                    levels.append([])
                levels[depth[rank] - 1].append((rank, parent, block, height[rank]))
    return levels


def _depth(tree: Tree, rank: int) -> int:
    depth = 0
    while tree[rank] != rank:
        rank, depth = tree[rank], depth + 1
    return depth


def _add(found: list[list[Round]], level: Sequence[_Edge], up: bool) -> None:
    """Add a round to each rank that has a message on a level."""
    # Blocks between the same ranks go as one message, the one with the longest way to go first.
    messages: dict[tuple[int, int], list[int]] = {}
    for child, parent, block, _ in sorted(level, key=lambda edge: (-edge[3], edge)):
        messages.setdefault((child, parent) if up else (parent, child), []).append(block)
    steps: dict[int, list[Step]] = {}
    receive = RecvReduce if up else Recv
    for (source, target), moved in messages.items():
        named = moved[0] if len(moved) == 1 else tuple(sorted(moved))
        steps.setdefault(source, []).append(Send(target, named))
        steps.setdefault(target, []).append(receive(source, named))
    for rank, of_rank in steps.items():
        found[rank].append(tuple(of_rank))


def made(program: Program, segments: int, window: int) -> Channels:
    """The schedule of a rank."""
    return strands(*(channels(*strand) for strand in program), segments=segments, window=window)


def finish(
    ranks: Sequence[Program],
    nblocks: int,
    nbytes: int,
    machine: Machine,
    segments: int = 1,
    window: int = 8,
) -> tuple[int, ...]:
    """When each rank is done, by the clock."""
    sizes = Sizes(nbytes, nblocks, len(ranks[0]) * segments)
    if compiled.available(machine):
        # The first segment of each strand says it all: to make the others takes longer.
        firsts = [made(program, 1, window).items for program in ranks]
        return compiled.run(firsts, len(ranks), sizes, machine, segments).finish
    every = [made(program, segments, window).items for program in ranks]
    matching = Matching(every, nblocks, 0, [Blank() for _ in ranks])
    return clock(matching, machine, sizes).finish
