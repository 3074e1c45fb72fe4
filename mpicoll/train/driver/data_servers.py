"""Ranks that read, preprocess and augment samples for others, ahead of need.

The last ranks of a run serve data; the others train, by themselves. A rank that trains tells its
server which samples it will need for the next steps, and finds them there when it gets to them.
Who waits looks whether all ranks are alive: none of them can be done without.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpicoll.base.arrays import Array, dtype_of
from mpicoll.base.json_lines import Appender, Attempt
from mpicoll.errors import RankLost
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset, Inputs
from mpicoll.train.data.datasets import Feed, Samples
from mpicoll.train.data.feeds import Reading
from mpicoll.train.driver import memory
from mpicoll.train.ranks import signals
from mpicoll.train.ranks.waiting import time_limit, wait_until
from mpicoll.train.ranks.workers import (
    TrainingError,
    Workers,
    raise_together,
    require_equal,
    together,
)
from mpicoll.train.records import Result
from mpicoll.train.servers.messages import ServerMessage
from mpicoll.train.strategies import placement

if TYPE_CHECKING:
    from mpi4py import MPI


#: Tags: to a data server, and from it.
_WANTED, _BATCH = 1, 2
#: What the head of a batch says: it is there; it could not be read; all are to stop.
_HERE, _FAILED, _SIGNALLED = range(3)
#: Places in a head: of a question, an epoch; of a batch, one of these; of both, how many samples,
#: or bytes of a reason.
_EPOCH = _KIND = 0
_COUNT = 1


@dataclass
class _Coming:
    """A batch that was asked for."""

    samples: Samples
    epoch: int
    question: ServerMessage
    batch: ServerMessage


class Served(Feed):
    """Samples that a data server reads.

    Args:
        comm: All ranks; nothing else with these tags is sent on it.
        server: Rank of the data server.
        dataset: The data: type and shape of samples.
        look: Raises where a rank has died.
        limit: Seconds to wait for samples.
    """

    #: One is computed with, one is there, one is made.
    ahead = 2

    def __init__(
        self,
        comm: MPI.Intracomm,
        server: int,
        dataset: Dataset,
        look: Callable[[], bool],
        limit: float,
    ) -> None:
        self._comm, self._server, self._dataset = comm, server, dataset
        self._look, self._limit = look, limit
        self._silence: TimeoutError | None = None
        self._coming: deque[_Coming] = deque()

    def want(self, samples: Samples, epoch: int) -> None:
        if not len(samples):
            return
        question = ServerMessage(len(samples), np.dtype(np.int64))
        question.head[: _COUNT + 1] = epoch, len(samples)
        question.values[...] = samples
        batch = ServerMessage(_size(self._dataset, len(samples)), np.dtype(np.uint8))
        batch.receive(self._comm, self._server, _BATCH)
        question.send(self._comm, self._server, _WANTED)
        self._coming.append(_Coming(samples, epoch, question, batch))

    def take(self, samples: Samples, epoch: int) -> tuple[Array, Array]:
        """Inputs, augmented, and targets; those not asked for, or not next, are asked for now.

        Raises:
            OSError: The data server could not read them.
            RankLost: A rank has died.
        """
        if not len(samples):
            return self._dataset.train_inputs[:0], self._dataset.train_targets[:0]
        first = self._coming[0] if self._coming else None
        if first is None or first.epoch != epoch or not np.array_equal(first.samples, samples):
            self.forget()
            self.want(samples, epoch)
        batch = self._next()
        kind = batch.head[_KIND]
        if kind == _FAILED:
            reason = bytes(batch.values[: int(batch.head[_COUNT])]).decode(errors="replace")
            raise OSError(f"data server, rank {self._server}: {reason}")
        if kind == _SIGNALLED:
            signal.raise_signal(signal.SIGTERM)
        return _parts(self._dataset, batch, len(samples))

    def forget(self) -> None:
        while self._coming:
            self._next()

    def look(self) -> None:
        self._look()

    def close(self) -> None:
        """Nothing more will be wanted.

        Raises:
            RankLost: A rank has died.
            TimeoutError: The data server was awaited in vain.
        """
        self.look()
        if self._silence is not None:
            raise self._silence
        self.forget()
        farewell = ServerMessage(0, np.dtype(np.int64))
        farewell.send(self._comm, self._server, _WANTED)
        wait_until(farewell.done, self._look, self._limit)

    def _next(self) -> ServerMessage:
        """The batch that was asked for first, when it is there."""
        coming = self._coming.popleft()
        try:
            wait_until(
                lambda: coming.question.done() and coming.batch.done(), self._look, self._limit
            )
        except TimeoutError as error:
            self._silence = error
            raise
        return coming.batch


@dataclass
class _Tally:
    """What a data server did.

    Attributes:
        batches, samples: So many it gave out.
        preparing: Seconds in which it read and changed them.
        seconds: All of its time.
    """

    batches: int = 0
    samples: int = 0
    preparing: float = 0.0
    seconds: float = 0.0


class _DataServer:
    """Answers what `Served` asks, until all have closed.

    Args:
        comm: As of `Served`.
        clients: Ranks to answer.
        dataset: The data.
        feed: What reads them.
        look: Raises where a rank has died.
        most: Samples that a rank may ask for at a time.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        clients: Sequence[int],
        dataset: Dataset,
        feed: Feed,
        look: Callable[[], bool],
        most: int,
    ) -> None:
        self._comm, self._look = comm, look
        self._dataset, self._feed = dataset, feed
        self._open = {client: ServerMessage(most, np.dtype(np.int64)) for client in clients}
        self._sending: deque[ServerMessage] = deque()
        self._signalled = False

    def serve(self) -> _Tally:
        """Until all have closed.

        Raises:
            RankLost: A rank has died.
        """
        tally, start = _Tally(), time.perf_counter()
        with signals.heard(partial(setattr, self, "_signalled", True)):
            for client, question in self._open.items():
                question.receive(self._comm, client, _WANTED)
            wait_until(lambda: not self._open, lambda: self._poll(tally))
            wait_until(lambda: not self._sending, self._sent)
        tally.seconds = time.perf_counter() - start
        return tally

    def _poll(self, tally: _Tally) -> bool:
        moved = self._sent()
        for client, question in list(self._open.items()):
            if not question.done():
                continue
            moved = True
            count = int(question.head[_COUNT])
            if not count:
                del self._open[client]
                continue
            start = time.perf_counter()
            batch = self._batch(question.values[:count], int(question.head[_EPOCH]))
            tally.preparing += time.perf_counter() - start
            tally.batches += 1
            tally.samples += count
            batch.send(self._comm, client, _BATCH)
            self._sending.append(batch)
            question.receive(self._comm, client, _WANTED)
        return moved

    def _batch(self, samples: Samples, epoch: int) -> ServerMessage:
        size = _size(self._dataset, len(samples))
        try:
            batch = ServerMessage(size, np.dtype(np.uint8))
            batch.head[_KIND] = _SIGNALLED if self._signalled else _HERE
            inputs, targets = _parts(self._dataset, batch, len(samples))
            inputs[...], targets[...] = self._feed.take(samples, epoch)
        except Exception as error:
            # As short as it can be: there may be no memory for more.
            reason = f"{type(error).__name__}: {error}".encode()[:size]
            batch = ServerMessage(len(reason), np.dtype(np.uint8))
            batch.head[: _COUNT + 1] = _FAILED, len(reason)
            batch.values[...] = np.frombuffer(reason, np.uint8)
        return batch

    def _sent(self) -> bool:
        self._look()
        moved = False
        while self._sending and self._sending[0].done():
            self._sending.popleft()
            moved = True
        return moved


def _size(dataset: Dataset, samples: int) -> int:
    """Bytes of a batch."""
    return sum(samples * size for _, size in _kinds(dataset))


def _parts(dataset: Dataset, batch: ServerMessage, samples: int) -> tuple[Array, Array]:
    """Views of the inputs and of the targets of a batch."""
    (inputs, size), (targets, _) = _kinds(dataset)
    whole = batch.values[: samples * size], batch.values[samples * size :]
    return (
        whole[0].view(inputs.dtype).reshape(samples, *inputs.shape[1:]),
        whole[1].view(targets.dtype).reshape(samples, *targets.shape[1:]),
    )


def _kinds(dataset: Dataset) -> list[tuple[Inputs, int]]:
    """Inputs and targets, and the bytes of a sample of each."""
    both = dataset.train_inputs, dataset.train_targets
    return [(rows, prod(rows.shape[1:]) * rows.dtype.itemsize) for rows in both]


def run(
    config: Config,
    comm: MPI.Intracomm,
    needed: Mapping[str, int],
    read: Callable[[], Dataset],
    train: Callable[[Config, MPI.Intracomm, Dataset], Result],
) -> Result:
    """Train on the first ranks with data from the last; collective.

    Args:
        config: The run, with data servers.
        comm: All ranks.
        needed: Bytes that reading the data takes, by what for.
        read: Reads the data, on any rank.
        train: Trains on some ranks, called with a configuration, the ranks and a data set;
            collective over them.

    Returns:
        What they return, on all ranks.

    Raises:
        TrainingError: As `train`; on all ranks.
        RankLost: A rank has died; each rank finds out by itself.
        TimeoutError: A data server was awaited for longer than `MPICOLL_TIMEOUT` says.
    """
    workers = placement.members(config, comm)
    look = workers.health.look
    require_equal(workers, asdict(config), "give all ranks the same configuration")
    memory.make_room(workers, needed)
    with together(workers, "making data ready"):
        config.worker_count(workers.size)
        dataset = read().astype(dtype_of(config.dtype))
        feed = Reading(dataset, config.seed, config.augment)
    first = workers.size - config.data_servers
    links = workers.link()
    result: Result | None = None
    tally: _Tally | None = None
    failure: Exception | None = None
    try:
        if workers.rank >= first:
            clients = range(workers.rank - first, first, config.data_servers)
            most = min(len(dataset.train_targets), config.global_batch(first) * config.accumulate)
            tally = _DataServer(links, clients, dataset, feed, look, most).serve()
        else:
            group = _first(comm, first)
            server = first + workers.rank % config.data_servers
            served = Served(links, server, dataset, look, time_limit(comm))
            try:
                alone = replace(config, data_servers=0)
                result = train(alone, group, replace(dataset, feed=served))
            finally:
                served.close()
                group.Free()
    except (RankLost, TimeoutError):  # there may be nobody to agree with
        raise
    except Exception as error:
        failure = error
    try:
        result = _outcome(workers, result, failure)
        with together(workers, "writing what the data servers did"):
            if tally is not None:
                _note(config, workers.rank, tally, result.beginning.stamp)
        return result
    finally:
        if not workers.health.dead:
            links.Free()


def _first(comm: MPI.Intracomm, count: int) -> MPI.Intracomm:
    """The first ranks; collective over these alone, so that no data server is awaited."""
    everyone = comm.Get_group()
    members = everyone.Incl(range(count))
    made = comm.Create_group(members)
    members.Free()
    everyone.Free()
    return made


def _outcome(workers: Workers, result: Result | None, failure: Exception | None) -> Result:
    """What the ranks that train have found, or why they could not; on all ranks."""
    # What ends the training has been said on all ranks that train, in the same words.
    words = workers.gather(str(failure) if isinstance(failure, TrainingError) else None)[0]
    if words is not None:
        raise TrainingError(words) from failure
    raise_together(workers, "training with data servers", failure)
    found = workers.gather(result)[0]
    assert found is not None
    return found


def _note(config: Config, rank: int, tally: _Tally, stamp: Attempt) -> None:
    """Add what a data server did to the metrics of the run."""
    if config.metrics is not None:
        folder = Path(config.metrics)
        folder.mkdir(parents=True, exist_ok=True)
        with Appender(folder / f"data-{rank}.jsonl") as file:
            file.append(stamp, {"event": "served", **asdict(tally)})
