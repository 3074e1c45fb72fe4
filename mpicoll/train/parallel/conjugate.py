"""Collectives between sharded layers, each with its transpose for the backward pass.

M. Shoeybi et al., "Megatron-LM", 2019, section 3, has the first two, called f and g there;
V. Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022,
section 4.2.2, those of sequences that are cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from mpicoll.base.arrays import Array, library_of
from mpicoll.schedule.layout import Layout, even, scaled
from mpicoll.train.parallel.placements import Cut, Pair, Shape
from mpicoll.train.ranks.workers import AllReduceWorkers, raise_together

if TYPE_CHECKING:
    from mpi4py import MPI

#: The collective of each operation; the others send nothing.
COLLECTIVES = {"sum": "allreduce", "gather": "allgather", "scatter": "reduce_scatter"}


T = TypeVar("T")


@dataclass(eq=False)
class Group:
    """The ranks that share layers.

    All have the same samples, and call the same methods in the same order.  So a rank on which a
    layer fails goes on with zeros to the end of the pass, where all ranks hear of it: no other
    waits for it in a collective.

    Attributes:
        comm: The ranks, an `mpicoll.Intracomm` or one of mpi4py's.
        size: How many.
        rank: This one's number.
        failure: What has gone wrong on this rank in this pass.
    """

    comm: MPI.Intracomm
    size: int
    rank: int
    failure: Exception | None = None

    def attempt(self, compute: Callable[[], T], otherwise: Callable[[], T]) -> T:
        """What this rank computes by itself; something else, once that has failed in this pass."""
        if self.failure is None:
            try:
                return compute()
            except Exception as error:
                self.failure = error
        return otherwise()

    def agree(self) -> None:
        """The pass is over; collective.

        Raises:
            TrainingError: It has failed on some ranks; on all ranks.
            Exception: It has failed on all ranks, which is as if there was one.
        """
        failure, self.failure = self.failure, None
        failed = int(self.sum(np.array([failure is not None], float))[0])
        if failure is not None and failed == self.size:
            raise failure
        if failed:
            raise_together(AllReduceWorkers(self.comm, None), "computing a layer", failure)

    def same(self, values: Array, cut: Cut | None) -> Array:
        """The values themselves."""
        return values

    def sum(self, values: Array, cut: Cut | None = None) -> Array:
        """The sum over the ranks, in a new array."""
        total = library_of(values).empty(values.shape, values.dtype)
        if total.size:
            self.comm.Allreduce(np.ascontiguousarray(values), total)
        return total

    def take(self, values: Array, cut: Cut | None) -> Array:
        """This rank's part of values that all ranks have."""
        assert cut is not None
        return cut.take(values, self.size, self.rank)

    def gather(self, values: Array, cut: Cut | None) -> Array:
        """The whole, of which each rank has its part."""
        assert cut is not None
        library = library_of(values)
        whole = library.empty(cut.whole_shape(values.shape), values.dtype)
        if not whole.size:
            return whole
        items = cut.items(whole)
        blocks = self._blocks(items)
        # Of one row the parts lie one after the other, as they come.
        received = whole.reshape(-1) if len(items) == 1 else library.empty(whole.size, whole.dtype)
        own = np.ascontiguousarray(values).reshape(-1)
        self.comm.Allgatherv(own, [received, list(blocks.counts)])
        if len(items) > 1:
            for block, target in self._parts(received, items):
                target[...] = block
        return whole

    def scatter(self, values: Array, cut: Cut | None) -> Array:
        """This rank's part of the sum over the ranks."""
        assert cut is not None
        library, shape = library_of(values), cut.part_shape(values.shape, self.size, self.rank)
        own = library.empty(shape, values.dtype)
        if not values.size:
            return own
        items = cut.items(np.ascontiguousarray(values))
        sent = items.reshape(-1)
        if len(items) > 1:
            sent = library.empty(values.size, values.dtype)
            for block, source in self._parts(sent, items):
                block[...] = source
        self.comm.Reduce_scatter(sent, own, list(self._blocks(items).counts))
        return own

    def _blocks(self, items: Array) -> Layout:
        """Where the part of each rank begins in a vector of all, and how long it is."""
        return scaled(even(items.shape[1], self.size), items.shape[0] * items.shape[2])

    def _parts(self, vector: Array, items: Array) -> list[tuple[Array, Array]]:
        """For each rank its block of a vector, and the view of its items, in the same shape."""
        found = []
        cuts = even(items.shape[1], self.size)
        for start, count, offset in zip(*cuts, self._blocks(items).offsets, strict=True):
            view = items[:, start : start + count]
            found.append((vector[offset : offset + view.size].reshape(view.shape), view))
        return found


@dataclass(frozen=True, eq=False)
class Step:
    """What is done with the values between two layers.

    Attributes:
        pair: Forward and backward operation.
        cut: Along which values are gathered or divided.
        shape: Of the whole values of a sample.
    """

    pair: Pair
    cut: Cut | None
    shape: Shape

    def output_shape(self, shape: Shape, group: Group) -> Shape:
        """Of a sample behind it on this rank, from that before it."""
        match self.pair.value[0], self.cut:
            case "gather", Cut() as cut:
                return cut.whole_shape(shape)
            case (("take" | "scatter"), Cut() as cut):
                return cut.part_shape(shape, group.size, group.rank)
        return shape

    def forward(self, values: Array, group: Group) -> Array:
        """Of the values of a batch."""
        found: Array = getattr(group, self.pair.value[0])(values, self.cut)
        return found

    def backward(self, slopes: Array, group: Group) -> Array:
        """Of the slopes by what `forward` gave."""
        found: Array = getattr(group, self.pair.value[1])(slopes, self.cut)
        return found

    def collectives(self, samples: int) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        """Name and values of the whole vector of each collective, of both passes."""
        forward, backward = (
            [(COLLECTIVES[name], samples * prod(self.shape))] if name in COLLECTIVES else []
            for name in self.pair.value
        )
        return forward, backward
