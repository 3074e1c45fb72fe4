"""Collectives through memory that GPUs map of each other, bit by bit as the host folds them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

cupy = pytest.importorskip("cupy")
from gpu_peers import LOW, Buffer, opened  # noqa: E402

from mpicoll import ops  # noqa: E402
from mpicoll.cuda import keys  # noqa: E402

#: Lengths in elements: nothing to pack, one packet, ragged rows, several steps, both kernels.
LENGTHS = (1, 3, 60, 1000, 70_001, 1_500_007)
POISON = 0x5A
#: In place the receive buffer holds all of the input.
WHOLE_IN_PLACE = ("allreduce", "scan", "exscan", "alltoall", "reduce_scatter")


@pytest.fixture(scope="module", params=["peers", "low"])
def either(request):
    return request.getfixturevalue(request.param)


def numbers(dtype, length, rank):
    """Random elements of this rank that every rank can draw."""
    rng = np.random.default_rng((length, rank, 11))
    dtype = np.dtype(dtype)
    if dtype.names:
        made = np.zeros(length, dtype)
        for name in dtype.names:
            made[name] = rng.integers(-50, 50, length).astype(dtype[name])
        return made
    if dtype.kind == "b":
        return rng.integers(0, 2, length).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 200, length).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(length) + 1j * rng.standard_normal(length)).astype(dtype)
    return rng.standard_normal(length).astype(dtype)


def bytes_of(array):
    return np.ascontiguousarray(array).view(np.uint8)


def on_device(array, offset=0):
    """A copy in device memory, so many bytes from where the allocation begins."""
    raw = bytes_of(array)
    memory = cupy.full(raw.size + offset + 16, POISON, cupy.uint8)
    memory[offset : offset + raw.size] = cupy.asarray(raw)
    return memory[offset : offset + raw.size]


def poisoned(nbytes, offset=0):
    return cupy.full(nbytes + offset + 16, POISON, cupy.uint8)[offset : offset + nbytes]


def check_around(array):
    """What lies before and behind an array in its allocation is as it was."""
    memory = array.base
    start = array.data.ptr - memory.data.ptr
    host = cupy.asnumpy(memory)
    assert (host[:start] == POISON).all() and (host[start + array.nbytes :] == POISON).all()


def folded(op, dtype, arrays):
    out = np.empty_like(arrays[0])
    ops.reduction(op, dtype).fold(out, arrays)
    return out


def expected(collective, inputs, rank, root, op, dtype):
    """What a rank must have at the end, as an array; None where it gets nothing."""
    size = len(inputs)
    block = len(inputs[0]) // size

    def mine(array, r=rank):
        return array[r * block : (r + 1) * block]

    if collective == "allreduce":
        return folded(op, dtype, inputs)
    if collective == "reduce":
        return folded(op, dtype, inputs) if rank == root else None
    if collective == "scan":
        return folded(op, dtype, inputs[: rank + 1])
    if collective == "exscan":
        return folded(op, dtype, inputs[:rank]) if rank else None
    if collective == "reduce_scatter":
        return mine(folded(op, dtype, inputs))
    if collective == "bcast":
        return inputs[root]
    if collective == "allgather":
        return np.concatenate(inputs)
    if collective == "gather":
        return np.concatenate(inputs) if rank == root else None
    if collective == "scatter":
        return mine(inputs[root])
    assert collective == "alltoall"
    return np.concatenate([mine(array) for array in inputs])


def call(peers, world, collective, length, op, dtype, root, in_place, offsets, stream):
    """Run a collective; returns the bytes of this rank's output and what they must be."""
    rank, size = world.Get_rank(), world.Get_size()
    if collective in ("reduce_scatter", "alltoall", "scatter"):
        length *= size
    inputs = [numbers(dtype, length, r) for r in range(size)]
    want = expected(collective, inputs, rank, root, op, dtype)
    mine = inputs[rank]
    nbytes = 0 if want is None else want.nbytes
    at_root = rank == root
    if collective == "bcast":
        recv = on_device(mine if at_root else np.full_like(mine, 0), offsets[1])
        send = None
    elif in_place and collective in WHOLE_IN_PLACE:
        recv, send = on_device(mine, offsets[1]), None
    elif in_place and collective == "allgather":
        recv, send = poisoned(nbytes, offsets[1]), None
        recv[rank * mine.nbytes : (rank + 1) * mine.nbytes] = cupy.asarray(bytes_of(mine))
    elif in_place and at_root and collective == "reduce":
        recv, send = on_device(mine, offsets[1]), None
    elif in_place and at_root and collective == "gather":
        recv, send = poisoned(nbytes, offsets[1]), None
        recv[rank * mine.nbytes : (rank + 1) * mine.nbytes] = cupy.asarray(bytes_of(mine))
    elif collective == "scatter":
        send = on_device(mine, offsets[0]) if at_root else None
        recv = None if at_root and in_place else poisoned(nbytes, offsets[1])
    else:
        send = on_device(mine, offsets[0])
        whole = mine.nbytes if collective == "exscan" else nbytes
        recv = None if want is None and collective != "exscan" else poisoned(whole, offsets[1])
    cupy.cuda.get_current_stream().synchronize()
    peers.run(
        collective,
        None if send is None else Buffer(send, dtype),
        None if recv is None else Buffer(recv, dtype),
        op,
        root,
        stream,
    )
    stream.synchronize()
    peers.check()
    if recv is not None:
        check_around(recv)
    if want is None or recv is None:
        return np.empty(0, np.uint8), np.empty(0, np.uint8)
    return cupy.asnumpy(recv[:nbytes]), bytes_of(want)


def check(peers, world, collective, length, op=None, dtype="f4", root=0, in_place=False,
          offsets=(0, 0), stream=None):  # fmt: skip
    stream = stream or cupy.cuda.get_current_stream()
    got, want = call(peers, world, collective, length, op, dtype, root, in_place, offsets, stream)
    # Which NaN a sum has is not specified; there is none in what is drawn.
    wrong = np.flatnonzero(got != want)
    assert not wrong.size, f"{wrong.size} of {want.size} bytes differ, the first at {wrong[:3]}"


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("collective", keys.COLLECTIVES)
def test_lengths(either, world, collective, in_place):
    op = "sum" if collective in keys.REDUCING else None
    for length in LENGTHS:
        for root in {0, world.Get_size() - 1}:
            check(either, world, collective, length, op, "f4", root, in_place)


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8"])
@pytest.mark.parametrize("collective", ["allreduce", "alltoall", "bcast"])
def test_any_alignment(either, world, collective, dtype):
    op = "sum" if collective in keys.REDUCING else None
    size = np.dtype(dtype).itemsize
    for offsets in ((size, 0), (0, size), (3 * size, 5 * size), (7 * size, 15 * size)):
        for length in (1, 5, 777, 100_003):
            check(either, world, collective, length, op, dtype, 0, False, offsets)


def types():
    import ml_dtypes

    pair = [
        np.dtype([("value", kind), ("index", "i4")], align=True)
        for kind in ("i2", "i4", "i8", "f4", "f8")
    ]
    return ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", ml_dtypes.bfloat16, "f4",
            "f8", "c8", "c16", *pair]  # fmt: skip


@pytest.mark.parametrize("op", keys.OPS)
def test_operators_and_types(either, world, op):
    served = 0
    for dtype in map(np.dtype, types()):
        if not either.supports("allreduce", op, dtype, 8):
            continue
        served += 1
        for collective, length in (("allreduce", 100), ("allreduce", 150_001), ("scan", 77)):
            check(either, world, collective, length, op, dtype)
    assert served >= 5


def test_special_values(peers, world):
    """Signed zeros, infinities and subnormals, in sums and extremes."""
    special = np.array([0.0, -0.0, np.inf, -np.inf, 1e-40, -1e-40, 3.4e38, 1.0], np.float32)
    a, b = (grid.ravel() for grid in np.meshgrid(special, special))
    for op in ("sum", "prod", "max", "min"):
        inputs = [(a, b)[r % 2] for r in range(world.Get_size())]
        with np.errstate(all="ignore"):
            want = folded(op, "f4", inputs)
        mine = cupy.asarray(inputs[world.Get_rank()])
        stream = cupy.cuda.get_current_stream()
        peers.run("allreduce", None, Buffer(mine, "f4"), op, 0, stream)
        got = cupy.asnumpy(mine)
        same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
        assert same.all(), (op, a[~same], b[~same], got[~same], want[~same])


def test_registered_memory(low, world):
    """The same results where arrays are read and written where they lie, by some or all."""
    length = 1_000_000
    rank, size = world.Get_rank(), world.Get_size()
    stream = cupy.cuda.get_current_stream()
    # Not aligned, also what no peer needs: then all go through the window.
    cases = [(True, (0, 0)), (False, (0, 0)), (True, (4, 0)), (True, (0, 4))]
    for everywhere, offsets in cases:
        memory = [cupy.empty(4 * length * size + 16, cupy.uint8) for _ in range(2)]
        given = memory if everywhere or rank == 0 else [cupy.empty(1024, cupy.uint8)] * 2
        held = low.register([(array.data.ptr, array.nbytes) for array in given])
        assert held.direct
        for collective in sorted(keys.DIRECT):
            op = "sum" if collective in keys.REDUCING else None
            total = length - length % (4 * size)
            inputs = [numbers("f4", total, r) for r in range(size)]
            want = expected(collective, inputs, rank, 0, op, "f4")
            send = memory[0][offsets[0] :][: 4 * total]
            send[...] = cupy.asarray(bytes_of(inputs[rank]))
            recv = memory[1][offsets[1] :][: want.nbytes if want is not None else 0]
            recv[...] = POISON
            if collective == "bcast":
                recv, send = send, None
                if rank:
                    recv[...] = POISON
            stream.synchronize()
            low.run(
                collective,
                None if send is None else Buffer(send, "f4"),
                None if want is None else Buffer(recv, "f4"),
                op,
                0,
                stream,
            )
            stream.synchronize()
            low.check()
            if want is not None:
                assert np.array_equal(cupy.asnumpy(recv), bytes_of(want)), collective
        held.close()


@pytest.fixture(scope="module")
def around(world):
    """The peers as if their GPUs were linked in a ring alone."""
    size = world.Get_size()
    if size < 3:
        pytest.skip("two ranks are no ring")
    order = tuple(np.random.default_rng(size).permutation(size).tolist())
    with opened(world, limits=LOW._replace(ring=order)) as made:
        yield made


def folded_around(op, dtype, inputs, order, owner, part):
    """The block that belongs to a rank: its fold begins right of it and ends there."""
    first = order.index(owner) + 1
    travels = [order[(first + k) % len(order)] for k in range(len(order))]
    value = inputs[travels[0]][part]
    for before, rank in itertools.pairwise(travels):
        own = inputs[rank][part]
        value = folded(op, dtype, [value, own] if before < rank else [own, value])
    return value


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("op", "dtype"), [("sum", "f4"), ("sum", "f2"), ("prod", "c16"), ("max", "u1")]
)
@pytest.mark.parametrize("collective", sorted(keys.RING))
def test_around_a_ring(around, world, collective, op, dtype, in_place):
    rank, size = world.Get_rank(), world.Get_size()
    order, stream = around._limits.ring, cupy.cuda.get_current_stream()
    for length in (1, 60, 1000, 70_001, 300_007):
        reduces = collective in keys.REDUCING
        got, want = call(
            around, world, collective, length, op if reduces else None, dtype, 0, in_place,
            (0, 4) if length == 1000 else (0, 0), stream,
        )  # fmt: skip
        if reduces:
            total = length * (size if collective == "reduce_scatter" else 1)
            inputs = [numbers(dtype, total, r) for r in range(size)]
            width = length
            if collective == "allreduce":
                row = 512 // np.dtype(dtype).itemsize
                width = -(-length // (row * size)) * row
            blocks = [
                folded_around(op, dtype, inputs, order, r, slice(r * width, (r + 1) * width))
                for r in (range(size) if collective == "allreduce" else [rank])
            ]
            want = bytes_of(np.concatenate(blocks))
        assert np.array_equal(got, want), (length, np.flatnonzero(got != want)[:3])


def test_calls_around_a_ring_follow_each_other(around, world):
    """At once, of many lengths, also replayed by a graph."""
    stream = cupy.cuda.Stream(non_blocking=True)
    arrays = [cupy.ones(n, cupy.float64) for n in (1, 700, 90_000, 3, 400_000)]
    cupy.cuda.Device().synchronize()

    def all_of_them():
        for array in arrays:
            for op in ("sum", "max"):
                around.run("allreduce", None, Buffer(array, "f8"), op, 0, stream)

    all_of_them()
    stream.begin_capture()
    all_of_them()
    graph = stream.end_capture()
    for _ in range(3):
        graph.launch(stream)
        all_of_them()
    stream.synchronize()
    around.check()
    for array in arrays:
        assert bool((array == float(world.Get_size()) ** 7).all())
    assert not around.supports("alltoall", None, np.dtype("f8"), 8)
    assert not around.register([(arrays[4].data.ptr, arrays[4].nbytes)]).direct
