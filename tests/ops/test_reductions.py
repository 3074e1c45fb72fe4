"""Reductions against scalar arithmetic, and every instruction set against NumPy, bit for bit."""

import os
import subprocess
import sys
from functools import reduce

import numpy as np
import pytest

from mpicoll import ops
from mpicoll.ops import reductions

DTYPES = {
    **{f"i{8 * n}": np.dtype(f"i{n}") for n in (1, 2, 4, 8)},
    **{f"u{8 * n}": np.dtype(f"u{n}") for n in (1, 2, 4, 8)},
    **{f"f{8 * n}": np.dtype(f"f{n}") for n in (2, 4, 8)},
    **{f"c{8 * n}": np.dtype(f"c{n}") for n in (8, 16)},
    "bool": np.dtype(bool),
    "longdouble": np.dtype(np.longdouble),
    "clongdouble": np.dtype(np.clongdouble),
}
PAIRS = {
    f"{value}_int": np.dtype([("value", value), ("index", "i4")], align=True)
    for value in ("i2", "i4", "i8", "f4", "f8", "longdouble")
}
try:
    import ml_dtypes

    DTYPES["bf16"] = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    pass
INTEGERS = [name for name in DTYPES if name[0] in "iu"]
FLOATS = [name for name in DTYPES if name[0] == "f" or name in ("bf16", "longdouble")]
COMPLEX = [name for name in DTYPES if name[0] == "c"]
SERVED = {
    "sum": INTEGERS + FLOATS + COMPLEX,
    "prod": INTEGERS + FLOATS + COMPLEX,
    "max": INTEGERS + FLOATS,
    "min": INTEGERS + FLOATS,
    "land": [*INTEGERS, "bool"],
    "lor": [*INTEGERS, "bool"],
    "lxor": [*INTEGERS, "bool"],
    "band": INTEGERS,
    "bor": INTEGERS,
    "bxor": INTEGERS,
    "maxloc": list(PAIRS),
    "minloc": list(PAIRS),
}
CASES = [(op, name) for op, names in SERVED.items() for name in names]
each_case = pytest.mark.parametrize(("op", "name"), CASES)
each_level = pytest.mark.parametrize("level", ops.simd_levels())


@pytest.fixture(autouse=True)
def _keep_level():
    before = ops.simd_level()
    yield
    ops.use_simd_level(before)


def reals(dtype, n, rng):
    """Ordinary numbers, any bits (subnormals, NaNs of any kind), and the corner values."""
    ordinary = rng.normal(size=n).astype(dtype)
    if dtype == np.longdouble:  # most bit patterns of an x87 number are not a number at all
        any_bits = np.ldexp(ordinary, rng.integers(-16440, 16380, n))
    else:
        any_bits = rng.integers(0, 256, n * dtype.itemsize, dtype="u1").view(dtype)
    corners = np.array(
        [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, -np.nan, 1e-7, 65504, 65520, 3.4e38], np.float64
    )
    with np.errstate(over="ignore"):
        corners = corners.astype(dtype)
    kind = rng.integers(0, 4, n)
    return np.select([kind == 0, kind == 1], [any_bits, rng.choice(corners, n)], ordinary)


def values(dtype, n, rng):
    if dtype.names:
        out = np.zeros(n, dtype)
        few = values(dtype["value"], 5, rng)  # few values, so that there are ties
        out["value"], out["index"] = rng.choice(few, n), rng.integers(-2, 3, n)
        return out
    if dtype.kind == "b":
        return rng.integers(0, 3, n, dtype="u1").view(bool)  # any byte but 0 is true
    if dtype.kind in "iu":
        few = rng.integers(0, 3, n, dtype="u1").astype(dtype)
        any_bits = rng.integers(0, 256, n * dtype.itemsize, dtype="u1").view(dtype)
        return np.where(rng.integers(0, 2, n) == 0, few, any_bits)
    if dtype.kind == "c":
        return reals(dtype.type(0).real.dtype, 2 * n, rng).view(dtype)
    return reals(dtype, n, rng)


def at_offset(array, offset):
    """A copy that starts `offset` bytes after an address divisible by 64."""
    memory = np.zeros(array.nbytes + 128, "u1")
    first = -memory.ctypes.data % 64 + offset
    copy = memory[first : first + array.nbytes].view(array.dtype)
    copy[...] = array
    return copy


def bits(array):
    """What must be equal: all bytes, without the padding of structs and of x87 numbers."""
    dtype = array.dtype
    if dtype.names:
        return np.concatenate([bits(array[field].copy()) for field in dtype.names], axis=1)
    if dtype.kind == "c":
        array = array.view(array.real.dtype)
        return bits(array)
    raw = array.view("u1").reshape(len(array), dtype.itemsize)
    return raw[:, :10] if dtype.kind == "f" and np.finfo(dtype).nmant == 63 else raw


def assert_same(op, got, expected):
    assert got.dtype == expected.dtype
    if op in ("sum", "prod") and got.dtype.kind in "fcV":
        if got.dtype.kind == "c":
            got, expected = got.view(got.real.dtype), expected.view(expected.real.dtype)
        nan = expected != expected  # which of several NaNs a sum returns is not specified
        np.testing.assert_array_equal(got != got, nan)
        got, expected = got[~nan], expected[~nan]
    np.testing.assert_array_equal(bits(got), bits(expected))


def scalar(op, wide):
    """The operator on two elements, written down independently of `ops`."""
    nan = lambda x: x != x  # noqa: E731
    if op in ("maxloc", "minloc"):
        sign = 1 if op == "maxloc" else -1

        def locate(a, b):
            if nan(a[0]) or nan(b[0]):
                tie, wins = nan(a[0]) and nan(b[0]), nan(b[0])
            else:
                tie, wins = a[0] == b[0], (b[0] > a[0]) if sign > 0 else (b[0] < a[0])
            return (b if b[1] < a[1] else a) if tie else b if wins else a

        return locate
    if op in ("max", "min"):
        wins = (lambda b, a: b > a) if op == "max" else (lambda b, a: b < a)
        return lambda a, b: a if nan(a) else b if nan(b) or wins(b, a) else a
    if wide.kind in "iub":
        mask = 2 ** (8 * wide.itemsize) - 1
        plain = {
            "sum": lambda a, b: a + b,
            "prod": lambda a, b: a * b,
            "land": lambda a, b: bool(a) and bool(b),
            "lor": lambda a, b: bool(a) or bool(b),
            "lxor": lambda a, b: bool(a) != bool(b),
            "band": lambda a, b: a & b,
            "bor": lambda a, b: a | b,
            "bxor": lambda a, b: a ^ b,
        }[op]
        return lambda a, b: int(plain(int(a), int(b))) & mask
    if op == "sum":
        return lambda a, b: a + b
    if wide.kind == "c":
        return lambda a, b: (
            wide.type(0)
            + np.array([a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real]).view(
                wide
            )[0]
        )
    return lambda a, b: a * b


def fold_scalars(op, operands):
    dtype = operands[0].dtype
    narrow = dtype.itemsize == 2 and dtype.kind in "fV" and op in ("sum", "prod")
    wide = np.dtype("f4") if narrow else dtype
    combine = scalar(op, wide)
    out = np.zeros(len(operands[0]), dtype)
    for i in range(len(out)):
        result = reduce(combine, [x[i].astype(wide) if narrow else x[i] for x in operands])
        if dtype.kind in "iu":
            out[i : i + 1] = np.array([int(result) % 2 ** (8 * dtype.itemsize)], "u8").astype(dtype)
        else:
            out[i] = result
    return out


@each_level
@each_case
def test_fold_is_scalar_arithmetic(op, name, level):
    ops.use_simd_level(level)
    dtype = {**DTYPES, **PAIRS}[name]
    rng = np.random.default_rng(1)
    operands = [values(dtype, 301, rng) for _ in range(4)]
    got = np.empty(301, dtype)
    with np.errstate(all="ignore"):
        ops.reduction(op, dtype).fold(got, operands)
        expected = fold_scalars(op, operands)
    assert_same(op, got, expected)


def folded(reduction, operands, offsets, target):
    """Fold copies at the offsets into operand `target` (or apart: -1); check what stays."""
    copies = [at_offset(x, offset) for x, offset in zip(operands, offsets, strict=False)]
    apart = at_offset(np.zeros_like(operands[0]), offsets[-1])
    dst = copies[target] if target >= 0 else apart
    memory = dst.base
    while memory.base is not None:
        memory = memory.base
    first = dst.ctypes.data - memory.ctypes.data
    memory[:first], memory[first + dst.nbytes :] = 0xA5, 0xA5
    reduction.fold(dst, copies)
    assert (memory[:first] == 0xA5).all(), "wrote before the result"
    assert (memory[first + dst.nbytes :] == 0xA5).all(), "wrote after the result"
    for i, (copy, given) in enumerate(zip(copies, operands, strict=True)):
        if i != target:
            np.testing.assert_array_equal(bits(copy), bits(given))
    return dst


@each_case
def test_levels_agree(op, name):
    """All lengths around the vectors', 1 to 9 operands, any alignment, dst being any operand."""
    dtype = {**DTYPES, **PAIRS}[name]
    reduction = ops.reduction(op, dtype)
    rng = np.random.default_rng(2)
    lengths = [(n, 1 + (n + 1) % 9) for n in range(71)]
    lengths += [(1023, 2), (1023, 3), (1029, 5), (2055, 9), (4099, 4), (8195, 6)]
    for n, k in lengths:
        operands = [values(dtype, n, rng) for _ in range(k)]
        target = int(rng.integers(-1, k))
        offsets = [int(o) for o in rng.integers(0, 64, k + 1)]
        ops.use_simd_level("numpy")
        expected = folded(reduction, operands, offsets, target)
        for level in ops.simd_levels()[1:]:
            ops.use_simd_level(level)
            assert_same(op, folded(reduction, operands, offsets, target), expected)
            assert_same(op, folded(reduction, operands, [0] * (k + 1), -1), expected)


@pytest.mark.parametrize(("op", "name"), [("sum", "f16"), ("prod", "c64"), ("prod", "c128")])
def test_levels_agree_on_long_folds(op, name):
    """They begin with the elements before the first aligned one of the result, if there is one."""
    dtype = DTYPES[name]
    reduction = ops.reduction(op, dtype)
    rng = np.random.default_rng(3)
    operands = [values(dtype, 150_000 // dtype.itemsize, rng) for _ in range(3)]
    for offset in (0, 1, dtype.itemsize, 64 - dtype.itemsize):
        ops.use_simd_level("numpy")
        expected = folded(reduction, operands, [0, 3, 16, offset], -1)
        for level in ops.simd_levels()[1:]:
            ops.use_simd_level(level)
            assert_same(op, folded(reduction, operands, [0, 3, 16, offset], -1), expected)


@each_level
def test_float16_every_value_survives(level):
    ops.use_simd_level(level)
    every = np.arange(65536, dtype="u2").view("f2")
    got = np.empty_like(every)
    ops.reduction("sum", "f2").fold(got, [every, np.full_like(every, -0.0)])
    nan = np.isnan(every)
    assert np.isnan(got[nan]).all()
    np.testing.assert_array_equal(got[~nan].view("u2"), every[~nan].view("u2"))


@each_level
def test_float16_rounds_to_nearest_even(level):
    """A product of two float16 is exact in float64, so NumPy rounds it once."""
    ops.use_simd_level(level)
    every = np.arange(65536, dtype="u2").view("f2")
    for factor in (2**-24, 2**-10 + 2**-20, 0.3333, 0.9995, 1.001, 1.5, 33.3):
        other = np.full_like(every, factor)
        got = np.empty_like(every)
        ops.reduction("prod", "f2").fold(got, [every, other])
        with np.errstate(all="ignore"):
            expected = (every.astype("f8") * other.astype("f8")).astype("f2")
        assert_same("prod", got, expected)


@each_level
def test_float16_is_rounded_once(level):
    ops.use_simd_level(level)
    one = np.ones(19, "f2")
    got = np.empty_like(one)
    ops.reduction("sum", "f2").fold(got, [one * 2048, one, one, one])  # 2049 rounds to 2048
    np.testing.assert_array_equal(got, one * 2052)  # 2051 rounds to 2052


@each_level
@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("name", ["f16", "f32", "f64"])
def test_first_nan_wins_with_its_payload(op, name, level):
    ops.use_simd_level(level)
    dtype = DTYPES[name]
    word = np.dtype(f"u{dtype.itemsize}")
    quiet = int(np.array(np.nan, dtype).view(word))
    first, second = (np.full(37, quiet + payload, word).view(dtype) for payload in (1, 2))
    number = np.full(37, np.inf, dtype)
    reduction = ops.reduction(op, dtype)
    got = np.empty_like(number)
    for operands in (
        [first, second],
        [number, first, second],
        [number, -number, first, number, second],
    ):
        reduction.fold(got, operands)
        np.testing.assert_array_equal(got.view(word), first.view(word))


@each_level
@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("name", FLOATS)
def test_first_zero_stays(op, name, level):
    ops.use_simd_level(level)
    plus = np.zeros(37, DTYPES[name])
    for first, second in ((plus, -plus), (-plus, plus)):
        got = np.ones_like(plus)
        ops.reduction(op, plus.dtype).fold(got, [first, second, second])
        np.testing.assert_array_equal(bits(got), bits(first))


@each_level
def test_integers_wrap(level):
    ops.use_simd_level(level)
    got = np.empty(3, "i1")
    ops.reduction("sum", "i1").fold(got, [np.full(3, 127, "i1"), np.ones(3, "i1")])
    np.testing.assert_array_equal(got, np.full(3, -128, "i1"))


@each_level
def test_pairs_of_any_field_names(level):
    ops.use_simd_level(level)
    dtype = np.dtype([("loss", "f8"), ("rank", "i4")], align=True)
    operands = [np.array(x, dtype) for x in ([(2.0, 0), (1.0, 7)], [(1.0, 1), (1.0, 3)])]
    got = np.empty(2, dtype)
    ops.reduction("minloc", dtype).fold(got, operands)
    assert got.tolist() == [(1.0, 1), (1.0, 3)]
    ops.reduction("maxloc", dtype).fold(got, operands)
    assert got.tolist() == [(2.0, 0), (1.0, 3)]


def test_same_values_without_the_extension(monkeypatch):
    monkeypatch.setattr(reductions, "_kernels", None)
    assert ops.simd_levels() == ("numpy",)
    got = np.empty(2, "f4")
    ops.reduction("sum", "f4").fold(got, [np.ones(2, "f4")] * 3)
    np.testing.assert_array_equal(got, np.full(2, 3, "f4"))
    with pytest.raises(ValueError, match=r"choose one of numpy \(the compiled kernels have not"):
        ops.use_simd_level("avx2")


def test_environment_chooses_the_level():
    program = "from mpicoll import ops; print(ops.simd_level())"

    def run(level):
        return subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "MPICOLL_SIMD": level},
            capture_output=True,
            text=True,
            timeout=60,
        )

    for level in ops.simd_levels():
        assert run(level).stdout == level + "\n"
    wrong = run("mmx")
    assert wrong.returncode != 0
    assert f"choose one of {', '.join(ops.simd_levels())}" in wrong.stderr


def test_every_served_type_has_a_kernel():
    kernels = pytest.importorskip("mpicoll._kernels")
    for op, name in CASES:
        dtype = {**DTYPES, **PAIRS}[name]
        assert kernels.has(op, ops.reduction(op, dtype).type), (op, name)


def test_no_kernel_for_a_senseless_pair():
    kernels = pytest.importorskip("mpicoll._kernels")
    three = np.ones(3, "f4")
    with pytest.raises(TypeError, match="no kernel for band of f32"):
        kernels.fold("band", "f32", three.dtype, three, [three])


def test_kernels_fold_contiguous_arrays_only():
    kernels = pytest.importorskip("mpicoll._kernels")
    three, spread = np.ones(3), np.ones(6)[::2]
    for dst, operand in ((three, spread), (spread, three)):
        with pytest.raises(ValueError, match="contiguous arrays only: pass a copy"):
            kernels.fold("sum", "f64", three.dtype, dst, [three, operand])
    for dst, operand in ((None, three), (three, None), (three, [1.0, 1.0, 1.0])):
        with pytest.raises(TypeError, match=r"numpy\.ndarray"):
            kernels.fold("sum", "f64", three.dtype, dst, [three, operand])


@pytest.mark.parametrize(
    ("op", "dtype", "message"),
    [
        ("max", "c16", "max of complex128 .* integers and floats; reduce real and imaginary"),
        ("band", "f4", "band of float32 .* integers; view the array as integers"),
        ("sum", bool, "sum of bool .* for bool use land, lor or lxor"),
        ("land", "f8", "land of float64 .* integers and bool"),
        ("minloc", "f8", r"minloc of float64 .* align=True"),
        ("minloc", [("value", "f8"), ("index", "i4")], "align=True"),
        ("minloc", [("value", "f8"), ("index", "i8")], "align=True"),
        ("sum", "U3", "sum of <U3"),
        ("sum", "M8[s]", "sum of datetime64"),
        ("sum", np.dtype("f4").newbyteorder("S"), "foreign byte order: convert with"),
    ],
)
def test_senseless_pairs_are_refused(op, dtype, message):
    with pytest.raises(TypeError, match=message):
        ops.reduction(op, dtype)


def test_unknown_operator_names_the_known_ones():
    with pytest.raises(ValueError, match="unknown operator 'avg': choose one of sum, prod, max"):
        ops.reduction("avg", "f4")


@each_level
def test_fold_checks_its_arguments(level):
    ops.use_simd_level(level)
    reduction = ops.reduction("sum", "f4")
    three = np.ones(3, "f4")
    with pytest.raises(ValueError, match="at least one operand"):
        reduction.fold(three, [])
    with pytest.raises(TypeError, match="sum of float32 cannot fold an array of float64"):
        reduction.fold(three, [three, np.ones(3)])
    with pytest.raises(ValueError, match="operand 1 has 4 elements, the result 3: they must be"):
        reduction.fold(three, [three, np.ones(4, "f4")])
    three.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        reduction.fold(three, [three, three])


def test_facts_of_a_reduction():
    assert ops.reduction("sum", "f2").wide == np.dtype("f4")
    assert ops.reduction("max", "f2").wide == np.dtype("f2")
    assert ops.reduction("prod", "i8").wide == np.dtype("i8")
    assert ops.reduction("sum", "f8").commutative
    assert ops.reduction("sum", "f8") is ops.reduction("sum", float)
    assert not ops.reduction(lambda invec, inoutvec: None, "f8").commutative
    assert ops.user(lambda invec, inoutvec: None, "f8", commutative=True).name == "user"


@pytest.mark.parametrize("target", [-1, 0, 1, 2, 3])
def test_user_functions_fold_in_order(target):
    def append(invec, inoutvec):
        inoutvec[...] = 10 * invec + inoutvec

    operands = [np.full(5, digit) for digit in (1, 2, 3, 4)]
    dst = operands[target] if target >= 0 else np.zeros(5, int)
    ops.user(append, int, commutative=False).fold(dst, operands)
    np.testing.assert_array_equal(dst, np.full(5, 1234))
    for i, operand in enumerate(operands):
        if i != target:
            np.testing.assert_array_equal(operand, np.full(5, i + 1))
