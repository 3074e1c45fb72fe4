"""What a rank has recorded, on disk: JSON lines in a file of its own, added to every second.

A thread writes, also while the program hangs in a call: MPI's calls of mpi4py leave Python to other
threads.  Counts are those so far, so that the last line of a row is what counts.  The records:

* ``rank``: which rank of how many, where, and what was run;
* ``communicator``: what has made it, and the ranks of MPI.COMM_WORLD that are in it;
* ``row``: where calls come from, what they are, and how many there were;
* ``calls``: of a communicator, when some of them began and ended, in nanoseconds from the start
  (:data:`mpicoll.profile.recorder.Times`);
* ``now``: seconds since the start, and last ``end``, with the second reading of the clocks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpicoll.base.json_lines import Appender, Attempt
from mpicoll.profile.recorder import Channel, Recorder, Row, clock

#: Seconds between two looks at what is new.
PERIOD = 1.0


def name_of(rank: int) -> str:
    """The file of a rank, in the folder of a profile."""
    return f"calls-{rank}.jsonl"


class Writer:
    """Writes what a recorder has, until it is closed.

    Args:
        folder: Of the profile.
        rank: Of this process.
        attempt: Which run it is.
        recorder: What has it.
        facts: Of the record ``rank``.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        attempt: Attempt,
        recorder: Recorder,
        facts: Mapping[str, Any],
    ) -> None:
        self._file = Appender(folder / name_of(rank))
        self._attempt, self._recorder = attempt, recorder
        self._process, self._lock = os.getpid(), threading.Lock()
        self.problem = ""
        self._write({"record": "rank", **facts})
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mpicoll profile", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(PERIOD):
            self.flush()

    def flush(self) -> None:
        """Write what is new.  A process that was forked writes nothing."""
        if os.getpid() != self._process:
            return
        with self._lock:
            try:
                self._flush()
            except OSError as error:  # the program goes on; the end tells
                self.problem = self.problem or str(error)

    def _flush(self) -> None:
        for channel in [*self._recorder.channels]:
            self._channel(channel)
        for row in [*self._recorder.rows]:
            if row.written != row.calls:
                self._row(row)
        self._write({"record": "now", "seconds": clock() - self._recorder.start})

    def _channel(self, channel: Channel) -> None:
        if not channel.count:
            return
        if not channel.told:
            facts = {"number": channel.number, **channel.about}
            self._write({"record": "communicator", **facts})
            channel.told = True
        count = len(channel.times)  # others may be added meanwhile
        if count:
            start = self._recorder.start
            times = [
                (number, row, *(round(1e9 * (moment - start)) for moment in moments))
                for number, row, *moments in channel.times[:count]
            ]
            self._write({"record": "calls", "communicator": channel.number, "times": times})
            del channel.times[:count]

    def _row(self, row: Row) -> None:
        row.written = row.calls
        size = row.about.get("size", -1)
        nbytes = row.nbytes if size < 0 else size * row.calls
        counted = {"calls": row.calls, "seconds": row.seconds, "nbytes": nbytes}
        about = {"number": row.number, **row.about, "algorithm": row.algorithm}
        self._write({"record": "row", **about, **counted})

    def _write(self, record: Mapping[str, Any]) -> None:
        self._file.append(self._attempt, record)

    def close(self, facts: Mapping[str, Any]) -> None:
        """Write what is left, and that this is all.

        Args:
            facts: Of the record ``end``.
        """
        self._over.set()
        self._thread.join()
        for row in self._recorder.rows:
            row.written = -1 if row.calls else 0  # what was waited for since
        self.flush()
        with self._lock:
            try:
                self._write({"record": "end", **facts})
            except OSError as error:
                self.problem = self.problem or str(error)
            self._file.close()
