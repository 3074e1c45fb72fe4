"""The reductions of a process group, under the names by which PyTorch calls them.

Python, and PyTorch's C++ through its ``PyProcessGroup``, call methods of these names: those of
PyTorch 2.13 and newer, and the ones they have replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mpi4py import MPI
from torch import Tensor
from torch.distributed.distributed_c10d import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    ReduceOptions,
    ReduceScatterOptions,
)

from mpicoll.base.wording import plural
from mpicoll.torch.base import Base
from mpicoll.torch.reductions import Reduction, array, average, operand, reduction
from mpicoll.torch.tensors import alike, dense, one, overlap, packed, unpack, write_back
from mpicoll.torch.work import Operation


class Reducing(Base):
    """The part of a process group that reduces."""

    def allreduce(
        self,
        tensors: Sequence[Tensor],
        opts: Any = AllreduceOptions(),  # noqa: B008
    ) -> Operation:
        """Reduce a tensor over all ranks, in place on all of them."""
        tensor = one(tensors, "all_reduce")
        how = reduction(opts.reduceOp, tensor.dtype, "all_reduce")
        held = dense(tensor, "all_reduce")

        def run() -> None:
            mine = operand(held, how)
            self.comm.Allreduce(MPI.IN_PLACE, array(mine), how.op)
            self._arrived(mine, how)
            write_back(tensor, mine)

        return self._run("all_reduce", opts, run, [tensor])

    def allreduce_coalesced(
        self,
        tensors: Sequence[Tensor],
        opts: Any = AllreduceCoalescedOptions(),  # noqa: B008
    ) -> Operation:
        """Reduce tensors of one type over all ranks, in place, together."""
        what = "all_reduce_coalesced"
        how = reduction(opts.reduceOp, alike(tensors, what), what)
        tensors = [*tensors]

        def run() -> None:
            whole = operand(packed(tensors, what), how)
            self.comm.Allreduce(MPI.IN_PLACE, array(whole), how.op)
            self._arrived(whole, how)
            unpack(whole, tensors)

        return self._run(what, opts, run, tensors)

    def reduce(
        self,
        tensors: Sequence[Tensor],
        opts: Any = ReduceOptions(),  # noqa: B008
    ) -> Operation:
        """Reduce a tensor over all ranks, in place on the root; others keep theirs."""
        tensor = one(tensors, "reduce")
        how = reduction(opts.reduceOp, tensor.dtype, "reduce")
        root, held = opts.rootRank, dense(tensor, "reduce")

        def run() -> None:
            mine = operand(held, how)
            if self.rank() != root:
                self.comm.Reduce(array(mine), None, how.op, root)
                return
            self.comm.Reduce(MPI.IN_PLACE, array(mine), how.op, root)
            self._arrived(mine, how)
            write_back(tensor, mine)

        return self._run("reduce", opts, run, [tensor])

    def reduce_scatter(
        self,
        output_tensors: Sequence[Tensor],
        input_tensors: Sequence[Sequence[Tensor]],
        opts: Any = ReduceScatterOptions(),  # noqa: B008
    ) -> Operation:
        """Reduce a tensor for each rank; they may differ in length."""
        what = "reduce_scatter"
        output, inputs = one(output_tensors, what), self._one_a_rank(input_tensors, what)
        how = reduction(opts.reduceOp, alike([output, *inputs], what), what)
        counts = [tensor.numel() for tensor in inputs]

        def run() -> None:
            mine = operand(packed(inputs, what), how)
            self._reduce_scatter(output, mine, how, counts)

        return self._run(what, opts, run, [output])

    def reduce_scatter_single(
        self,
        output: Tensor,
        input: Tensor,
        opts: Any = ReduceScatterOptions(),  # noqa: B008
    ) -> Operation:
        """Reduce a tensor with a block for each rank."""
        what = "reduce_scatter_single"
        how = reduction(opts.reduceOp, alike([output, input], what), what)
        if input.numel() != output.numel() * self.size():
            raise ValueError(
                f"{what}: an input of {plural(input.numel(), 'element')} for an output of "
                f"{output.numel()} on each of {plural(self.size(), 'rank')}; the input must have "
                f"{output.numel() * self.size()}"
            )

        def run() -> None:
            self._reduce_scatter(output, operand(dense(input, what), how), how)

        return self._run(what, opts, run, [output])

    def _reduce_scatter(
        self, output: Tensor, mine: Tensor, how: Reduction, counts: list[int] | None = None
    ) -> None:
        held = dense(output, "reduce_scatter")
        if overlap(held, mine):
            held = torch.empty_like(held)
        if counts is None or len({*counts}) == 1:
            self.comm.Reduce_scatter_block(array(mine), array(held), how.op)
        else:
            self.comm.Reduce_scatter(array(mine), array(held), counts, how.op)
        self._arrived(held, how)
        write_back(output, held)

    def _arrived(self, result: Tensor, how: Reduction) -> None:
        if how.average:
            average(result, self.size())

    def reduce_scatter_single_coalesced(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        opts: Any = ReduceScatterOptions(),  # noqa: B008
    ) -> Operation:
        """Several ``reduce_scatter_single``."""
        return self._several(self.reduce_scatter_single, outputs, inputs, opts)

    # The names before PyTorch 2.13.
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
