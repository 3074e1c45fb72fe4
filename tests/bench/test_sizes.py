"""Sizes: the written and the read form, and sweeps."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.base.sizes import format_size, parse_size, parse_sizes, sweep

SIZES = st.integers(min_value=0, max_value=1 << 50)


@given(SIZES)
def test_what_is_written_is_read_back(size):
    assert parse_size(format_size(size)) == size


@given(st.integers(0, 1 << 10), st.sampled_from("kKmMgGtT"), st.sampled_from(["", "B", "b", "iB"]))
def test_units_are_binary_in_any_case(number, unit, suffix):
    assert parse_size(f"{number}{unit}{suffix}") == number * 1024 ** (
        "kmgt".index(unit.lower()) + 1
    )


@given(st.lists(SIZES, min_size=1, max_size=8))
def test_lists_keep_their_order(sizes):
    assert parse_sizes(",".join(map(format_size, sizes))) == tuple(sizes)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0"), (8, "8"), (1024, "1K"), (1025, "1025"), (3 << 29, "1536M")]
)
def test_the_largest_unit_that_divides(size, text):
    assert format_size(size) == text


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_a_clear_error(text):
    try:
        assert parse_size(text) >= 0
    except ValueError as error:
        assert repr(text) in str(error)  # noqa: PT017 - both outcomes are right


@pytest.mark.parametrize("text", ["", "K", "-8", "1.5K", "8 8", "1KK", "0x10", "8X", "٣", "8,,9"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="is not a size; write a whole number"):
        parse_sizes(text)


def test_too_large():
    with pytest.raises(ValueError, match="larger than the limit of 1024T"):
        parse_size("1025T")


@given(st.integers(1, 1 << 20), st.integers(0, 1 << 30), st.integers(2, 9))
def test_sweep_by_a_factor(begin, more, factor):
    sizes = sweep(begin, begin + more, factor)
    assert sizes[0] == begin
    assert all(b == a * factor for a, b in pairwise(sizes))
    assert sizes[-1] <= begin + more < sizes[-1] * factor


def test_the_usual_sweep():
    sizes = sweep(8, 4 << 20)
    assert len(sizes) == 20
    assert sizes[-1] == 4 << 20


def test_sweep_by_a_step_may_start_at_nothing():
    assert sweep(0, 10, step=4) == (0, 4, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((16, 8), "first size 16 is larger than the last size 8"),
        ((8, 16, 1), "factor of 1 does not grow"),
        ((0, 16, 2), "cannot start at 0 bytes"),
        ((8, 16, None, 0), "step of 0 bytes does not grow"),
    ],
)
def test_sweeps_that_do_not_grow(arguments, message):
    with pytest.raises(ValueError, match=message):
        sweep(*arguments)
