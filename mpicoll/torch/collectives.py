"""The collectives of a process group, under the names by which PyTorch calls them.

Python, and PyTorch's C++ through its ``PyProcessGroup``, call methods of these names: those of
PyTorch 2.13 and newer, and the ones they have replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from mpi4py import MPI
from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ProcessGroup,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

import mpicoll
from mpicoll.base.wording import plural
from mpicoll.torch.reductions import Reduction, array, average, operand, reduction
from mpicoll.torch.tensors import (
    alike,
    buffer,
    dense,
    one,
    overlap,
    packed,
    unpack,
    write_back,
)
from mpicoll.torch.turns import Turns
from mpicoll.torch.work import Done, Operation, Several

Tensor = torch.Tensor
#: Of options that PyTorch has made without a time limit, or older ones that have none.
_UNSET = timedelta(0)


class Collectives(ProcessGroup):
    """A process group over a communicator.

    Attributes:
        comm: the communicator.
    """

    comm: mpicoll.Intracomm
    _turns: Turns
    _timeout: float
    _started: list[Operation] | None = None  # between start and end of coalescing
    _sequence = 0

    def _run(
        self, what: str, options: Any, function: Callable[[], object], tensors: list[Any]
    ) -> Operation:
        """Run a collective in its turn: now, or later where PyTorch does not wait for it.

        Args:
            what: PyTorch's name.
            options: those of the call.
            function: runs it.
            tensors: what it gives.
        """
        self._check(what)
        self._sequence += 1
        given = options.timeout
        seconds = given.total_seconds() if given > _UNSET else self._timeout
        later = getattr(options, "asyncOp", True) or self._started is not None
        if not later or _on_device(tensors):  # on a device it is ordered by the current stream
            try:
                self._turns.now(what, seconds, function)
            except TimeoutError as error:
                raise torch.distributed.DistBackendError(str(error)) from error
            return self._begun(Done(tensors))
        return self._begun(self._turns.later(what, seconds, function, tensors))

    def _begun(self, operation: Operation) -> Operation:
        if self._started is not None:
            self._started.append(operation)
        return operation

    def _check(self, what: str) -> None:
        """Raise if the group has ended."""
        raise NotImplementedError

    # --- reductions ---

    def allreduce(
        self, tensors: Sequence[Tensor], opts: Any = AllreduceOptions()  # noqa: B008
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
        self, tensors: Sequence[Tensor], opts: Any = AllreduceCoalescedOptions()  # noqa: B008
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
        self, tensors: Sequence[Tensor], opts: Any = ReduceOptions()  # noqa: B008
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

    # --- moving ---

    def broadcast(
        self, tensors: Sequence[Tensor], opts: Any = BroadcastOptions()  # noqa: B008
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
        self, output: Tensor, input: Tensor, opts: Any = AllgatherOptions()  # noqa: B008
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

    def barrier(self, opts: Any = BarrierOptions()) -> Operation:  # noqa: B008
        """Wait until all ranks have come, with what they have put on their current stream."""
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        return self._run("barrier", opts, self.comm.Barrier, [])

    # --- together ---

    def all_gather_single_coalesced(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        opts: Any = AllgatherOptions(),  # noqa: B008
    ) -> Operation:
        """Several ``all_gather_single``."""
        pairs = zip(outputs, inputs, strict=True)
        return Several([self.all_gather_single(output, input, opts) for output, input in pairs])

    def reduce_scatter_single_coalesced(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        opts: Any = ReduceScatterOptions(),  # noqa: B008
    ) -> Operation:
        """Several ``reduce_scatter_single``."""
        pairs = zip(outputs, inputs, strict=True)
        return Several([self.reduce_scatter_single(output, input, opts) for output, input in pairs])

    def _start_coalescing(self, device: torch.device) -> None:
        """Let what is called from now on not block."""
        self._started = []

    def _end_coalescing(self, device: torch.device) -> Operation:
        """What was called since the start."""
        started, self._started = self._started or [], None
        return Several(started)

    # --- the names before PyTorch 2.13 ---

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def _one_a_rank(self, lists: Sequence[Sequence[Tensor]], what: str) -> list[Tensor]:
        """The list of a list of one, which has a tensor for each rank.

        Raises:
            ValueError: it has not.
        """
        if len(lists) != 1 or len(lists[0]) != self.size():
            found = plural(sum(map(len, lists)), "tensor")
            raise ValueError(f"{what}: {found} for {plural(self.size(), 'rank')}; pass one for each")
        return [*lists[0]]


def _on_device(tensors: Sequence[Any]) -> bool:
    """Whether a call is of tensors in device memory."""
    first = tensors[0] if tensors else None
    return bool(first) and first[0].is_cuda if isinstance(first, list) else _is_cuda(first)


def _is_cuda(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.is_cuda


def _same_length(tensors: Sequence[Tensor], what: str) -> None:
    """Raise ValueError if tensors are not of one number of elements."""
    found = sorted({tensor.numel() for tensor in tensors})
    if len(found) > 1:
        raise ValueError(f"{what}: tensors of {found} elements; pass tensors of one size")
