"""Which ranks do the same, so that few of them need be followed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, zip_longest
from typing import Any

from mpicoll.schedule import Block, Channel, Copy, Round, number_of_blocks
from mpicoll.schedule.steps import Elsewhere

#: The channels of one rank.
Program = tuple[Channel, ...]


def repeats_every(
    period: int, size: int, programs: Callable[[int], Program], samples: Iterable[int]
) -> bool:
    """Whether each of some ranks does what the rank that represents it does.

    Rank r is represented by rank r modulo ``period``, and does the same if it has the same rounds,
    each with as many blocks to and from ranks that are as far away, round the ring of ranks.
    """
    if size % period:
        return False
    return all(
        _alike(programs(rank), programs(rank % period), rank - rank % period, size)
        for rank in samples
        if rank >= period
    )


def _alike(program: Program, other: Program, shift: int, size: int) -> bool:
    if len(program) != len(other):
        return False
    for one, two in zip(program, other, strict=True):
        if one[1:] != two[1:]:
            return False
        for mine, theirs in zip_longest(one.rounds, two.rounds):
            if None in (mine, theirs):
                return False
            if _relative(mine, shift, size) != _relative(theirs, 0, size):
                return False
    return True


def _relative(steps: Round, shift: int, size: int) -> list[tuple[type, int, int]]:
    """The messages of a round, peers counted from a shift on."""
    return [
        (type(step), (step.peer - shift) % size, number_of_blocks(step.block))
        for step in steps
        if not isinstance(step, Copy)
    ]


def weight(program: Program, limit: int) -> int:
    """About how many steps a rank has, those that name many blocks counted several times.

    Stops at ``limit``.
    """
    found = 0
    for steps in chain.from_iterable(channel.rounds for channel in program):
        found += sum(1 + _named(step) // 8 for step in steps)
        if found > limit:
            break
    return found


def _named(step: Any) -> int:
    """Blocks that a step names one by one."""
    block: Block = step.dst if isinstance(step, Copy) else step.block
    while isinstance(block, Elsewhere):
        block = block.block
    return len(block) if isinstance(block, tuple) else 0
