"""A plan as the compiled engine runs it: folds cut along the messages that they read.

In a plan a phase folds when all its messages are there.  A fold that reads a message only where
that message lies can do so as soon as this message is there, from wherever the transport has it,
without a copy to the place that the plan has for it.  So folds are cut where messages end, and what
must wait for the same messages becomes a :class:`Unit`.  The expression of every element stays the
same, and so does the result.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mpicoll.engine.plan import Fold, Move, Phase, Plan, PlannedMessage, Shape
from mpicoll.engine.spans import Span, overlap, sub


class Operand(NamedTuple):
    """Bytes of a message, from an offset on (``receive``: its number in the phase); or, where that
    is -1, a place in memory."""

    receive: int
    span: Span


class LoweredFold(NamedTuple):
    """``target = operands[0] op operands[1] op ...``, from left to right."""

    target: Span
    operands: tuple[Operand, ...]


class Unit(NamedTuple):
    """Folds that wait for the same messages.

    Attributes:
        receives: numbers of the messages in the phase.
        folds: what to do when they are there.
        sends: so many of the phase's sends must be complete first, because they read a target.
    """

    receives: tuple[int, ...]
    folds: tuple[LoweredFold, ...]
    sends: int


class LoweredPhase(NamedTuple):
    """As :class:`mpicoll.engine.plan.Phase`, with units.

    Attributes:
        folds: those that fit no unit.
        written: numbers of the sends that the phase's folds overwrite.
    """

    moves: tuple[Move, ...]
    receives: tuple[PlannedMessage, ...]
    sends: tuple[PlannedMessage, ...]
    units: tuple[Unit, ...]
    stores: tuple[Move, ...]
    folds: tuple[Fold, ...]
    last: bool
    written: frozenset[int]


def shortest_read(shape: Shape, moved: int, folded: int, slot: int) -> int | None:
    """Bytes from which on a message is read from the memory of its sender; None: none is.

    Long blocks that go from where they are to one rank are read where they are.  So is what two
    ranks reduce if each folds a part of it, and the messages are longer than caches hold: it is
    folded a piece at a time, and never lies in memory between.  (Where the result is handed out at
    once, as in an all-reduce, slots are better as long as they hold a message.)  Anything else is
    better read from a slot, which may still be in a cache, and which the sender fills while the
    reader folds.

    Args:
        shape: of the plan.
        moved, folded: for the one and for the other.
        slot: the longest message that a slot holds.
    """
    if shape.collective in ("alltoall", "gather", "scatter"):
        return moved
    if shape.size == 2 and shape.collective in ("allgather", "bcast", "exscan"):
        return moved
    if shape.size == 2 and shape.collective == "allreduce":
        return slot
    if shape.size == 2 and shape.collective == "reduce_scatter":
        return folded
    return None


def lower(plan: Plan) -> tuple[tuple[LoweredPhase, ...], ...]:
    """The phases of each channel of a plan."""
    return tuple(tuple(_phase(phase) for phase in channel.phases) for channel in plan.channels)


def _phase(phase: Phase) -> LoweredPhase:
    landings = _Landings(phase.receives)
    # What is partly reduced in a wider type is rare; it waits for the whole phase.
    late = tuple(fold for fold in phase.folds if _is_partial(fold))
    parts = [p for fold in phase.folds if not _is_partial(fold) for p in _parts(fold, landings)]
    sends = _in_turn(phase.sends)
    units = tuple(
        Unit(receives, folds, _sends_before(folds, sends)) for receives, folds in _grouped(parts)
    )
    written = frozenset(
        number
        for number, message in enumerate(sends)
        if any(overlap(fold.target, message.span) for fold in phase.folds)
    )
    return LoweredPhase(
        phase.moves, phase.receives, sends, units, phase.stores, late, phase.last, written
    )


def _is_partial(fold: Fold) -> bool:
    """Whether it begins or ends with a value in the accumulator's type."""
    return fold.wide_first or fold.wide_target


def _in_turn(sends: Sequence[PlannedMessage]) -> tuple[PlannedMessage, ...]:
    """The first message to every peer, then the second, ...

    So a transport with room for a message to each never waits for one peer with what another one
    needs first, and what goes to several peers can be copied once.
    """
    number: Counter[int] = Counter()
    turns: list[tuple[int, PlannedMessage]] = []
    for message in sends:
        turns.append((number[message.peer], message))
        number[message.peer] += 1
    return tuple(message for _, message in sorted(turns, key=lambda turn: turn[0]))


class _Landings:
    """Where the messages of a phase are received."""

    def __init__(self, receives: Sequence[PlannedMessage]) -> None:
        places = sorted(
            (message.span, number) for number, message in enumerate(receives) if message.span.length
        )
        self._spans = [span for span, _ in places]
        self._numbers = [number for _, number in places]

    def at(self, buffer: int, offset: int) -> tuple[int, Span] | None:
        """The message that has a byte of memory, and its place."""
        index = bisect_right(self._spans, Span(buffer, offset, 1 << 62)) - 1
        if index < 0:
            return None
        span = self._spans[index]
        if span.buffer != buffer or offset >= span.offset + span.length:
            return None
        return self._numbers[index], span


def _parts(fold: Fold, landings: _Landings) -> Iterator[LoweredFold]:
    """A fold, cut where a message of one of its operands ends."""
    start, total = 0, fold.target.length
    while start < total:
        length, operands = total - start, []
        for operand in fold.operands:
            found = landings.at(operand.buffer, operand.offset + start)
            if found is None:
                operands.append(Operand(-1, sub(operand, start, length)))
                continue
            number, span = found
            inside = operand.offset + start - span.offset
            length = min(length, span.length - inside)
            operands.append(Operand(number, Span(span.buffer, inside, length)))
        yield LoweredFold(
            sub(fold.target, start, length),
            tuple(o._replace(span=o.span._replace(length=length)) for o in operands),
        )
        start += length


def _grouped(
    parts: Sequence[LoweredFold],
) -> Iterator[tuple[tuple[int, ...], tuple[LoweredFold, ...]]]:
    """Folds that have a message in common, directly or through others; and their messages."""
    group: dict[int, int] = {}  # of each message: number of one of its group, by which it goes

    def find(number: int) -> int:
        while group.setdefault(number, number) != number:
            number = group[number]
        return number

    for part in parts:
        named = [operand.receive for operand in part.operands if operand.receive >= 0]
        for number in named:
            group[find(number)] = find(named[0])
    folds: dict[int, list[LoweredFold]] = {}
    for part in parts:
        first = next((o.receive for o in part.operands if o.receive >= 0), -1)
        folds.setdefault(find(first) if first >= 0 else -1, []).append(part)
    for name, members in folds.items():
        yield (
            tuple(sorted(number for number in group if find(number) == name)),
            tuple(members),
        )


def _sends_before(folds: Sequence[LoweredFold], sends: Sequence[PlannedMessage]) -> int:
    """How many sends, from the first on, include all that read a target of the folds."""
    reading = (
        number
        for number, message in enumerate(sends, 1)
        if any(overlap(fold.target, message.span) for fold in folds)
    )
    return max(reading, default=0)
