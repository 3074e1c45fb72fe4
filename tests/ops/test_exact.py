"""Exact sums: correctly rounded, at every instruction set, whatever the operands."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mpicoll import ops
from mpicoll.ops import exact

LEVELS = ops.simd_levels()
FORMATS = {np.dtype("f4"): (24, -149, 127), np.dtype("f8"): (53, -1074, 1023)}
DTYPES = [*FORMATS]


@pytest.fixture(autouse=True)
def _keep_level():
    before = ops.simd_level()
    yield
    ops.use_simd_level(before)


def rounded(value, dtype):
    """A fraction to the nearest number of a format, ties to even."""
    digits, least, most = FORMATS[dtype]
    power = math.frexp(float(value))[1] if abs(value) < 2**1020 else most + 1
    while abs(value) < Fraction(2) ** (power - 1) and power - digits > least:
        power -= 1
    unit = Fraction(2) ** max(power - digits, least)
    steps = round(value / unit)  # Python rounds halves to even
    if abs(steps * unit) >= Fraction(2) ** (most + 1):
        return math.copysign(math.inf, steps)
    return float(steps * unit)


def expected(column, dtype):
    if any(math.isnan(x) for x in column) or {math.inf, -math.inf} <= {*column}:
        return math.nan
    for x in column:
        if math.isinf(x):
            return x
    total = sum(map(Fraction, column))
    if total == 0:
        return (
            -0.0
            if all(math.copysign(1, x) < 0 for x in column if x == 0) and not any(column)
            else 0.0
        )
    return rounded(total, dtype)


def check(rows, dtype, levels=LEVELS):
    """Rows are the contributions."""
    operands = [np.array(row, dtype) for row in rows]
    want = np.array(
        [expected([float(x) for x in c], dtype) for c in zip(*operands, strict=True)], dtype
    )
    for level in levels:
        ops.use_simd_level(level)
        found = np.full(want.size, 7, dtype)
        exact.reduction(dtype).fold(found, operands)
        np.testing.assert_array_equal(found, want, err_msg=level)
        same = np.isnan(want) | (np.signbit(found) == np.signbit(want))
        assert same.all(), level


def numbers(dtype):
    """Numbers of all kinds; near ones, so that they cancel and tie, and far ones."""
    width = 8 * dtype.itemsize
    digits, least, most = FORMATS[dtype]
    near = st.builds(
        lambda m, e: math.ldexp(m, e),
        st.integers(-(2**digits) + 1, 2**digits - 1),
        st.integers(-digits - 3, 3),
    )
    huge = st.builds(
        lambda m, e: math.ldexp(m, most - e),
        st.sampled_from([1.0, -1.0, 1.5, -1.5]),
        st.integers(0, digits + 2),
    )
    tiny = st.builds(
        lambda m, s: s * math.ldexp(m, least), st.integers(0, 5), st.sampled_from([1, -1])
    )
    powers = st.builds(
        lambda s, e: s * math.ldexp(1.0, e), st.sampled_from([1, -1]), st.integers(least, most)
    )
    return st.one_of(near, near, huge, tiny, powers, st.floats(width=width))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_correctly_rounded(dtype):
    @settings(max_examples=400)
    @given(st.lists(numbers(dtype), min_size=1, max_size=9))
    @example([math.inf, -math.inf])
    @example([math.inf, 1.0])
    @example([math.nan, math.inf])
    @example([-0.0, -0.0])
    @example([-0.0, 0.0])
    @example([1.0, -1.0, -0.0])
    def check_one(column):
        check([[x] for x in column], dtype)

    check_one()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_overflow_on_the_way_is_no_overflow(dtype):
    big = float(np.finfo(dtype).max)
    half_unit = math.ldexp(1.0, FORMATS[dtype][2] - FORMATS[dtype][0])
    columns = [
        [big, big, -big, -big],
        [big, big, -big, 1.0],
        [-big, -big, big, big / 2],
        [big, half_unit, -half_unit, 0.0],
        [big, half_unit, 0.0, 0.0],  # a tie, to infinity
        [big, half_unit, -1.0, 0.0],  # just below
        [big, half_unit / 2, half_unit / 4, half_unit / 8],
        [-big, -half_unit, 0.0, 0.0],
        [big, 1.0, -big, 2.0**-30],
    ]
    for column in columns:
        for order in itertools.permutations(column):
            check([[x] for x in order], dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ties_and_what_decides_them_far_below(dtype):
    digits, least, _ = FORMATS[dtype]
    columns = []
    for base, far, sign in itertools.product(
        [1.0, 1 + 2.0 ** (1 - digits)], (60, 110, 140), (1, -1)
    ):
        columns.append([base, 2.0**-digits, sign * 2.0**-far])
        columns.append([base, -(2.0 ** -(digits + 1)), sign * 2.0**-far])
        columns.append([-base, -(2.0**-digits), sign * math.ldexp(1, max(least, -far))])
    check(list(zip(*columns, strict=True)), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ties_that_remain_when_all_else_cancels(dtype):
    digits, columns = FORMATS[dtype][0], []
    for far, more, sign in itertools.product(range(80, 120, 3), range(40, 70), (1, -1)):
        left = 2.0 ** (100 - far)
        tiny = sign * left * 2.0**-more
        columns.append([2.0**100, -(2.0**100), left, left * 2.0**-digits, tiny])
    check(list(zip(*columns, strict=True)), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 3, 8, 17])
def test_many_elements(dtype, count):
    """Vector bodies, tails, tiles, undecided elements among decided ones, any alignment."""
    random = np.random.default_rng(count)
    n = 1031
    rows = random.standard_normal((count, n))
    rows[:, ::7] *= np.exp2(random.integers(-100, 100, (count, len(range(0, n, 7)))))
    rows[:, ::50] = np.where(random.random((count, len(range(0, n, 50)))) < 0.1, np.inf, 0.0)
    with np.errstate(over="ignore"):
        rows = rows.astype(dtype)
    compiled = [level for level in LEVELS if level != "numpy"]
    check(rows, dtype, compiled)
    for offset in (1, 3):
        moved = [
            np.frombuffer(bytes(offset) + row.tobytes(), "u1")[offset:].view(dtype) for row in rows
        ]
        check(moved, dtype, compiled)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 64])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exponents_far_apart(dtype, count):
    """Spreads about the limits of the ways to sum; what cancels, ties, or is far below."""
    digits, least, most = FORMATS[dtype]

    @settings(max_examples=25, deadline=None)
    @given(st.integers(0, 2**32), st.sampled_from([10, 27, 40, *range(74, 85), 100]), st.data())
    def check_one(seed, few, data):
        limit = 133 - 3 * (count - 1).bit_length()  # of three sums, of float32
        spread = data.draw(st.sampled_from([few, limit - 1, limit, limit + 1, 200, most - least]))
        top = data.draw(st.integers(min(least + spread, most), most))
        random, n = np.random.default_rng(seed), 40
        size = random.integers(top - spread, top, (count, n), endpoint=True)
        rows = np.ldexp(random.choice([-1.0, 1.0], (count, n)), np.maximum(size, least))
        rows *= np.where(random.random(n) < 0.5, random.uniform(1, 2, (count, n)), 1)  # or powers
        for i in range(count // 2):  # pairs that cancel, whole or but for their last bits
            rows[-1 - i, ::3] = -rows[i, ::3]
            rows[-1 - i, ::9] *= 1 + 2.0 ** (1 - digits)
        for i in range(count // 3):  # half a unit in the last place
            rows[3 * i + 1, 1::5] = rows[3 * i, 1::5] * 2.0**-digits
        rows[0, ::4] = np.ldexp(1.0, max(top - spread, least))
        rows[:, ::11] = -0.0
        rows[count // 2, ::22] = random.choice([np.inf, np.nan, 1.0])
        with np.errstate(over="ignore"):
            check(rows.astype(dtype), dtype, [level for level in LEVELS if level != "numpy"])

    check_one()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_order_and_zeros_do_not_matter(level, dtype):
    ops.use_simd_level(level)
    random = np.random.default_rng(5)
    rows = [
        (random.standard_normal(97) * 10.0 ** random.integers(-9, 9, 97)).astype(dtype)
        for _ in range(6)
    ]
    want = np.empty(97, dtype)
    how = exact.reduction(dtype)
    how.fold(want, rows)
    for seed in range(4):
        mixed = [*rows, np.zeros(97, dtype), np.zeros(97, dtype)]
        np.random.default_rng(seed).shuffle(mixed)
        out = np.empty(97, dtype)
        how.fold(out, mixed)
        assert out.tobytes() == want.tobytes()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_result_may_be_any_operand(level, dtype):
    ops.use_simd_level(level)
    wide = np.array([[1, 2.0**-90, 0.1] * 50, [0.3, 1, 2.0**-100] * 50, [2.0**-60, 3, 1] * 50])
    want = np.empty(150, dtype)
    exact.reduction(dtype).fold(want, list(wide.astype(dtype)))
    for number in range(3):
        rows = list(wide.astype(dtype))
        exact.reduction(dtype).fold(rows[number], rows)
        assert rows[number].tobytes() == want.tobytes()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_complex_numbers_are_pairs(level, dtype):
    ops.use_simd_level(level)
    rows = [np.array([1e8 + 1j, 1 - 1e8j], dtype), np.array([-1e8 + 1j, 1e-9 + 1e8j], dtype)]
    rows.append(np.array([1e-8 + 0j, 1 + 1j], dtype))
    out = np.empty(2, dtype)
    exact.reduction(np.dtype(dtype)).fold(out, rows)
    parts = [[float(row.view(out.real.dtype)[i]) for row in rows] for i in range(4)]
    assert out.view(out.real.dtype).tolist() == [expected(c, out.real.dtype) for c in parts]


def test_integers_are_exact_already():
    assert exact.reduction(np.dtype("i4")) == ops.reduction("sum", "i4")


@pytest.mark.parametrize("dtype", ["f2", "g", "?", "V4"])
def test_other_types_are_refused(dtype):
    with pytest.raises(TypeError, match=f"reproducible=True cannot sum {np.dtype(dtype)}"):
        exact.reduction(np.dtype(dtype))
