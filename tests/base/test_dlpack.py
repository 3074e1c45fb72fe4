"""What is exported by DLPack, looked at and not taken over."""

import gc

import numpy as np
import pytest
from exporting import Producer

from mpicoll.base import dlpack
from mpicoll.buffers import parse

VERSIONS = pytest.mark.parametrize("version", [(0, 8), (1, 0), (1, 2)])


@VERSIONS
def test_the_producer_alone_frees_its_descriptor(version):
    held = np.arange(6, dtype="f4").reshape(2, 3)
    producer = Producer(held, version=version)
    found = parse(producer, writable=True)
    assert (found.length, found.dtype, producer.freed) == (6, np.float32, 0)
    assert found.memory.ctypes.data == held.ctypes.data
    found.memory.view("f4")[:] = 7  # it is there as long as what is parsed
    del found
    gc.collect()
    assert (producer.freed, producer.deleted) == (1, 0)
    assert (held == 7).all()


@VERSIONS
def test_what_it_is_asked(version):
    for device, stream in (((1, 0), {}), ((13, 0), {"stream": -1})):
        producer = Producer(np.zeros(2), device=device, version=version)
        dlpack.look(producer)
        newer = {} if version < (1, 0) else {"max_version": (1, 0), "copy": False}
        assert producer.asked == [{**stream, **newer}]


def test_where_and_what_the_elements_are():
    for dtype in ("?", "i1", "u2", "f2", "i4", "f8", "c8", "c16"):
        array = np.arange(12).astype(dtype).reshape(3, 4)
        for view in (array, array.T, array[:, 1:3], array[::2], array[:0], array[0, 0:1]):
            found = dlpack.look(Producer(view)).array()
            np.testing.assert_array_equal(found, view)
            assert (found.dtype, found.shape) == (view.dtype, view.shape)
    assert dlpack.look(Producer(array, byte_offset=16)).address == array.ctypes.data + 16
    plain = Producer(array[0], strides=None)
    assert dlpack.look(plain).strides == (16,)
    assert dlpack.look(Producer(array, strides=None)).strides == (64, 16)
    assert dlpack.look(Producer(np.zeros(()), strides=None)).strides == ()


def test_strided_exports_go_by_value():
    held = np.arange(12, dtype="i4").reshape(3, 4)
    found = parse(Producer(held[:, ::2]), writable=True)
    assert found.length == 6
    found.packed.load()
    np.testing.assert_array_equal(found.memory.view("i4"), held[:, ::2].ravel())
    found.memory.view("i4")[:] = -1
    found.packed.write_back()
    assert (held[:, ::2] == -1).all() and (held[:, 1::2] >= 0).all()


def test_what_has_no_numpy_type_is_moved():
    found = dlpack.look(Producer(np.zeros(3, "u2"), code=99))
    assert (found.dtype, found.itemsize, found.array().dtype) == (None, 2, "V2")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    narrow = parse(Producer(np.ones(3, ml_dtypes.bfloat16)))
    assert (narrow.dtype.name, narrow.length) == ("bfloat16", 3)


def test_a_read_only_export():
    for producer in (Producer(np.zeros(3), flags=1), Producer(np.zeros(0), flags=1)):
        assert parse(producer).length == producer.array.size
        with pytest.raises(BufferError, match="receive buffer: read-only; pass a writable array"):
            parse(producer, what="receive buffer", writable=True)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"version": (2, 1)}, BufferError, "DLPack 2.1, of which 0 and 1 are understood"),
        ({"lanes": 2}, TypeError, "DLPack elements of 2 x 64 bits"),
        ({"bits": 4}, TypeError, "DLPack elements of 1 x 4 bits"),
    ],
)
def test_what_is_not_understood(fields, error, message):
    with pytest.raises(error, match=f"send buffer: .*{message}"):
        parse(Producer(np.zeros(2), **fields), what="send buffer")


def test_an_export_that_fails_says_why():
    class Used(Producer):
        def __dlpack__(self, **more):
            return object()

    class Fails(Producer):
        def __dlpack__(self, **more):
            raise RuntimeError("it has been given away")

    with pytest.raises(BufferError, match="buffer: __dlpack__ has not returned a capsule"):
        parse(Used(np.zeros(2)))
    with pytest.raises(BufferError, match="send buffer: it has been given away; copy it"):
        parse(Fails(np.zeros(2)), what="send buffer")


def test_a_tensor_that_requires_a_gradient():
    torch = pytest.importorskip("torch")
    tensor = torch.ones(3, requires_grad=True)
    with pytest.raises(BufferError, match=r"send buffer: .* a gradient; pass tensor.detach\(\)"):
        parse(tensor, what="send buffer")
    found = parse(tensor.detach(), writable=True)
    assert found.memory.ctypes.data == tensor.data_ptr()
