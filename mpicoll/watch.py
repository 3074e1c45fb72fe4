"""The time limit of collective calls, and who has not come to a call that does not end.

Calls of one communicator are made in the same order on all ranks, so they can be numbered.  Each
rank keeps the number of its latest call where the other ranks of its node can read it, in a small
file that all of them map: a rank that is stuck elsewhere need not take part.  Ranks of other nodes
are asked, by messages that only flow once a call has exceeded the limit; what they do not answer
within a grace time is said as it is.  A call that ends in time sends nothing.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Iterable

import numpy as np
from mpi4py import MPI

__all__ = ["NOTICE_TAG", "Watch", "ranges"]

#: Tag of the messages between ranks that wait: the last one that every MPI has, and no plan's.
NOTICE_TAG = 32767
#: Seconds to wait for the answers of ranks on other nodes, and between two looks for questions.
GRACE, LOOK = 1.0, 0.05


class Watch:
    """The time limit of the calls on one communicator.

    Args:
        private: the communicator that carries the collectives' messages.  Collective over it.
        seconds: how long a call may wait.
        share: whether ranks of one node read each other's numbers in shared memory.
    """

    def __init__(self, private: MPI.Intracomm, seconds: float, share: bool = True) -> None:
        self.seconds = seconds
        self._private = private
        self._rank = private.Get_rank()
        self._numbers: np.ndarray
        self._near: dict[int, int]
        self._numbers, self._near = _shared(private) if share else _alone(self._rank)
        self._far = [rank for rank in range(private.Get_size()) if rank not in self._near]
        self._heard = dict.fromkeys(self._far, 0)
        self._sent: list[tuple[MPI.Request, np.ndarray]] = []
        self._number = 0
        self._what = ""
        self._since: float | None = None
        self._look = 0.0

    def enter(self, what: str) -> None:
        """This rank enters its next call."""
        self._number += 1
        self._what = what
        self._since = None
        self._numbers[self._near[self._rank]] = self._number

    def pause(self) -> None:
        """Offer the processor to others; called again and again while a call makes no progress.

        Raises:
            TimeoutError: the limit is exceeded; names the ranks that have not entered the call.
        """
        os.sched_yield()
        now = time.monotonic()
        if self._since is None:
            self._since, self._look = now, now + LOOK
        elif now > self._since + self.seconds:
            raise TimeoutError(self._explanation())
        elif self._far and now > self._look:
            self._look = now + LOOK
            for rank in self._listen():
                self._tell(rank)

    def _explanation(self) -> str:
        silent = self._ask()
        absent = [rank for rank, index in self._near.items() if self._numbers[index] < self._number]
        absent += [
            rank for rank in self._far if rank not in silent and self._heard[rank] < self._number
        ]
        text = (
            f"{self._what}, call {self._number} on this communicator, has not ended within "
            f"MPICOLL_TIMEOUT={self.seconds:g} s: "
        )
        found = []
        if absent:
            found.append(f"{ranges(absent)} {_have(absent)} not entered it")
        if silent:
            found.append(
                f"{ranges(silent)} {_have(silent)} not answered, and {_have(silent)} not entered "
                "it or left it early"
            )
        return text + ("; ".join(found) or f"all ranks have entered it; {self._hint()}")

    def _hint(self) -> str:
        return "do their arguments agree (MPICOLL_CHECK=1 tells), or is the limit too short?"

    # --- messages between nodes ---

    def _ask(self) -> list[int]:
        """Tell the ranks of other nodes where this one is, which asks them to do the same.

        Returns those that have never said anything.
        """
        for rank in self._far:
            self._tell(rank)
        waiting = {rank for rank in self._far if self._heard[rank] < self._number}
        end = time.monotonic() + GRACE
        while waiting and time.monotonic() < end:
            waiting.difference_update(self._listen())
            os.sched_yield()
        return sorted(rank for rank in waiting if not self._heard[rank])

    def _listen(self) -> list[int]:
        """Take in what other ranks have sent; returns who did."""
        senders = []
        status = MPI.Status()
        while self._private.Iprobe(MPI.ANY_SOURCE, NOTICE_TAG, status):
            number = np.zeros(1, np.int64)
            sender = status.Get_source()
            self._private.Recv(number, sender, NOTICE_TAG)
            self._heard[sender] = max(self._heard[sender], int(number[0]))
            senders.append(sender)
        return senders

    def _tell(self, rank: int) -> None:
        number = np.array([self._number], np.int64)
        self._sent.append((self._private.Isend(number, rank, NOTICE_TAG), number))


def _shared(private: MPI.Intracomm) -> tuple[np.ndarray, dict[int, int]]:
    """Numbers that all ranks of this node read and write, and the index of each rank's.

    The file has no name any more when this returns.  A node where it cannot be made or mapped has
    none, and each of its ranks keeps its number to itself.
    """
    node = private.Split_type(MPI.COMM_TYPE_SHARED, private.Get_rank())
    try:
        ranks = node.allgather(private.Get_rank())
        name = _new_file(8 * len(ranks)) if node.Get_rank() == 0 else None
        name = node.bcast(name)
        numbers = _mapped(name) if name else None
        everywhere = node.allreduce(numbers is not None, MPI.LAND)
        if name and node.Get_rank() == 0:
            os.unlink(name)
    finally:
        node.Free()
    if numbers is None or not everywhere:
        return _alone(private.Get_rank())
    return numbers, {rank: index for index, rank in enumerate(ranks)}


def _alone(rank: int) -> tuple[np.ndarray, dict[int, int]]:
    """The number of this rank, which no other can read."""
    return np.zeros(1, np.int64), {rank: 0}


def _new_file(length: int) -> str | None:
    """Name of a file of zeros, None if there is no place for it."""
    try:
        descriptor, name = tempfile.mkstemp(prefix="mpicoll-")
    except OSError:
        return None
    with os.fdopen(descriptor, "wb") as file:
        file.truncate(length)
    return name


def _mapped(name: str) -> np.ndarray | None:
    try:
        with open(name, "r+b") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0), np.int64)
    except (OSError, ValueError):
        return None


def ranges(ranks: Iterable[int]) -> str:
    """Ranks in words: "rank 3", "ranks 0-2, 5"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank{'' if len(runs) == 1 and runs[0][0] == runs[0][1] else 's'} {words}"


def _have(ranks: list[int]) -> str:
    return "has" if len(ranks) == 1 else "have"
