"""Strided arrays and derived datatypes of device memory, packed there, without a GPU."""

import sys
import types

import numpy as np
import pytest
from fake_cuda import FakeCupy, in_its_place
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

import mpicoll
from mpicoll import buffers
from mpicoll.cuda import arrays
from mpicoll.cuda.pieces import Pieces
from mpicoll.runtime.arguments import parse, place_of
from mpicoll.schedule.methods import METHODS


@pytest.fixture
def fake(monkeypatch):
    with in_its_place(how="lazy") as made:
        monkeypatch.setitem(sys.modules, "cupy", FakeCupy(made))
        yield made
        monkeypatch.undo()


@pytest.fixture
def cupy(fake):
    return sys.modules["cupy"]


#: Shapes, and parts of them that are not contiguous.
PARTS = [
    ((10,), np.s_[::2]),
    ((10,), np.s_[::-1]),
    ((7,), np.s_[5:1:-2]),
    ((4, 6), np.s_[:, 1:3]),
    ((4, 6), np.s_[::2, ::3]),
    ((4, 6), np.s_[:, 2]),
    ((2, 3, 4), np.s_[:, ::2]),
    ((2, 3, 4), np.s_[::-1, 1, ::-3]),
]


@pytest.mark.parametrize("dtype", ["u1", "f4", "c16", "S3", "V12"])
@pytest.mark.parametrize(("shape", "part"), PARTS)
def test_strided_arrays(fake, cupy, dtype, shape, part):
    values = np.arange(np.prod(shape)).astype("u1").repeat(np.dtype(dtype).itemsize)
    values = values.view(dtype).reshape(shape)
    array = fake.array(values, stream=5)
    view = cupy.view(array, part)
    view.stream = 5
    found = buffers.parse([view, MPI.BYTE], writable=True)
    assert found.device.stream == 5 and found.device.ptr != array.ptr
    array.set(values)  # when it must have come
    found.packed.load()
    host = found.on_host()
    host.packed.load()
    assert host.memory.tobytes() == values[part].tobytes()
    host.memory[:] = np.arange(host.memory.size)
    host.packed.write_back()
    values = values.copy()
    values[part] = np.arange(host.memory.size, dtype="u1").view(dtype).reshape(values[part].shape)
    np.testing.assert_array_equal(array.get(), values)


def test_nothing_is_packed_where_there_is_nothing(fake, cupy):
    found = buffers.parse(cupy.view(fake.array(np.zeros((5, 5))), np.s_[:0, ::2]))
    assert (found.length, found.packed) == (0, None)


def test_a_strided_array_in_fortran_order_is_packed_in_it(fake, cupy):
    values = np.arange(24, dtype="f4").reshape(4, 6)
    view = cupy.view(fake.array(values, order="F"), np.s_[::2, :])
    found = buffers.parse(view)
    assert found.order == "F"
    host = found.on_host()
    host.packed.load()
    np.testing.assert_array_equal(host.memory.view("f4"), values[::2].ravel(order="F"))


def test_a_part_of_a_strided_array_leaves_the_rest(fake, cupy):
    array = fake.array(np.arange(10, dtype="i4"))
    found = buffers.parse([cupy.view(array, np.s_[::2]), (2, 1), MPI.INT32_T], writable=True)
    host = found.on_host(loads=False)
    host.packed.load()
    host.memory.view("i4")[:] = -1, -2
    host.packed.write_back()
    assert array.get().tolist() == [0, 1, -1, 3, -2, 5, 6, 7, 8, 9]


def test_it_is_in_the_order_of_a_stream_that_is_named(fake, cupy):
    array = fake.array(np.arange(10, dtype="i4"), stream=5)
    view = cupy.view(array, np.s_[::2])
    view.stream = 5
    found = buffers.parse([view, (3, 1), MPI.INT32_T]).on_stream(6)
    assert (found.device.stream, found.memory.ctypes.data) == (6, found.device.ptr + 4)
    found.packed.load()
    assert [len(fake.streams.get(stream, ())) for stream in (5, 6)] != [1, 0]
    host = found.on_host()
    host.packed.load()
    assert host.memory.view("i4").tolist() == [2, 4, 6]


def test_packed_memory_is_given_back_in_the_order_of_its_stream(fake, cupy):
    view = cupy.view(fake.array(np.arange(10, dtype="i4")), np.s_[::2])
    held = len(fake.memory)
    found = buffers.parse(view, writable=True)
    found.packed.load()
    found.packed.write_back()
    del found
    fake.synchronize(0)
    assert len(fake.memory) == held


def test_several_elements_at_one_address_are_not_written(fake, cupy):
    array = fake.array(np.arange(3, dtype="f4"))
    memory = cupy.cuda.MemoryPointer((array.ptr, array), 0)
    view = cupy.ndarray((4, 3), "f4", memory, (0, 4))
    found = buffers.parse(view).on_host()
    found.packed.load()
    np.testing.assert_array_equal(found.memory.view("f4"), [0, 1, 2] * 4)
    with pytest.raises(BufferError, match="several elements at one address"):
        buffers.parse(view, writable=True)


# --- derived datatypes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda base: base.Create_vector(3, 2, 4),
        lambda base: base.Create_indexed_block(1, [0, 2, 4, 6, 8]),
        lambda base: base.Create_indexed([1, 3, 2], [9, 0, 5]),
        lambda base: base.Create_vector(3, 1, 2).Create_resized(0, base.extent),
        lambda base: base.Create_subarray([3, 4], [2, 2], [1, 1], MPI.ORDER_FORTRAN),
        lambda base: MPI.Datatype.Create_struct([1, 2], [3, 16], [MPI.CHAR, base]),
        lambda base: base.Create_contiguous(2),
    ],
    ids=["vector", "indexed_block", "indexed", "resized", "subarray", "struct", "contiguous"],
)
@pytest.mark.parametrize(
    ("base", "count", "displacement"),
    [(MPI.SHORT, 2, 1), (MPI.FLOAT, 1, 0), (MPI.DOUBLE, 2, 3), (MPI.C_DOUBLE_COMPLEX, 0, 0)],
)
def test_derived_datatypes(fake, make, base, count, displacement):
    datatype = make(base).Commit()
    values = np.random.default_rng(1).integers(0, 256, 4096, np.uint8)
    array, message = fake.array(values), [(count, displacement), datatype]
    host = buffers.parse([values, *message], moved=True)
    host.packed.load()
    found = buffers.parse([array, *message], moved=True, writable=True)
    assert (found.length, found.datatype) == (host.length, MPI.BYTE)
    there = found.on_host()
    there.packed.load()
    assert there.memory.tobytes() == host.memory.tobytes()
    there.memory[:] = host.memory[:] = np.arange(host.memory.size) + 1
    there.packed.write_back()
    host.packed.write_back()
    np.testing.assert_array_equal(array.get(), values)
    datatype.Free()


def test_no_list_of_places_for_a_vector(fake):
    """However long it is; and a datatype in many parts is looked at once."""
    column = MPI.FLOAT.Create_vector(8, 1, 16).Create_resized(0, 4).Commit()
    array = fake.array(np.arange(128, dtype="f4"))
    found = buffers.parse([array, 3, column], moved=True)
    (pieces,) = found.packed._pieces
    assert (pieces.shape, pieces.strides, pieces.offsets) == ((3, 8), (4, 64), None)
    column.Free()


def test_what_does_not_fit_or_is_strided_itself(fake, cupy):
    column = MPI.DOUBLE.Create_vector(4, 1, 4).Commit()
    array = fake.array(np.zeros(12))
    with pytest.raises(ValueError, match="would reach from byte 0 to 104 of a buffer of 96 bytes"):
        buffers.parse([array, 1, column], moved=True)
    with pytest.raises(BufferError, match="not contiguous, but a derived datatype says where"):
        buffers.parse([cupy.view(array, np.s_[::2]), 1, column], moved=True)
    column.Free()


def test_more_than_cupy_counts_is_refused(fake):
    datatype = MPI.CHAR.Create_hindexed_block(1, [0, 1, 1 << 31]).Commit()
    held = fake.array(np.zeros(8, "u1"))
    long = types.SimpleNamespace(
        __cuda_array_interface__={**held.__cuda_array_interface__, "shape": (1 << 32,)}
    )
    with pytest.raises(BufferError, match="3 pieces of 1 bytes, up to 2147483648 bytes apart"):
        buffers.parse([long, 1, datatype], moved=True)
    datatype.Free()


# --- two buffers ----------------------------------------------------------------------------------


def call(method, send, recv, size=2):
    definition = METHODS[method].definition
    return parse(definition, place_of(definition, 0, size, 0), send, recv, MPI.SUM)


def test_strided_arrays_that_overlap(fake, cupy):
    array = fake.array(np.zeros(10))
    even, odd = cupy.view(array, np.s_[::2]), cupy.view(array, np.s_[1::2])
    assert call("Allreduce", even, odd).on_device
    with pytest.raises(ValueError, match="overlap"):
        call("Allreduce", cupy.view(array, np.s_[:9:2]), cupy.view(array, np.s_[4:9]))


def test_both_orders_are_brought_together(fake):
    values = np.arange(12, dtype="f4").reshape(3, 4)
    send, recv = fake.array(values), fake.array(np.zeros((3, 4), "f4", order="F"), order="F")
    made = call("Allreduce", send, recv)
    host = made.on_host()
    host.load()
    host.recv.memory[:] = host.send.memory
    host.write_back()
    np.testing.assert_array_equal(recv.get(), values)
    every = fake.array(np.zeros((2, 3, 4), "f4"))
    gathered = call("Allgather", fake.array(values, order="F"), every).on_host()
    gathered.load()
    gathered.recv.memory.view("f4")[:12] = gathered.send.memory.view("f4")
    gathered.write_back()
    np.testing.assert_array_equal(every.get()[0], values)


# --- pieces ---------------------------------------------------------------------------------------


@given(
    address=st.integers(1, 1 << 20),
    place=st.integers(0, 64),
    nbytes=st.integers(1, 64),
    steps=st.lists(st.integers(-64, 64), max_size=3),
    offsets=st.none() | st.lists(st.integers(0, 99), min_size=1, max_size=4),
)
def test_units_divide_all_addresses(address, place, nbytes, steps, offsets):
    listed = None if offsets is None else np.array(offsets, np.int64)
    pieces = Pieces(address, (2,) * len(steps), tuple(steps), nbytes, listed)
    unit = pieces.unit(place)
    assert unit in (1, 2, 4, 8)
    for number in (address, place, nbytes, *steps, *(offsets or ())):
        assert number % unit == 0
    assert pieces.total == 2 ** len(steps) * len(offsets or [0]) * nbytes


def test_registering_needs_contiguous_memory(fake, cupy, monkeypatch):
    monkeypatch.setenv("MPICOLL_GPU", "staged")
    view = cupy.view(fake.array(np.zeros(10)), np.s_[::2])
    comm = mpicoll.Intracomm(MPI.COMM_SELF.Dup())
    with pytest.raises(BufferError, match=r"not contiguous.*cannot be registered"):
        mpicoll.cuda.register(view, comm)
    comm.Free()
    assert arrays.recognise(view).strides == (16,)
