"""The norm of a gradient does not depend on how it is divided."""

import math
import sys
from fractions import Fraction

import fake_cupy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicoll import _kernels
from mpicoll.train.exchange import norms
from mpicoll.train.ranks.workers import Workers

FLOATS = {32: st.floats(width=32), 64: st.floats(width=64)}


def exact(values):
    """The norm by rational numbers: of squares as float64 has them, rounded once."""
    total = sum(Fraction(float(value) * float(value)) for value in values)
    return math.sqrt(float(total)) if total <= Fraction(sys.float_info.max) else math.inf


@settings(deadline=None, max_examples=200)
@given(st.data(), st.sampled_from([32, 64]))
def test_any_parts_have_the_norm_of_the_whole_to_the_bit(data, width):
    values = data.draw(st.lists(FLOATS[width], min_size=1, max_size=40))
    array = np.array(values, f"f{width // 8}")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(array)), max_size=4)))
    order = data.draw(st.permutations(np.split(array, cuts)))
    whole = norms.root(norms.squares([array]))
    parts = sum(norms.squares([part]) for part in order)
    np.testing.assert_array_equal(norms.root(parts), whole)
    np.testing.assert_array_equal(norms.root(norms.squares(order)), whole)
    with np.errstate(over="ignore"):
        squares = np.square(array, dtype=np.float64)
    if np.isfinite(squares).all():
        assert whole == exact(array)
    elif np.isnan(array).any():
        assert math.isnan(whole)
    else:
        assert whole == math.inf


def test_many_values_are_carried():
    """Of one exponent, more than a digit holds."""
    array = np.full((1 << 17) + 3, 1 + 2.0**-20, np.float64)
    total = len(array) * Fraction(float(array[0] * array[0]))
    assert norms.root(norms.squares([array])) == math.sqrt(float(total))


def test_sums_are_carried_before_they_overflow(monkeypatch):
    array = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    whole = norms.squares([array])
    monkeypatch.setattr(norms, "_AT_ONCE", 64)
    np.testing.assert_array_equal(norms.squares([array[:100], array[100:]]), whole)


def test_arrays_on_a_gpu_and_narrow_ones(monkeypatch):
    array = np.random.default_rng(1).standard_normal((37, 5))
    array[0, 0], array[1, 1] = 1e-170, 0.0  # whose squares are no normal numbers
    expected = norms.squares([array])
    narrow = array.astype(np.float16)
    wide = norms.squares([narrow.astype(np.float32)])
    np.testing.assert_array_equal(norms.squares([narrow]), wide)
    fake = fake_cupy.module()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    np.testing.assert_array_equal(norms.squares([fake.asarray(array)]), expected)
    for odd in (np.inf, np.nan):
        array[2, 2] = odd
        found = norms.root(norms.squares([fake.asarray(array)]))
        np.testing.assert_array_equal(found, odd)


@pytest.mark.parametrize("clipped", [False, True])
def test_what_is_not_finite_is_said(clipped):
    parts = [np.ones(3), np.array([2.0])]
    assert norms.checked(Workers(), parts, clipped) == (math.sqrt(7) * clipped, True)
    parts[1][0] = np.nan
    assert not norms.checked(Workers(), parts, clipped)[1]


def test_sums_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"sums have shape \(1, 2049\): give \(2, 2049\)"):
        _kernels.add_squares(np.ones(1), np.zeros((1, 2049), np.int64))
