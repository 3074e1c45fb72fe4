"""How a communicator comes to outlive its ranks, and those that are left get one of their own.

They meet in ``MPI_Comm_shrink``, set up what the new communicator needs, and agree that all of them
have.  Another rank may die meanwhile: then those that wait for it in the MPI library are broken
off, and all begin again without it.
"""

from __future__ import annotations

import atexit
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mpi4py import MPI

from mpicoll.base import forming
from mpicoll.base.consensus import combined
from mpicoll.base.deaths import dead
from mpicoll.engine import progress
from mpicoll.errors import RankLost
from mpicoll.runtime.alarm import LOOK, Alarm, obstacle
from mpicoll.runtime.family import Family
from mpicoll.runtime.first_calls import FirstCalls
from mpicoll.runtime.state import State, inherit

#: Seconds that the end of a process may take after a death: MPI_Finalize may wait for the dead.
END = 10
#: Whether a rank has died of a communicator that was left for another one.
_deaths: list[RankLost] = []


def survive(state: State) -> None:
    """Tell every rank of the deaths of others from now on; again does nothing.  Collective.

    Raises:
        RuntimeError: in this launch no rank outlives another one.
    """
    if state.alarm is not None:
        return
    if why := obstacle():
        raise RuntimeError(f"survive=True is not available: {why}")
    state.family = Family(state.settings._replace(survive=True), state.family.places)
    if not state.connected:
        state.connect()
        return
    with progress.meanwhile():
        state.alarm = Alarm(state.private)
    state.guard.survive(state.alarm)
    state.fast_path.survive()


def follow(part: State, whole: State) -> None:
    """Let the calls on a part of a communicator raise at a death anywhere in the whole.  Local.

    Raises:
        ValueError: deaths are not told of on both.
    """
    if part.alarm is None or whole.alarm is None:
        raise ValueError("both communicators have to outlive their ranks: build them with survive")
    part.alarm.follow(whole.alarm)


@contextmanager
def breakable(state: State) -> Iterator[None]:
    """Let a death end the MPI library's calls in the ``with`` block, which set up communicators.

    ``state``'s own is revoked then, and those that are being formed: nothing else may be under way.

    Raises:
        RankLost: a rank has died meanwhile.
    """
    with state.guard.failing(), _broken_off_by_deaths(state.comm):
        yield


def survivors(state: State) -> State:
    """A communicator of the ranks that are left, in the same order, set up.  Collective over them.

    What :class:`RankLost` says of the old one is complete from then on.

    Raises:
        ValueError: deaths are not told of on the communicator.
        RankLost: the others have given up this rank.
    """
    alarm, guard = state.alarm, state.guard
    if alarm is None:
        raise ValueError(
            "survivors() needs a communicator that outlives its ranks: build it by "
            "Intracomm(comm, survive=True)"
        )
    lost = alarm.hear()
    if lost is not None:
        guard.fail(lost)
        if lost.given_up is not None:
            raise lost
    with progress.meanwhile():
        made, finished = _made(state)
    ranks = _missing(state.comm, made.comm)
    if ranks:
        lost = alarm.lost = lost or RankLost()
        lost.ranks, lost.finished = ranks, finished
        guard.fail(lost)
        alarm.mark(ranks)
        _deaths.append(lost)
    return made


def _made(state: State) -> tuple[State, int]:
    """The new communicator's, and the number of the last call that all of its ranks have finished.

    Raises:
        Exception: what has kept this rank, or another one, from setting it up; not for a death.
    """
    comm = state.comm
    problem: Exception = RuntimeError("another rank could not set up the new communicator")
    for _ in range(state.size):
        shrunk = MPI.Intracomm(comm.Shrink())
        shrunk.Set_errhandler(MPI.ERRORS_RETURN)
        made: State | None = None
        error: Exception | None = None
        with _broken_off_by_deaths(shrunk):
            try:
                finished = combined(shrunk, _finished(state), MPI.MIN)
                made = inherit(shrunk, FirstCalls(state.family, state.hints, left=0))
            except Exception as found:
                error = found
        if _all_have(shrunk, made is not None):
            assert made is not None
            handler = state.comm.Get_errhandler()
            shrunk.Set_errhandler(handler)
            handler.Free()
            return made, finished
        if made is not None:
            made.guard.fail(RankLost())
        problem = error or problem
        comm = shrunk
    raise problem


def _finished(state: State) -> int:
    """Number of calls that have finished on this rank."""
    return sum(state.stats().calls.values()) - len(state.started)


def _all_have(comm: MPI.Intracomm, done: bool) -> bool:
    """Whether all ranks have done something, and none has died; the same on all that are left."""
    try:
        return bool(comm.Agree(int(done)))
    except MPI.Exception:
        return False


def _missing(before: MPI.Intracomm, after: MPI.Intracomm) -> tuple[int, ...]:
    """The ranks of a communicator that are not in another one."""
    old, new = before.Get_group(), after.Get_group()
    found = MPI.Group.Translate_ranks(old, None, new)
    for group in (old, new):
        group.Free()
    return tuple(rank for rank, there in enumerate(found) if there == MPI.UNDEFINED)


@contextmanager
def _broken_off_by_deaths(comm: MPI.Intracomm) -> Iterator[None]:
    """Let the MPI library's calls in the ``with`` block fail once a rank of ``comm`` has died.

    Below ``MPI.THREAD_MULTIPLE``, where no other thread may call MPI, only those do that would have
    exchanged a message with that rank.
    """
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        yield
        return
    over, thread = threading.Event(), threading.get_ident()

    def watch() -> None:
        while not over.wait(LOOK):
            if comm.Is_revoked() or dead(comm):
                forming.revoke(thread)

    watcher = threading.Thread(target=watch, name="mpicoll recovery", daemon=True)
    watcher.start()
    try:
        with forming.forming(comm):
            yield
    finally:
        over.set()
        watcher.join()


@atexit.register
def _limit_the_end() -> None:
    """Let the system end this process if MPI_Finalize, which comes next, does not return."""
    if _deaths:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(END)
