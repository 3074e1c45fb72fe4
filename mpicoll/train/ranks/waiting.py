"""Waiting for messages of ranks that may die."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI


#: Polls that only yield the core, and then seconds of a sleep between two: a part of the wait so
#: far, so that a wait ends late by that part of its length at most.
_POLLS, _LEAST, _MOST = 20, 2e-5, 1e-3
_PART = 1 / 8


def is_death(error: Exception) -> bool:
    """Whether MPI says that a rank has died (ULFM)."""
    from mpi4py import MPI

    return isinstance(error, MPI.Exception) and error.Get_error_class() in (
        MPI.ERR_PROC_FAILED,
        MPI.ERR_PROC_FAILED_PENDING,
        MPI.ERR_REVOKED,
    )


def is_complete(request: MPI.Request) -> bool:
    """Whether a request is over; never, if the other rank has died meanwhile."""
    try:
        return bool(request.Test())
    except Exception as error:
        if not is_death(error):
            raise
        return False


def time_limit(comm: MPI.Intracomm) -> float:
    """Seconds that a wait may take on a communicator: what `MPICOLL_TIMEOUT` says, or infinite."""
    from mpicoll.runtime import state  # starts MPI

    found = state.find(comm)
    return math.inf if found is None or found.watch is None else found.watch.seconds


def tells_of_deaths(comm: MPI.Intracomm) -> bool:
    """Whether collectives on a communicator end when a rank dies: one with `survive=True`."""
    from mpicoll.runtime import state  # starts MPI

    found = state.find(comm)
    return found is not None and found.settings.survive


def share_deaths(part: MPI.Intracomm, whole: MPI.Intracomm) -> None:
    """Let what waits on a part of a communicator end when a rank of the whole dies, if that tells.

    Raised is `mpicoll.RankLost` with the numbers of the whole.
    """
    if tells_of_deaths(whole):
        from mpicoll.runtime import recovery, state  # starts MPI

        own, other = state.find(part), state.find(whole)
        assert own is not None and other is not None
        recovery.follow(own, other)


def require_place(comm: MPI.Intracomm) -> None:
    """Let a process end that was stopped, and that the others have given up meanwhile.

    Raises:
        RankLost: They have; nothing else is raised for a death.
    """
    from mpicoll.runtime import state  # starts MPI

    found = state.find(comm)
    lost = None if found is None or found.alarm is None else found.alarm.hear()
    if lost is not None and lost.given_up is not None:
        raise lost


@contextmanager
def breakable(comm: MPI.Intracomm) -> Iterator[None]:
    """Let a death end what sets up communicators among the ranks of one that tells of deaths.

    Raises:
        RankLost: A rank has died meanwhile.
    """
    from mpicoll.runtime import recovery, state  # starts MPI

    found = state.find(comm)
    assert found is not None
    with recovery.breakable(found):
        yield


class Deaths:
    """What ends waits for messages of one's own, where a communicator tells of deaths.

    Args:
        comm: The communicator; where it does not tell of any, this does nothing.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        from mpicoll.runtime import state  # starts MPI

        found = state.find(comm)
        self._guard = None if found is None or found.alarm is None else found.guard

    def look(self) -> bool:
        """False, as what `wait_until` calls meanwhile: nothing has moved.

        Raises:
            RankLost: A rank has died.
        """
        if self._guard is not None:
            self._guard.look()
        return False

    @contextmanager
    def told(self, *kept: object) -> Iterator[None]:
        """Raise `mpicoll.RankLost` in place of the errors of messages that a death has caused.

        Args:
            kept: What messages that are under way use.
        """
        if self._guard is None:
            yield
            return
        try:
            yield
        except TimeoutError:
            raise
        except Exception as error:
            self._guard.fail_by(error, *kept)


def wait_until(
    done: Callable[[], bool], meanwhile: Callable[[], bool], limit: float = math.inf
) -> None:
    """Poll until `done()`.

    Args:
        done: Whether to wait no more.
        meanwhile: Moves other things on, and says whether it moved any.
        limit: Seconds to wait while nothing moves.

    Raises:
        TimeoutError: The limit is exceeded.
    """
    polls, since = 0, math.inf
    while not done():
        if meanwhile():
            polls, since = 0, math.inf
        elif polls < _POLLS:
            polls += 1
            time.sleep(0)
        else:
            now = time.monotonic()
            since = min(since, now)
            if now - since > limit:
                raise TimeoutError(
                    f"no message has come within MPICOLL_TIMEOUT={limit:g} s: a rank hangs or is "
                    "cut off, or a step takes longer than the limit"
                )
            time.sleep(min(max(_LEAST, _PART * (now - since)), _MOST))
