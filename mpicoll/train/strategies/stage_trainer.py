"""One step of replicas whose layers several ranks share, and what each rank keeps of it.

All ranks go through the same batches, of which each reads what its layers need.  What fails on one
rank fails on all, and a step that is not finite on one is skipped by all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.base.arrays import Array
from mpicoll.schedule.layout import part
from mpicoll.train import optimizers
from mpicoll.train.data.feeds import Reading
from mpicoll.train.data.sampler import Sampler
from mpicoll.train.groups import part_of
from mpicoll.train.parallel.agreement import NotFinite
from mpicoll.train.parallel.communication import Call
from mpicoll.train.parallel.mesh import Mesh
from mpicoll.train.parallel.parts import Parts
from mpicoll.train.parallel.pipeline import Pipeline
from mpicoll.train.ranks.waiting import breakable
from mpicoll.train.ranks.workers import TrainingError, Workers, raise_together, together
from mpicoll.train.records import Step
from mpicoll.train.step.tasks import RECEIVES
from mpicoll.train.strategies.buffers import Buffers
from mpicoll.train.strategies.evaluated import Evaluated, rows_at_once
from mpicoll.train.strategies.kept import Held, Part, Piece, Saved, Seat
from mpicoll.train.strategies.mixing import Mixing, average
from mpicoll.train.strategies.retained import Retained, RetainedPieces, RetainedWhole
from mpicoll.train.strategies.shared import SampleRows, Shared
from mpicoll.train.strategies.training import Setup, Training

#: Places in what ranks tell each other at the end of a step, before the seconds that each computed.
_FAILED, _STOP, _SIGNAL, _COMPUTE = range(4)
#: Steps that a timeline is of.
_TRACED = 20


class StageTrainer(Training):
    """Steps that all ranks of a mesh make together.

    Args:
        setup: The run.
        mesh: The ranks.
        pipeline: This rank's layers; both are freed at the end.
        tensor: Which of their parameters are parts.
        mixing: What happens to parameters of replicas that are not alike; None where they are.
    """

    def __init__(
        self,
        setup: Setup,
        mesh: Mesh,
        pipeline: Pipeline,
        tensor: Parts,
        mixing: Mixing | None = None,
    ) -> None:
        config, dataset = setup.config, setup.dataset
        self._mesh, self._pipeline, self._tensor = mesh, pipeline, tensor
        # Stages without parameters have nothing to mix.
        self._mixing = mixing if pipeline.weights.vector.size else None
        self._factor = 1 if pipeline.replicas.are_alike else mesh.data.size
        # Replicas have equal buffers after each step: there is one set of them.
        buffers = Buffers(Workers(), pipeline.buffers, range(1), None)
        pipeline.buffers.update(buffers.views)
        samples = len(dataset.train_targets)
        sampler = Sampler(samples, config.batch * config.accumulate, config.seed)
        super().__init__(setup, buffers, sampler, copied=False)
        self._feed = Reading(dataset, config.seed, config.augment)
        self._targets = dataset.train_targets
        # Each parameter is updated by itself, or this rank's piece of it.
        self._owned = {name: own for name, (own, _, _) in pipeline.replicas.owned().items()}
        self._updates = {
            name: (
                part_of(self._optimizer, start, end),
                optimizers.empty_state(self._optimizer, own),
            )
            for name, (own, start, end) in pipeline.replicas.owned().items()
        }
        self._facts = np.zeros(_COMPUTE + setup.workers.size)
        self._loading, self._updated = 0.0, 0
        self._tracing, self._traced = ExitStack(), _TRACED
        self._place = mesh.pipe.rank * mesh.tensor.size + mesh.tensor.rank, mesh.data.rank
        self._retained: Retained | None = None
        if config.survive:
            own = [*self._kept()], buffers.views, self._place[0]
            if pipeline.replicas.owns_pieces:
                self._retained = RetainedPieces(*own, self.weights.vector.dtype, mesh.data)
            else:
                self._retained = RetainedWhole(*own)
            self._lengths: dict[str, int | None] = {}
            for ends in setup.workers.gather(self._retained.ends):
                for kind, end in ends.items():
                    self._lengths[kind] = max(end, self._lengths.get(kind) or 0)

    @property
    def doing(self) -> str:
        return self._pipeline.doing

    def communication(self) -> list[Call]:
        return self._pipeline.communication(min(self.sampler.batch, self.sampler.samples))

    def begin(self) -> None:
        if self._config.timeline is not None:
            with together(self._workers, "opening the timeline"):
                if self._workers.rank == 0:
                    Path(self._config.timeline).parent.mkdir(parents=True, exist_ok=True)
            self._traced = self.number + _TRACED
            self._tracing.enter_context(self._pipeline.traced(self._config.timeline))

    def close(self, failed: bool = False) -> None:
        if not failed:
            self._end_timeline()
        if self._retained is not None:
            self._retained.free()
        self._pipeline.free()
        self._mesh.free()

    def _end_timeline(self) -> None:
        """Write the timeline, where one is to be written; collective."""
        if self._config.timeline is None:
            return
        comm = self._mesh.world.comm
        # Clocks are compared by messages of two ranks each.
        with breakable(comm) if comm and self._config.survive else nullcontext():
            self._tracing.close()

    # --- steps ---

    def steps(self, epoch: int, done: int) -> Iterator[Step]:
        self.position = done
        # What was to stop may go on after the death of a rank.
        left = () if self._is_over() else self.sampler.batches(epoch, done)
        for samples in left:
            yield self.step(samples, epoch, self.position + 1)
            if self._is_over():
                break
        if self._mixing is not None:
            # Measurements and checkpoints are of one set of parameters.
            average(self._pipeline.replicas.workers, self._mixed())

    def step(self, samples: NDArray[np.int64], epoch: int, position: int) -> Step:
        """Train on a global batch.

        Args:
            samples: Their indices, of all ranks together.
            epoch: Number of the epoch, counted from 1.
            position: Number of the step in the epoch, counted from 1.

        Raises:
            TrainingError: A rank has failed, or too many steps in a row were skipped; on all.
        """
        where, began = f"step {position} of epoch {epoch}", time.perf_counter()
        lr, skipped = self.rate(self.number + 1), None
        self._loading = 0.0
        if self._retained is not None:
            self._retained.begin(self.number, self.facts())
        loss, gradients = math.nan, dict[str, Array]()
        try:
            if self._pipeline.schedule.order.updates:
                loss = self._stream(samples, epoch, lr)
            else:
                loss, gradients = self._computed(samples, epoch)
        except NotFinite as error:
            skipped = error
        except TrainingError as error:
            raise TrainingError(f"{where}: {error}") from error
        mine = sum(s.end - s.start for s in self._pipeline.spans if not s.task.is_message)
        mine -= self._pipeline.waited
        computed = self._agreed(where, mine)
        self.number, self.position = self.number + 1, position
        scale = self.scale
        self._watch_scale(skipped is not None)
        self.compute += computed
        if skipped is None:
            self._update(gradients, lr, scale)
            self.losses += loss * len(samples), len(samples)
            self.skipped_in_a_row = 0
        else:
            self.skipped += 1
            self.skipped_in_a_row += 1
            if self.skipped_in_a_row > self._config.skip_limit:
                raise TrainingError(
                    f"{where}: {skipped}: lower the learning rate (now {self._config.lr}) or check "
                    "the data"
                )
        if self._mixing is not None:
            weights, *state = self._mixed()
            self._mixing.mix(self.number, weights, state)
        self.last = self._recorded(epoch, loss, lr, skipped is not None, mine, began)
        if self._retained is not None:
            self._retained.made(self.number, self.facts())
        self._compare_parameters(where)
        self.before = None
        if self.number == self._traced:
            self._end_timeline()
        return self.last

    def _computed(self, samples: NDArray[np.int64], epoch: int) -> tuple[float, dict[str, Array]]:
        """Loss and gradients of a batch, the latter times the factor of the loss."""
        loss, gradients = self._pipeline.step(
            *self._given(samples, epoch),
            samples=samples,
            epoch=epoch,
            seed=self._config.seed,
            scale=self.scale,
        )
        return loss / self.scale, gradients

    def _stream(self, samples: NDArray[np.int64], epoch: int, lr: float) -> float:
        """Update after each microbatch of a batch; its loss, of what was finite.

        Raises:
            NotFinite: Nothing was.
        """
        self._updated = 0

        def update(parameters: dict[str, Array], gradients: dict[str, Array]) -> None:
            self._updated += 1
            for name, gradient in gradients.items():
                self._change(name, parameters[name], gradient, lr, self.updates + self._updated)

        losses = self._pipeline.stream(
            *self._given(samples, epoch),
            update,
            samples=samples,
            epoch=epoch,
            seed=self._config.seed,
        )
        counts = np.array([part(len(samples), len(losses), m)[1] for m in range(len(losses))])
        made = np.isfinite(losses) & (counts > 0)
        if not made.any():
            raise NotFinite("no microbatch has a finite loss")
        self.updates += int(made.sum())
        return float((losses[made] * counts[made]).sum() / counts[made].sum())

    def _given(self, samples: NDArray[np.int64], epoch: int) -> tuple[SampleRows, SampleRows]:
        """Inputs and targets of samples, read by the ranks that need them."""

        def inputs(some: NDArray[np.int64]) -> Array:
            asked = time.perf_counter()
            found, _ = self._feed.take(some, epoch)
            self._loading += time.perf_counter() - asked
            return found

        return SampleRows(samples, inputs), SampleRows(samples, lambda some: self._targets[some])

    def _agreed(self, where: str, mine: float) -> Array:
        """Whether the run is to stop, on all ranks; and the seconds that each has computed.

        Raises:
            TrainingError: A callback has failed on a rank.
        """
        facts = self._facts
        facts[:] = 0
        facts[_FAILED] = self.failure is not None
        facts[_STOP], facts[_SIGNAL] = self.asked, self.signalled
        facts[_COMPUTE + self._workers.rank] = mine
        self._workers.sum(facts)
        if facts[_FAILED]:
            raise_together(self._workers, where, self.failure)
        self.interrupted = bool(facts[_SIGNAL])
        self.stop = bool(facts[_STOP]) or self.interrupted
        return facts[_COMPUTE:]

    def _update(self, gradients: Mapping[str, Array], lr: float, scale: float) -> None:
        if self._pipeline.schedule.order.updates:
            return  # it has updated
        clip, factor = self._config.clip, self._factor / scale
        if clip is not None:
            norm = self._pipeline.norm(gradients) / scale
            if norm > clip:
                factor *= clip / norm
        self.updates += 1
        for name, gradient in gradients.items():
            if factor != 1:
                gradient *= factor
            self._change(name, self._owned[name], gradient, lr, self.updates)
        self._pipeline.replicas.changed()

    def _mixed(self) -> list[Array]:
        """Parameters, then the optimizer's arrays."""
        states = [state[slot] for slot in self.slots for _, state in self._updates.values()]
        return [self.weights.vector, *states]

    def _change(self, name: str, weights: Array, gradient: Array, lr: float, step: int) -> None:
        """Update one parameter."""
        optimizer, state = self._updates[name]
        optimizer.update(weights.reshape(-1), gradient.reshape(-1), state, lr, step)

    def _compare_parameters(self, where: str) -> None:
        every = self._config.check_every
        if every and self.number % every == 0:
            try:
                self._pipeline.compare()
            except TrainingError as error:
                raise TrainingError(f"after {where} {error}") from error

    def _recorded(
        self, epoch: int, loss: float, lr: float, skipped: bool, mine: float, began: float
    ) -> Step:
        spans = self._pipeline.spans
        waiting = sum(span.end - span.start for span in spans if span.task.kind in RECEIVES)
        rest = time.perf_counter() - began - mine - waiting - self._loading
        return Step(
            number=self.number,
            epoch=epoch,
            position=self.position,
            of=self.sampler.steps,
            loss=loss,
            lr=lr,
            skipped=skipped,
            compute=mine,
            exposed=max(0.0, rest),
            hidden=0.0,
            waiting=waiting,
            slowest=int(self._facts[_COMPUTE:].argmax()),
            loading=self._loading,
            began=began,
            spans=tuple(
                (str(span.task), round(span.start - began, 7), round(span.end - began, 7))
                for span in spans
            ),
        )

    # --- what is kept ---

    def _kept(self) -> Iterator[Piece]:
        for kind, vectors in self._vectors():
            for name, values in vectors.items():
                yield f"{kind}/{name}", self._pipeline.replicas.first(name), values

    def _vectors(self) -> Iterator[tuple[str, dict[str, Array]]]:
        """What this rank updates, of each parameter a vector."""
        yield "parameter", self._owned
        for slot in self.slots:
            yield f"state/{slot}", {n: state[slot] for n, (_, state) in self._updates.items()}

    def parts(self) -> Iterator[Part]:
        # Of replicas the first gives what it has; of stages with a parameter, the first one too.
        first, replicas = self._mesh.data.rank == 0, self._pipeline.replicas
        for kind, vectors in self._vectors():
            for name, own in vectors.items():
                if self._pipeline.owners[name] == self._mesh.pipe.rank:
                    whole = replicas.whole(name, own)
                    if first:
                        yield from self._whole(f"{kind}/{name}", name, whole)
        for name, buffer in self.buffers.views.items():
            if first:
                yield from self._whole(f"buffer/{name}", name, buffer)

    def _whole(self, title: str, name: str, own: Array) -> Iterator[Part]:
        """A whole array, on the first of the ranks that have parts of it; collective among them."""
        whole = self._tensor.whole({name: own})[name]
        if self._mesh.tensor.rank == 0:
            yield Part(title, whole.shape, 0, whole.reshape(-1))

    @property
    def readers(self) -> range:
        return range(self._workers.size)

    def restore(self, saved: Saved, counters: Mapping[str, Any]) -> None:
        with together(self._workers, "reading a checkpoint"):
            for kind, vectors in self._vectors():
                for name, own in vectors.items():
                    shape = self.forms[name].shape
                    part = self._read_part(saved, f"{kind}/{name}", name, shape, own.dtype)
                    own[...] = self._pipeline.replicas.piece(name, part)
            for name, buffer in self.buffers.views.items():
                shape = self._setup.buffers[name].shape
                buffer[...] = self._read_part(saved, f"buffer/{name}", name, shape, buffer.dtype)
        self._pipeline.replicas.changed()
        self._recount(counters)

    def _read_part(
        self, saved: Saved, title: str, name: str, shape: tuple[int, ...], dtype: np.dtype
    ) -> Array:
        """What this rank's layers have of a saved array of a whole shape."""
        whole = np.empty(shape, dtype)
        saved.read(title, 0, whole.reshape(-1))
        return self._tensor.own({name: whole})[name] if name in self._tensor.cuts else whole

    # --- where ranks may die ---

    @property
    def lengths(self) -> dict[str, int | None]:
        return dict(self._lengths)

    def held(self) -> list[Held]:
        return [*self._own_states(), *super().held()]

    def seats(self) -> list[Seat]:
        own = (Seat(held.number, *self._place) for held in self._own_states())
        return [*own, *super().seats()]

    def _own_states(self) -> list[Held]:
        return [] if self._retained is None else self._retained.held(self.number, self.facts)

    def put(self, kind: str, values: Array) -> None:
        assert self._retained is not None
        self._retained.put(kind, values)

    def go_on(self, facts: Mapping[str, Any]) -> None:
        super().go_on(facts)
        self._pipeline.replicas.changed()

    # --- measurements ---

    def evaluated(self) -> Evaluated:
        """The model as it is now, shared by all ranks."""
        arrays = {**self.weights.views, **self.buffers.views}
        return Shared(self._pipeline, rows_at_once(self._setup.model), arrays)
