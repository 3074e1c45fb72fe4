"""One step of replicas whose layers several ranks share.

All ranks go through the same batches, of which each reads what its layers need.  What fails on one
rank fails on all, and a step that is not finite on one is skipped by all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpicoll.base.arrays import Array
from mpicoll.schedule.layout import part
from mpicoll.train.data.feeds import Reading
from mpicoll.train.parallel.agreement import NotFinite
from mpicoll.train.parallel.communication import Call
from mpicoll.train.parallel.mesh import Mesh
from mpicoll.train.parallel.parts import Parts
from mpicoll.train.parallel.pipeline import Pipeline
from mpicoll.train.ranks.waiting import breakable
from mpicoll.train.ranks.workers import TrainingError, raise_together, together
from mpicoll.train.records import Step
from mpicoll.train.step.tasks import RECEIVES
from mpicoll.train.strategies.evaluated import Evaluated, rows_at_once
from mpicoll.train.strategies.mixing import Mixing, average
from mpicoll.train.strategies.shared import SampleRows, Shared
from mpicoll.train.strategies.stage_state import StageState
from mpicoll.train.strategies.training import Setup

#: Places in what ranks tell each other at the end of a step, before the seconds that each computed.
_FAILED, _STOP, _SIGNAL, _COMPUTE = range(4)
#: Steps that a timeline is of.
_TRACED = 20


class StageTrainer(StageState):
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
        super().__init__(setup, mesh, pipeline, tensor)
        config, dataset = setup.config, setup.dataset
        # Stages without parameters have nothing to mix.
        self._mixing = mixing if pipeline.weights.vector.size else None
        self._factor = 1 if pipeline.replicas.are_alike else mesh.data.size
        self._feed = Reading(dataset, config.seed, config.augment)
        self._targets = dataset.train_targets
        self._facts = np.zeros(_COMPUTE + setup.workers.size)
        self._loading, self._updated = 0.0, 0
        self._tracing, self._traced = ExitStack(), _TRACED

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

    # --- measurements ---

    def evaluated(self) -> Evaluated:
        """The model as it is now, shared by all ranks."""
        arrays = {**self.weights.views, **self.buffers.views}
        return Shared(self._pipeline, rows_at_once(self._setup.model), arrays)
