"""When a run keeps checkpoints of itself, and how it goes on from one; rank 0 reads and writes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpicoll.train.config import Config
from mpicoll.train.driver import bits, checkpoints
from mpicoll.train.ranks.workers import Workers, together
from mpicoll.train.records import Epoch
from mpicoll.train.strategies.training import Training


class Checkpointing:
    """The checkpoints of a run; every method is collective.

    Args:
        config: The run.
        workers: The ranks.
        training: What is kept.
    """

    def __init__(self, config: Config, workers: Workers, training: Training) -> None:
        self._config = config
        self._workers = workers
        self._training = training
        self._folder = None if config.checkpoint is None else Path(config.checkpoint)

    def is_due(self) -> bool:
        """Whether the step that was just made is one after which to save."""
        every = self._config.checkpoint_every
        return every is not None and self._training.number % every == 0

    def save(self, epoch: int, position: int, history: list[Epoch]) -> None:
        """Write a checkpoint, unless the run keeps none.

        Args:
            epoch: Epoch to go on in, counted from 1.
            position: Steps made in it.
            history: Epochs that are complete.

        Raises:
            TrainingError: It cannot be written.
        """
        if self._folder is None:
            return
        arrays, facts = self._training.snapshot()
        best = max((e.test_accuracy for e in history), default=0.0)
        facts |= {
            **self._fixed(),
            "epoch": epoch,
            "position": position,
            "history": [asdict(entry) for entry in history],
            "config": asdict(self._config),
            "ranks": self._workers.size,
            "machine": bits.machine(),
        }
        is_best = position == 0 and bool(history) and history[-1].test_accuracy >= best
        with together(self._workers, "saving a checkpoint"):
            if self._workers.rank == 0:
                checkpoints.save(self._folder, self._training.number, arrays, facts, is_best)
                checkpoints.prune(self._folder, self._config.keep, self._training.number)

    def restore(self) -> tuple[int, int, list[Epoch]]:
        """Go on from the checkpoint that the run names.

        Returns:
            As the arguments of `save`: epoch, steps made in it, history.

        Raises:
            TrainingError: It is missing or damaged, or of a run that this one cannot go on with.
        """
        path = self._chosen()
        if self._workers.gather(path)[0] is None:
            self._warn_of_later_ones()
            return 1, 0, []
        arrays: dict[str, Any] = {}
        facts: dict[str, Any] = {}
        with together(self._workers, "reading a checkpoint"):
            if self._workers.rank == 0:
                assert path is not None
                arrays, facts = checkpoints.load(path)
                fixed = self._fixed()
                there, here = (_one_by_one(found, fixed) for found in (facts, fixed))
                for name in here | there:
                    saved, value = there.get(name, "missing"), here.get(name, "missing")
                    if saved != value:
                        raise ValueError(
                            f"{path}: {name} is {saved} there and {value} in this run: give the "
                            "run what the checkpoint has"
                        )
                self._warn_of_other_bits(path, facts.get("machine"))
        facts = self._workers.gather(facts)[0]
        self._training.restore(arrays, facts)
        self._warn_of_later_ones()
        history = [Epoch(**{**e, "compute": tuple(e["compute"])}) for e in facts["history"]]
        return facts["epoch"], facts["position"], history

    def _warn_of_later_ones(self) -> None:
        """Checkpoints of another run in the folder stay, and `resume="auto"` takes the last."""
        if self._folder is None or self._workers.rank:
            return
        found = checkpoints.later(self._folder, self._training.number)
        if found:
            warnings.warn(
                f"{found[-1]} is of a later step than {self._training.number}, where this run "
                "begins, and resume=auto would go on from it: give another folder, or remove it",
                stacklevel=2,
            )

    def _warn_of_other_bits(self, path: Path, saved: object) -> None:
        """Equal bits are promised on one kind of machine."""
        here = bits.machine()
        if self._config.invariant is not None and saved != here:
            warnings.warn(
                f"{path} was written on another kind of machine ({saved}) than this ({here}): from "
                "here on the bits may be others",
                stacklevel=2,
            )

    def _chosen(self) -> Path | None:
        """The checkpoint to read, on rank 0; None for none."""
        resume, path = self._config.resume, None
        with together(self._workers, "looking for a checkpoint"):
            if self._workers.rank == 0 and resume is not None:
                folder = self._folder if resume == "auto" else Path(resume)
                assert folder is not None
                try:
                    path = checkpoints.find(folder)
                except FileNotFoundError:
                    if resume != "auto":
                        raise
        return path

    def _fixed(self) -> dict[str, Any]:
        """What must be the same for the run to go on as if it had not stopped."""
        config, training = self._config, self._training
        return {
            "dataset": config.dataset,
            "training samples": training.sampler.samples,
            "samples in a step": training.sampler.batch,
            "seed": config.seed,
            "invariant": config.invariant,
            "optimizer": config.optimizer,
            "state of the optimizer": list(training.slots),
            "parameters": {
                name: f"{view.dtype} of shape {list(view.shape)}"
                for name, view in training.weights.views.items()
            },
        }


def _one_by_one(facts: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """What must be the same, of all that a checkpoint knows, each parameter by itself."""
    found = {name: facts.get(name, "missing") for name in names if name != "parameters"}
    parameters = facts.get("parameters", {})
    return found | {f"parameter {name}": parameters[name] for name in parameters}
