"""Gradients are all-reduced among replicas whose layers several ranks share, as a mesh says.

Stages of a pipeline have some layers each, and neighbouring ranks parts of each layer
(`mpicoll.train.parallel`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mpicoll.base.wording import plural
from mpicoll.train.config import Config
from mpicoll.train.models import Model, Sequential
from mpicoll.train.models.networks import is_chain
from mpicoll.train.parallel.mesh import Mesh, count_replicas
from mpicoll.train.parallel.parts import Parts
from mpicoll.train.parallel.pipeline import Pipeline
from mpicoll.train.parallel.replicas import MakeReplicas, Replicas
from mpicoll.train.parallel.shards import shard
from mpicoll.train.ranks.workers import TrainingError, Workers, together
from mpicoll.train.strategies.holding import Form, Holding
from mpicoll.train.strategies.protocol import Strategy, slots
from mpicoll.train.strategies.stage_trainer import StageTrainer
from mpicoll.train.strategies.training import Setup

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True)
class Stages(Holding):
    """The parameters of the layers, or of the parts of layers, that this rank has.

    Attributes:
        mesh: The ranks.
        pipeline: What computes with them.
        tensor: Which of them are parts.
    """

    mesh: Mesh
    pipeline: Pipeline
    tensor: Parts

    @property
    def words(self) -> str:
        mesh = self.mesh
        part = f", part {mesh.tensor.rank} of {mesh.tensor.size}" if mesh.tensor.size > 1 else ""
        return f"stage {mesh.pipe.rank} of {mesh.pipe.size}{part} (rank {mesh.world.rank})"

    def agree(self, workers: Workers) -> None:
        """They are the same wherever they are, from the start."""

    def free(self) -> None:
        self.pipeline.free()
        self.mesh.free()


class Meshed(Strategy):
    """Data parallelism among replicas that are cut into stages and parts of layers.

    Args:
        replicas: What each replica has of the parameters of its stage.
        how: What they do, behind the name of the strategy.
    """

    def __init__(self, replicas: MakeReplicas = Replicas, how: str = "") -> None:
        self._replicas, self._how = replicas, how

    def memory(self, config: Config, rank: int, ranks: int, holding: Holding) -> dict[str, int]:
        """Gradients and optimizer of the rank's own parameters."""
        assert isinstance(holding, Stages)
        replicas = holding.pipeline.replicas
        needed = replicas.nbytes(slots(config))
        if config.survive:
            owned = sum(array.nbytes for array, _, _ in replicas.owned().values())
            state = (1 + slots(config)) * owned
            if replicas.owns_pieces:
                needed["copies of parts"] = 4 * state
            else:
                needed["the step before"] = state
        return needed

    def found(self, model: Model, holding: Holding) -> int:
        assert isinstance(holding, Stages)
        return holding.pipeline.replicas.longest_nbytes

    def passes(
        self, config: Config, rank: int, ranks: int, model: Model, holding: Holding
    ) -> dict[str, int]:
        """Of the microbatches that a stage holds, by the order of computation."""
        assert isinstance(holding, Stages)
        needed = holding.pipeline.memory(config.batch * config.accumulate)
        return needed | holding.pipeline.replicas.step_nbytes()

    def is_exact(self, config: Config) -> bool:
        return False  # no rank has all parameters to compare

    def describe(self, config: Config) -> str:
        """The mesh, and the order of computation where there are stages."""
        axes = config.axes
        found = f"{config.strategy}{self._how}, mesh {config.mesh}"
        if axes["pipe"] == 1:
            return found
        schedule = config.step_schedule
        count = schedule.microbatches // config.accumulate
        return f"{found}, {schedule.order.name}, {count} microbatches"

    def hold(
        self, config: Config, workers: Workers, comm: MPI.Intracomm | None, model: Model
    ) -> Stages:
        """Make the mesh, and this rank's layers."""
        axes, what = config.axes, "making data and model ready"
        with together(workers, what):
            whole = _layered(model)
            replicas = count_replicas(
                workers.size, axes["data"] or None, axes["pipe"], axes["tensor"]
            )
            invariant = parts_of_tree(config, replicas)
        mesh = Mesh(comm, data=replicas, pipe=axes["pipe"], tensor=axes["tensor"])
        try:
            with together(workers, what):
                return _stages(config, mesh, whole, invariant, self._replicas)
        except TrainingError:  # on all ranks
            mesh.free()
            raise

    def make(self, setup: Setup) -> StageTrainer:
        holding = setup.holding
        assert isinstance(holding, Stages)
        return StageTrainer(setup, holding.mesh, holding.pipeline, holding.tensor)


def require_one_update(config: Config) -> None:
    """Refuse orders of a pipeline that update parameters within a step.

    Raises:
        ValueError: It is one.
    """
    order = config.step_schedule.order
    if config.has_parts and order.updates:
        raise ValueError(
            f"strategy {config.strategy} changes parameters at the end of a step, and "
            f"pipeline_schedule {order.name} updates all of them within it: give strategy "
            "allreduce, or pipeline_schedule 1f1b"
        )


def _stages(
    config: Config,
    mesh: Mesh,
    whole: Sequential,
    invariant: int | None,
    replicas: MakeReplicas,
) -> Stages:
    """What this rank has of a model; collective.

    Raises:
        ValueError, TrainingError: The model cannot be shared like this; on all ranks.
    """
    dtype, schedule = whole.dtype.name, config.step_schedule
    inputs, sequence = whole.shapes[0], config.sequence
    layers = shard(whole.layers, mesh.tensor.comm, inputs, sequence=sequence, dtype=dtype)
    own = Sequential(layers, whole.shapes[0], dtype, whole.loss)
    options: dict[str, Any] = dict(schedule.parameters)
    pipeline = Pipeline(
        own,
        mesh,
        schedule.order.name,
        microbatches=schedule.microbatches,
        cut=config.cut,
        recompute=config.recompute,
        invariant=invariant,
        seed=config.seed,
        algorithm=config.algorithm,
        replicas=replicas,
        **options,
    )
    wide = np.promote_types(whole.dtype, np.float32)
    forms = {name: Form(wide, shape) for name, shape in whole.parameter_shapes.items()}
    return Stages(pipeline.weights, forms, mesh, pipeline, Parts(own, mesh.tensor.comm))


def _layered(model: Model) -> Sequential:
    """A model that is a chain of layers and nothing more.

    Raises:
        ValueError: It is none.
    """
    if not is_chain(model):
        raise ValueError(
            "a mesh with pipe or tensor shares the layers of a Sequential, and the model is "
            f"{type(model).__name__}: give a Sequential, or leave mesh out"
        )
    return model


def parts_of_tree(config: Config, replicas: int) -> int | None:
    """Parts of the batches of a step that are added along one tree, None where none are.

    Raises:
        ValueError: There are others than `invariant` says.
    """
    if config.invariant is None:
        return None
    count = replicas * config.step_schedule.microbatches
    parts = count // config.accumulate
    if config.invariant != parts:
        raise ValueError(
            f"invariant is {config.invariant}, and {plural(replicas, 'replica')} with "
            f"microbatches={parts // replicas} make {plural(parts, 'part')}: give "
            f"invariant={parts}, or other microbatches"
        )
    return count
