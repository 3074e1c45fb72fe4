"""Producers of DLPack that keep to its letter: each frees its own descriptor with its capsule.

So does the one in mpi4py's tests.  Who takes an export over, and calls its deleter later, finds
nothing there any more.
"""

from __future__ import annotations

import ctypes

from mpicoll.base import dlpack

_new = ctypes.pythonapi.PyCapsule_New
_new.restype = ctypes.py_object
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR]

_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

#: Producers and descriptors by the addresses of their capsules.
_alive = {}


@_DESTRUCTOR
def _destroy(capsule):
    producer, descriptor = _alive.pop(capsule)
    # Whoever looks there dies.
    ctypes.memset(ctypes.addressof(descriptor), 0xFF, ctypes.sizeof(descriptor))
    producer.freed += 1


#: DLPack's types of elements, by NumPy's letters.
KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6, "V": 4}


class Managed(ctypes.Structure):
    """What a capsule has before DLPack 1.0."""

    _fields_ = (
        ("tensor", dlpack.Tensor),
        ("manager", ctypes.c_void_p),
        ("deleter", _DELETER),
    )


class Versioned(ctypes.Structure):
    """What it has since."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", _DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", dlpack.Tensor),
    )


class Producer:
    """An object that exports an array by DLPack.

    Args:
        array: has ``shape``, ``strides`` in bytes and ``dtype``.
        address: of its first element; that of NumPy's array if not given.
        device: DLPack's type and number.
        version: (0, 8) has an argument ``stream`` alone.
        fields: of the tensor, in the place of the array's.
        flags: of DLPack 1.

    Attributes:
        freed: how many descriptors this has freed, with their capsules.
        deleted: how often somebody has called a deleter.
        asked: the arguments of ``__dlpack__``.
    """

    def __init__(self, array, address=None, device=(1, 0), version=(1, 0), flags=0, **fields):
        self.array, self.device, self.version, self.flags = array, device, version, flags
        self.address = array.ctypes.data if address is None else address
        self.fields, self.freed, self.deleted, self.asked = fields, 0, 0, []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None, **more):
        if more and self.version < (1, 0):
            raise TypeError(f"unexpected arguments {[*more]}")
        self.asked.append({**({} if stream is None else {"stream": stream}), **more})
        descriptor = self._descriptor()
        name = b"dltensor" if self.version < (1, 0) else b"dltensor_versioned"
        capsule = _new(ctypes.addressof(descriptor), name, _destroy)
        _alive[id(capsule)] = self, descriptor
        return capsule

    def _descriptor(self):
        def delete(managed):
            self.deleted += 1

        array, size = self.array, self.array.dtype.itemsize
        ndim = len(array.shape)
        self._shape = (ctypes.c_int64 * ndim)(*array.shape)
        self._strides = (ctypes.c_int64 * ndim)(*(step // size for step in array.strides))
        tensor = dlpack.Tensor(
            self.address, *self.device, ndim, KINDS[array.dtype.kind], 8 * size, 1,
            self._shape, self._strides, 0,
        )  # fmt: skip
        for name, value in self.fields.items():
            setattr(tensor, name, value)
        if self.version < (1, 0):
            return Managed(tensor, None, _DELETER(delete))
        return Versioned(*self.version, None, _DELETER(delete), self.flags, tensor)
