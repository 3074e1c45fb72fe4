"""How arrays are cut for tensor parallelism, and what leads from one placement to another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.train.data import draws
from mpicoll.train.parallel.placements import (
    PARTIAL,
    SHARED,
    WHOLE,
    Cut,
    Pair,
    conversion,
    cut_placement,
)

small = st.integers(1, 4)


@given(st.integers(1, 9), small, small, st.integers(0, 2), st.integers(1, 6), st.data())
def test_parts_make_up_the_array(length, outer, inner, axis, ranks, data):
    shape = [data.draw(small) for _ in range(3)]
    shape[axis] = outer * length * inner
    cut = Cut(axis - 3, length, outer, inner)
    whole = np.arange(np.prod(shape)).reshape(shape)
    parts = [cut.take(whole, ranks, rank) for rank in range(ranks)]
    assert sorted(np.concatenate([part.reshape(-1) for part in parts])) == list(range(whole.size))
    for rank, part in enumerate(parts):
        assert part.shape == cut.part_shape(tuple(shape), ranks, rank)
        assert cut.whole_shape(part.shape) == tuple(shape)
    items = np.concatenate([cut._replace(length=n).items(p) for n, p in _lengths(cut, parts)], 1)
    np.testing.assert_array_equal(items.reshape(shape), whole)


def _lengths(cut, parts):
    return [(part.shape[cut.axis] // (cut.outer * cut.inner), part) for part in parts]


def test_heads_are_cut_out_of_queries_keys_and_values():
    # Width 6 of 3 heads of 2; each of queries, keys, values in 6 columns.
    columns = np.arange(18)[None]
    own = Cut(-1, 3, outer=3, inner=2)
    assert own.take(columns, 2, 0).tolist() == [[0, 1, 2, 3, 6, 7, 8, 9, 12, 13, 14, 15]]
    assert own.take(columns, 2, 1).tolist() == [[4, 5, 10, 11, 16, 17]]


def test_an_axis_of_another_length_is_refused():
    with pytest.raises(ValueError, match="cut for an axis of 6 values and got 5: give samples"):
        Cut(-1, 3, inner=2).take(np.zeros((2, 5)), 2, 0)


def test_every_conversion_ends_where_it_should():
    cut = cut_placement(-1, 4)
    other = cut_placement(-2, 4)
    found = {
        (source, target): conversion(source, target)
        for source in (WHOLE, PARTIAL, cut)
        for target in (WHOLE, SHARED, cut, other)
    }
    assert {pair: [step[0] for step in steps] for pair, steps in found.items()} == {
        (WHOLE, WHOLE): [],
        (WHOLE, SHARED): [Pair.COPY],
        (WHOLE, cut): [Pair.TAKE],
        (WHOLE, other): [Pair.TAKE],
        (PARTIAL, WHOLE): [Pair.SUM],
        (PARTIAL, SHARED): [Pair.SUM, Pair.COPY],
        (PARTIAL, cut): [Pair.SCATTER],
        (PARTIAL, other): [Pair.SCATTER],
        (cut, WHOLE): [Pair.GATHER],
        (cut, SHARED): [Pair.GATHER_SHARED],
        (cut, cut): [],
        (cut, other): [Pair.GATHER, Pair.TAKE],
    }
    # What is to be summed, or copied, is so for each consumer: nothing leads there.
    assert conversion(WHOLE, PARTIAL) is None
    assert conversion(cut, PARTIAL) is None


def test_numbers_of_some_places_are_those_of_all():
    every = draws.uniform(1, 2, np.arange(3), 4, 20)
    some = np.array([3, 4, 11, 19])
    np.testing.assert_array_equal(draws.uniform(1, 2, np.arange(3), 4, some), every[:, some])
