"""Peers of all ranks, whose GPUs map each other's memory, in tests.  It needs CuPy."""

import contextlib

import cupy
import numpy as np
import pytest

from mpicoll.cuda.ipc import Peers
from mpicoll.cuda.launches import Limits

#: With these, what is short already goes the ways of what is long.
LOW = Limits(small_bytes=1 << 10, bulk_bytes=1 << 15, one_shot=1 << 9, direct=1 << 15)


@contextlib.contextmanager
def opened(world, seconds=60.0, limits=None):
    """The peers of all ranks, several of which may share a GPU."""
    private = world.Dup()
    shared = world.Get_size() > cupy.cuda.runtime.getDeviceCount()
    made, why = Peers.open(private, cupy.cuda.Device().id, seconds, shared, limits)
    if made is None:
        pytest.skip(why)
    yield made
    made.close()
    private.Free()


class Buffer:
    """A view of device memory as `Peers.run` wants it."""

    def __init__(self, array, dtype):
        self.ptr, self.nbytes, self.dtype = array.data.ptr, array.nbytes, np.dtype(dtype)
