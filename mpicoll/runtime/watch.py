"""The time limit of collective operations, and which ranks have not entered one that does not end.

Calls of one communicator are made in the same order on all ranks, so they can be numbered.
Persistent operations may be started in different orders, so each has a number of its own, counting
its starts.  Each rank keeps these numbers in memory that all ranks of its node map: a rank that is
stuck elsewhere need not take part.  Ranks of other nodes are asked, by messages that only flow once
an operation has exceeded the limit; what they do not answer within a grace time is said as it is.
What ends in time sends nothing.

Beside the numbers stands whether a call has failed on the rank, after which it enters no other, and
which call it has refused for its arguments.  A rank that has failed tells those of other nodes.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from mpicoll.base.wording import ranges
from mpicoll.engine import transport

#: Tag of the messages between ranks that wait: the last one that every MPI has, and no plan's.
NOTICE_TAG = 32767
#: Seconds to wait for the answers of ranks on other nodes, and between two looks for questions.
GRACE, LOOK = 1.0, 0.05
#: Numbers that a rank keeps: of its calls, and of the starts of persistent operations.  Where there
#: are more of the latter they share numbers, and the ranks named may be too few.
NUMBERS = 128
#: What stands beside them: 1 once a call has failed, and the number of the call refused last.
FAILED, REFUSED = NUMBERS, NUMBERS + 1
WIDTH = NUMBERS + 2


class Ticket(NamedTuple):
    """An operation that this rank has entered.

    Attributes:
        what: in words.
        counter: which of the numbers counts it.
        number: that number now.
    """

    what: str
    counter: int
    number: int

    def __str__(self) -> str:
        count = f"start {self.number}" if self.counter else f"call {self.number}"
        return f"{self.what}, {count} {'of this plan' if self.counter else 'on this communicator'}"


class Watch:
    """The time limit of the operations on one communicator.

    Args:
        private: the communicator that carries the collectives' messages.  Collective over it.
        seconds: how long a wait may take.
        share: whether ranks of one node read each other's numbers in shared memory.
    """

    def __init__(self, private: MPI.Intracomm, seconds: float, share: bool = True) -> None:
        self.seconds = seconds
        self._private = private
        self._rank = private.Get_rank()
        self._numbers: np.ndarray
        self._near: dict[int, int]
        found = shared_rows(private, WIDTH) if share else _alone(self._rank, WIDTH)
        self._numbers, self._near = found
        self._far = [rank for rank in range(private.Get_size()) if rank not in self._near]
        self._heard = {rank: np.zeros(WIDTH, np.int64) for rank in self._far}
        self._sent: list[tuple[MPI.Request, np.ndarray]] = []
        self._counters = 0
        self._current = Patience(self, Ticket("nothing", 0, 0))

    def new_counter(self) -> int:
        """The index of the number of the next persistent operation; equal on all ranks."""
        self._counters += 1
        return 1 + (self._counters - 1) % (NUMBERS - 1)

    def enter(self, what: str, index: int = 0) -> Ticket:
        """This rank enters its next call, or starts the persistent operation of this index."""
        own = self._numbers[self._near[self._rank]]
        own[index] += 1
        return Ticket(what, index, int(own[index]))

    def begin(self, what: str) -> None:
        """This rank enters its next call, and is going to wait for it by :meth:`pause`."""
        self._current = Patience(self, self.enter(what))

    def pause(self) -> None:
        """Wait a moment for the call that was begun last; see :meth:`Patience.pause`."""
        self._current.pause()

    def fail(self) -> None:
        """A call has failed on this rank, which enters no other on the communicator."""
        self._numbers[self._near[self._rank], FAILED] = 1
        with contextlib.suppress(MPI.Exception):  # perhaps messages are what fails
            for rank in self._far:
                self._tell(rank)

    def refuse(self) -> None:
        """This rank does not enter its next call, because of its arguments."""
        own = self._numbers[self._near[self._rank]]
        own[REFUSED] = own[0] + 1

    def answer(self) -> None:
        """Answer the ranks of other nodes that have asked."""
        if not self._far:
            return
        for rank in self._listen():
            self._tell(rank)

    def explain(self, ticket: Ticket) -> str:
        """Why an operation has not ended, as far as can be found out."""
        silent = self._ask(ticket)
        known = {rank: self._numbers[row] for rank, row in self._near.items()}
        known |= {rank: row for rank, row in self._heard.items() if rank not in silent}
        ways: dict[str, list[int]] = {}
        for rank, row in known.items():
            if row[ticket.counter] < ticket.number:
                ways.setdefault(_absence(row, ticket), []).append(rank)
        text = f"{ticket}, has not ended within MPICOLL_TIMEOUT={self.seconds:g} s: "
        found = [f"{ranges(ranks)} {_have(ranks)} {way}" for way, ranks in sorted(ways.items())]
        if silent:
            found.append(
                f"{ranges(silent)} {_have(silent)} not answered, and {_have(silent)} not entered "
                "it or left it early"
            )
        return text + (
            "; ".join(found)
            or "all ranks have entered it; do their arguments agree (MPICOLL_CHECK=1 tells), or is "
            "the limit too short?"
        )

    # --- messages between nodes ---

    def _ask(self, ticket: Ticket) -> list[int]:
        """Tell the ranks of other nodes where this one is, which asks them to do the same.

        Returns those that have never said anything.
        """
        for rank in self._far:
            self._tell(rank)
        index, number = ticket.counter, ticket.number
        waiting = {rank for rank in self._far if self._heard[rank][index] < number}
        end = time.monotonic() + GRACE
        while waiting and time.monotonic() < end:
            waiting.difference_update(self._listen())
            os.sched_yield()
        return sorted(rank for rank in waiting if not self._heard[rank].any())

    def _listen(self) -> list[int]:
        """Take in what other ranks have sent; returns who did."""
        senders = []
        status = MPI.Status()
        while self._private.Iprobe(MPI.ANY_SOURCE, NOTICE_TAG, status):
            numbers = np.zeros(WIDTH, np.int64)
            sender = status.Get_source()
            self._private.Recv(numbers, sender, NOTICE_TAG)
            np.maximum(self._heard[sender], numbers, out=self._heard[sender])
            senders.append(sender)
        return senders

    def _tell(self, rank: int) -> None:
        numbers = self._numbers[self._near[self._rank]].copy()
        self._sent.append((self._private.Isend(numbers, rank, NOTICE_TAG), numbers))


class Patience:
    """One wait for an operation.

    Args:
        watch: of its communicator.
        ticket: the operation.
    """

    def __init__(self, watch: Watch, ticket: Ticket) -> None:
        self._watch, self._ticket = watch, ticket
        self._since: float | None = None
        self._look = 0.0

    def pause(self) -> None:
        """Offer the processor to others; called again and again while nothing moves.

        Raises:
            TimeoutError: the limit is exceeded; names the ranks that have not entered, and which
                of them have failed.
        """
        os.sched_yield()
        now = time.monotonic()
        if self._since is None:
            self._since, self._look = now, now + LOOK
        elif now > self._since + self._watch.seconds:
            raise TimeoutError(self._watch.explain(self._ticket))
        elif now > self._look:
            self._look = now + LOOK
            self._watch.answer()


def shared_rows(private: MPI.Intracomm, width: int) -> tuple[np.ndarray, dict[int, int]]:
    """Zeros that all ranks of this node read and write, and the row of each rank's.  Collective.

    A node whose ranks cannot share memory has none, and each of them keeps its numbers to itself.
    """
    with transport.node_of(private) as node:
        ranks = node.allgather(private.Get_rank())
        length = 8 * width * len(ranks)
        memory, _ = transport.memory_of(node, length)
    if memory is None:
        return _alone(private.Get_rank(), width)
    numbers = memory[:length].view(np.int64).reshape(-1, width)
    return numbers, {rank: row for row, rank in enumerate(ranks)}


def _alone(rank: int, width: int) -> tuple[np.ndarray, dict[int, int]]:
    """The numbers of this rank, which no other can read."""
    return np.zeros((1, width), np.int64), {rank: 0}


def _absence(numbers: np.ndarray, ticket: Ticket) -> str:
    """What a rank with these numbers has done instead of entering an operation."""
    if numbers[FAILED]:
        return "failed in another call"
    if not ticket.counter and numbers[REFUSED] == ticket.number:
        return "refused it for its arguments"
    return "not entered it"


def _have(ranks: list[int]) -> str:
    return "has" if len(ranks) == 1 else "have"
