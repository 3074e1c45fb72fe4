"""How a vector is cut into blocks, and a block into segments.  Pure integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Layout(NamedTuple):
    """Where each block begins and how long it is, in elements."""

    offsets: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def extent(self) -> int:
        """Elements from the start of the buffer to the end of the last block that has any."""
        pairs = zip(self.offsets, self.counts, strict=True)
        return max((offset + count for offset, count in pairs if count), default=0)


def part(count: int, parts: int, index: int) -> tuple[int, int]:
    """Offset and length of one of ``parts`` parts of ``count`` elements.

    Lengths differ by at most one, longer parts first; parts may be empty.
    """
    length, longer = divmod(count, parts)
    return index * length + min(index, longer), length + (index < longer)


def even(count: int, blocks: int) -> Layout:
    """``count`` elements in ``blocks`` adjacent blocks whose lengths differ by at most one."""
    cut = [part(count, blocks, index) for index in range(blocks)]
    return Layout(tuple(offset for offset, _ in cut), tuple(length for _, length in cut))


def displaced(counts: Sequence[int], displacements: Sequence[int] | None = None) -> Layout:
    """Blocks of given lengths at given displacements (adjacent, if none are given).

    Raises:
        ValueError: a negative count, or numbers of counts and displacements that differ.
    """
    if any(count < 0 for count in counts):
        raise ValueError(f"counts must not be negative: {list(counts)}")
    if displacements is None:
        ends = [0]
        for count in counts:
            ends.append(ends[-1] + count)
        displacements = ends[:-1]
    if len(counts) != len(displacements):
        raise ValueError(f"{len(counts)} counts but {len(displacements)} displacements")
    return Layout(tuple(displacements), tuple(counts))


def scaled(layout: Layout, factor: int) -> Layout:
    """The same blocks counted in a unit that goes ``factor`` times into the old one."""
    return Layout(
        tuple(offset * factor for offset in layout.offsets),
        tuple(count * factor for count in layout.counts),
    )
