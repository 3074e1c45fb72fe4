"""Layers shared by the stages of a pipeline, for a training loop of one's own.

Every rank makes the same calls with the same batches, of which it reads what its stage needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.base.arrays import Array
from mpicoll.train import heap
from mpicoll.train.models.layers import Layer
from mpicoll.train.models.losses import Loss
from mpicoll.train.models.networks import Sequential
from mpicoll.train.parallel import checks, memory, stages
from mpicoll.train.parallel.agreement import Given, Group, NotFinite
from mpicoll.train.parallel.communication import Call, of_step
from mpicoll.train.parallel.mesh import Mesh
from mpicoll.train.parallel.parts import Parts
from mpicoll.train.parallel.program import Failure, Span
from mpicoll.train.parallel.replicas import MakeReplicas, Replicas
from mpicoll.train.parallel.runner import Runner
from mpicoll.train.parallel.stage import Stage, modelled
from mpicoll.train.parallel.sums import totals
from mpicoll.train.parallel.timeline import Recorder, Timeline, gathered
from mpicoll.train.parallel.weights import Update
from mpicoll.train.parallel.wires import Wires
from mpicoll.train.step import catalogue

__all__ = ["NotFinite", "Pipeline"]


class Pipeline:
    """A model whose layers are cut into chunks, divided among the ranks along `mesh.pipe`.

    A step has the bits of one process that adds the gradients of the same microbatches, whatever
    the schedule, the cut and the number of stages.  A parameter that layers of several stages share
    is on each of them, with the gradient of all its uses.  A batch norm normalises each microbatch
    by itself.

    Methods are collective.  A failure on one rank raises the same `TrainingError` on all.

    Args:
        model: A `Sequential`; or its layers, with `inputs`, `dtype` and `loss`.
        mesh: The ranks.
        schedule: Order of computation, one of `mpicoll.train.step.names()`.
        microbatches: Number of microbatches in a replica's share of a batch.
        inputs, dtype, loss: As for `Sequential`.
        cut: "even", or the number of the first layer of each chunk, as "0,3,7".
        recompute: Keep only the inputs of chunks, and run forward passes again before backward
            passes.
        invariant: Number of parts of a whole batch, data * microbatches.  Their gradients and
            losses are added along one tree, so that all meshes with this number of parts give the
            same bits.  None: each replica adds its own in order, then the replicas are added.
        seed: Seed of the first parameters.
        algorithm: All-reduce algorithm of the sums over replicas, as for `Intracomm.Allreduce`.
        replicas: What replicas have of the parameters (`mpicoll.train.parallel.replicas`).
        options: Parameters of the schedule, such as `ahead` or `chunks`.

    Attributes:
        weights: Parameters of this rank's layers, or the pieces that it keeps between steps; in
            float32 if `dtype` is narrower.
        parameters, buffers: Arrays of these layers, by name.
        owners: For each parameter of the model, the first stage that has it.
        schedule: The order, as `mpicoll.train.step.schedule` returns it.
        starts: Number of the first layer of each chunk.
        held: Most microbatches that this rank held in the last step, counted for each chunk.
        versions: Most versions of its parameters that it kept in the last step.
        skipped: Microbatches that this rank skipped in the last `stream`, and why.
        sent, sent_bytes: Messages between chunks that it has sent, and their bytes.
        parts: Number of parts of a batch: the microbatches of all replicas.
        gradients_nbytes: Bytes of the sums of gradients on this rank.

    Raises:
        ValueError: Something does not fit; names value, limit and remedy; on all ranks.
        TrainingError: Ranks were given different things.
    """

    def __init__(
        self,
        model: Sequential | Sequence[Layer],
        mesh: Mesh,
        schedule: str = "1f1b",
        *,
        microbatches: int,
        inputs: tuple[int, ...] | None = None,
        dtype: str = "float32",
        loss: Loss | None = None,
        cut: stages.Cut = "even",
        recompute: bool = False,
        invariant: int | None = None,
        seed: int = 0,
        algorithm: str | None = None,
        replicas: MakeReplicas = Replicas,
        **options: int,
    ) -> None:
        heap.keep_freed()
        self._mesh, refused = mesh, None
        self._cuts: Mapping[str, object] = {}
        try:
            self._model = modelled(model, inputs, dtype, loss)
            self._cuts = Parts(self._model, mesh.tensor.comm).cuts
            self.schedule = catalogue.schedule(
                schedule, mesh.pipe.size, microbatches, recompute=recompute, **options
            )
            chunks = self.schedule.order.chunks(self.schedule.parameters)
            self.starts = stages.starts(len(self._model.layers), mesh.pipe.size, chunks, cut)
            stage = Stage(self._model, self.schedule, self.starts, mesh.pipe.rank)
            checks.require(self._model, self.schedule, stage.ties, mesh.data.size, invariant)
            facts = self._facts(invariant)
        except ValueError as error:
            refused, facts = error, {"what is refused": str(error)}
        self._group = Group(mesh, microbatches, invariant is not None, algorithm, self._cuts)
        self._group.require_equal(facts)
        if refused is not None:
            raise refused
        model, found, self._stage = self._model, self.schedule, stage
        self._wires = None if mesh.pipe.comm is None else Wires(mesh.pipe.comm)
        self._stage.begin(seed, mesh.data.comm, self._wires)
        self.replicas = replicas(stage, self._group, model.dtype)
        self.weights = self.replicas.weights
        self.parameters, self.buffers = self.weights.views, self._stage.buffers
        self.owners: Mapping[str, int] = self._stage.owners
        self._sums = self.replicas.sums
        self.parts, self.gradients_nbytes = self._group.count, self._sums.nbytes
        program = found.programs[mesh.pipe.rank]
        own = stage, self.replicas, self._wires
        self._runner = Runner(self._group, model, found, self.starts, *own)
        self._plan = self._runner.planned(program, recompute)
        # The forward passes of the same program: of one version of the parameters.
        forward = [task._replace(version=0) for task in program if task.kind.endswith("F")]
        self._forward_plan = self._runner.planned(forward, recomputes=False)
        self._recorder = Recorder()
        self.held, self.versions = 0, 1
        self.skipped: dict[int, str] = {}

    # --- steps ---

    def step(
        self,
        inputs: Any,
        targets: Any,
        *,
        samples: NDArray[np.integer[Any]] | None = None,
        epoch: int = 1,
        seed: int = 0,
        scale: float = 1.0,
    ) -> tuple[float, dict[str, Array]]:
        """Loss of a batch, and the gradients of this rank's parameters.

        Args:
            inputs: Of the whole batch, shape (samples, ...), the same on all ranks; read by the
                first stage alone, and there the rows of its replica.  Others may give None.
            targets: Likewise, for the last stage.
            samples: Index of each row in the training set, which dropout draws by; None: 0, 1, ....
                A rank that gives neither inputs nor targets gives these.
            epoch, seed: What dropout draws by, too.
            scale: Factor of the loss and its gradients, for narrow types.

        Returns:
            The mean over the batch, the same on all ranks; and its gradients by name, of what this
            rank updates, valid until the next step.

        Raises:
            TrainingError: A layer has failed on some rank, there are no samples, or not the same
                number on all ranks; or an earlier step ended early, by a time limit or Ctrl-C.
            NotFinite: The loss or a gradient is not finite; the buffers are as before the step.
            ValueError: The schedule updates parameters by itself.
            TimeoutError: A message has not come within `MPICOLL_TIMEOUT`.
        """
        if self.schedule.order.updates:
            raise ValueError(
                f"{self.schedule.order.name} updates parameters after each microbatch: call stream"
            )
        given = Given(inputs, targets, samples, epoch, seed, scale)
        with self._stage.restored(), self._recorder.step() as spans:
            executor = self._runner.run(self._plan, given, self._sums, spans=spans)
            self.held, self.versions = executor.held, self._runner.versions
            failure = executor.failure
            name = "" if failure is not None else self._sums.not_finite()
            if name:
                failure = Failure(f"the gradient of {name} is not finite")
            losses = self._group.losses(executor.losses, failure, executor.is_lost)
            gradients = self._exchanged()
        self._group.average(self.buffers, executor.samples)
        return self._group.total(losses), gradients

    def stream(
        self,
        inputs: Any,
        targets: Any,
        update: Update,
        *,
        samples: NDArray[np.integer[Any]] | None = None,
        epoch: int = 1,
        seed: int = 0,
    ) -> NDArray[np.float64]:
        """Go through samples once, and update the parameters after each microbatch.

        For schedules that do not wait for a whole batch, such as pipedream.  A microbatch whose
        loss is not finite is left out on all stages; one whose gradient is not finite on a stage,
        on that stage.

        Args:
            inputs, targets, samples, epoch, seed: As in `step`, of all microbatches together.
            update: Called with parameters, and with the gradients of the mean loss of a microbatch,
                both by name; changes the parameters in place.

        Returns:
            The mean loss of each microbatch, the same on all ranks; not finite where it was left
            out, and 0 where it has no samples.

        Raises:
            TrainingError: As in `step`; the parameters are as the last update has left them.
            ValueError: The schedule makes no updates.
            TimeoutError: As in `step`.
        """
        if not self.schedule.order.updates:
            raise ValueError(f"{self.schedule.order.name} makes no updates by itself: call step")
        given = Given(inputs, targets, samples, epoch, seed)
        with self._recorder.step() as spans:
            executor = self._runner.run(self._plan, given, self._sums, update, spans)
            self.held, self.versions = executor.held, self._runner.versions
            self.skipped = executor.skipped
            return self._group.losses(executor.losses, executor.failure, lost=False)

    def evaluate(self, inputs: Any, targets: Any) -> tuple[float, Array | None]:
        """Mean loss of samples without training, the same on all ranks, and the model's outputs.

        Args:
            inputs, targets: As in `step`.

        Returns:
            The outputs are of the rows of this rank's replica, on its last stage; None on others.

        Raises:
            TrainingError: As in `step`.
        """
        losses, found = self._evaluated(Given(inputs, targets))
        if not self._runner.is_last:
            return self._group.total(losses), None
        outputs = [outputs for _, (_, outputs) in sorted(found.items())]
        shape = (0, *self._model.shapes[-1])
        return self._group.total(losses), np.concatenate(outputs or [np.zeros(shape)])

    def outcomes(self, inputs: Any, targets: Any) -> dict[int, tuple[Array, Array]]:
        """As `evaluate`, for each part of the samples: the loss of each sample, and the outputs.

        Returns:
            By the number of the part, of `parts`; of this rank's replica, on its last stage, where
            of ranks that share layers the first has them.

        Raises:
            TrainingError: As in `step`.
        """
        _, found = self._evaluated(Given(inputs, targets))
        own = {} if self._mesh.tensor.rank else found
        return {self._group.parts[microbatch]: own[microbatch] for microbatch in sorted(own)}

    def _evaluated(self, given: Given) -> tuple[Array, dict[int, tuple[Array, Array]]]:
        executor = self._runner.run(self._forward_plan, given)
        losses = self._group.losses(executor.losses, executor.failure, executor.is_lost)
        return losses, executor.outputs

    def clip(self, gradients: dict[str, Array], limit: float) -> float:
        """Scale gradients so that their norm over all stages is at most `limit`, in place.

        Args:
            gradients: As `step` has returned them.
            limit: Of the norm.

        Returns:
            The norm before, the same on all ranks and for every cut: a parameter that several
            stages share counts once.
        """
        norm = self.norm(gradients)
        if norm > limit:
            for gradient in gradients.values():
                gradient *= limit / norm
        return norm

    def norm(self, gradients: Mapping[str, Array]) -> float:
        """Norm of the gradients of all stages, as `clip` has it."""
        return self._group.norm(gradients, self.owners, self.replicas.owns_pieces)

    def compare(self) -> None:
        """Compare what ranks have of one parameter: replicas, and stages that share it.

        Raises:
            TrainingError: It differs; names parameter and ranks.
        """
        replicas = self.replicas
        self._group.compare(self.parameters, not (replicas.keeps_whole and replicas.are_alike))

    @contextmanager
    def traced(self, path: str | Path | None = None) -> Iterator[Timeline]:
        """Record what all ranks do when in the steps made meanwhile.

        Args:
            path: Where rank 0 writes it in the format of Chrome's trace viewer; None: nowhere.

        Yields:
            The timeline, complete on all ranks when the block is left.

        Raises:
            TrainingError: It cannot be written; on all ranks.
        """
        timeline = Timeline(self.schedule, self._mesh.data.size * self._mesh.tensor.size)
        with self._recorder.kept() as records:
            yield timeline
        timeline.steps = gathered(self._mesh, records)
        with self._group.together("writing the trace"):
            if path is not None and self._mesh.world.rank == 0:
                timeline.write(path)

    def memory(self, batch: int) -> dict[str, int]:
        """Bytes of steps of so many samples, beside parameters and gradients: an estimate."""
        samples = -(-batch // self._group.count)
        return memory.needed(self._model, self._stage, self.schedule, samples)

    def communication(self, batch: int) -> list[Call]:
        """What this rank sends in a step of so many samples."""
        given = self._stage, self.replicas, self._group, batch
        return of_step(self._model, self.schedule, self.starts, *given)

    def make_room(self, batch: int) -> None:
        """Refuse batches of so many samples that take more memory than a node has left.

        Raises:
            TrainingError: With the numbers.
        """
        parameters = sum(array.nbytes for array in self.parameters.values())
        has = {"parameters": parameters, "gradients": self.gradients_nbytes}
        memory.make_room(self._group, self.memory(batch), has)

    @property
    def spans(self) -> list[Span]:
        """What this rank did when in the last step."""
        return self._recorder.spans

    @property
    def doing(self) -> str:
        """The task that this rank is in, or has ended last, in words; "" before the first."""
        return self._runner.doing

    @property
    def waited(self) -> float:
        """Seconds of the last step, within its tasks, in which this rank waited for replicas."""
        return self._runner.waited

    @property
    def sent(self) -> int:
        """Messages between chunks that this rank has sent."""
        return 0 if self._wires is None else self._wires.sent

    @property
    def sent_bytes(self) -> int:
        """Bytes of these messages."""
        return 0 if self._wires is None else self._wires.sent_bytes

    def free(self) -> None:
        """Free what the pipeline has of MPI; the mesh stays."""
        if self._wires is not None:
            self._wires.free()

    # --- what steps are made of ---

    def _facts(self, invariant: int | None) -> dict[str, object]:
        """What has to be the same on all ranks."""
        shapes = self._model.parameter_shapes
        return {
            "what is refused": "nothing",
            "schedule": self.schedule.words,
            "cut": self.starts,
            "invariant": invariant,
            "dtype": self._model.dtype,
            # Of layers that ranks share, each has its part.
            **{f"parameter {n}": shape for n, shape in shapes.items() if n not in self._cuts},
        }

    def _exchanged(self) -> dict[str, Array]:
        """The gradients of the whole batch."""
        uses = self.replicas.summed()
        gradients = totals(uses)
        if self._wires is not None:
            self._stage.tied(gradients, uses, self._wires)
        if self._mesh.data.size > 1 or self._stage.ties:
            self._group.require_finite(gradients)
        return gradients
