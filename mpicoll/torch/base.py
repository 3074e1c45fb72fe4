"""What all operations of a process group need: a turn, and a check of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import BarrierOptions, ProcessGroup

import mpicoll
from mpicoll.base.wording import plural
from mpicoll.torch.turns import Turns
from mpicoll.torch.work import Done, Operation, Several, keep

#: Of options that PyTorch has made without a time limit.
_UNSET = timedelta(0)


class Base(ProcessGroup):
    """A process group over a communicator, whose operations others derive from it.

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
        keep(operation)
        return operation

    def _check(self, what: str) -> None:
        """Raise if the group has ended."""
        raise NotImplementedError

    def barrier(self, opts: Any = BarrierOptions()) -> Operation:  # noqa: B008
        """Wait until all ranks have come, with what they have put on their current stream."""
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        return self._run("barrier", opts, self.comm.Barrier, [])

    def _start_coalescing(self, device: torch.device) -> None:
        """Let what is called from now on not block."""
        self._started = []

    def _end_coalescing(self, device: torch.device) -> Operation:
        """What was called since the start."""
        started, self._started = self._started or [], None
        return self._together(started)

    def _several(
        self,
        method: Callable[[Tensor, Tensor, Any], Operation],
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        opts: Any,
    ) -> Operation:
        """Several collectives of one output and one input."""
        pairs = zip(outputs, inputs, strict=True)
        return self._together([method(output, input, opts) for output, input in pairs])

    def _together(self, parts: list[Operation]) -> Operation:
        several = Several(parts)
        keep(several)
        return several

    def _one_a_rank(self, lists: Sequence[Sequence[Tensor]], what: str) -> list[Tensor]:
        """The list of a list of one, which has a tensor for each rank.

        Raises:
            ValueError: it has not.
        """
        if len(lists) != 1 or len(lists[0]) != self.size():
            found = plural(sum(map(len, lists)), "tensor")
            raise ValueError(
                f"{what}: {found} for {plural(self.size(), 'rank')}; pass one for each"
            )
        return [*lists[0]]


def _on_device(tensors: Sequence[Any]) -> bool:
    """Whether a call is of tensors in device memory."""
    first = tensors[0] if tensors else None
    return bool(first) and first[0].is_cuda if isinstance(first, list) else _is_cuda(first)


def _is_cuda(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.is_cuda
