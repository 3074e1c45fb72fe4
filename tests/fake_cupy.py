"""CuPy without a GPU: arrays in memory that, like CuPy's, do not mix with NumPy's by themselves.

Collectives take them for NumPy's.
"""

from __future__ import annotations

import types

import numpy as np


def _is_foreign(value):
    return type(value) is np.ndarray and value.ndim > 0


def _plain(value):
    """Arrays, also in sequences, as NumPy has them."""
    if isinstance(value, ndarray):
        return np.ndarray.view(value, np.ndarray)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


class ndarray(np.ndarray):
    """An array "on a GPU"."""

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **more):
        if any(_is_foreign(value) for value in (*inputs, *(out or ()))):
            raise TypeError(f"{ufunc.__name__} of an array on the GPU and one on the host")
        plain = [np.asarray(value) if isinstance(value, ndarray) else value for value in inputs]
        if out is not None:
            more["out"] = tuple(np.asarray(value) for value in out)
        result = getattr(ufunc, method)(*plain, **more)
        return out[0] if out is not None else asarray(result)

    def __array_function__(self, function, kinds, arguments, more):
        if any(kind is np.ndarray for kind in kinds):
            raise TypeError(f"{function.__name__} of an array on the GPU and one on the host")
        result = function(*_plain(arguments), **_plain(more))
        return result.view(ndarray) if isinstance(result, np.ndarray) else result

    def __setitem__(self, index, value):
        if _is_foreign(value):
            raise TypeError("an array of the host in the place of one on the GPU")
        if any(_is_foreign(item) for item in (index if isinstance(index, tuple) else (index,))):
            raise TypeError("an index on the host of an array on the GPU")
        super().__setitem__(index, value)

    def __getitem__(self, index):
        if any(_is_foreign(item) for item in (index if isinstance(index, tuple) else (index,))):
            raise TypeError("an index on the host of an array on the GPU")
        return super().__getitem__(index)

    @property
    def data(self):
        raise TypeError("memory on a GPU")

    def get(self):
        """The values, on the host."""
        return np.array(self)


def asarray(values, dtype=None):
    """Values on the GPU."""
    return np.asarray(values, dtype).view(ndarray)


def zeros(shape, dtype=float):
    """Zeros on the GPU."""
    return np.zeros(shape, dtype).view(ndarray)


def ones(shape, dtype=float):
    """Ones on the GPU."""
    return np.ones(shape, dtype).view(ndarray)


def empty(shape, dtype=float):
    """Anything on the GPU."""
    return np.full(shape, 77, dtype).view(ndarray)


def arange(*arguments):
    """A range on the GPU."""
    return np.arange(*arguments).view(ndarray)


def module():
    """What is imported as cupy."""

    used = []

    def device(number=0):
        return types.SimpleNamespace(use=lambda: used.append(number), pci_bus_id="0000:01:00.0")

    runtime = types.SimpleNamespace(getDeviceCount=lambda: 2, memGetInfo=lambda: (1 << 30, 1 << 31))
    made = types.ModuleType("cupy")
    vars(made).update(
        ndarray=ndarray,
        asarray=asarray,
        zeros=zeros,
        ones=ones,
        empty=empty,
        arange=arange,
        used=used,
        cuda=types.SimpleNamespace(Device=device, runtime=runtime),
    )
    return made
