"""What benchmarks/gpu.py calls collectives on, and what must come out of them.

Inputs are random, and other ones in each run and point.  What must be there at the end is folded on
this GPU: in rank order, rounded once to the type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import cupy
import numpy as np
from mpi4py import MPI

RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "bcast", "alltoall")
REDUCING = ("allreduce", "reduce_scatter")
#: Significant bits of each type.
DTYPES = {"float32": 24, "float16": 11, "bfloat16": 8}

#: Makes an array of so many elements of a type.
Allocate = Callable[[int, Any], Any]


class Point(NamedTuple):
    """What is measured.

    Attributes:
        collective, dtype: which.
        nbytes: of the whole vector.
        way: how it is called, see :data:`gpu_libraries.WAYS`.
    """

    collective: str
    dtype: str
    nbytes: int
    way: str = "plain"

    @classmethod
    def near(cls, collective: str, dtype: str, nbytes: int, way: str) -> Point:
        """That of about so many bytes: of a whole number of elements, for each rank if need be."""
        of_one = cls(collective, dtype, 0, way).itemsize
        of_one *= 1 if collective in ("allreduce", "bcast") else SIZE
        return cls(collective, dtype, max(1, nbytes // of_one) * of_one, way)

    @property
    def itemsize(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def count(self) -> int:
        """Elements of the whole vector."""
        return self.nbytes // self.itemsize

    @property
    def block(self) -> int:
        """Elements of one rank's block."""
        return self.count // SIZE


def element_type(name: str) -> Any:
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def narrowed(values: Any, dtype: str) -> Any:
    """float32 rounded to a type, to the nearest even, as unsigned integers of the same bits."""
    if dtype == "float32":
        return values.view(cupy.uint32)
    if dtype == "float16":
        return values.astype(cupy.float16).view(cupy.uint16)
    bits = values.view(cupy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(cupy.uint16)


def widened(bits: Any, dtype: str) -> Any:
    """The same as float32."""
    if dtype == "float32":
        return bits.view(cupy.float32)
    if dtype == "float16":
        return bits.view(cupy.float16).astype(cupy.float32)
    return (bits.astype(cupy.uint32) << 16).view(cupy.float32)


class Case:
    """The buffers of a point, as unsigned integers, and what must be in them at the end.

    Args:
        point: which.
        seed: of the inputs, equal on all ranks.
        allocate: makes the buffers.
    """

    def __init__(self, point: Point, seed: int, allocate: Allocate = cupy.empty) -> None:
        self.point, self._seed = point, seed
        count, block = point.count, point.block
        sent = block if point.collective == "allgather" else count
        got = block if point.collective == "reduce_scatter" else count
        self._input = self._drawn(RANK, sent)
        self.send = allocate(sent, self._input.dtype)
        in_place = point.collective in ("allreduce", "bcast")
        self.recv = self.send if in_place else allocate(got, self._input.dtype)
        self._wanted: dict[int, Any] = {}
        self.refresh()

    def refresh(self) -> None:
        """Put the input back, and something else where the output will be."""
        self.recv.view(cupy.uint8).fill(0xA5)
        self.send[...] = self._input

    def _drawn(self, rank: int, count: int) -> Any:
        """Random elements of a rank, which every rank can draw."""
        generator = cupy.random.Generator(cupy.random.XORWOW(self._seed * SIZE + rank))
        values = generator.random(count, dtype=cupy.float32)
        values -= cupy.float32(0.5)
        return narrowed(values, self.point.dtype)

    def wrong(self, calls: int, exact: bool) -> int | None:
        """Elements that are not what they must be after so many calls.

        Args:
            calls: since `refresh`.
            exact: whether sums must have the bits of those in rank order; else they may differ
                from them as sums in another order do.

        Returns:
            None where nobody can say: of sums of sums in another order.
        """
        point = self.point
        if exact or point.collective not in REDUCING:
            return int((self.recv != self._want(calls)).sum())
        if point.collective == "allreduce" and calls > 1:
            return None
        got, want = (widened(bits, point.dtype) for bits in (self.recv, self._want(calls)))
        # Each of P - 1 sums is off by half a unit of what it may be at most, and the last rounding.
        room = self._folded(cupy.abs) * cupy.float32(SIZE * 2.0 ** -(DTYPES[point.dtype] - 1))
        return int((~(cupy.abs(got - want) <= room)).sum())

    def _want(self, calls: int) -> Any:
        """What is to be received; in place a call's output is the next one's input."""
        point = self.point
        calls = calls if point.collective == "allreduce" else 1
        if calls not in self._wanted:
            block = point.block
            mine = slice(RANK * block, (RANK + 1) * block)
            if point.collective == "bcast":
                want = self._drawn(0, point.count)
            elif point.collective == "allgather":
                want = cupy.concatenate([self._drawn(rank, block) for rank in range(SIZE)])
            elif point.collective == "alltoall":
                parts = [self._drawn(rank, point.count)[mine] for rank in range(SIZE)]
                want = cupy.concatenate(parts)
            else:
                want = narrowed(self._folded(), point.dtype)
                for _ in range(calls - 1):
                    one = widened(want, point.dtype)
                    total = one
                    for _ in range(SIZE - 1):
                        total = total + one
                    want = narrowed(total, point.dtype)
            self._wanted[calls] = want
        return self._wanted[calls]

    def _folded(self, what: Callable[[Any], Any] = lambda values: values) -> Any:
        """The sum of something of all ranks' inputs in rank order, of this rank's part."""
        point = self.point
        block = point.block
        whole = point.collective == "allreduce"
        mine = slice(None) if whole else slice(RANK * block, (RANK + 1) * block)
        total: Any = None
        for rank in range(SIZE):
            one = what(widened(self._drawn(rank, point.count)[mine], point.dtype))
            total = one if total is None else total + one
        return total

    def first_wrong(self, calls: int) -> str:
        """The first element that is wrong, in words."""
        want = self._want(calls)
        index = int((self.recv != want).argmax())
        got, wanted = (
            float(widened(bits[index : index + 1].copy(), self.point.dtype)[0])
            for bits in (self.recv, want)
        )
        return f"rank {RANK}: element {index} is {got!r}, not {wanted!r}"
