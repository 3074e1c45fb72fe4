"""What runs: where every message of one collective call begins and ends, in bytes.

A :class:`Plan` holds offsets into buffers, never addresses: the user's input, the user's output,
and temporary space of the plan's own.  It is built (:mod:`mpicoll.engine.planning`) without
communication, so one rank may find a plan in its cache where another builds it.  A runner
(:mod:`mpicoll.engine.runner`) executes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mpicoll.engine.spans import Span, adjacent
from mpicoll.schedule.layout import Layout
from mpicoll.schedule.parameters import Value

#: Buffers: the user's two, blocks in temporary space, and from here on one a channel's messages.
INPUT, OUTPUT, BLOCKS, MESSAGES = 0, 1, 2, 3

#: Longest message, bytes.
PIECE = 4 << 20


class Move(NamedTuple):
    """Copy bytes."""

    target: Span
    source: Span


class PlannedMessage(NamedTuple):
    """Send or receive bytes."""

    peer: int
    span: Span


class Fold(NamedTuple):
    """``target = operands[0] op operands[1] op ...``, from left to right.

    ``wide_first`` and ``wide_target``: the first operand, the target is in the accumulator's type
    (see :class:`mpicoll.ops.Reduction`).
    """

    target: Span
    operands: tuple[Span, ...]
    wide_first: bool = False
    wide_target: bool = False


def merged(folds: Iterable[Fold]) -> tuple[Fold, ...]:
    """Folds of adjacent blocks as one, without empty ones."""
    merged: list[Fold] = []
    for fold in folds:
        if not fold.target.length:
            continue
        spans = (fold.target, *fold.operands)
        before = (merged[-1].target, *merged[-1].operands) if merged else ()
        if len(before) == len(spans) and all(map(adjacent, before, spans)):
            target, *operands = (
                a._replace(length=a.length + b.length) for a, b in zip(before, spans, strict=True)
            )
            merged[-1] = merged[-1]._replace(target=target, operands=tuple(operands))
        else:
            merged.append(fold)
    return tuple(merged)


class Phase(NamedTuple):
    """Moves, then messages posted, then (all received) stores and folds.

    The last phase of a round also waits until the round's sends are complete.
    """

    moves: tuple[Move, ...]
    receives: tuple[PlannedMessage, ...]
    sends: tuple[PlannedMessage, ...]
    stores: tuple[Move, ...]
    folds: tuple[Fold, ...]
    last: bool


class PlannedChannel(NamedTuple):
    """The phases of one channel; for the segments see :class:`mpicoll.schedule.Channel`."""

    phases: tuple[Phase, ...]
    segment: int
    segments: int
    window: int


class Shape(NamedTuple):
    """All that a plan depends on.

    Attributes:
        collective, algorithm, parameters: which schedule; parameters as (name, value) pairs.
        rank, size, root: who takes part.
        in_place: the input is where the output is (always so in a broadcast; in a scatter: the
            root's own block stays in its input).
        itemsize: bytes per element; data movement counts in bytes, 1.
        wide: bytes per element of the accumulator.
        input, output: the blocks, in elements.  Where a rank hands in or gets its own block alone,
            that one stands at the beginning of the buffer whatever its offset here.
        whole: no fold is parted, even where space is short: messages are cut shorter instead.
    """

    collective: str
    algorithm: str
    parameters: tuple[tuple[str, Value], ...]
    rank: int
    size: int
    root: int
    in_place: bool
    itemsize: int
    wide: int
    input: Layout
    output: Layout
    whole: bool = False


class Plan(NamedTuple):
    """Offsets for one shape.

    Attributes:
        shape: what it was built for.
        before: copies made first.
        channels: the messages.
        after: copies made last.
        temporary: bytes of each temporary buffer (:data:`BLOCKS`, :data:`MESSAGES` and on).
    """

    shape: Shape
    before: tuple[Move, ...]
    channels: tuple[PlannedChannel, ...]
    after: tuple[Move, ...]
    temporary: tuple[int, ...]

    @property
    def most_open(self) -> int:
        """How many channels may be open at a time: each has space for its messages."""
        return len(self.temporary[MESSAGES - BLOCKS :])
