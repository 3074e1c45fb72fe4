"""A program, run as it is by communicators that record."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.base.clocks import Reading, measure
from mpicoll.base.consensus import Problem, attempt
from mpicoll.base.json_lines import Attempt, new_run
from mpicoll.base.sleeping import meet
from mpicoll.profile.classes import Classes
from mpicoll.profile.foreign import calling_mpi
from mpicoll.profile.methods import count_pickled
from mpicoll.profile.recorder import Recorder, clock
from mpicoll.profile.writer import Writer, name_of

#: Calls of a round that tells what recording costs, and rounds.
_TRIALS, _ROUNDS = 100, 50


class Launch:
    """A program's run, recorded from now on.  Collective.

    Args:
        folder: Where files go; None: one named after the time, here.
        command: Words of the program, for the record.
        through_mpicoll: Whether the program's communicators are mpicoll's.

    Attributes:
        folder: Where files go.

    Raises:
        ValueError: On all ranks, where files cannot be written, or the folder has a profile.
    """

    def __init__(self, folder: Path | None, command: list[str], through_mpicoll: bool) -> None:
        self._plain = MPI.Intracomm(MPI.COMM_WORLD)
        self._private = self._plain.Dup()
        rank, run = self._private.Get_rank(), self._private.bcast(new_run())
        self.folder = Path(self._private.bcast(folder or f"profile-{run}"))
        _make(self._private, self.folder)
        cost = price()
        self._recorder, self._over = Recorder(), False
        self._classes = Classes(self._recorder)
        self._classes.install(self._world(through_mpicoll))
        count_pickled(self._recorder)
        reading = measure(self._private)
        self._recorder.start = clock()
        facts = {
            "rank": rank,
            "ranks": self._private.Get_size(),
            "host": platform.node(),
            "command": command,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "mpi": MPI.Get_library_version().split(",")[0].strip("\0 \n"),
            "through_mpicoll": through_mpicoll,
            "cost": cost,
            "start": round(1e9 * self._recorder.start),
            "clock": _nanoseconds(reading),
        }
        writer = attempt(
            self._private,
            lambda: Writer(self.folder, rank, Attempt(run), self._recorder, facts),
            OSError,
        )
        if isinstance(writer, Problem):
            raise ValueError(f"the profile cannot be written: {writer}; name another folder by -o")
        self._writer = writer
        self._end_with_mpi()

    def _world(self, through_mpicoll: bool) -> MPI.Intracomm:
        if not through_mpicoll:
            return self._plain
        from mpicoll.comm import Intracomm

        return Intracomm(self._plain)

    def _end_with_mpi(self) -> None:
        """Write also where the program finalizes MPI by itself, or ends the job."""
        world: Any = type(MPI.COMM_WORLD)
        finalize, abort = MPI.Finalize, world.Abort

        def finalize_after() -> None:
            self.end()
            finalize()

        def abort_after(comm: MPI.Comm, errorcode: int = 0) -> None:
            self._writer.flush()
            abort(comm, errorcode)

        self._classes.patches.put(MPI, "Finalize", finalize_after)
        self._classes.patches.put(world, "Abort", abort_after)

    def end(self) -> None:
        """Write what is left, and record no more.  Collective; called again it does nothing."""
        if self._over:
            return
        seconds = self._stop()
        meet(self._private)
        facts = {"seconds": seconds, "clock": _nanoseconds(measure(self._private))}
        self._writer.close({**facts, "unseen": calling_mpi()})
        meet(self._private)
        self._private.Free()

    def fail(self) -> None:
        """Write what is left where the program has failed on this rank, and perhaps no other."""
        if not self._over:
            self._stop()
            self._writer.flush()

    def _stop(self) -> float:
        """Record no more; seconds since the start."""
        self._over = True
        self._classes.patches.undo()
        MPI.pickle.__init__()  # type: ignore[misc]
        return clock() - self._recorder.start

    @property
    def problem(self) -> str:
        """Why files could not be written, "" where they could."""
        return self._writer.problem


def _make(private: MPI.Intracomm, folder: Path) -> None:
    """Make the folder of a profile, by rank 0.

    Raises:
        ValueError: On all ranks, where that cannot be, or it has a profile already.
    """

    def make() -> None:
        if private.Get_rank() == 0:
            if (folder / name_of(0)).exists():
                raise FileExistsError(f"{folder} has a profile already; name another folder by -o")
            folder.mkdir(parents=True, exist_ok=True)

    problem = attempt(private, make, OSError)
    if isinstance(problem, Problem):
        raise ValueError(problem.text)


def _nanoseconds(reading: Reading) -> tuple[int, int]:
    """At what time of this clock it was how far ahead of rank 0's."""
    return round(1e9 * reading.local), round(1e9 * reading.ahead)


def price() -> float:
    """Seconds that recording adds to a small all-reduce, on a rank alone: the least of rounds."""
    plain, recorder = MPI.COMM_SELF, Recorder()
    recorded = Classes(recorder).recorded(plain, "COMM_SELF")
    recorded._profile.mask = -1  # of most calls times are not kept
    give, take = np.zeros(1), np.zeros(1)

    def once(comm: MPI.Intracomm) -> float:
        begin = time.thread_time()  # others may have the core meanwhile
        for _ in range(_TRIALS):
            comm.Allreduce(give, take)
        return (time.thread_time() - begin) / _TRIALS

    pairs = [(once(plain), once(recorded)) for _ in range(_ROUNDS)]
    return max(0.0, min(after for _, after in pairs) - min(before for before, _ in pairs))
