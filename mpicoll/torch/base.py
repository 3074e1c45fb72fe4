"""What all operations of a process group need: a turn, and a check of their tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import BarrierOptions, ProcessGroup

import mpicoll
from mpicoll.base.wording import plural
from mpicoll.torch.turns import Turns
from mpicoll.torch.work import Done, Enqueued, Operation, Several, keep

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
    #: The streams of what PyTorch does not wait for, and what is enqueued there with its tensors.
    _streams: dict[torch.device, torch.cuda.Stream]
    _enqueued: deque[tuple[torch.cuda.Event, Callable[[], object]]]

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
        device = _cuda_device(tensors)
        if not later:  # on a device it is ordered by the current stream
            self._now(what, seconds, function)
            return self._begun(Done(tensors))
        if device is None:
            return self._begun(self._turns.later(what, seconds, function, tensors))
        return self._begun(self._beside(what, seconds, function, tensors, device))

    def _now(self, what: str, seconds: float, function: Callable[[], object]) -> None:
        try:
            self._turns.now(what, seconds, function)
        except TimeoutError as error:
            raise torch.distributed.DistBackendError(str(error)) from error

    def _beside(
        self,
        what: str,
        seconds: float,
        function: Callable[[], object],
        tensors: list[Any],
        device: torch.device,
    ) -> Operation:
        """Enqueue a collective on the group's stream, beside what the current one gets next."""
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device, priority=-1)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self._now(what, seconds, function)
        event = stream.record_event()
        if not torch.cuda.is_current_stream_capturing():  # the memory of a graph stays
            # PyTorch gives away what nobody has any more, in the order of its own stream alone.
            while self._enqueued and self._enqueued[0][0].query():
                self._enqueued.popleft()
            self._enqueued.append((event, function))
        return Enqueued(tensors, event, stream)

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


def _cuda_device(tensors: Sequence[Any]) -> torch.device | None:
    """The CUDA device of the tensors of a call; None if they are in memory of the host."""
    first = tensors[0] if tensors else None
    if isinstance(first, list):
        first = first[0] if first else None
    return first.device if first is not None and first.is_cuda else None
