"""The collectives of a process group that move data.

For their names see :mod:`mpicoll.torch.reducing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mpi4py import MPI
from torch import Tensor
from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllToAllOptions,
    BroadcastOptions,
    GatherOptions,
    ScatterOptions,
)

from mpicoll.base.wording import plural
from mpicoll.torch.base import Base
from mpicoll.torch.tensors import alike, buffer, dense, one, overlap, packed, unpack, write_back
from mpicoll.torch.work import Operation


class Moving(Base):
    """The part of a process group that moves data between all ranks."""

    def broadcast(
        self,
        tensors: Sequence[Tensor],
        opts: Any = BroadcastOptions(),  # noqa: B008
    ) -> Operation:
        """Copy the root's tensor to all ranks."""
        tensor = one(tensors, "broadcast")
        root, held = opts.rootRank, dense(tensor, "broadcast")

        def run() -> None:
            self.comm.Bcast(buffer(held), root)
            write_back(tensor, held)

        return self._run("broadcast", opts, run, [tensor])

    def allgather(
        self,
        output_tensors: Sequence[Sequence[Tensor]],
        input_tensors: Sequence[Tensor],
        opts: Any = AllgatherOptions(),  # noqa: B008
    ) -> Operation:
        """Collect a tensor of each rank, on all of them; they may differ in length."""
        what = "all_gather"
        outputs, mine = self._one_a_rank(output_tensors, what), one(input_tensors, what)
        kind = alike([mine, *outputs], what)
        counts = [tensor.numel() for tensor in outputs]

        def run() -> None:
            whole = torch.empty(sum(counts), dtype=kind, device=mine.device)
            block = buffer(dense(mine, what))
            if len({*counts}) == 1:
                self.comm.Allgather(block, buffer(whole))
            else:
                self.comm.Allgatherv(block, [buffer(whole), counts])
            unpack(whole, outputs)

        return self._run(what, opts, run, [outputs])

    def all_gather_single(
        self,
        output: Tensor,
        input: Tensor,
        opts: Any = AllgatherOptions(),  # noqa: B008
    ) -> Operation:
        """Collect a tensor of each rank in one, on all of them; the input may be a block of it."""
        what = "all_gather_single"
        alike([output, input], what)
        if output.numel() != input.numel() * self.size():
            raise ValueError(
                f"{what}: an output of {plural(output.numel(), 'element')} for an input of "
                f"{input.numel()} on each of {plural(self.size(), 'rank')}; the output must have "
                f"{input.numel() * self.size()}"
            )

        def run() -> None:
            held, mine = dense(output, what), dense(input, what)
            block: Any = MPI.IN_PLACE
            if mine.data_ptr() != held.data_ptr() + self.rank() * mine.nbytes:
                block = buffer(mine.clone() if overlap(mine, held) else mine)
            self.comm.Allgather(block, buffer(held))
            write_back(output, held)

        return self._run(what, opts, run, [output])

    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[Tensor]],
        input_list: Sequence[Tensor],
        opts: Any = AllgatherOptions(),  # noqa: B008
    ) -> Operation:
        """Collect a list of tensors of each rank, on all of them."""
        what = "all_gather_coalesced"
        outputs = [tensor for each in output_lists for tensor in each]
        kind, inputs = alike([*outputs, *input_list], what), [*input_list]

        def run() -> None:
            mine = packed(inputs, what)
            whole = torch.empty(mine.numel() * self.size(), dtype=kind, device=mine.device)
            self.comm.Allgather(buffer(mine), buffer(whole))
            unpack(whole, outputs)

        return self._run(what, opts, run, [*map(list, output_lists)])

    def gather(
        self,
        output_tensors: Sequence[Sequence[Tensor]],
        input_tensors: Sequence[Tensor],
        opts: Any = GatherOptions(),  # noqa: B008
    ) -> Operation:
        """Collect a tensor of each rank, at the root."""
        mine, root = one(input_tensors, "gather"), opts.rootRank
        outputs = []
        if self.rank() == root:
            outputs = self._one_a_rank(output_tensors, "gather")
            alike([mine, *outputs], "gather")
            _same_length([mine, *outputs], "gather")

        def run() -> None:
            block = buffer(dense(mine, "gather"))
            if not outputs:
                self.comm.Gather(block, None, root)
                return
            whole = torch.empty(mine.numel() * self.size(), dtype=mine.dtype, device=mine.device)
            self.comm.Gather(block, buffer(whole), root)
            unpack(whole, outputs)

        return self._run("gather", opts, run, [outputs or mine])

    def scatter(
        self,
        output_tensors: Sequence[Tensor],
        input_tensors: Sequence[Sequence[Tensor]],
        opts: Any = ScatterOptions(),  # noqa: B008
    ) -> Operation:
        """Give every rank its tensor of the root's."""
        output, root = one(output_tensors, "scatter"), opts.rootRank
        inputs = []
        if self.rank() == root:
            inputs = self._one_a_rank(input_tensors, "scatter")
            alike([output, *inputs], "scatter")
            _same_length([output, *inputs], "scatter")

        def run() -> None:
            held = dense(output, "scatter")
            whole = buffer(packed(inputs, "scatter")) if inputs else None
            self.comm.Scatter(whole, buffer(held), root)
            write_back(output, held)

        return self._run("scatter", opts, run, [output])

    def alltoall(
        self,
        output_tensors: Sequence[Tensor],
        input_tensors: Sequence[Tensor],
        opts: Any = AllToAllOptions(),  # noqa: B008
    ) -> Operation:
        """Send a tensor to every rank, and receive one from each; they may differ in length."""
        what = "all_to_all"
        outputs = self._one_a_rank([output_tensors], what)
        inputs = self._one_a_rank([input_tensors], what)
        kind = alike([*outputs, *inputs], what)
        counts = [tensor.numel() for tensor in outputs]
        gives = [tensor.numel() for tensor in inputs]

        def run() -> None:
            whole = torch.empty(sum(counts), dtype=kind, device=outputs[0].device)
            mine = buffer(packed(inputs, what))
            self.comm.Alltoallv([mine, gives], [buffer(whole), counts])
            unpack(whole, outputs)

        return self._run(what, opts, run, outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = AllToAllOptions(),  # noqa: B008
    ) -> Operation:
        """Send blocks of a tensor to the ranks: equal ones, or so many rows to each."""
        what = "all_to_all_single"
        alike([output, input], what)
        gives = self._shares(input, input_split_sizes, "input")
        counts = self._shares(output, output_split_sizes, "output")

        def run() -> None:
            held, mine = dense(output, what), dense(input, what)
            if overlap(held, mine):
                held = torch.empty_like(held)
            if output_split_sizes or input_split_sizes:
                self.comm.Alltoallv([buffer(mine), gives], [buffer(held), counts])
            else:
                self.comm.Alltoall(buffer(mine), buffer(held))
            write_back(output, held)

        return self._run(what, opts, run, [output])

    def _shares(self, tensor: Tensor, rows: Sequence[int], which: str) -> list[int]:
        """Elements of a tensor for each rank.

        Raises:
            ValueError: they are not all of it.
        """
        ranks, length = self.size(), tensor.size(0) if tensor.dim() else tensor.numel()
        if not rows and length % ranks:
            raise ValueError(
                f"all_to_all_single: {which} of {plural(length, 'row')} cannot be cut into {ranks} "
                f"equal blocks, one a rank; pass {which}_split_sizes"
            )
        if rows and (len(rows) != ranks or sum(rows) != length):
            raise ValueError(
                f"all_to_all_single: {which}_split_sizes {[*rows]} for {plural(ranks, 'rank')} and "
                f"{which} of {plural(length, 'row')}; pass a number for each rank, {length} in all"
            )
        row = tensor.numel() // length if length else 0
        return [share * row for share in rows or [length // ranks] * ranks]

    def all_gather_single_coalesced(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        opts: Any = AllgatherOptions(),  # noqa: B008
    ) -> Operation:
        """Several ``all_gather_single``."""
        return self._several(self.all_gather_single, outputs, inputs, opts)

    # The names before PyTorch 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    alltoall_base = all_to_all_single


def _same_length(tensors: Sequence[Tensor], what: str) -> None:
    """Raise ValueError if tensors are not of one number of elements."""
    found = sorted({tensor.numel() for tensor in tensors})
    if len(found) > 1:
        raise ValueError(f"{what}: tensors of {found} elements; pass tensors of one size")
