"""Data, model, parameters and optimizer of a run, made and found to be the same on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpicoll.base import arrays
from mpicoll.train import groups, heap, optimizers
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset, load, targets
from mpicoll.train.driver import bits, cutting, memory, predicted
from mpicoll.train.driver.measuring import Measuring
from mpicoll.train.driver.named import make_model
from mpicoll.train.models import Measure, Model, Sequential, buffers_of
from mpicoll.train.models.flat import Flat, described
from mpicoll.train.models.measures import usual
from mpicoll.train.optimizers import Optimizer
from mpicoll.train.ranks.waiting import breakable
from mpicoll.train.ranks.workers import TrainingError, Workers, require_equal, together
from mpicoll.train.strategies import placement
from mpicoll.train.strategies.holding import Holding
from mpicoll.train.strategies.protocol import strategy_of, sums_between_ranks
from mpicoll.train.strategies.training import Setup

if TYPE_CHECKING:
    from mpi4py import MPI


class Given(NamedTuple):
    """What a program brings instead of what the configuration names; None for nothing."""

    dataset: Dataset | None = None
    model: Model | None = None
    optimizer: Optimizer | None = None


def prepare(
    config: Config,
    comm: MPI.Intracomm | None,
    given: Given,
    measures: Sequence[Measure] | None = None,
    workers: Workers | None = None,
    waits: bool = False,
) -> tuple[Setup, Measuring]:
    """What the run is made of: fits into memory, and is the same on all ranks; collective.

    Args:
        config: The run.
        comm: The ranks; None for this process alone.
        given: What the program brings.
        measures: Those of held-out samples; None for the model's usual ones.
        workers: The ranks of `comm`, where they are not as the configuration says.
        waits: Whether this rank has nothing of the model before `reseated` gives it some.
    """
    heap.keep_freed()
    dataset, model, optimizer = given
    if workers is None:
        workers = Workers() if comm is None else placement.members(config, comm)
    require_equal(workers, asdict(config), "give all ranks the same configuration")
    if dataset is None:
        memory.make_room(workers, memory.reading(config))
    with together(workers, "making data and model ready"):
        dataset = dataset or load(config.dataset, config.data, config.context)
        dataset = dataset.astype(arrays.dtype_of(config.dtype))
        model = model or make_model(config, dataset)
        measures = usual(model, dataset.classes) if measures is None else measures
        _check(config, dataset, model, measures)
        dataset = _on(config.device, dataset)
        buffers = {n: arrays.on(config.device, a) for n, a in buffers_of(model).items()}
        sums = sums_between_ranks(config, model)
        if not waits:
            config.worker_count(workers.size)
        if config.invariant is not None:
            bits.require_one_thread()
        if config.deterministic and config.algorithm is not None:
            bits.require_fixed_order(config.algorithm, workers.size)
    made = optimizer or optimizers.make(config.optimizer, config.momentum, config.weight_decay)
    measuring = Measuring(config, workers, dataset, measures)
    if waits:
        nothing = Holding(Flat({}, out=np.zeros(0)), {})
        return Setup(config, workers, comm, dataset, model, nothing, made, buffers), measuring
    config = cutting.resolved(config, workers, dataset, model)
    # Where ranks may die, a death ends the forming of a mesh.
    guarded = breakable(comm) if config.survive and config.has_parts and comm else nullcontext()
    with guarded:
        holding = strategy_of(config).hold(config, workers, comm, model)
    facts = {
        "data": dataset.about or dataset.name,
        **_numbers(dataset),
        "measures": ", ".join(measure.name for measure in measures),
        **described(holding.forms),
        **described(buffers, "buffer"),
        "lengths of sums": sums,
    }
    setup = Setup(config, workers, comm, dataset, model, holding, made, buffers)
    try:
        setup = _agreed(setup, facts)
    except TrainingError:  # on all ranks
        holding.free()
        raise
    return setup, measuring


def reseated(
    setup: Setup,
    config: Config,
    workers: Workers,
    comm: MPI.Intracomm,
    optimizer: Optimizer | None,
) -> Setup:
    """The same run on other ranks, each with its part of the model, without values; collective.

    Args:
        setup: The run until now.
        config: What to do on these ranks.
        workers, comm: The ranks.
        optimizer: As of `prepare`.

    Raises:
        RankLost: Another rank has died meanwhile.
        TrainingError: Of fewer replicas each needs more memory than there is; on all ranks.
    """
    made = optimizer or optimizers.make(config.optimizer, config.momentum, config.weight_decay)
    with breakable(comm):
        config = cutting.resolved(config, workers, setup.dataset, setup.model)
        holding = strategy_of(config).hold(config, workers, comm, setup.model)
    named: dict[str, Any] = {"config": config, "workers": workers, "comm": comm}
    found = replace(setup, holding=holding, optimizer=made, **named)
    try:
        _make_room(found)
    except TrainingError:  # on all ranks
        holding.free()
        raise
    return replace(found, optimizer=_grouped(found))


def _agreed(setup: Setup, facts: Mapping[str, Any]) -> Setup:
    """The run, found to fit into memory and to be the same on all ranks; collective.

    Args:
        setup: The run; its optimizer is of all parameters alike.
        facts: What must be the same.
    """
    config, workers, holding = setup.config, setup.workers, setup.holding
    _make_room(setup)
    require_equal(workers, facts, "give all ranks the same data and the same model")
    if config.invariant is not None:
        require_equal(workers, bits.machine(), "invariant bits are those of one kind of machine")
    holding.agree(workers)
    if config.bucket == "model":
        nbytes = setup.weights.vector.nbytes
        bucket = predicted.bucket(setup.comm, config.algorithm, nbytes)
        config = replace(config, bucket=bucket)
    with together(workers, "making the optimizer"):
        optimizer = _grouped(setup)
    return replace(setup, config=config, optimizer=optimizer)


def _make_room(setup: Setup) -> None:
    """Refuse a run that cannot fit into memory; collective.

    Raises:
        TrainingError: With the numbers; on all ranks.
    """
    config, workers, holding = setup.config, setup.workers, setup.holding
    with together(workers, "making data and model ready"):
        needed = memory.estimate(config, workers.rank, workers.size, setup.model, holding)
    held = memory.taken(setup.dataset, setup.weights)
    memory.make_room(workers, needed, held, config.device, holding.words)


def _grouped(setup: Setup) -> Optimizer:
    """The optimizer of this rank's parameters, of one of all parameters alike.

    Raises:
        ValueError: As of `groups.grouped`.
    """
    config, holding = setup.config, setup.holding
    parsed = [groups.parse(text) for text in config.groups]
    views = setup.weights.views
    return groups.grouped(setup.optimizer, views, parsed, config.decay_on, holding.forms)


def _check(config: Config, dataset: Dataset, model: Model, measures: Sequence[Measure]) -> None:
    """Refuse what does not fit the data: augmentation, the model's loss, and stop rules.

    Raises:
        ValueError: With the remedy.
    """
    if config.augment is not None:
        _ = dataset.image
    if config.survive and dataset.feed is not None:
        raise ValueError(
            f"survive does not go together with a loader, which gives {dataset.name} to so many "
            "ranks as there are at the start: give the samples themselves, or leave survive out"
        )
    if config.has_parts and dataset.feed is not None:
        raise ValueError(
            f"a mesh with pipe or tensor reads samples by their numbers, and {dataset.name} comes "
            "from a loader: give the samples themselves, or leave mesh out"
        )
    if isinstance(model, Sequential):
        for _, wanted in dataset.parts.values():
            for _, piece in targets.pieces(wanted):
                model.loss.check(model.shapes[-1], piece)
    for name, asked, known in (
        ("target_loss", config.target_loss, ("loss",)),
        ("target_accuracy", config.target_accuracy, tuple(m.name for m in measures)),
    ):
        if asked is None:
            continue
        if dataset.held_out is None:
            raise ValueError(
                f"{name} is of a validation or a test set, and {dataset.name} has none: give one, "
                f"or leave {name} out"
            )
        if name.removeprefix("target_") not in known:
            raise ValueError(
                f"{name} is {asked:g}, and this run measures {', '.join(('loss', *known))}: give "
                f"target_loss, or leave {name} out"
            )


def _numbers(dataset: Dataset) -> dict[str, int]:
    """How many samples each set has, by what to call that."""
    return {
        f"number of {'training' if part == 'train' else part} samples": len(wanted)
        for part, (_, wanted) in dataset.parts.items()
    }


def _on(device: str, dataset: Dataset) -> Dataset:
    """A data set whose samples are on a device, all of them."""
    if device == "cpu":
        return dataset
    moved: dict[str, Any] = {}
    for part, (inputs, wanted) in dataset.parts.items():
        moved[f"{part}_inputs"] = arrays.on(device, inputs[:])
        moved[f"{part}_targets"] = arrays.on(device, wanted[:])
    return replace(dataset, **moved)
