"""Notices dead ranks while this one waits in a collective, which nothing interrupts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mpicoll.base.deaths import dead, survives
from mpicoll.errors import RankLost
from mpicoll.train.config import Config
from mpicoll.train.ranks.health import Health, end
from mpicoll.train.ranks.waiting import is_death
from mpicoll.train.strategies import placement
from mpicoll.train.strategies.protocol import strategy_of

if TYPE_CHECKING:
    from mpi4py import MPI

#: Seconds between two looks.
_LOOK = 0.05


@contextmanager
def failure_detector(config: Config, comm: MPI.Intracomm) -> Iterator[None]:
    """Inside this context a dead rank ends this process, and all others, with one error.

    A rank that waits in a collective cannot be interrupted, so a thread looks for dead ranks. There
    is no thread if the launcher ends all ranks, if ranks that wait for parameter servers look
    themselves, or below ``MPI_THREAD_MULTIPLE``.

    Args:
        config: The run.
        comm: All ranks.
    """
    from mpi4py import MPI

    many = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    if not (survives() and many) or strategy_of(config).notices_deaths:
        yield
        return
    seen, over = Health(comm, placement.titles(config, comm.Get_size())), threading.Event()

    def look() -> None:
        while not over.wait(_LOOK):
            try:
                seen.look()
            except RankLost as error:
                end(comm, error)

    thread = threading.Thread(target=look, name="mpicoll failure detector", daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        if is_death(error) or dead(comm):
            thread.join()  # it ends this process as soon as it looks
        raise
    finally:
        over.set()
        thread.join()
