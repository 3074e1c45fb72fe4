"""Training with a parameter server: workers push gradients and pull parameters.

Placements are one picture with different shards: `N` servers that do nothing else hold a part each;
colocated, every rank is a worker and holds a part; decentralized, every rank holds all parameters,
workers push to all and pull from themselves.

Within an epoch workers are only as close to each other as the consistency model says. At its end
all pushes are drained, and all ranks go on from the parameters at that one clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.base.arrays import Array, put
from mpicoll.errors import RankLost
from mpicoll.train.groups import part_of
from mpicoll.train.ranks.waiting import time_limit, wait_until
from mpicoll.train.ranks.workers import raise_together, together
from mpicoll.train.records import Step
from mpicoll.train.servers import consistency
from mpicoll.train.servers.client import Client, Listener
from mpicoll.train.servers.replica import Replica
from mpicoll.train.servers.server import Server
from mpicoll.train.servers.shard import Push, Shard, write_trace
from mpicoll.train.strategies import placement
from mpicoll.train.strategies.kept import Held, Piece, Saved
from mpicoll.train.strategies.training import Setup, Training, gradients_of

#: What a checkpoint holds of the run's counters; the others are as at the start.
_COUNTERS = ("number", "updates", "skipped", "scale", "good")


_ABANDONED: list[Training] = []  # messages from before a death may still arrive there


class ServerTrainer(Training):
    """The ranks' steps and shards.

    Args:
        setup: The run; servers call the optimizer.
    """

    def __init__(self, setup: Setup) -> None:
        config, workers, weights = setup.config, setup.workers, setup.weights
        rank, size = workers.rank, workers.size
        count = config.worker_count(size)
        part = min(rank, count - 1)
        source = self._source = gradients_of(setup, range(part, part + 1), count, rows=1)
        super().__init__(setup, source.buffers, source.sampler)
        assert setup.comm is not None
        self._comm, self._limit = workers.link(), time_limit(setup.comm)
        self._model = consistency.parse(config.consistency)
        self._shards = placement.shard_ranges(config, size, weights.vector.size)
        self._every, self._whole_here = config.send_every, config.servers == "decentralized"
        held_by = [placement.holders(config, size, shard.rank) for shard in self._shards]
        own = [number for number, ranks in enumerate(held_by) if rank in ranks]
        workers.assign(count, held_by)
        self._servers = {number: self._make_server(number) for number in own}
        self._client = self._make_client(own) if rank < count else None
        self._traced, self._clock = False, 0
        self._whole: Held | None = None
        workers.meanwhile = self._serve

    def close(self, failed: bool = False) -> None:
        if failed:
            with suppress(OSError):
                self._write_traces()
        else:
            with together(self._workers, "writing the traces of the shards"):
                self._write_traces()
        if not self._workers.health.dead:  # else MPI may not be able to
            for server in self._servers.values():
                server.free()
            self._comm.Free()

    def _write_traces(self) -> None:
        """Those of the shards that this rank answers for; once."""
        if self._config.metrics is None or self._traced:
            return
        self._traced = True
        # Files have the ranks that the shards had at the start.
        first = self._worker_count if self._config.servers.isdigit() else 0
        for number, server in self._servers.items():
            if self._shards[number].rank == self._workers.rank:
                name = f"shard-{first + number}.jsonl"
                write_trace(Path(self._config.metrics) / name, server.shard, self.stamp)

    def steps(self, epoch: int, done: int) -> Iterator[Step]:
        first = self.number
        mine, losses = 0.0, np.zeros(2)
        for server in self._servers.values():
            server.begin(first)
        clock, failure = first, self.failure
        if self._client is not None:
            self._client.begin()
            left = math.inf if self._config.steps is None else self._config.steps - first
            batches = self._source.batches(epoch, done)
            while failure is None and clock - first < left:
                samples = next(batches, None)
                if samples is None:
                    break
                started = time.perf_counter()
                stop_clock = self._client.pull(clock)
                self._take_over()
                if 0 <= stop_clock <= clock:
                    break
                try:
                    step = self._step(samples, epoch, done + clock - first + 1, clock, started)
                except RankLost:
                    raise
                except Exception as error:
                    failure = error
                    break
                clock += 1
                self._clock = clock
                mine += step.compute
                if not math.isnan(step.loss):
                    share = self._source.share(samples)
                    losses += step.loss * share, share
                yield step
                failure = self.failure
            self._client.leave(failure is not None)
        servers = self._servers.values()
        wait_until(lambda: all(s.over() for s in servers), self._serve, self._limit)
        self._agree(f"epoch {epoch}", clock, mine, losses, failure)
        self.position = done + self.number - first
        self._keep()
        if self.before is not None:
            _ABANDONED.append(self.before)
            self.before = None

    def counters(self) -> dict[str, Any]:
        # The same as in lockstep.
        counters = {name: getattr(self, name) for name in _COUNTERS}
        return {**counters, "skipped_in_a_row": 0}

    def _kept(self) -> Iterator[tuple[str, int, Array]]:
        if self._workers.rank == 0:
            yield "parameter", 0, self.weights.vector
        for slot in self.slots:
            for start, values in self._fetched(slot):
                yield f"state/{slot}", start, values

    def restore(self, saved: Saved, counters: Mapping[str, Any]) -> None:
        for slot, start, values in self._restored(saved):
            self._put(slot, start, values)
        self._put(None, 0, self.weights.vector)
        for name in _COUNTERS:
            setattr(self, name, counters[name])
        self._tell_servers()

    @property
    def made(self) -> int:
        return max(self.number, self._clock)

    def begin(self) -> None:
        self._keep()

    def held(self) -> list[Held]:
        # Counters change in an epoch, which is made again; what else there is changes at its end.
        if (whole := self._whole) is None:
            return super().held()
        facts = {**self.facts(), **whole.facts}
        return [Held(whole.number, facts, whole.pieces), *super().held()]

    def _keep(self) -> None:
        """Copy what this rank holds at the end of an epoch, when all pushes are drained."""
        if not self._config.survive:
            return
        pieces: list[Piece] = [("parameter", 0, self.weights.vector.copy())]
        self.buffers.average()
        if self.buffers.rows is not None:
            pieces.append(("buffers", 0, self.buffers.rows[0].copy()))
        for number, server in self._servers.items():
            start, state = self._shards[number].start, server.shard.state
            pieces += [(f"state/{slot}", start, state[slot].copy()) for slot in self.slots]
        self._whole = Held(self.number, {"counters": self.counters()}, pieces)

    def put(self, kind: str, values: Array) -> None:
        if kind == "buffers":
            self.buffers.put(values.reshape(1, -1))
        elif kind == "parameter":
            self.weights.vector[...] = values
            self._take_over()
            self._put(None, 0, values)
        else:
            self._put(kind.removeprefix("state/"), 0, values)

    def go_on(self, facts: Mapping[str, Any]) -> None:
        super().go_on(facts)
        self._tell_servers()

    def _tell_servers(self) -> None:
        for server in self._servers.values():
            server.shard.updates = self.updates
            server.shard.skipped = self.skipped

    # --- a worker ---

    def _step(
        self, samples: NDArray[np.int64], epoch: int, position: int, clock: int, began: float
    ) -> Step:
        assert self._client is not None
        started, processor = time.perf_counter(), time.process_time()
        self._served = 0.0
        loss = self._source.compute(
            self.views, samples, epoch, lambda _: self._move_on(), self.scale
        )
        if self.scale != 1:
            loss /= self.scale
            self._source.flat.vector *= 1 / self.scale
        computed = time.perf_counter()
        if not self._source.finite:
            self.buffers.undo()
        mine = computed - started - self._served - self._source.loading
        used = time.process_time() - processor - self._served - self._source.loading_processor
        share = self._source.share(samples)
        push = Push(clock, share, len(samples), self._source.finite, mine, max(0.0, used), 0)
        self._client.push(push, self.asked or self.signalled)
        pushed = time.perf_counter()
        self._watch_scale(not push.finite)
        self._count_skips(loss)
        return Step(
            number=clock + 1,
            epoch=epoch,
            position=position,
            of=self.sampler.steps,
            loss=loss * len(samples) / share if share and push.finite else math.nan,
            lr=self.rate(clock + 1),
            skipped=not push.finite,
            compute=mine,
            exposed=pushed - computed,
            hidden=self._served,
            waiting=started - began,
            slowest=None,
            loading=self._source.loading,
            began=began,
            spans=(
                ("pull", 0.0, round(started - began, 7)),
                ("compute", round(started - began, 7), round(computed - began, 7)),
                ("push", round(computed - began, 7), round(pushed - began, 7)),
            ),
        )

    def _count_skips(self, loss: float) -> None:
        if self._source.finite:
            self.skipped_in_a_row = 0
            return
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row > self._config.skip_limit:
            raise self._source.failure(loss)

    def _make_client(self, own: list[int]) -> Client:
        arguments = (
            self._comm,
            self._shards,
            own if self._whole_here else range(len(self._shards)),
            self.weights.vector,
            self._source.flat.vector,
            self._serve,
            self._limit,
        )
        if self._every is None:
            return Client(*arguments)
        return Listener(*arguments, at_once=self._config.apply_at_once)

    def _move_on(self) -> None:
        """Between two layers: serve, and see what has come."""
        assert self._client is not None
        started = time.perf_counter()
        self._serve()
        self._client.arrive()
        self._served += time.perf_counter() - started

    # --- a server ---

    def _make_server(self, number: int) -> Server:
        own = self._shards[number]
        arguments = (
            self._comm,
            Shard(
                self.weights.vector[own.start : own.end].copy(),
                part_of(self._optimizer, own.start, own.end),
                self._worker_count,
                self._model,
                self.rate,
                self._config.push_rate,
                record=self._config.metrics is not None,
            ),
            number,
            range(self._worker_count),
            [number] if self._whole_here else range(self._worker_count),
            self._model.kind == "bsp",
            self._every,
            int(self._model.high) if self._whole_here and math.isfinite(self._model.high) else None,
        )
        health = self._workers.health
        if self._config.replicas:
            return Replica(*arguments, rank=self._workers.rank, health=health)
        return Server(*arguments)

    def _serve(self) -> bool:
        self._source.feed.look()
        if self._workers.health.look():
            self._regroup()
        moved = False
        # The first shard says when to stop; a worker of the same rank asks it to.
        may_stop = self._client is None and self._shards[0].rank == self._workers.rank
        for server in self._servers.values():
            server.stop |= self.signalled and may_stop
            moved |= server.poll()
        return moved

    def _regroup(self) -> None:
        """Servers have died: others answer for their shards."""
        moved = []
        for number, shard in enumerate(self._shards):
            first = self._workers.health.chain(number)[0]
            if shard.rank != first:
                shard.rank = first
                moved.append(number)
        for server in self._servers.values():
            if isinstance(server, Replica):
                server.regroup()
        if self._client is not None:
            self._client.renew(moved)

    # --- all ranks ---

    def _agree(
        self, where: str, clock: int, mine: float, losses: Array, failure: Exception | None
    ) -> None:
        """The pushes are drained: know what happened, and hold the same parameters everywhere."""
        client = self._client
        facts: dict[str, Any] = {
            "failed": failure is not None,
            "asked": self.asked,
            # A signal may have come to a server that is no more, and others be told of it.
            "signalled": self.signalled or any(s.stop for s in self._servers.values()),
            "clock": clock,
            "rank": self._workers.rank,
            "seconds": mine,
            "losses": losses,
            "updates": 0 if client is None else client.updates,
            "skipped": 0 if client is None else client.skipped,
            "scale": None if client is None else (self.scale, self.good),
        }
        everyone = [theirs for theirs in self._workers.gather(facts) if theirs is not None]
        if any(theirs["failed"] for theirs in everyone):
            raise_together(self._workers, where, failure)
        self.number = max(theirs["clock"] for theirs in everyone)
        for theirs in everyone:
            self.compute[theirs["rank"]] += theirs["seconds"]
            self.losses += theirs["losses"]
        self.interrupted = any(theirs["signalled"] for theirs in everyone)
        self.stop = self.interrupted or any(theirs["asked"] for theirs in everyone)
        self.updates, self.skipped = everyone[0]["updates"], everyone[0]["skipped"]
        # What overflows on no worker.
        self.scale, self.good = min(theirs["scale"] for theirs in everyone if theirs["scale"])
        self._workers.broadcast(self.weights.vector)
        self._take_over()
        if self._whole_here:
            # The order of pushes differs between ranks, and with it rounding or more: go on alike.
            self._put(None, 0, self.weights.vector)
            for slot in self.slots:
                whole = np.empty_like(self.weights.vector)
                for start, values in self._fetched(slot):
                    put(whole[start : start + values.size], values)
                self._workers.broadcast(whole)
                self._put(slot, 0, whole)

    def _fetched(self, slot: str) -> list[tuple[int, Array]]:
        """Where each shard's part of an array of the optimizer begins, and the part; collective.

        On rank 0, until it fetches again; nothing on the others.
        """
        found: list[tuple[int, Array]] = []
        if self._workers.rank == 0:
            assert self._client is not None
            found = self._client.fetch(self.slots.index(slot))
        self._workers.meet()
        return found

    def _put(self, slot: str | None, start: int, values: Array) -> None:
        """Give this rank's shards what is theirs of a part of a vector, of weights or a slot."""
        for number, server in self._servers.items():
            own = self._shards[number]
            low, high = max(own.start, start), min(own.end, start + values.size)
            if low < high:
                target = server.shard.weights if slot is None else server.shard.state[slot]
                target[low - own.start : high - own.start] = values[low - start : high - start]
