"""Parsing of buffers, on one process: every form that mpi4py takes, and every error."""

import array
import ctypes

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll.buffers import Unsupported, parse
from mpicoll.buffers import pair as pairs
from mpicoll.schedule import collectives
from mpicoll.schedule.collectives import Place

A = np.arange(12, dtype="f8")


class Index:
    """An integer of a kind that nobody knows."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


def address(memory):
    return memory.ctypes.data


# --- what is accepted ---


@pytest.mark.parametrize(
    ("message", "offset", "count"),
    [
        (A, 0, 12),
        ([A], None, None),
        ([A, MPI.DOUBLE], 0, 12),
        ([A, "d"], 0, 12),
        ([A, "f8"], 0, 12),
        ([A, 5], 0, 5),
        ([A, None], 0, 12),
        ([A, np.int32(5)], 0, 5),
        ([A, np.array(5)], 0, 5),
        ([A, (np.array(5), Index(2))], 16, 5),
        ([A, Index(5), np.array(2), MPI.DOUBLE], 16, 5),
        ([A, (5, 2)], 16, 5),
        ([A, (None, 2)], 16, 10),
        ([A, 5, MPI.DOUBLE], 0, 5),
        ([A, (5, 2), MPI.DOUBLE], 16, 5),
        ((A, [5, 2], "d"), 16, 5),
        ([A, 5, 2, MPI.DOUBLE], 16, 5),
        ([A, None, None, MPI.DOUBLE], 0, 12),
        ([A, 12, 0, MPI.DOUBLE], 0, 12),
        ([A, (0, 12), MPI.DOUBLE], 96, 0),
    ],
)
def test_forms_of_a_message(message, offset, count):
    if count is None:
        with pytest.raises(ValueError, match="a list of 1 item"):
            parse(message)
        return
    found = parse(message)
    assert found.length == count
    assert found.memory.dtype == np.uint8
    assert found.memory.shape == (8 * count,)
    if count:
        assert address(found.memory) == A.ctypes.data + offset
    assert (found.dtype, found.itemsize, found.datatype) == (A.dtype, 8, MPI.DOUBLE)


@pytest.mark.parametrize(
    ("owner", "datatype"),
    [
        (b"abcdefgh", MPI.BYTE),
        (bytearray(b"abcdefgh"), MPI.BYTE),
        (memoryview(bytearray(b"abcdefgh")), MPI.BYTE),
        (array.array("i", [1, 2]), MPI.INT),
        ((ctypes.c_double * 3)(1, 2, 3), MPI.DOUBLE),
        (np.float64(3), MPI.DOUBLE),
        (np.array(3.0), MPI.DOUBLE),
        (np.zeros((2, 3), "f4"), MPI.FLOAT),
        (np.zeros((2, 3), "f4", order="F"), MPI.FLOAT),
        (np.zeros((2, 3), "f4")[:, :0], MPI.FLOAT),
        (np.zeros(3, "c16"), MPI.C_DOUBLE_COMPLEX),
        (np.zeros(3, "?"), MPI.C_BOOL),
        (np.zeros(3, np.longdouble), MPI.LONG_DOUBLE),
        (np.zeros(3, np.longlong), MPI.LONG_LONG),
        (np.zeros(3, "S1"), MPI.CHAR),
        (np.ma.masked_array(np.zeros(3)), MPI.DOUBLE),
        (MPI.buffer.allocate(16), MPI.BYTE),
        ([np.zeros(4, "i4"), MPI.INT32_T], MPI.INT32_T),
        ([np.zeros(4, "M8[s]"), MPI.INT64_T], MPI.INT64_T),
        ([np.zeros(4, [("a", "f8"), ("b", "i4")]), MPI.BYTE], MPI.BYTE),
        ([np.zeros(4, ">f8"), MPI.BYTE], MPI.BYTE),
        ([None, 0, MPI.INT], MPI.INT),
    ],
)
def test_owners_of_memory(owner, datatype):
    found = parse(owner)
    byte = (MPI.BYTE, MPI.UNSIGNED_CHAR, MPI.UINT8_T)
    assert found.datatype == datatype or (found.datatype in byte and datatype in byte)
    holder = owner[0] if isinstance(owner, list) else owner
    nbytes = 0 if holder is None else memoryview_bytes(holder)
    assert found.memory.size == nbytes
    assert found.length * found.itemsize == nbytes


def memoryview_bytes(owner):
    return owner.nbytes if hasattr(owner, "nbytes") else memoryview(owner).nbytes


def test_writes_reach_the_owner():
    for owner in (bytearray(8), array.array("d", [0]), (ctypes.c_double * 1)(), np.zeros(1)):
        parse(owner, writable=True).memory[:] = 7
        assert bytes(memoryview(owner).cast("B")) == b"\7" * 8


def test_dlpack_is_taken_without_a_copy():
    class Tensor:
        def __init__(self, held):
            self.held = held

        def __dlpack__(self, **arguments):
            return self.held.__dlpack__(**arguments)

        def __dlpack_device__(self):
            return self.held.__dlpack_device__()

    held = np.zeros((2, 3), "f4")
    found = parse(Tensor(held), writable=True)
    assert (found.length, found.dtype) == (6, np.float32)
    assert address(found.memory) == held.ctypes.data
    found.memory[:] = 255
    assert np.isnan(held).all()
    held.flags.writeable = False
    with pytest.raises(BufferError, match="read-only"):
        parse(Tensor(held), writable=True)


def test_device_memory_is_refused_without_a_driver_and_of_other_devices():
    class OnDevice:
        def __init__(self, kind):
            self.kind = kind

        def __dlpack_device__(self):
            return self.kind, 0

    class Cuda:
        def __init__(self):
            self.__cuda_array_interface__ = {}

    for owner in (OnDevice(2), Cuda(), OnDevice(10)):
        with pytest.raises(BufferError, match=r"memory.*copy it to the host"):
            parse(owner)


def test_blocks_cut_an_inferred_count_and_multiply_an_explicit_one():
    assert parse(A, blocks=4).length == 3
    assert parse(A, blocks=4).memory.size == 96
    assert parse([A, 2], blocks=4).length == 2
    assert parse([A, 2], blocks=4).memory.size == 64
    assert parse([A, (2, 1)], blocks=5).memory.size == 80
    assert parse(np.empty(0), blocks=4).length == 0


def test_bfloat16_is_taken_even_without_an_mpi_type():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    found = parse(np.zeros(5, ml_dtypes.bfloat16))
    assert (found.length, found.itemsize, found.dtype) == (5, 2, np.dtype(ml_dtypes.bfloat16))
    if found.datatype is None:
        assert found.message(reduced=False)[1:] == [10, MPI.BYTE]


@pytest.mark.parametrize("pair", [MPI.DOUBLE_INT, MPI.FLOAT_INT, MPI.TWOINT, MPI.SHORT_INT])
def test_pairs_have_a_dtype_of_the_same_extent(pair):
    found = parse([bytearray(3 * pair.extent), pair])
    assert found.length == 3
    assert found.dtype.itemsize == pair.extent
    assert found.dtype.names is not None


# --- what is refused ---


def writable(message):
    return parse(message, what="receive buffer", writable=True)


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        (3.5, TypeError, r"expected an array.*not float"),
        (None, TypeError, "None is no buffer; pass an array"),
        ("text", TypeError, "expected an array.*not str"),
        ([1, 2, 3, 4, 5], ValueError, r"a list of 5 items.*numpy\.array"),
        (
            [A, 13],
            ValueError,
            "too small: 13 elements of 8 bytes would need 104 bytes, there",
        ),
        ([A, (12, 1)], ValueError, "too small: 12 elements of 8 bytes would need 96.*there are 88"),
        ([A, (0, 13)], ValueError, "displacement 13 is beyond the end of a buffer of 12 elements"),
        ([A, -1], ValueError, "count -1 must not be negative"),
        ([A, (1, -1)], ValueError, "displacement -1 must not be negative"),
        ([A, 1.5], TypeError, r"count 1\.5 must be an integer"),
        ([A, (1, 2, 3)], ValueError, r"\(1, 2, 3\) in the place of \(count, displacement\)"),
        ([A, 3, "nonsense"], KeyError, "no MPI datatype has the code 'nonsense'"),
        ([A, 3, np.float64], TypeError, "in the place of an MPI datatype such as MPI.DOUBLE"),
        ([1, 2, 3], TypeError, r"3 in the place .*numpy\.array"),
        ([A, MPI.DATATYPE_NULL], ValueError, r"MPI\.DATATYPE_NULL"),
        ([b"12345", MPI.INT], ValueError, "5 bytes are not a multiple of the datatype's 4 bytes"),
        ([None, 2, MPI.INT], ValueError, "the buffer is None but the count is 2"),
        (np.zeros(4, ">f8"), BufferError, r"dtype >f8 .* byte order.*newbyteorder"),
        ([np.zeros(4, ">f8"), MPI.DOUBLE], BufferError, "byte order"),
        (np.zeros(4, object), TypeError, "object have no bytes to send; convert .* lower-case"),
        (np.zeros(4, [("a", "f8")]), TypeError, r"no MPI datatype.*\[array, MPI\.BYTE\]"),
        (np.zeros(4, "U3"), TypeError, "no MPI datatype"),
        (np.zeros(4, "S3"), TypeError, "no MPI datatype"),
    ],
)
def test_errors_name_value_and_remedy(message, error, text):
    with pytest.raises(error, match=text) as caught:
        parse(message, what="send buffer")
    assert str(caught.value).startswith("send buffer: ")
    assert not isinstance(caught.value, Unsupported)


def frozen(values):
    values.flags.writeable = False
    return values


@pytest.mark.parametrize("owner", [b"abc", frozen(np.zeros(3)), memoryview(b"abc")])
def test_read_only_is_refused_for_receiving_alone(owner):
    assert parse(owner).length == 3
    with pytest.raises(BufferError, match=r"receive buffer: read-only.*writable"):
        writable(owner)
    with pytest.raises(BufferError, match="read-only"):
        writable([owner, 1, "B"])


def test_blocks_that_do_not_divide():
    with pytest.raises(
        ValueError, match=r"12 elements cannot be cut into 5 equal blocks.*multiple"
    ):
        parse(A, blocks=5)
    with pytest.raises(ValueError, match="too small: 5 blocks of 3 elements"):
        parse([A, 3], blocks=5)


def test_a_count_and_a_datatype_are_the_callers_word():
    """mpi4py asks no more of memory than where it begins, if a message says the rest."""
    begin = A[:2]
    found = parse([begin, 5, MPI.DOUBLE], what="send buffer")
    assert found.memory.view("f8").tolist() == A[:5].tolist()
    assert found.beyond == (
        "send buffer: counts reach to byte 40 of a buffer of 16 bytes, which is used as the "
        "message says, unchecked"
    )
    nothing = MPI.buffer.fromaddress(A.ctypes.data, 0)
    found = parse([nothing, (2, 0), MPI.DOUBLE], blocks=3)
    assert found.memory.view("f8").tolist() == A[:6].tolist()
    assert not parse([A, 12, MPI.DOUBLE]).beyond
    with pytest.raises(ValueError, match="displacement 3 is beyond the end"):
        parse([begin, (1, 3), MPI.DOUBLE])


def test_a_derived_datatype_may_reach_beyond():
    column = MPI.DOUBLE.Create_vector(3, 1, 4).Create_resized(0, 8).Commit()
    copy = A.copy()
    found = parse([copy[:3], 2, column], what="receive buffer", writable=True, moved=True)
    found.packed.load()
    assert found.memory.view("f8").tolist() == [0, 4, 8, 1, 5, 9]
    assert "reach from byte 0 to 80 of a buffer of 24 bytes" in found.beyond
    found.memory.view("f8")[:] = -1
    found.packed.write_back()
    assert np.flatnonzero(copy == -1).tolist() == [0, 1, 4, 5, 8, 9]
    with pytest.raises(ValueError, match="reach from byte 0 to 88 of a buffer of 24 bytes"):
        parse([copy[:3], column], moved=True)  # the message says no count
    column.Free()


def test_what_only_the_library_serves():
    holes = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    with pytest.raises(Unsupported, match="derived datatype"):
        parse([A, 1, holes])
    holes.Free()
    with pytest.raises(Unsupported, match=r"MPI\.BOTTOM"):
        parse([MPI.BOTTOM, 1, MPI.DOUBLE])


# --- pairs of buffers ---


def operands(name, send, recv, rank=0, size=4, root=0):
    definition = collectives.collective(name)
    nblocks = size if definition.block_per_rank else 1
    return pairs.operands(definition, Place(rank, size, root, nblocks), send, recv)


@pytest.mark.parametrize(
    ("name", "rank", "send", "recv", "sent", "received"),
    [
        ("allreduce", 1, 8, 8, 8, 8),
        ("reduce", 0, 8, 8, 8, 8),
        ("reduce", 1, 8, None, 8, None),
        ("bcast", 0, None, 8, 8, 8),
        ("bcast", 1, None, 8, None, 8),
        ("allgather", 1, 2, 8, 2, 8),
        ("gather", 0, 2, 8, 2, 8),
        ("gather", 1, 2, None, 2, None),
        ("scatter", 0, 8, 2, 8, 2),
        ("scatter", 1, None, 2, None, 2),
        ("reduce_scatter", 1, 8, 2, 8, 2),
    ],
)
def test_who_gives_and_gets_what(name, rank, send, recv, sent, received):
    def made(count):
        # What is not significant may be anything.
        return "not looked at" if count is None else np.zeros(count)

    found = operands(name, made(send) if name != "bcast" else None, made(recv), rank)
    assert [buffer and buffer.memory.size // 8 for buffer in (found.send, found.recv)] == [
        sent,
        received,
    ]
    assert found.in_place == (name == "bcast")


def test_the_root_of_a_broadcast_may_be_read_only():
    assert operands("bcast", None, b"abc", rank=0).send is not None
    with pytest.raises(BufferError, match="read-only"):
        operands("bcast", None, b"abc", rank=1)


@pytest.mark.parametrize(
    ("name", "rank"),
    [("allreduce", 1), ("reduce", 0), ("allgather", 1), ("gather", 0), ("reduce_scatter", 1)],
)
def test_in_place_names_one_memory(name, rank):
    found = operands(name, MPI.IN_PLACE, np.zeros(8), rank)
    assert found.in_place
    assert found.send is found.recv
    assert found.recv.memory.size == 64


def test_scatter_is_in_place_by_its_receive_buffer():
    assert operands("scatter", np.zeros(8), MPI.IN_PLACE, 0).in_place
    assert operands("scatter", b"12345678", MPI.IN_PLACE, 0).send.length == 2


@pytest.mark.parametrize(
    ("name", "send", "recv", "rank"),
    [
        ("reduce", MPI.IN_PLACE, np.zeros(8), 1),
        ("gather", MPI.IN_PLACE, None, 1),
        ("scatter", None, MPI.IN_PLACE, 1),
        ("scatter", MPI.IN_PLACE, np.zeros(2), 0),
        ("allreduce", np.zeros(8), MPI.IN_PLACE, 0),
        ("allreduce", MPI.IN_PLACE, MPI.IN_PLACE, 0),
        ("allgather", np.zeros(8), MPI.IN_PLACE, 0),
    ],
)
def test_in_place_has_one_place(name, send, recv, rank):
    with pytest.raises(ValueError, match=r"MPI\.IN_PLACE as .* alone; pass an array"):
        operands(name, send, recv, rank)


@pytest.mark.parametrize("size", [1, 4])
def test_pairs_that_do_not_fit(size):
    with pytest.raises(ValueError, match="MPI_FLOAT but receive buffer of MPI_DOUBLE"):
        operands("allreduce", np.zeros(8, "f4"), np.zeros(8), size=size)
    with pytest.raises(ValueError, match="send buffer of MPI_DOUBLE but receive buffer of MPI_INT"):
        operands("allgather", np.zeros(2), np.zeros(4 * size, "i4"), size=size)
    with pytest.raises(ValueError, match="send buffer of 8 elements but receive buffer of 7"):
        operands("allreduce", np.zeros(8), np.zeros(7), size=size)
    with pytest.raises(ValueError, match="2 elements a block but receive buffer of 3"):
        operands("allgather", np.zeros(2), np.zeros(3 * size), size=size)
    with pytest.raises(ValueError, match="send buffer in C order but receive buffer in F order"):
        operands("allreduce", np.zeros((2, 3)), np.zeros((3, 2), order="F"), size=size)


def test_bytes_match_any_type_that_is_only_moved():
    assert operands("allgather", np.zeros(2), bytearray(64)).recv.block_bytes == 16
    with pytest.raises(ValueError, match="same datatype"):
        operands("allreduce", np.zeros(2), bytearray(16))


@pytest.mark.parametrize("size", [1, 4])
def test_memory_that_overlaps(size):
    base = np.zeros(10)
    with pytest.raises(ValueError, match=r"are the same memory.*MPI\.IN_PLACE as the send buffer"):
        operands("allreduce", base, base, size=size)
    with pytest.raises(ValueError, match=r"overlap, which MPI forbids.*MPI\.IN_PLACE"):
        operands("allreduce", base[:8], base[1:9], size=size)
    blocks = np.zeros(2 * size)
    with pytest.raises(ValueError, match=r"MPI\.IN_PLACE as the send buffer"):
        operands("gather", blocks[:2], blocks, size=size)
    with pytest.raises(ValueError, match=r"MPI\.IN_PLACE as the receive buffer"):
        operands("scatter", blocks, blocks[:2], size=size)
    # Neighbours are no overlap, and neither is nothing.
    operands("allreduce", base[:5], base[5:], size=size)
    operands("allreduce", base[2:2], base[2:2], size=size)
