"""What lets calls on one communicator begin, waits for them, and ends it when one of them fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from mpi4py import MPI

from mpicoll.base import caller
from mpicoll.engine import progress
from mpicoll.errors import RankLost
from mpicoll.runtime import agree
from mpicoll.runtime.alarm import Alarm, has_ulfm
from mpicoll.runtime.calls import Prepared
from mpicoll.runtime.watch import Ticket, Watch
from mpicoll.schedule.collectives import Collective

#: What is said of a communicator whose handle is gone.
FREED = "this communicator has been freed; build Intracomm on another one"
#: A wait looks this often whether another rank has revoked the communicator: every so many turns.
LOOK = 256


def is_revoked(error: BaseException | None) -> bool:
    """Whether an error says that a communicator has been revoked."""
    return isinstance(error, MPI.Exception) and error.Get_error_class() == MPI.ERR_REVOKED


class Guard:
    """The checks before, the waits within and the failures of the calls on one communicator.

    Args:
        comm: carries the collectives' messages, until it is connected.
        compares: whether the ranks compare their calls; the same on all of them.
        on_fail: called at each failure.

    Attributes:
        failure: the first error that left messages behind.
        closed: the communicator's handle was freed.
        pause: called while a call waits: offers the processor to others, keeps the time limit, and
            hears of deaths.
        alarm: what tells of deaths, where that is asked for.
    """

    def __init__(self, comm: MPI.Intracomm, compares: bool, on_fail: Callable[[], object]) -> None:
        self._private, self._compares, self._on_fail = comm, compares, on_fail
        self._watch: Watch | None = None
        self.failure: BaseException | None = None
        self.closed = False
        self.pause: Callable[[], object] = os.sched_yield
        self.alarm: Alarm | None = None
        self._abandoned: list[object] = []
        self._idle = 0
        self._comparisons: list[agree.Comparison] = []

    def connect(self, private: MPI.Intracomm, watch: Watch | None) -> None:
        """The communicator is connected.

        Args:
            private: carries the collectives' messages.
            watch: the time limit of the calls, if there is one.
        """
        self._private, self._watch = private, watch
        if watch is not None:
            self.pause = watch.pause

    def survive(self, alarm: Alarm) -> None:
        """Hear of deaths in every wait from now on."""
        pause, self.alarm = self.pause, alarm

        def both() -> None:
            pause()
            self.look()

        self.pause = both

    def look(self) -> None:
        """Raise RankLost if a rank has died, where that is asked for."""
        if self.alarm is not None:
            try:  # `failing` takes longer to enter: this is asked in each turn of a wait
                self.alarm.look()
            except BaseException as error:
                self.fail_by(error)

    def check(self) -> None:
        """Raise if the communicator cannot be used, any more or by this thread or process."""
        caller.check()
        if self.closed:
            raise ValueError(FREED)
        self.look()
        failure = self.failure
        if failure is None:
            return
        if isinstance(failure, RankLost):
            raise failure.with_traceback(None)
        if is_revoked(failure):
            raise MPI.Exception(MPI.ERR_REVOKED)
        raise RuntimeError(
            f"this communicator cannot be used any more, because a collective on it failed: "
            f"{type(failure).__name__}: {failure}; build Intracomm on another one"
        ) from failure

    def enter(self, prepared: Prepared) -> None:
        """This rank enters its next call, a blocking one or the making of a persistent operation.

        All ranks make the same calls in the same order.

        Raises:
            Disagreement: on all ranks, where they are asked to compare and do not agree.
        """
        if self._watch is not None:
            self._watch.begin(prepared.described())
        if self._compares:
            agree.compare(self._share(prepared.facts()))

    def exchange(self, what: str, facts: agree.CallSignature) -> list[dict[str, Any]]:
        """The facts of all ranks about something that they are going to do.  Collective."""
        if self._watch is not None:
            self._watch.begin(what)
        return self._share(facts)

    def refuse(self, definition: Collective, error: Exception, waits: bool = True) -> None:
        """This rank cannot make its next call; the others hear of it if they are to compare.

        ``waits``: whether the call may wait for them.
        """
        if self._compares:
            if self._watch is not None:
                (self._watch.begin if waits else self._watch.enter)(definition.method)
            text = f"{type(error).__name__}: {error}"
            refusal = {"collective": definition.method, "error": text}
            (self._share if waits else self._compare)(refusal)
        elif self._watch is not None:
            self._watch.refuse()

    def start(self, prepared: Prepared) -> tuple[Ticket | None, agree.Comparison | None]:
        """The same as :meth:`enter` for a call that must not wait for others.

        Returns the number that the call has for the time limit, and whether the ranks agree.
        """
        ticket = None if self._watch is None else self._watch.enter(prepared.described())
        return ticket, self._compare(prepared.facts()) if self._compares else None

    def _compare(self, facts: agree.CallSignature) -> agree.Comparison:
        comparison = agree.Comparison(self._private, facts, self.fail)
        self._comparisons = [c for c in self._comparisons if not c.over] + [comparison]
        return comparison

    def _share(self, facts: agree.CallSignature) -> list[dict[str, Any]]:
        """The facts of all ranks, if they have agreed on all that was started before."""
        with self.failing():
            progress.until(lambda: all(c.over for c in self._comparisons), self.pause)
        self.check()
        return agree.share(self._private, facts, self.wait)

    def meant(self, error: BaseException) -> BaseException:
        """What an error means: that a rank has died, or that the communicator has been revoked."""
        if self.alarm is not None and (lost := self.alarm.cause_of(error)) is not None:
            return lost
        ours = isinstance(error, MPI.Exception) and not is_revoked(error) and has_ulfm()
        return MPI.Exception(MPI.ERR_REVOKED) if ours and self._private.Is_revoked() else error

    def idle(self) -> None:
        """Move on what is under way besides, then :attr:`pause`."""
        progress.poll()
        self.pause()
        self._idle += 1
        if self._idle % LOOK == 0 and has_ulfm():
            with self.failing():  # where a rank has died, or has revoked the communicator
                self._private.Iprobe()

    def wait(self, request: MPI.Request, *buffers: object) -> None:
        """Wait for a request within the time limit; its buffers are kept if it does not end."""
        with self.failing(request, *buffers):
            while not request.Test():
                self.idle()

    def abandon(self, *things: object) -> None:
        """Keep what MPI, or another rank, may still use."""
        self._abandoned += things

    @contextmanager
    def failing(self, *kept: object) -> Iterator[None]:
        """:meth:`fail` by whatever the ``with`` block raises; raises what that means."""
        try:
            yield
        except BaseException as error:
            self.fail_by(error, *kept)

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """:meth:`fail` if a death has caused what the ``with`` block raises, and raise RankLost."""
        try:
            yield
        except BaseException as error:
            if isinstance(self.meant(error), RankLost):
                self.fail_by(error)
            raise

    def fail_by(self, error: BaseException, *kept: object) -> NoReturn:
        """:meth:`fail`, and raise what the error means."""
        meant = self.fail(error, *kept)
        if meant is error:
            raise error
        raise meant from None

    def fail(self, error: BaseException, *kept: object) -> BaseException:
        """Let every later call raise: the first error is the one that tells why.

        ``kept``: what MPI, or another rank, may still use.  Returns what the error means.
        """
        self.abandon(*kept)
        error = self.meant(error)
        if self.failure is None and self._watch is not None:
            self._watch.fail()
        self.failure = self.failure or error
        self._on_fail()
        return error
