"""Metrics as JSON lines: each rank appends to a file of its own, in the user's hands at once.

    rank-0.jsonl:  {"event": "run", ...}    ranks, configuration, predicted seconds, and where
                                            this attempt of the run begins
                   {"event": "step", ...}   what `Step` holds
                   {"event": "clock", ...}  at `local` seconds this rank's clock was `ahead` of
                                            that of rank 0
                   {"event": "epoch", ...}  what `Epoch` holds
                   {"event": "lost", ...}   what `Loss` holds, where ranks died and the others went
                                            on, as the next attempt

Files of the other ranks hold their steps and clocks. Every line has the name of the run and the
number of the attempt (`mpicoll.base.json_lines`). A run that goes on appends, and so does another
run.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpicoll.base import json_lines
from mpicoll.base.json_lines import Appender
from mpicoll.base.locks import Claim, Lock
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset, name_of
from mpicoll.train.models import Model
from mpicoll.train.optimizers import Optimizer
from mpicoll.train.records import Beginning, Epoch, Loss, Step


class Metrics:
    """The file of a rank.

    Args:
        folder: Where the files are; made if need be.
        rank: This rank. Rank 0 keeps other jobs from the folder.
        size: Number of ranks.
        config: The run's configuration, as `described` gives it.
        predicted: Seconds of communication a step, by the fitted model.
        beginning: Where the run begins.
        after: Who held the folder before, of the same job: its place is taken.

    Raises:
        OSError: The file cannot be written, or another job writes to it.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        size: int,
        config: Mapping[str, Any],
        predicted: float | None,
        beginning: Beginning,
        after: Claim | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._first, self._stamp = rank == 0, beginning.stamp
        path = folder / f"rank-{rank}.jsonl"
        self._lock = Lock(locked(folder), after=after) if self._first else None
        try:
            if self._first:
                _warn_of_others(folder, beginning.run)
            self._file = Appender(path)
            if self._first:
                facts = {"ranks": size, "config": config, "predicted": predicted}
                place = {"step": beginning.step, "epoch": beginning.epoch}
                self._write("run", {**facts, **place})
        except BaseException:
            self._unlock()
            raise

    def add(self, record: Step | Epoch) -> None:
        """Add a record; of epochs, rank 0 alone does."""
        if isinstance(record, Step):
            self._write("step", asdict(record))
        elif self._first:
            self._write("epoch", {**asdict(record), "straggler": record.straggler})

    def add_loss(self, loss: Loss) -> None:
        """Add what the death of ranks has cost; rank 0 alone does."""
        if self._first:
            self._write("lost", asdict(loss))

    def add_clock(self, local: float, ahead: float) -> None:
        """Add a comparison of this rank's clock with that of rank 0."""
        self._write("clock", {"local": local, "ahead": ahead})

    def close(self) -> None:
        """Nothing more will come."""
        self._file.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _write(self, event: str, facts: Mapping[str, Any]) -> None:
        self._file.append(self._stamp, {"event": event, **facts})


def locked(folder: Path) -> Path:
    """What rank 0 locks of a folder of metrics."""
    return folder / "rank-0.jsonl"


#: What a configuration says of the models that it names.
_OF_MODELS = ("hidden", "channels", "layers", "width", "heads", "dropout")


def last_attempt(folder: Path, run: str) -> int:
    """The number of the last attempt of a run that a folder has metrics of, 0 for none.

    Raises:
        OSError: They cannot be read.
    """
    return json_lines.attempts(folder / "rank-0.jsonl").get(run, 0)


def _warn_of_others(folder: Path, run: str) -> None:
    others = [name for name in json_lines.attempts(folder / "rank-0.jsonl") if name != run]
    if others:
        warnings.warn(
            f"{folder} has metrics of another run ({others[-1] or 'without a name'}); those of "
            f"this one ({run}) follow, and a report will show the last: give another folder to "
            "keep both",
            stacklevel=2,
        )


def described(
    config: Config, dataset: Dataset | None, model: Model | None, optimizer: Optimizer | None
) -> dict[str, Any]:
    """A configuration by name, with what a program brings in place of what that names.

    Args:
        config: The configuration.
        dataset, model, optimizer: What the program has given to `run`.
    """
    facts = asdict(config)
    for key, given, without in (
        ("dataset", None if dataset is None else dataset.name, ("data", "context")),
        ("model", class_name(model), _OF_MODELS),
        ("optimizer", class_name(optimizer), ("momentum", "weight_decay")),
    ):
        # The command reads the data that its configuration names, and gives them.
        if given is not None and (key, given) != ("dataset", name_of(config.dataset)):
            facts[key] = given
            for name in without:
                del facts[name]
    return facts


def class_name(given: object) -> str | None:
    """What to call a model or an optimizer that a program brings."""
    return None if given is None else getattr(given, "name", type(given).__name__)
