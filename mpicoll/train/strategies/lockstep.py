"""One step of data-parallel SGD, and what it keeps from step to step.

Every rank holds all parameters. In a step each computes the gradients of its part of the global
batch, already divided by the size of the whole batch; their sum over the ranks is the gradient of
the global batch, and all ranks make the same update. That is the same method as SGD in one process
with the same global batches, and differs from it by rounding alone.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.base.arrays import Array, host
from mpicoll.train import optimizers
from mpicoll.train.data.sampler import shared
from mpicoll.train.exchange import norms, tree
from mpicoll.train.exchange.buckets import Exchange, split
from mpicoll.train.exchange.layer_sums import LayerSums, PeerFailed
from mpicoll.train.exchange.transfers import MakeTransfer
from mpicoll.train.groups import part_of
from mpicoll.train.models import sums_of
from mpicoll.train.ranks.workers import Started, TrainingError, Workers, raise_together, together
from mpicoll.train.records import Step
from mpicoll.train.strategies.balance import Balance
from mpicoll.train.strategies.copies import Copies
from mpicoll.train.strategies.gradients import Gradients
from mpicoll.train.strategies.kept import Held, Piece, Saved
from mpicoll.train.strategies.mixing import Mixing, average
from mpicoll.train.strategies.training import Setup, Training, gradients_of

# Places in the header of an exchange; the seconds each rank computed come after them, then the loss
# of each part of the batch. Who has nothing to say of a place leaves a zero: sums are exact.
_FAILED, _NOT_FINITE, _STOP, _SIGNAL, _COMPUTE = range(5)


class Trainer(Training):
    """Steps that all ranks make together.

    Args:
        setup: The run.
        transfer: Makes the transfer of a bucket of gradients.
        sharded: Whether each rank updates the part that its transfers own, and shares it.
        mixing: What happens to parameters, None if they are the same on all ranks.
    """

    def __init__(
        self,
        setup: Setup,
        transfer: MakeTransfer,
        sharded: bool = False,
        mixing: Mixing | None = None,
    ) -> None:
        config, workers, weights = setup.config, setup.workers, setup.weights
        parts = config.invariant or workers.size
        own = tree.shards_of(workers.rank, workers.size, parts)
        # Virtual shards are by themselves, so that it does not matter where they are computed.
        self.apart = mixing is not None
        alone = config.invariant is not None or workers.size == 1 or self.apart
        self._layer_sums = None if alone else LayerSums(workers, sums_of(setup.model))
        kept = None if self.apart else parts
        source = self._source = self._make_source(setup, own, parts, kept)
        super().__init__(setup, source.buffers, source.sampler, self._copied)
        assert not isinstance(config.bucket, str)  # it is resolved
        self._parts = slice(own.start, own.stop)
        self._gradients, self._sharded, self._mixing = source.flat, sharded, mixing
        self._owners = workers if sharded else Workers()  # others have the whole gradient
        rows = self.buffers.rows
        ends = np.cumsum([_COMPUTE, workers.size, parts, 0 if rows is None else rows.size])
        self._exchange = self._exchange_class(
            workers,
            self._gradients,
            config.bucket,
            int(ends[-1]),
            transfer,
            self._gradients.vector if config.invariant is None else self._source.rows,
        )
        _, self._computed, self._losses, told = np.split(self._exchange.header, ends[:-1])
        self._told = None if rows is None else told.reshape(rows.shape)
        self._balance = Balance(workers.size) if config.balance == "speed" else None
        self._sharing = self._plan_sharing() if sharded else []
        owned = sum(end - start for start, end in self._exchange.owned)
        self._state = optimizers.empty_state(self._optimizer, weights.vector[:owned])
        self._states = split(self._state, self._exchange.owned)
        self._optimizers = [part_of(self._optimizer, *span) for span in self._exchange.owned]
        self._copies = (
            Copies(workers, self._owned(), weights.vector.dtype)
            if sharded and config.survive
            else None
        )

    #: Whether parameters are there in the type to compute in, too; what sums gradients.
    _copied, _exchange_class = True, Exchange

    def _make_source(self, setup: Setup, own: range, count: int, kept: int | None) -> Gradients:
        """What computes this rank's gradients."""
        return gradients_of(setup, own, count, self._layer_sums, kept)

    def _plan_sharing(self) -> list[Started]:
        """What gives each rank the parameters that others have updated."""
        vector = self.weights.vector
        return [self._workers.plan_share(vector[s:e]) for s, e in self._exchange.bounds]

    def _owned(self) -> list[Piece]:
        """The parts of vectors that this rank updates, as pieces of `Held`."""
        return [
            (kind, start, values)
            for (start, end), state in zip(self._exchange.owned, self._states, strict=True)
            for kind, values in (
                ("parameter", self.weights.vector[start:end]),
                *((f"state/{slot}", values) for slot, values in state.items()),
            )
        ]

    @property
    def collectives(self) -> list[tuple[str, int]]:
        config, item = self._config, self._gradients.vector.itemsize
        if self._mixing is not None or config.wire != "full" or config.invariant is not None:
            return []
        if self._layer_sums is not None and self._layer_sums.lengths:
            return []
        names = ("reduce_scatter", "allgather") if self._sharded else ("allreduce",)
        sizes = [item * (end - start) for start, end in self._exchange.bounds]
        header = ("allreduce", self._exchange.header.nbytes)
        return [*((name, nbytes) for name in names for nbytes in sizes), header]

    def close(self, failed: bool = False) -> None:
        self._exchange.free()
        if self._layer_sums is not None:
            self._layer_sums.free()
        for plan in self._sharing:
            plan.Free()
        if self._copies is not None:
            self._copies.free()

    def _kept(self) -> Iterator[Piece]:
        first = self._workers.rank == 0
        if self._sharded or first:
            yield from self._owned()
        for start, residual in self._exchange.residuals():
            # What the ranks have lost, they have lost together.
            lost = residual.copy()
            self._workers.sum(lost)
            if first:
                yield "residual", start, lost

    @property
    def readers(self) -> range:
        return range(self._workers.size if self._sharded else 1)

    def restore(self, saved: Saved, counters: Mapping[str, Any]) -> None:
        self._restore_model(saved)
        with together(self._workers, "reading a checkpoint"):
            if self._workers.rank in self.readers:
                for (start, _), state in zip(self._exchange.owned, self._states, strict=True):
                    for slot, values in state.items():
                        self._read(saved, f"state/{slot}", start, values)
        if not self._sharded:
            for values in self._state.values():
                self._workers.broadcast(values)
        for start, residual in self._exchange.residuals():
            self._restore_residual(saved, start, residual)
        self._recount(counters)

    def held(self) -> list[Held]:
        if self._copies is not None:
            return [*self._copies.held(self.number, self.facts()), *super().held()]
        pieces = self._owned()
        if self.buffers.rows is not None:
            pieces.append(("buffers", 0, self.buffers.rows.reshape(-1)))
        return [Held(self.number, self.facts(), pieces), *super().held()]

    def begin(self) -> None:
        self._keep_copies()

    def _keep_copies(self) -> None:
        if self._copies is not None:
            rows = self.buffers.rows
            whole = [] if rows is None else [("buffers", 0, rows.reshape(-1).copy())]
            self._copies.keep(Held(self.number, self.facts(), whole))

    def put(self, kind: str, values: Array) -> None:
        if kind == "parameter":
            self.weights.vector[...] = values
            self._take_over()
        elif kind == "buffers":
            assert self.buffers.rows is not None
            self.buffers.put(values.reshape(-1, self.buffers.rows.shape[1]))
        else:
            slot = kind.removeprefix("state/")
            for (start, end), state in zip(self._exchange.owned, self._states, strict=True):
                state[slot][...] = values[start:end]

    def _restore_residual(self, saved: Saved, start: int, residual: Array) -> None:
        """Give each rank an even share of what was lost; nothing, if nothing is known of it."""
        residual[...] = 0.0
        if all(f"residual/{name}" in saved for name in self.weights.views):
            with together(self._workers, "reading a checkpoint"):
                if self._workers.rank == 0:
                    self._read(saved, "residual", start, residual)
            self._workers.broadcast(residual)
            residual /= self._workers.size

    def steps(self, epoch: int, done: int) -> Iterator[Step]:
        self.position = done
        # What was to stop may go on after the death of a rank.
        left = () if self._is_over() else self._source.batches(epoch, done)
        for samples in left:
            yield self.step(samples, epoch, self.position + 1)
            if self._is_over():
                break
        if self._mixing is not None:
            # Measurements and checkpoints are of one set of parameters.
            average(self._workers, self._mixed())
            self._take_over()

    def step(self, samples: NDArray[np.int64], epoch: int, position: int) -> Step:
        """Train on a global batch.

        Args:
            samples: Their indices, of all ranks together.
            epoch: Number of the epoch, counted from 1.
            position: Number of the step in the epoch, counted from 1.

        Raises:
            TrainingError: The model failed on a rank, or too many steps in a row were skipped.
        """
        where = f"step {position} of epoch {epoch}"
        exchange, header = self._exchange, self._exchange.header
        start = time.perf_counter()
        exchange.begin()
        header[:] = 0
        failure, source, loss = self.failure, self._source, math.nan
        try:
            loss = source.compute(self.views, samples, epoch, exchange.ready, self.scale)
        except PeerFailed:
            source.losses[:] = [loss]  # the step ends below, by what the other rank has to say
        except Exception as error:
            failure = failure or error
        mine = time.perf_counter() - start - exchange.calls - source.loading - source.summing
        header[_FAILED] = failure is not None
        if not source.finite:
            header[_NOT_FINITE] = 1
            failure = failure or source.failure(loss)
        elif failure is None:
            self._losses[self._parts] = source.losses
        if self._told is not None:
            self.buffers.tell(self._told)
        header[_STOP] = self.asked
        header[_SIGNAL] = self.signalled
        self._computed[self._workers.rank] = mine
        exchange.finish()
        if header[_FAILED]:
            raise_together(self._workers, where, failure)

        scale = self.scale
        owned = [self._gradients.vector[start:end] for start, end in exchange.owned]
        norm, finite = norms.checked(self._owners, owned, self._config.clip is not None)
        norm /= scale
        skipped = bool(header[_NOT_FINITE]) or not finite
        # From here on the step counts on this rank, whoever dies: nobody is awaited in between.
        self.number += 1
        self.position = position
        self.interrupted = bool(header[_SIGNAL])
        self.stop = bool(header[_STOP]) or self.interrupted
        lr = self.rate(self.number)
        self._watch_scale(skipped)
        computed = self._computed
        self.compute += computed
        loss = float(tree.total_of_shards(self._losses)) / scale  # of the global batch
        if header[_NOT_FINITE]:
            loss = math.nan
        else:
            self.losses += loss * len(samples), len(samples)
        exposed = exchange.reduced - exchange.computed + source.summing
        waiting = min(exposed, float(computed.max()) - mine)
        self.last = Step(
            number=self.number,
            epoch=epoch,
            position=position,
            of=self.sampler.steps,
            loss=loss,
            lr=lr,
            skipped=skipped,
            compute=mine,
            exposed=exchange.exposed + source.summing - waiting,
            hidden=exchange.hidden,
            waiting=waiting,
            slowest=int(computed.argmax()),
            loading=source.loading,
            began=start,
        )
        if skipped:
            self.buffers.undo()
            self.skipped += 1
            self.skipped_in_a_row += 1
        else:
            self._update(lr, norm, scale)
            if self._told is not None:
                self.buffers.told(self._told)
        self._keep_copies()
        sharing = time.perf_counter()
        if skipped:
            self._check_skips(where, failure)
        else:
            self._share()
        if self._mixing is not None:
            weights, *state = self._mixed()
            self._mixing.mix(self.number, weights, state)
            self._take_over()
        shared = sharing, time.perf_counter()
        self._compare_parameters(where)
        self._share_out(len(samples), computed)
        self.before = None
        return replace(self.last, spans=exchange.spans(start, shared))

    def _share_out(self, samples: int, computed: Array) -> None:
        """A step was made: give each rank a share of the next ones that follows its speed."""
        if self._balance is None:
            return
        source, size = self._source, self._workers.size
        every = np.arange(samples)
        counts = [len(shared(every, size, rank, source.speeds)) for rank in range(size)]
        if self._balance.add(np.array(counts, float), computed):
            source.speeds = self._balance.speeds

    # --- update ---

    def _update(self, lr: float, norm: float, scale: float) -> None:
        config, gradients = self._config, self._gradients.vector
        factor = 1.0 / scale
        if self._mixing is not None:
            factor *= self._workers.size
        if config.clip is not None and norm > config.clip:
            factor *= config.clip / norm
        self.updates += 1
        parts = zip(self._exchange.owned, self._optimizers, self._states, strict=True)
        for (start, end), optimizer, state in parts:
            part = gradients[start:end]
            if factor != 1:
                part *= factor
            weights = self.weights.vector[start:end]
            optimizer.update(weights, part, state, lr, self.updates)
        self._exchange.commit()
        self.skipped_in_a_row = 0

    def _share(self) -> None:
        """Give each rank the parameters that others have updated."""
        for plan in self._sharing:
            plan.Start()
        for plan in self._sharing:
            plan.Wait()
        self._take_over()

    def _mixed(self) -> list[Array]:
        """Parameters, then the optimizer's arrays."""
        return [self.weights.vector, *self._state.values()]

    def _check_skips(self, where: str, failure: Exception | None) -> None:
        """Raise on all ranks if too many steps in a row were skipped."""
        if self.skipped_in_a_row <= self._config.skip_limit:
            return
        # The sum may overflow where no rank's own gradient does.
        anywhere = self._exchange.header[_NOT_FINITE] > 0
        own = failure if anywhere else FloatingPointError("the sum of the gradients overflows")
        raise_together(self._workers, where, own)

    # --- checks ---

    def _compare_parameters(self, where: str) -> None:
        every = self._config.check_every
        apart = self._mixing is not None
        if not every or self.number % every or self._workers.size == 1 or apart:
            return
        sums = {name: zlib.crc32(host(view).data) for name, view in self.weights.views.items()}
        everyone = self._workers.gather(sums)
        for rank, theirs in enumerate(everyone):
            for name, found in theirs.items():
                if found != everyone[0][name]:
                    raise TrainingError(
                        f"after {where} parameter {name} of rank {rank} differs from that of rank "
                        "0: a rank changed its parameters, or its sums have other bits; give an "
                        "algorithm that gives all ranks the same bits, such as ring"
                    )
