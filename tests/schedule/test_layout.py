"""Partitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.schedule.layout import displaced, even, part


@given(st.integers(0, 10_000), st.integers(1, 200))
def test_even_covers_everything_once_in_order_and_evenly(count, blocks):
    cut = even(count, blocks)
    position = 0
    for offset, length in zip(cut.offsets, cut.counts, strict=True):
        assert offset == position
        position += length
    assert position == count == cut.extent
    assert max(cut.counts) - min(cut.counts) <= 1
    assert list(cut.counts) == sorted(cut.counts, reverse=True)
    assert [part(count, blocks, i) for i in range(blocks)] == list(
        zip(cut.offsets, cut.counts, strict=True)
    )


@given(st.lists(st.integers(0, 50), min_size=1))
def test_displaced_without_displacements_is_adjacent(counts):
    cut = displaced(counts)
    assert cut.extent == sum(counts)
    assert [b - a for a, b in zip(cut.offsets, cut.offsets[1:], strict=False)] == counts[:-1]


def test_displaced_refuses_what_makes_no_layout():
    assert displaced([2, 1], [5, 0]).extent == 7
    with pytest.raises(ValueError, match="negative"):
        displaced([1, -1])
    with pytest.raises(ValueError, match="2 counts but 1"):
        displaced([1, 1], [0])
