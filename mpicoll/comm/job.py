"""How one rank ends the job of all, or itself alone."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from mpi4py import MPI

from mpicoll.errors import RankLost

#: Seconds between an error's message and the end of the job: a launcher that is told to end it may
#: drop what it has not yet read from its processes.
GRACE = 0.3


@contextmanager
def abort_on_exception() -> Iterator[None]:
    """Let an exception end the whole job, instead of leaving the other ranks waiting for this one.

    Prints the traceback with the rank before it and calls ``MPI_Abort``.  ``SystemExit`` with a
    status other than 0 ends the job with that status.  With one rank it does nothing.  To be used
    as ``with abort_on_exception(): main()``, or as a decorator.
    """
    try:
        yield
    except BaseException as error:
        status = _exit_status(error)
        if status == 0 or MPI.Is_finalized() or MPI.COMM_WORLD.Get_size() == 1:
            raise
        _say(error)
        end_job(status)


def _say(error: BaseException) -> None:
    """Print what ends this process, with its rank."""
    import traceback  # which slows down the start of all programs

    rank = f"[rank {MPI.COMM_WORLD.Get_rank()}] "
    if isinstance(error, SystemExit):
        text = f"exit with status {error.code}"
    elif isinstance(error, RankLost) and error.given_up is not None:
        text = str(error)  # there is nothing to look for in the program
    else:
        text = "".join(traceback.format_exception(error)).rstrip()
    sys.stderr.write("".join(f"{rank}{line}\n" for line in text.splitlines()))


@contextmanager
def exit_on_exception() -> Iterator[None]:
    """Let an exception end this process alone, where the other ranks go on without it.

    For programs whose communicators are built with ``survive=True``.  Prints the traceback with the
    rank before it, and kills the process: ``MPI_Finalize`` would wait for the others, and Open
    MPI's launcher does not report an exit status other than 0 to them.  To be used as
    ``with exit_on_exception(): main()``, or as a decorator.
    """
    try:
        yield
    except BaseException as error:
        _say(error)
        sys.stdout.flush()
        sys.stderr.flush()
        from signal import SIGKILL  # as above

        os.kill(os.getpid(), SIGKILL)


def end_job(status: int) -> NoReturn:
    """End all ranks at once, with an exit status; what was written before is seen."""
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(GRACE)
    MPI.COMM_WORLD.Abort(status)
    os._exit(status)  # MPICH's MPI_Abort may return before the launcher ends this process


def _exit_status(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 130 if isinstance(error, KeyboardInterrupt) else 1
