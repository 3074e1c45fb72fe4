"""How good the model of a checkpoint is, on all ranks together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpicoll.train.config import Config
from mpicoll.train.data import DATASETS, Dataset, load, name_of
from mpicoll.train.data.targets import pieces
from mpicoll.train.driver import checkpoints
from mpicoll.train.driver.checkpoints import Facts
from mpicoll.train.driver.measuring import Measuring
from mpicoll.train.driver.trained import Arrays, Trained, trained_of
from mpicoll.train.models.measures import usual
from mpicoll.train.ranks.workers import AllReduceWorkers, Workers, together
from mpicoll.train.records import Measures
from mpicoll.train.strategies.evaluated import Whole

if TYPE_CHECKING:
    from mpi4py import MPI

#: Parts of a data set to measure on.
SETS = ("validation", "test")


@dataclass(frozen=True)
class Evaluation:
    """What was measured of a checkpoint; equal on all ranks.

    Attributes:
        checkpoint: Its folder.
        step, epoch: Steps made, and epochs complete.
        data, part: Name of the data set, and which part of it.
        samples: Their number.
        measures: By name: `loss`, the mean over the samples, and those that go with it, such as
            `accuracy`.
    """

    checkpoint: str
    step: int
    epoch: int
    data: str
    part: str
    samples: int
    measures: Measures


def evaluate(
    run: str | Path,
    comm: MPI.Intracomm | None = None,
    *,
    data: str | None = None,
    part: str = "test",
    best: bool = False,
) -> Evaluation:
    """Evaluate the model of a checkpoint; collective over `comm`.

    The ranks share the samples. Only rank 0 reads the checkpoint; all ranks read data.

    Args:
        run: A folder of checkpoints, of which the last is used, or one checkpoint.
        comm: An `mpicoll.Intracomm`; None measures in this process alone, without MPI.
        data: A data set, as `Config.dataset`; of a run on `text`, also a file of text. None for
            that of the run.
        part: One of `SETS`.
        best: Take the best checkpoint instead of the last.

    Raises:
        TrainingError: There is no checkpoint, its model cannot be made, the data do not fit, or a
            loss is not finite; on all ranks.
    """
    workers = Workers() if comm is None else AllReduceWorkers(comm, None)
    path, facts, trained = loaded(workers, Path(run), best)
    with together(workers, "reading the data"):
        dataset = data_of(path, facts, trained, data)
        samples = samples_of(trained, dataset, part)
        config = Config(lr=facts["config"]["lr"])  # of the message about losses
        measuring = Measuring(config, workers, dataset, usual(trained.model, dataset.classes))
        arrays = {**trained.parameters, **trained.buffers}
        evaluated = Whole(config, workers, trained.model, arrays)
    found, _ = measuring.measure([part], evaluated, "measuring")
    place = facts["number"], facts["epoch"] - 1
    return Evaluation(str(path), *place, dataset.name, part, samples, found[part])


def loaded(workers: Workers, run: Path, best: bool) -> tuple[Path, Facts, Trained]:
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


def data_of(path: Path, facts: Facts, trained: Trained, name: str | None) -> Dataset:
    """The data to measure on, of the type in which the parameters are kept."""
    own, folder = facts["config"]["dataset"], facts["config"]["data"]
    if name is None and name_of(own) != facts["data set"]:
        raise ValueError(
            f"{path}: the run was given its data, {facts['data set']}, in Python: name data to "
            "measure on"
        )
    if name is not None and own == "text" and name not in DATASETS:
        own, folder = "text", name
    elif name is not None:
        own = name
    dataset = load(own, folder, trained.model.shapes[0][0])
    if name is None and dataset.about != facts.get("data", ""):
        raise ValueError(
            f"{path}: the run's data were {facts.get('data')}, and here they are {dataset.about}: "
            "name data to measure on"
        )
    return dataset.astype(next(iter(trained.parameters.values())).dtype)


def samples_of(trained: Trained, dataset: Dataset, part: str) -> int:
    """Number of samples of a part of the data.

    Raises:
        ValueError: The model cannot take them, or there is no such part.
    """
    if part not in SETS:
        raise ValueError(f"unknown part {part!r} of a data set: known are {', '.join(SETS)}")
    if part not in dataset.parts:
        raise ValueError(f"data set {dataset.name} has no {part} set: measure on another")
    inputs, targets = dataset.parts[part]
    wanted, outputs = trained.model.shapes[0], trained.model.shapes[-1]
    if tuple(inputs.shape[1:]) != wanted:
        raise ValueError(
            f"samples of {dataset.name} have shape {tuple(inputs.shape[1:])}, and the model takes "
            f"{wanted}: name other data"
        )
    for _, piece in pieces(targets):
        trained.model.loss.check(outputs, piece)
    return len(inputs)
