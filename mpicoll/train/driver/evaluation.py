"""How good the model of a checkpoint is, on all ranks together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.data import Dataset, load, name_of
from mpicoll.train.data.datasets import Inputs
from mpicoll.train.driver import checkpoints
from mpicoll.train.driver.checkpoints import Facts
from mpicoll.train.driver.trained import Arrays, Trained, trained_of
from mpicoll.train.ranks.workers import AllReduceWorkers, Workers, together

if TYPE_CHECKING:
    from mpi4py import MPI

#: Parts of a data set to measure on.
SETS = ("validation", "test")
#: Samples measured at once, as during a run.
_ROWS = 128


@dataclass(frozen=True)
class Evaluation:
    """What was measured of a checkpoint; equal on all ranks.

    Attributes:
        checkpoint: Its folder.
        step, epoch: Steps made, and epochs complete.
        data, part: Name of the data set, and which part of it.
        samples: Their number.
        loss: Mean over the samples.
        accuracy: Share of the targets that have the highest score; None where they are no classes.
    """

    checkpoint: str
    step: int
    epoch: int
    data: str
    part: str
    samples: int
    loss: float
    accuracy: float | None


def evaluate(
    run: str | Path,
    comm: MPI.Intracomm | None = None,
    *,
    data: str | None = None,
    part: str = "test",
    best: bool = False,
) -> Evaluation:
    """Measure the model of a checkpoint; collective over `comm`.

    The samples are cut over the ranks. Rank 0 alone reads the checkpoint, all ranks read data.

    Args:
        run: A folder of checkpoints, whose last is taken, or one of them.
        comm: An `mpicoll.Intracomm`; None measures in this process alone, without MPI.
        data: A data set, as `Config.dataset`; None for that of the run.
        part: One of `SETS`.
        best: Take the best checkpoint instead of the last.

    Raises:
        TrainingError: There is no checkpoint, its model cannot be made, or the data do not fit; on
            all ranks.
    """
    workers = Workers() if comm is None else AllReduceWorkers(comm, None)
    path, facts, trained = _loaded(workers, Path(run), best)
    with together(workers, "reading the data"):
        dataset = _data(path, facts, trained, data)
        inputs, labels = _part(dataset, part)
        _check(trained, dataset.name, inputs, labels)
    totals = np.zeros(2)
    with together(workers, "measuring"):
        totals[:] = _totals(trained, inputs, labels, *workers.share(len(inputs)))
    workers.sum(totals)
    return Evaluation(
        str(path),
        facts["number"],
        facts["epoch"] - 1,
        dataset.name,
        part,
        len(inputs),
        float(totals[0]) / len(inputs),
        float(totals[1]) / labels.size if labels.dtype.kind in "iu" else None,
    )


def _loaded(workers: Workers, run: Path, best: bool) -> tuple[Path, Facts, Trained]:
    """A checkpoint's folder, facts and model: rank 0 reads, all ranks have them; collective."""
    path, facts, found = run, Facts(), Arrays()
    with together(workers, "reading a checkpoint"):
        if workers.rank == 0:
            path = checkpoints.find(run, best)
            found, facts = checkpoints.load(path, ("parameter", "buffer"))
            trained_of(path, facts, found)  # so that all ranks hear why it cannot be made
    forms = {name: (array.dtype, array.shape) for name, array in found.items()}
    path, facts, forms = workers.gather((path, facts, forms))[0]
    for name, (dtype, shape) in forms.items():
        array = found.setdefault(name, np.empty(shape, dtype))
        workers.broadcast(array.reshape(-1).view(np.uint8))  # types that MPI may not know
    return path, facts, trained_of(path, facts, found)


def _data(path: Path, facts: Facts, trained: Trained, name: str | None) -> Dataset:
    """The data to measure on, of the type in which the parameters are kept."""
    config = facts["config"]
    if name is None and name_of(config["dataset"]) != facts["data set"]:
        raise ValueError(
            f"{path}: the run was given its data, {facts['data set']}, in Python: name data to "
            "measure on"
        )
    dataset = load(name or config["dataset"], config["data"])
    return dataset.astype(next(iter(trained.parameters.values())).dtype)


def _part(dataset: Dataset, part: str) -> tuple[Inputs, Array]:
    if part not in SETS:
        raise ValueError(f"unknown part {part!r} of a data set: known are {', '.join(SETS)}")
    inputs = getattr(dataset, f"{part}_inputs", None)
    if inputs is None:
        raise ValueError(f"data set {dataset.name} has no {part} set: measure on another")
    return inputs, getattr(dataset, f"{part}_labels")


def _check(trained: Trained, name: str, inputs: Inputs, labels: Array) -> None:
    """Refuse data that the model cannot take."""
    wanted, outputs = trained.model.shapes[0], trained.model.shapes[-1]
    if tuple(inputs.shape[1:]) != wanted:
        raise ValueError(
            f"samples of {name} have shape {tuple(inputs.shape[1:])}, and the model takes "
            f"{wanted}: name other data"
        )
    trained.model.loss.check(outputs, labels)


def _totals(
    trained: Trained, inputs: Inputs, labels: Array, first: int, count: int
) -> tuple[float, int]:
    """Sum of the losses of some samples, and number of their targets with the highest score."""
    loss, correct = 0.0, 0
    arrays = {**trained.parameters, **trained.buffers}
    for start in range(first, first + count, _ROWS):
        rows = slice(start, min(start + _ROWS, first + count))
        found, scores = trained.model.losses_and_scores(arrays, inputs[rows], labels[rows])
        loss += float(found.sum(dtype=np.float64))
        correct += int(np.count_nonzero(scores.argmax(axis=-1) == labels[rows]))
    return loss, correct
