"""Values that are hard to reduce, and vectors of more than 2 GiB, through a communicator."""

from itertools import product

import numpy as np
import pytest
import sharing
from mpi4py import MPI

import mpicoll
from mpicoll import ops

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
#: Elements of 4 bytes.
BEYOND = (1 << 29) + 1001


@pytest.fixture(scope="module")
def cupy(world):
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def ours(cupy):
    with sharing.allowed():
        comm = mpicoll.Intracomm(WORLD.Dup())
    if comm.gpu_transport() != "cuda_ipc":
        pytest.skip(comm.gpu_transport())
    yield comm
    comm.Free()


# --- special values -------------------------------------------------------------------------------


def special(dtype):
    """All pairs of zeros, infinities, and the largest, least, and subnormal numbers of a type."""
    if dtype.kind == "c":
        pair = special(np.dtype(f"f{dtype.itemsize // 2}"))
        return tuple(np.stack(parts, -1).view(dtype).ravel() for parts in (pair, pair[::-1]))
    import ml_dtypes

    facts = ml_dtypes.finfo(dtype)
    tiny, least = float(facts.tiny), float(facts.smallest_subnormal)
    one = [0.0, float("inf"), 1.0, 1 + float(facts.eps), float(facts.max), tiny, tiny / 2, least]
    values = np.array([*one, *(-value for value in one)]).astype(dtype)
    first, second = zip(*product(values, values), strict=True)
    return np.array(first, dtype), np.array(second, dtype)


def bits(array):
    return array.view(f"u{min(array.itemsize, 8)}")


@pytest.mark.parametrize("dtype", ["f2", "bfloat16", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_special_values(ours, cupy, dtype, op):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    dtype = np.dtype(dtype)
    if dtype.kind == "c" and op != "sum":
        pytest.skip("of no order, and products of infinities are anything")
    pair = special(dtype)
    for length, offset in ((256, 0), (255, 1), (70_001, 1), (400_003, 0)):
        inputs = [np.resize(pair[rank % 2], length) for rank in range(P)]
        with np.errstate(all="ignore"):
            want = np.empty_like(inputs[0])
            ops.reduction(op, dtype).fold(want, inputs)
        room = cupy.zeros((length + offset) * dtype.itemsize, "u1")
        mine = room[offset * dtype.itemsize :]
        mine[...] = cupy.asarray(np.ascontiguousarray(inputs[RANK]).view("u1"))
        ours.Allreduce(MPI.IN_PLACE, mine.view(dtype), getattr(MPI, op.upper()))
        found = mine.get().view(dtype)
        parts = f"f{dtype.itemsize // 2}" if dtype.kind == "c" else dtype
        found, want = found.view(parts), want.view(parts)
        # Which NaN it is, is not specified.
        same = (bits(found) == bits(want)) | (np.isnan(found) & np.isnan(want))
        assert same.all(), (op, found[~same][:5], want[~same][:5])


# --- more than 2 GiB ------------------------------------------------------------------------------


class Long:
    """Vectors whose elements tell where they are and of which rank; made and looked at in parts."""

    def __init__(self, cupy):
        self.cupy = cupy

    def parts(self, count):
        for first in range(0, count, 1 << 26):
            yield slice(first, min(first + (1 << 26), count))

    def pattern(self, part, rank):
        return self.cupy.arange(part.start, part.stop, dtype="u4") * 2654435761 + rank

    def fill(self, vector, rank):
        for part in self.parts(vector.size):
            vector[part] = self.pattern(part, rank)

    def is_of(self, vector, rank, first=0):
        """Whether it is a rank's, from a place on."""
        for part in self.parts(vector.size):
            place = slice(first + part.start, first + part.stop)
            if not bool((vector[part] == self.pattern(place, rank)).all()):
                return False
        return True

    def is_sum(self, vector):
        for part in self.parts(vector.size):
            total = self.pattern(part, 0) * P + P * (P - 1) // 2
            if not bool((vector[part] == total).all()):
                return False
        return True


@pytest.fixture
def long(ours, cupy):
    on_one = -(-P // cupy.cuda.runtime.getDeviceCount())
    room = WORLD.allreduce(cupy.cuda.runtime.memGetInfo()[0], MPI.MIN)
    if room < on_one * 5 * 4 * BEYOND:
        pytest.skip("not enough memory")
    yield Long(cupy)
    cupy.get_default_memory_pool().free_all_blocks()


def run(comm, way, method, *buffers):
    """Through the window, or where they lie."""
    if way == "blocking":
        getattr(comm, method)(*buffers)
    else:
        plan = getattr(comm, f"{method}_init")(*buffers)
        plan.Start()
        plan.Wait()
        plan.Free()


WAYS = pytest.mark.parametrize("way", ["blocking", "persistent"])


@WAYS
def test_a_long_reduction(ours, cupy, long, way):
    vector = cupy.empty(BEYOND, "u4")
    long.fill(vector, RANK)
    run(ours, way, "Allreduce", MPI.IN_PLACE, vector)
    assert long.is_sum(vector)


@WAYS
def test_a_long_all_to_all(ours, cupy, long, way):
    block = -(-BEYOND // P // 4) * 4
    given, wanted = cupy.empty(block * P, "u4"), cupy.zeros(block * P, "u4")
    long.fill(given, RANK)
    run(ours, way, "Alltoall", given, wanted)
    for rank in range(P):
        assert long.is_of(wanted[rank * block :][:block], rank, RANK * block)


@WAYS
def test_a_long_all_gather(ours, cupy, long, way):
    block = -(-BEYOND // P // 4) * 4
    given, wanted = cupy.empty(block, "u4"), cupy.zeros(block * P, "u4")
    long.fill(given, RANK)
    run(ours, way, "Allgather", given, wanted)
    for rank in range(P):
        assert long.is_of(wanted[rank * block :][:block], rank)
