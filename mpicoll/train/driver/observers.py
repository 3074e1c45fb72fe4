"""Who watches a run: metrics, TensorBoard, the terminal, and the clock that suspects a hang."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpicoll.train.config import Config
from mpicoll.train.driver.board import Board
from mpicoll.train.driver.fence import Fence
from mpicoll.train.driver.metrics import Metrics, locked
from mpicoll.train.driver.printer import Printer
from mpicoll.train.ranks.stacks import Stacks
from mpicoll.train.ranks.workers import Workers
from mpicoll.train.records import Beginning, Epoch, Loss, Step

if TYPE_CHECKING:
    from mpi4py import MPI


class Observers:
    """All that is told of steps and epochs, on one rank.

    Args:
        config: The run.
        workers: The ranks.
        comm: The same ranks, to compare clocks; None for one process.
        predicted: Seconds of communication a step, by the fitted model.
        stacks: What suspects a hang.
        beginning: Where the run begins.
        described: Its configuration, for the metrics.
        before: Fence of those that wrote before a rank died; their places are taken.

    Raises:
        OSError: A file cannot be written.
        ModuleNotFoundError: A package is missing.
    """

    def __init__(
        self,
        config: Config,
        workers: Workers,
        comm: MPI.Intracomm | None,
        predicted: float | None,
        stacks: Stacks,
        beginning: Beginning,
        described: Mapping[str, Any],
        before: Fence | None = None,
    ) -> None:
        self._comm, self._may_die = comm, workers.may_die
        self._files: list[Metrics | Board | Printer] = []
        self._metrics = None
        if config.tensorboard is not None and workers.rank == 0:
            self._files.append(Board(config.tensorboard, beginning.step))
        if config.metrics is not None:
            rank, size = workers.rank, workers.size
            folder = Path(config.metrics)
            after = None if before is None else before.claim(locked(folder))
            self._metrics = Metrics(folder, rank, size, described, predicted, beginning, after)
            self._files.append(self._metrics)
        self._own: MPI.Intracomm | None = None  # of comparisons of clocks
        self._steps, self._communicated = 0, 0.0
        self._stacks = stacks
        self._fence = Fence(())

    @property
    def communicated(self) -> float:
        """Mean seconds a step in which this rank communicated."""
        return self._communicated / max(1, self._steps)

    def watch(self, printer: Printer) -> None:
        """Print steps and epochs, too."""
        self._files.append(printer)

    def heed(self, fence: Fence) -> None:
        """Write nothing from now on once the others have given up this process."""
        self._fence = fence

    def add_loss(self, loss: Loss) -> None:
        """Write down that ranks have died."""
        if self._metrics is not None:
            self._metrics.add_loss(loss)

    def add(self, record: Step | Epoch) -> None:
        """Tell all of a step or an epoch.

        Raises:
            GivenUp: The others have gone on without this process.
            OSError: A file cannot be written.
        """
        self._fence.check()
        if isinstance(record, Step):
            self._steps += 1
            self._communicated += record.exposed + record.hidden
            self._stacks.alive()
        if isinstance(record, Epoch):
            self._stacks.rest()
        for file in self._files:
            file.add(record)

    def compare_clocks(self) -> None:
        """Note how far this rank's clock is from that of rank 0, for traces; collective.

        Where a rank may die, nothing is noted: the others would wait for it.
        """
        if self._metrics is None or self._may_die:
            return
        if self._comm is None:
            self._metrics.add_clock(time.perf_counter(), 0.0)
            return
        from mpi4py import MPI

        from mpicoll.base import clocks  # starts MPI
        from mpicoll.runtime import state

        if self._own is None:
            self._own = MPI.Intracomm(self._comm).Dup()  # the user's messages are not ours
        wait: Callable[[MPI.Request], object] = MPI.Request.Wait
        found = state.find(self._comm)
        if found is not None and found.watch is not None:
            found.watch.begin("a comparison of clocks")
            wait = found.guard.wait
        self._metrics.add_clock(*clocks.measure(self._own, wait))

    def free(self) -> None:
        """Free what was made on the ranks; collective, where no message is under way."""
        if self._own is not None:
            self._own.Free()

    def close(self) -> None:
        """Nothing more will come."""
        for file in self._files:
            file.close()
