"""Inputs of a measurement: exact in every type, different where they must be told apart."""

from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.bench.blocks import lengths
from mpicoll.bench.pattern import TYPES, Pattern, element_type
from mpicoll.bench.repetition import in_turn
from mpicoll.bench.workload import Workload, elements, serving

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
    dtype = element_type(name)
    pattern = Pattern(dtype, op, ranks)
    rows = [pattern.given(rank, 300).tolist() for rank in range(ranks)]
    exact = [OPERATORS[op]([int(v) for v in column]) for column in zip(*rows, strict=True)]
    if dtype.kind in "iu":
        bits = 8 * dtype.itemsize
        exact = [value % (1 << bits) for value in exact]
        exact = np.array(exact, dtype=f"u{dtype.itemsize}").astype(dtype).tolist()
    assert pattern.reduced(0, ranks - 1, 300).tolist() == exact
    # In whatever order, rounded each time.
    if op == "sum":
        total = np.zeros(300, dtype)
        with np.errstate(over="ignore"):
            for row in reversed(rows):
                total += np.array(row, dtype)
        assert total.tolist() == exact


def test_parts_of_a_vector():
    pattern = Pattern(np.dtype("i4"), "sum", 3)
    whole = pattern.given(1, 5000)
    assert pattern.given(1, 700, start=4200).tolist() == whole[4200:4900].tolist()
    assert pattern.reduced(0, 2, 700, 4200).tolist() == (
        pattern.reduced(0, 2, 5000)[4200:4900].tolist()
    )
    # A scan reduces what some ranks give, of the same numbers.
    assert pattern.reduced(1, 1, 90).tolist() == pattern.given(1, 90).tolist()


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
    rows = np.stack([expected, expected])
    work = Workload("allreduce", 0, 20, dtype, "sum", -1, lambda comm: None, rows, expected)
    assert (work.places, work.check(3), work.check(3, 1)) == (2, (0, None), (0, None))
    rows[1, 7] = 99
    assert work.check(3) == (0, None)
    number, first = work.check(3, place=1)
    assert (number, str(first)) == (
        1,
        f"rank 3, index 7: want {expected[7].item()}, got {rows[1, 7].item()}",
    )
    work.poison(1)
    assert work.check(3, 1)[0] == 20


@given(
    blocks=st.integers(1, 70), mean=st.integers(0, 10**6), skew=st.sampled_from([0.0, 0.3, 0.5, 1])
)
def test_lengths_of_blocks(blocks, mean, skew):
    found = lengths(mean * blocks, blocks, skew)
    assert sum(found) == mean * blocks
    assert len(found) == blocks
    wanted = np.linspace(1 - skew, 1 + skew, blocks) * mean if blocks > 1 else [mean]
    assert np.abs(np.array(found) - wanted).max() <= 1 + 1e-9 * mean


def test_equal_blocks_are_equal():
    assert set(lengths(3 * (1 << 40) * 7, 7, 0.0)) == {3 << 40}


def test_places_for_buffers_are_not_neighbours():
    for places in (1, 2, 3, 10, 97, 100):
        turn = list(islice(in_turn(places), 2 * places))
        assert sorted(turn[:places]) == list(range(places))
        assert turn[places:] == turn[:places]
        if places > 4:
            assert all(1 < (b - a) % places < places - 1 for a, b in pairwise(turn))


def test_variants_leave_out_what_needs_equal_blocks():
    assert "binomial" in serving("gather")
    assert "binomial" not in serving("gatherv")
    assert "bruck" in serving("allgatherv")
    assert "neighbor_exchange" not in serving("allgatherv", 3)
