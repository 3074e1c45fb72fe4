"""Where the bytes of a datatype are: against the MPI library's own packing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from mpicoll.buffers import typemaps

PLAIN = (MPI.INT, MPI.DOUBLE, MPI.CHAR, MPI.SHORT, MPI.C_DOUBLE_COMPLEX, MPI.DOUBLE_INT)
NUMBERS = st.lists(st.integers(0, 3), min_size=1, max_size=4)


def vector(base, counts):
    return base.Create_vector(counts[0], counts[-1], counts[-1] + 1)


def hvector(base, counts):
    return base.Create_hvector(counts[0], counts[-1], 100 * counts[-1] + 3)


def places(counts):
    """Not in order, and apart."""
    return [4 * len(counts) * (-1) ** n - 9 * n + 40 for n in range(len(counts))]


def struct(base, counts):
    displacements = [1000 * n + 7 for n in range(len(counts))]
    kinds = [(base, MPI.SHORT, MPI.DOUBLE)[n % 3] for n in range(len(counts))]
    return MPI.Datatype.Create_struct(counts, displacements, kinds)


def array_of(order):
    def make(base, counts):
        sizes = [n + 2 for n in counts]
        return base.Create_subarray(sizes, [n or 1 for n in counts], [1] * len(counts), order)

    return make


def darray(base, counts):
    block, default = MPI.DISTRIBUTE_BLOCK, MPI.DISTRIBUTE_DFLT_DARG
    return base.Create_darray(2, 1, [5, 4], [block] * 2, [default] * 2, [2, 1])


MAKERS = (
    vector,
    hvector,
    struct,
    array_of(MPI.ORDER_C),
    array_of(MPI.ORDER_FORTRAN),
    darray,
    lambda base, counts: base.Dup(),
    lambda base, counts: base.Create_contiguous(counts[0]),
    lambda base, counts: base.Create_resized(-8 * counts[0], 400),
    lambda base, counts: base.Create_indexed(counts, places(counts)),
    lambda base, counts: base.Create_hindexed(counts, [90 * n for n in places(counts)]),
    lambda base, counts: base.Create_indexed_block(counts[0], places(counts)),
    lambda base, counts: base.Create_hindexed_block(counts[0], [90 * n for n in places(counts)]),
)


def packed_by_the_library(datatype, memory, origin):
    """What an element is that begins at a byte of the memory."""
    moved = datatype.Create_hindexed_block(1, [origin])
    whole = moved.Create_resized(0, memory.size).Commit()
    found = np.zeros(datatype.size, np.uint8)
    if found.size:
        whole.Pack(memory, found, 0, MPI.COMM_SELF)
    for made in (moved, whole):
        made.Free()
    return found


@given(st.sampled_from(PLAIN), st.lists(st.tuples(st.sampled_from(MAKERS), NUMBERS), max_size=2))
def test_any_datatype(base, makers):
    made = []
    for make, counts in makers:
        made.append(make(made[-1] if made else base, counts))
    datatype = made[-1] if made else base
    # In MPICH no elements of a subarray have a negative one.
    low, length = datatype.Get_true_extent() if datatype.size else (0, 0)
    memory = np.random.default_rng(3).integers(0, 256, length + 64, np.uint8)
    origin = 32 - low
    found = typemaps.runs(datatype)
    assert found.lengths.sum() == datatype.size
    bytes_ = [
        origin + np.arange(start, start + n)
        for start, n in zip(found.starts, found.lengths, strict=True)
    ]
    where = np.concatenate([np.empty(0, int), *bytes_])
    np.testing.assert_array_equal(memory[where], packed_by_the_library(datatype, memory, origin))
    if datatype.size:
        starts, width = found.equal()
        pieces = starts[:, None] + np.arange(width)
        np.testing.assert_array_equal(pieces.ravel() + origin, where)
    shape = typemaps.regular(datatype)
    if shape is not None:
        places = np.array([shape.start])
        for count, stride in shape.axes:
            places = (places[:, None] + stride * np.arange(count)).ravel()
        pieces = places[:, None] + np.arange(shape.length)
        np.testing.assert_array_equal(pieces.ravel() + origin, where)
    for each in made:
        each.Free()


@pytest.mark.parametrize(
    ("datatype", "start", "axes", "length"),
    [
        (MPI.DOUBLE, 0, [], 8),
        (MPI.INT.Create_contiguous(5), 0, [], 20),
        (MPI.INT.Create_vector(3, 2, 4), 0, [(3, 16)], 8),
        (MPI.INT.Create_vector(3, 2, 2), 0, [], 24),
        (MPI.INT.Create_vector(3, 1, 2).Create_resized(0, 8), 0, [(3, 8)], 4),
        (MPI.INT.Create_vector(3, 1, 2).Create_hvector(4, 1, 24), 0, [(12, 8)], 4),
        (MPI.INT.Create_subarray([4, 6], [2, 3], [1, 2]), 32, [(2, 24)], 12),
        (MPI.INT.Create_subarray([4, 6], [2, 3], [1, 2], MPI.ORDER_FORTRAN), 36, [(3, 16)], 8),
        (MPI.INT.Create_subarray([4, 6, 5], [2, 3, 2], [0] * 3), 0, [(2, 120), (3, 20)], 8),
    ],
)
def test_what_is_regular(datatype, start, axes, length):
    assert typemaps.regular(datatype) == (start, tuple(axes), length)


def test_what_is_not_regular():
    for datatype in (MPI.DOUBLE_INT, MPI.INT.Create_indexed([1, 3], [5, 0])):
        assert typemaps.regular(datatype) is None


@pytest.mark.parametrize(
    ("datatype", "starts", "length"),
    [
        (MPI.DOUBLE, [0], 8),
        (MPI.INT.Create_contiguous(5), [0], 20),
        (MPI.INT.Create_vector(3, 2, 4), [0, 16, 32], 8),
        (MPI.INT.Create_indexed([1, 3], [5, 0]), [20, 0, 4, 8], 4),
        (MPI.INT.Create_subarray([4, 6], [2, 3], [1, 2]), [32, 56], 12),
    ],
    ids=["plain", "contiguous", "vector", "indexed", "subarray"],
)
def test_pieces_are_as_long_as_can_be(datatype, starts, length):
    found = typemaps.runs(datatype).equal()
    assert (found[0].tolist(), found[1]) == (starts, length)


def test_what_is_decoded_is_freed():
    inner = MPI.INT.Create_vector(2, 1, 2)
    outer = MPI.Datatype.Create_struct([1, 1], [0, 64], [inner, inner])
    for _ in range(3):
        assert typemaps.runs(outer).starts.tolist() == [0, 8, 64, 72]
    assert inner != MPI.DATATYPE_NULL and outer.size == 16  # those of the caller are not
    for each in (inner, outer):
        each.Free()


def test_more_bytes_than_a_digit_counts():
    """Of what is found out by packing."""
    block, default = MPI.DISTRIBUTE_CYCLIC, MPI.DISTRIBUTE_DFLT_DARG
    datatype = MPI.INT.Create_darray(2, 1, [40000], [block], [default], [2])
    assert (typemaps.runs(datatype).starts == np.arange(4, 160000, 8)).all()
    datatype.Free()
