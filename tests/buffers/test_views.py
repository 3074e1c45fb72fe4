"""Arrays that do not lie in memory as they travel: strided ones, and C beside Fortran order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from mpicoll.buffers import packing, parse, vectors
from mpicoll.buffers.pair import operands
from mpicoll.schedule import collectives
from mpicoll.schedule.collectives import Place
from mpicoll.schedule.methods import METHODS


def elements(buffer):
    """What travels, as numbers."""
    if buffer.packed is not None:
        buffer.packed.load()
    return buffer.memory.view(buffer.dtype).tolist()


def pair(name, send, recv, size=4):
    definition = collectives.collective(name)
    nblocks = size if definition.block_per_rank else 1
    return operands(definition, Place(0, size, 0, nblocks), send, recv)


def grid(*shape, order="C"):
    return np.array(np.arange(float(np.prod(shape))).reshape(shape), order=order)


# --- one array ---

BIG = np.arange(120.0).reshape(4, 5, 6)
VIEWS = {
    "every other": (BIG.ravel()[::2], "C"),
    "backwards": (BIG.ravel()[::-1], "C"),
    "a column": (BIG[0, :, 3], "C"),
    "columns": (BIG[0, :, 1:4], "C"),
    "columns backwards": (BIG[0, :, 4:1:-1], "C"),
    "a part of a Fortran array": (np.asfortranarray(BIG[0])[1:4, 2:], "F"),
    "axes that are neither": (BIG.transpose(1, 0, 2), "C"),
    "the same element again": (np.broadcast_to(3.0, (2, 3)), "C"),
    "the same row again": (np.broadcast_to(np.arange(3.0), (2, 3)), "C"),
    "a memoryview": (memoryview(BIG.ravel())[::3], "C"),
}


@pytest.mark.parametrize("name", VIEWS)
def test_strided_elements_in_the_order_of_memory(name):
    array, order = VIEWS[name]
    found = parse(array)
    assert found.packed is not None
    want = np.asarray(array).ravel(order=order).tolist()
    assert elements(found) == want
    assert (found.length, found.datatype) == (len(want), MPI.DOUBLE)
    assert elements(parse([array, (2, 1), MPI.DOUBLE])) == want[1:3]
    assert parse([array, 8 * len(want), MPI.BYTE]).memory.size == 8 * len(want)
    with pytest.raises(ValueError, match="too small"):
        parse([array, len(want) + 1])


def test_contiguous_memory_is_used_as_it_is():
    for order in "CF":
        array = grid(2, 3, order=order)
        found = parse(array)
        assert found.packed is None
        assert np.shares_memory(found.memory, array)
        assert elements(found) == array.ravel(order="K").tolist()


@given(
    shape=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    steps=st.lists(st.sampled_from([1, 2, -1]), min_size=4, max_size=4),
    order=st.sampled_from("CF"),
    data=st.data(),
)
def test_by_value_there_and_back(shape, steps, order, data):
    base = np.zeros([2 * n for n in shape])
    view = base[tuple(slice(None, None, s) for s in steps[: len(shape)])]
    axes = data.draw(st.permutations(range(len(shape))))
    view = view.transpose(axes)
    view[...] = np.arange(view.size).reshape(view.shape)
    before = base.copy()
    blocks = view.shape[0] if data.draw(st.booleans()) and view.shape[0] else 1
    packed = packing.strided(view, order, blocks)
    packed.load()
    want = np.concatenate([part.ravel(order) for part in np.split(view, blocks)])
    assert packed.memory.view("f8").tolist() == want.tolist()
    view[...] = 0
    packed.write_back()
    np.testing.assert_array_equal(base, before)


def test_what_cannot_be_written_by_value():
    with pytest.raises(BufferError, match="receive buffer: read-only"):
        parse(np.broadcast_to(3.0, (2, 3)), what="receive buffer", writable=True)
    twice = np.lib.stride_tricks.as_strided(np.zeros(3), (2, 3), (0, 8))
    with pytest.raises(BufferError, match=r"several elements at one address .*array\.copy"):
        parse(twice, writable=True)
    datatype = MPI.DOUBLE.Create_contiguous(2).Commit()
    with pytest.raises(BufferError, match="not contiguous, but a derived datatype says"):
        parse([np.zeros(8)[::2], 1, datatype], moved=True)
    datatype.Free()


# --- two arrays of different orders ---


@pytest.mark.parametrize("orders", ["CF", "FC"])
@pytest.mark.parametrize("name", ["allreduce", "reduce", "scan", "exscan"])
def test_reductions_go_in_the_order_of_the_send_buffer(name, orders):
    send, recv = grid(2, 3, order=orders[0]), np.zeros((2, 3), order=orders[1])
    definition = collectives.collective(name)
    found = operands(definition, Place(1, 4, 1, 1), send, recv)
    assert found.send.packed is None
    assert elements(found.recv) == [0] * 6
    found.recv.memory[:] = found.send.memory
    found.recv.packed.write_back()
    np.testing.assert_array_equal(recv, send)


def moved(found, size):
    """What a collective of `size` ranks that all give the same does to the buffers."""
    for buffer in (found.send, found.recv):
        if buffer.packed is not None:
            buffer.packed.load()
    blocks = found.send.memory if found.send.blocks > 1 else np.tile(found.send.memory, size)
    found.recv.memory[:] = blocks[: found.recv.memory.size]
    if found.recv.packed is not None:
        found.recv.packed.write_back()


@pytest.mark.parametrize("orders", ["CF", "FC"])
@pytest.mark.parametrize("shape", [(4, 2, 3), (8, 3)])
@pytest.mark.parametrize("name", ["allgather", "gather"])
def test_gathered_blocks_lie_along_the_first_axis(name, shape, orders):
    send, recv = grid(2, 3, order=orders[0]), np.zeros(shape, order=orders[1])
    found = pair(name, send, recv)
    assert found.send.packed is None  # as on ranks that have no receive buffer
    moved(found, 4)
    np.testing.assert_array_equal(recv.reshape(4, 2, 3), [send] * 4)


@pytest.mark.parametrize("orders", ["CF", "FC"])
@pytest.mark.parametrize("shape", [(4, 2, 3), (8, 3)])
@pytest.mark.parametrize("name", ["scatter", "reduce_scatter"])
def test_scattered_blocks_lie_along_the_first_axis(name, shape, orders):
    send, recv = grid(*shape, order=orders[0]), np.zeros((2, 3), order=orders[1])
    found = pair(name, send, recv)
    assert found.recv.packed is None
    moved(found, 4)
    np.testing.assert_array_equal(recv, send.reshape(4, 2, 3)[0])


@pytest.mark.parametrize("orders", ["CF", "FC"])
def test_all_to_all_exchanges_along_the_first_axis(orders):
    send, recv = grid(4, 2, 3, order=orders[0]), np.zeros((4, 2, 3), order=orders[1])
    moved(pair("alltoall", send, recv), 4)
    np.testing.assert_array_equal(recv, send)


@pytest.mark.parametrize("orders", ["CF", "FC"])
def test_a_strided_array_beside_one_of_the_other_order(orders):
    send = np.zeros((4, 6), order=orders[0])[::2, ::2]
    send[...] = grid(2, 3)
    recv = np.zeros((4, 6), order=orders[1])[1::2, ::2]
    moved(pair("allreduce", send, recv), 1)
    np.testing.assert_array_equal(recv, send)


@pytest.mark.parametrize(
    ("name", "send", "recv"),
    [
        ("allreduce", grid(2, 3), grid(3, 2, order="F")),
        ("allreduce", [grid(2, 3), 5], [grid(2, 3, order="F"), 5]),
        ("allgather", grid(2, 3), grid(2, 12, order="F")),
        ("alltoall", grid(4, 6), grid(8, 3, order="F")),
        ("reduce_scatter", grid(2, 12, order="F"), grid(2, 3)),
    ],
)
def test_orders_that_cannot_be_brought_together(name, send, recv):
    with pytest.raises(ValueError, match=r"send buffer in \w order but .* would be transposed"):
        pair(name, send, recv)


@pytest.mark.parametrize("method", ["Allgatherv", "Alltoallv", "Gatherv", "Scatterv"])
@pytest.mark.parametrize("orders", ["CF", "FC"])
def test_blocks_of_different_lengths_do_not_change_the_order(method, orders):
    definition = METHODS[method].definition
    small, large = (2, 3), (4, 3)
    send = grid(*(large if method in ("Alltoallv", "Scatterv") else small), order=orders[0])
    recv = grid(*(small if method == "Scatterv" else large), order=orders[1])
    with pytest.raises(ValueError, match="would be transposed"):
        vectors.operands(definition, Place(0, 2, 0, 2), send, recv, None)
    same = np.array(recv, order=orders[0])
    vectors.operands(definition, Place(0, 2, 0, 2), send, same, None)


@pytest.mark.parametrize("orders", ["CF", "FC"])
def test_a_reduce_scatter_of_counts_does_not_change_the_order(orders):
    send, recv = grid(4, 3, order=orders[0]), grid(2, 3, order=orders[1])
    with pytest.raises(ValueError, match="would be transposed"):
        vectors.operands(
            METHODS["Reduce_scatter"].definition, Place(0, 2, 0, 2), send, recv, [6, 6]
        )


# --- memory in common ---


def test_strided_arrays_are_apart_if_their_elements_are():
    base = np.zeros(12)
    pair("allreduce", base[::2], base[1::2])
    pair("allreduce", base[:6], base[6:][::-1])
    for send, recv in [(base[::2], base[::2]), (base[::3], base[1::2][:4]), (base, base[::-1])]:
        with pytest.raises(ValueError, match=r"which MPI forbids; pass MPI\.IN_PLACE"):
            pair("allreduce", send, recv)
    square = np.zeros((3, 3))
    with pytest.raises(ValueError, match="same memory"):
        pair("allreduce", square, square.T)
    with pytest.raises(ValueError, match="overlap"):
        vectors.operands(
            METHODS["Allgatherv"].definition, Place(0, 2, 0, 2), base[::6], base[::3], None
        )
    vectors.operands(
        METHODS["Allgatherv"].definition, Place(0, 2, 0, 2), base[1::6], base[::3], None
    )
