"""Runs of bytes in buffers: how they are joined and cut, and handed out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

#: Offsets in temporary space are multiples of it.
ALIGNMENT = 64


class Span(NamedTuple):
    """Bytes of one buffer."""

    buffer: int
    offset: int
    length: int


def sub(span: Span, offset: int, length: int) -> Span:
    """``length`` bytes of a span from ``offset`` on."""
    return Span(span.buffer, span.offset + offset, length)


def laid(whole: Span, spans: Sequence[Span]) -> list[Span]:
    """Parts of ``whole`` as long as ``spans``, one behind the other."""
    starts = accumulate((span.length for span in spans), initial=0)
    return [sub(whole, start, span.length) for start, span in zip(starts, spans, strict=False)]


def cut_out(spans: Sequence[Span], start: int, length: int) -> list[Span]:
    """Bytes ``start`` to ``start + length`` of the content of several spans."""
    found = []
    offsets = accumulate((span.length for span in spans), initial=0)
    for span, offset in zip(spans, offsets, strict=False):
        lo, hi = max(start - offset, 0), min(start + length - offset, span.length)
        if lo < hi:
            found.append(sub(span, lo, hi - lo))
    return found


def adjacent(a: Span, b: Span) -> bool:
    """Whether ``b`` begins where ``a`` ends."""
    return a.buffer == b.buffer and a.offset + a.length == b.offset


def overlap(a: Span, b: Span) -> bool:
    """Whether two spans have bytes in common."""
    return (
        a.buffer == b.buffer and a.offset < b.offset + b.length and b.offset < a.offset + a.length
    )


def joined(spans: Iterable[Span]) -> list[Span]:
    """The same bytes in as few spans as possible, without empty ones."""
    joined: list[Span] = []
    for span in spans:
        if not span.length:
            continue
        if joined and adjacent(joined[-1], span):
            joined[-1] = joined[-1]._replace(length=joined[-1].length + span.length)
        else:
            joined.append(span)
    return joined


class Arena:
    """A temporary buffer, handed out in order, and again from the start after ``rewind``."""

    def __init__(self, buffer: int) -> None:
        self.buffer = buffer
        self.next = self.end = 0

    def take(self, length: int) -> Span:
        """Bytes that nobody else has until it is rewound."""
        span = Span(self.buffer, self.next, length)
        self.next += -(-length // ALIGNMENT) * ALIGNMENT
        self.end = max(self.end, self.next)
        return span

    def rewind(self) -> None:
        """Hand out the same again."""
        self.next = 0
