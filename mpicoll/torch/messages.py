"""Messages between two ranks of a process group."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from mpicoll.base.wording import plural, ranges
from mpicoll.engine import progress
from mpicoll.torch.base import Base
from mpicoll.torch.tensors import buffer, dense, one, write_back
from mpicoll.torch.work import Operation


class Message(Operation):
    """A message under way: an :class:`mpicoll.engine.progress.Operation`.

    Args:
        group: whose it is.
        what: names it.
        request: of MPI.
        tensor: what it sends or receives.
        arrived: called with the status once it is complete; may raise.
        kept: what must stay alive until then.
    """

    def __init__(
        self,
        group: Messages,
        what: str,
        request: MPI.Request,
        tensor: torch.Tensor,
        arrived: Callable[[MPI.Status], object],
        kept: object,
    ) -> None:
        super().__init__([tensor])
        self._group, self._what, self._request = group, what, request
        self._arrived, self._kept, self._status = arrived, kept, MPI.Status()
        self._begin = time.monotonic()
        self._limit = group._timeout
        self.owner = group.state
        progress.add(self)

    def advance(self) -> None:
        """See :class:`mpicoll.engine.progress.Operation`."""
        try:
            if not self._request.Test(self._status):
                if time.monotonic() > self._begin + self._limit:
                    self.fail(
                        TimeoutError(
                            f"{self._what} has not ended within its timeout of {self._limit:g} s: "
                            "the other rank has not called it, or has ended"
                        )
                    )
                return
            self._arrived(self._status)
        except Exception as error:
            self.fail(error)
            return
        progress.remove(self)
        self._finish(None)

    def fail(self, error: Exception) -> None:
        """It is given up.  MPI may still use its memory, which is kept."""
        self._group.state.guard.abandon(self._request, self._kept)
        progress.remove(self)
        self._finish(error)

    def end(self, end: float, error: Exception) -> None:
        """Wait for it until some time of the clock, then give it up."""

        def pause() -> None:
            os.sched_yield()
            if time.monotonic() > end:
                with progress.lock:
                    if not self._over:
                        self.fail(error)

        progress.until(self.is_completed, pause)

    def _complete(self, seconds: float) -> None:
        if seconds > 0:
            text = f"{self._what} has not ended within a timeout of {seconds:g} s"
            self.end(time.monotonic() + seconds, TimeoutError(text))
        else:
            progress.until(self.is_completed)

    def __str__(self) -> str:
        return self._what

    def is_completed(self) -> bool:
        if not self._over:
            progress.poll()
        return self._over

    def get_future(self) -> torch.futures.Future[Any]:
        if not self._over and not progress.is_running():
            self._complete(0.0)  # nobody else would
        return super().get_future()

    def source_rank(self) -> int:
        """The rank that a message has come from."""
        return self._status.Get_source()

    _source_rank = source_rank


class Messages(Base):
    """The part of a process group that is about two ranks."""

    state: Any
    _last_tag: int  # MPI's, which monitored_barrier has for itself
    _barriers = 0

    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int = 0) -> Operation:
        """Send a tensor to a rank."""
        self._check("send")
        tensor = one(tensors, "send")
        held = dense(tensor, "send")
        request = self.comm.Isend(buffer(held), dst, self._tag(tag))
        what = f"send of {plural(held.numel(), 'element')} to rank {dst} with tag {tag}"
        return self._begun(Message(self, what, request, tensor, lambda status: None, held))

    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int = 0) -> Operation:
        """Receive a tensor from a rank."""
        self._check("recv")
        tensor = one(tensors, "recv")
        held = dense(tensor, "recv")
        request = self.comm.Irecv(buffer(held), src, self._tag(tag))
        place = "any rank" if src == MPI.ANY_SOURCE else f"rank {src}"
        what = f"recv of {plural(held.numel(), 'element')} from {place} with tag {tag}"
        return self._begun(
            Message(self, what, request, tensor, partial(_arrived, what, tensor, held), held)
        )

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> Operation:
        """Receive a tensor from any rank."""
        return self.recv(tensors, MPI.ANY_SOURCE, tag)

    def _tag(self, tag: int) -> int:
        if not 0 <= tag < self._last_tag:
            raise ValueError(f"tag {tag} must be at least 0 and less than {self._last_tag}")
        return tag

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait until all ranks have come; rank 0 raises if some have not, and names them.

        Args:
            timeout: limit; None: that of the group.
            wait_all_ranks: whether all that are missing are named, not only the first.

        Raises:
            DistBackendError: a rank has not come in time.
        """
        self._check("monitored_barrier")
        seconds = self._timeout if timeout is None else timeout.total_seconds()
        within = f"in {1000 * seconds:g} ms"
        self._barriers += 1
        end = time.monotonic() + seconds
        if self.rank() == 0:
            missing = self._come(end)
            if missing:
                named = ranges(missing if wait_all_ranks else missing[:1]).capitalize()
                raise torch.distributed.DistBackendError(
                    f"Rank 0 timed out in monitoredBarrier: {named} failed to pass it {within}"
                )
            for rank in range(1, self.size()):
                self.comm.Send(np.array([self._barriers]), rank, self._last_tag)
            return
        self.comm.Send(np.array([self._barriers]), 0, self._last_tag)
        if not self._heard(0, end):
            raise torch.distributed.DistBackendError(
                f"Rank {self.rank()} reached monitoredBarrier, and rank 0 has not answered "
                f"{within}; its error names the ranks that have not"
            )

    def _come(self, end: float) -> list[int]:
        """The ranks that have not come to this barrier when the time is over."""
        return [rank for rank in range(1, self.size()) if not self._heard(rank, end)]

    def _heard(self, rank: int, end: float) -> bool:
        """Whether a rank has sent the number of this barrier in time; older ones are dropped."""
        number = np.zeros(1, np.int64)
        while number[0] < self._barriers:
            while not self.comm.Iprobe(rank, self._last_tag):
                if time.monotonic() > end:
                    return False
                progress.poll()
                time.sleep(1e-4)
            self.comm.Recv(number, rank, self._last_tag)
        return True


def _arrived(what: str, tensor: torch.Tensor, held: torch.Tensor, status: MPI.Status) -> None:
    found = status.Get_elements(MPI.BYTE)
    if found != held.nbytes:
        raise RuntimeError(
            f"{what}: {plural(found, 'byte')} have come for {held.nbytes}; let both ranks pass "
            "tensors of one size and type"
        )
    write_back(tensor, held)
