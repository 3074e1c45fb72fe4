"""Inputs of a measurement: exact in every type, different where they must be told apart."""

import numpy as np
import pytest

from mpicoll.bench.workload import TYPES, Pattern, Workload, element_type, elements

OPERATORS = {
    "sum": sum,
    "max": max,
    "min": min,
    "prod": lambda values: int(np.prod(values, dtype=object)),
}


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("ranks", [1, 2, 5, 33])
@pytest.mark.parametrize("name", sorted(set(TYPES.values())))
def test_reductions_are_exact(name, ranks, op):
    dtype = np.dtype(name)
    pattern = Pattern(dtype, op, ranks)
    given = [pattern.given(rank, 300).tolist() for rank in range(ranks)]
    exact = [OPERATORS[op]([int(v) for v in column]) for column in zip(*given, strict=True)]
    if dtype.kind in "iu":
        bits = 8 * dtype.itemsize
        exact = [value % (1 << bits) for value in exact]
        exact = np.array(exact, dtype=f"u{dtype.itemsize}").astype(dtype).tolist()
    assert pattern.reduced(300).tolist() == exact
    # In whatever order, rounded each time.
    if op == "sum":
        total = np.zeros(300, dtype)
        with np.errstate(over="ignore"):
            for row in reversed(given):
                total += np.array(row, dtype)
        assert total.tolist() == exact


def test_parts_of_a_vector():
    pattern = Pattern(np.dtype("i4"), "sum", 3)
    whole = pattern.given(1, 5000)
    assert pattern.given(1, 700, start=4200).tolist() == whole[4200:4900].tolist()
    assert pattern.reduced(700, 4200).tolist() == pattern.reduced(5000)[4200:4900].tolist()


def test_ranks_and_blocks_give_different_numbers():
    pattern = Pattern(np.dtype("f4"), "sum", 4)
    assert pattern.given(0, 64).tolist() != pattern.given(1, 64).tolist()
    whole = pattern.given(0, 4096)
    assert whole[:1024].tolist() != whole[1024:2048].tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.dtype("f2"), "sum", 4000), "a sum over 4000 ranks is not exact in float16"),
        ((np.dtype("f4"), "bxor", 2), "'bxor' makes no sense for float32"),
        ((np.dtype("f4"), "average", 2), "unknown operator 'average'"),
    ],
)
def test_what_cannot_be_exact(arguments, message):
    with pytest.raises(ValueError, match=message):
        Pattern(*arguments)


def test_element_types():
    assert element_type("Half") == np.float16
    assert element_type("uint64") == np.uint64
    with pytest.raises(ValueError, match="unknown element type 'quad'; the known ones are"):
        element_type("quad")


@pytest.mark.parametrize(
    ("collective", "size", "count"),
    [
        ("allreduce", 4096, 1024),
        ("allreduce", 7, 1),
        ("allgather", 4096, 1023),
        ("allgather", 8, 3),
        ("scatter", 25, 6),
        ("barrier", 64, 0),
    ],
)
def test_vectors_have_whole_elements_and_equal_blocks(collective, size, count):
    assert elements(collective, size, itemsize=4, ranks=3) == count


@pytest.mark.parametrize("dtype", ["f2", "f8", "i1", "u8"])
def test_every_element_not_written_is_noticed(dtype):
    expected = np.arange(20).astype(dtype)
    work = Workload(
        "allreduce", 0, 20, dtype, "sum", -1, lambda comm: None, expected.copy(), expected
    )
    assert work.check(3) == (0, None)
    work.output[7] = 99
    number, first = work.check(3)
    assert (number, str(first)) == (
        1,
        f"rank 3, index 7: want {expected[7].item()}, got {work.output[7].item()}",
    )
    work.poison()
    assert work.check(3)[0] == 20
