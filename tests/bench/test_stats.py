"""Medians and their intervals against known values and exact probabilities."""

import math
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.bench.stats import interval_ranks, percentile, summarise

TIMES = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("n", "ranks"),
    [(7, None), (8, (1, 8)), (9, (1, 9)), (10, (1, 10)), (25, (7, 19)), (100, (40, 61)),
     (1000, (469, 532))],
)  # fmt: skip
def test_ranks_of_the_interval(n, ranks):
    assert interval_ranks(n) == ranks


@pytest.mark.parametrize("n", range(8, 300))
def test_the_interval_covers_the_median_as_often_as_it_says(n):
    low, high = interval_ranks(n)
    # The median lies between the two if low .. high - 1 of the n samples are below it.
    covered = sum(comb(n, k) for k in range(low, high)) / 2**n
    assert covered >= 0.95


def test_percentile_is_a_sample():
    assert percentile([1, 2, 3, 4, 5], 50) == 3


def test_percentiles_of_the_tail():
    assert percentile(range(1, 101), 95) == 95
    assert percentile(range(1, 101), 99) == 99
    assert percentile([7.0], 99) == 7.0


def test_summary_of_known_times():
    summary = summarise([9, 1, 8, 2, 7, 3, 6, 4, 5])
    assert (summary.median, summary.low, summary.high, summary.n) == (5, 1, 9, 9)
    assert summary.half_width == pytest.approx(0.8)
    assert summarise([1, 2, 3, 4]).median == 2.5


def test_too_few_have_no_interval():
    summary = summarise([1.0] * 7)
    assert summary.low is None
    assert summary.high is None
    assert math.isinf(summary.half_width)


def test_no_time_at_all():
    with pytest.raises(ValueError, match="at least one repetition"):
        summarise([])


@given(TIMES, st.randoms())
def test_the_order_of_times_does_not_matter(times, random):
    shuffled = times.copy()
    random.shuffle(shuffled)
    assert summarise(shuffled) == summarise(times)


@given(TIMES)
def test_the_median_lies_in_its_interval(times):
    summary = summarise(times)
    assert min(times) <= summary.median <= max(times)
    assert summary.p95 <= summary.p99 <= max(times)
    if summary.low is not None:
        assert summary.low <= summary.median <= summary.high
