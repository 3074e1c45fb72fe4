"""A job of a search, carried out by a group of ranks that train together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpicoll.errors import RankLost
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset
from mpicoll.train.driver import checkpoints
from mpicoll.train.driver.loop import run
from mpicoll.train.ranks.workers import NotSaved, TrainingError
from mpicoll.train.records import Epoch, Measures
from mpicoll.train.search.methods import Job
from mpicoll.train.search.space import Space

if TYPE_CHECKING:
    from mpi4py import MPI

#: What is told of an epoch; whether to stop after it.
Tell = Callable[[Epoch], bool]


def folder_of(out: Path, place: tuple[int, int]) -> Path:
    """Where a job keeps its checkpoints."""
    return out / f"trial-{place[0]:04}" / f"epochs-{place[1]:04}"


def beginning(out: Path, job: Job) -> str | None:
    """What a job goes on from: its own checkpoint, if an earlier process has left one."""
    own = folder_of(out, job.place)
    try:
        return str(checkpoints.find(own))
    except FileNotFoundError:
        return None if job.source is None else str(folder_of(out, job.source))


def config_of(space: Space, out: Path, job: Job, resume: str | None) -> Config:
    """The run of a job.

    Raises:
        ValueError: Its values are no run; with the remedy.
    """
    return replace(
        space.config(job.values),
        pause_after=job.epochs,
        checkpoint=str(folder_of(out, job.place)),
        keep=1,
        resume=resume,
    )


def carry_out(
    config: Config,
    comm: MPI.Intracomm | None,
    dataset: Dataset,
    measure: str,
    tell: Tell,
) -> dict[str, Any]:
    """Train until the job is done; collective.

    Args:
        config: The run, equal on all ranks.
        comm: The group; None for one process.
        dataset: Its data.
        measure: What of the validation set to judge by.
        tell: Told of each epoch on rank 0 of the group.

    Raises:
        RankLost: A rank of the group has died.

    Returns:
        `score`, `measure`, `validation` and `failed` as in the file of the search; nothing where
        the run was stopped before its end; `ended`, why, where it can go on later.
    """
    rank = 0 if comm is None else comm.Get_rank()
    try:
        with warnings.catch_warnings():
            # Of pbt, which changes it on purpose.
            warnings.filterwarnings("ignore", "(?s).*the learning rate goes from")
            listener = tell if rank == 0 else None
            result = run(config, comm, dataset=dataset, on_epoch=listener, quiet=True)
    except RankLost:
        raise
    except NotSaved as error:
        return {"ended": str(error)}
    except TrainingError as error:
        return {"score": None, "validation": {}, "failed": str(error)}
    if result.stopped in ("signal", "asked"):
        return {}
    found = result.history[-1].validation
    score = score_of(found, measure)
    if not math.isfinite(score):
        words = f"{measure} of the validation set is {found[measure]}"
        return {"score": None, "validation": found, "failed": words}
    return {
        "score": score,
        "measure": measure,
        "validation": found,
        "failed": None,
    }


def score_of(measures: Measures, measure: str) -> float:
    """What is higher where a model is better."""
    return -measures[measure] if measure == "loss" else measures[measure]
