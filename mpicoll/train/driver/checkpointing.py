"""When a run keeps checkpoints of itself, and how it goes on from one.

Each rank writes what it alone keeps, and reads what it needs; rank 0 does all else.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpicoll.base.json_lines import new_run
from mpicoll.base.locks import Lock
from mpicoll.errors import RankLost
from mpicoll.train.driver import array_files, bits, checkpoints, metrics
from mpicoll.train.driver.fence import Fence
from mpicoll.train.models import specification
from mpicoll.train.ranks.workers import NotSaved, TrainingError, raise_together, together
from mpicoll.train.records import Beginning, Epoch, upgraded
from mpicoll.train.strategies.training import Setup, Training


@contextmanager
def _writing() -> Iterator[None]:
    """What fails within is no fault of the run.

    Raises:
        NotSaved: In place of a TrainingError.
    """
    try:
        yield
    except RankLost:
        raise
    except TrainingError as error:
        raise NotSaved(str(error)) from error


class Checkpointing:
    """The checkpoints of a run; every method is collective.

    Args:
        setup: The run.
        training: What is kept.
        before: Fence of those that wrote before a rank died; the place of their first is taken.
    """

    def __init__(self, setup: Setup, training: Training, before: Fence | None = None) -> None:
        config, self._workers, self._training = setup.config, setup.workers, training
        self._config = config
        self._about = setup.dataset.about
        self._made = {"data set": setup.dataset.name, "model": specification.of(setup.model)}
        self._folder = None if config.checkpoint is None else Path(config.checkpoint)
        self._lock: Lock | None = None
        self._before, self._fence = before, Fence(())

    def heed(self, fence: Fence) -> None:
        """Write nothing from now on once the others have given up this process."""
        self._fence = fence

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
            NotSaved: It cannot be written.
        """
        if self._folder is None:
            return
        facts = self._training.counters()
        best = min((e.judged for e in history if e.judged is not None), default=None)
        facts |= {
            **self._fixed(),
            **self._made,
            "epoch": epoch,
            "position": position,
            "losses": self._training.losses.tolist(),
            "history": [asdict(entry) for entry in history],
            "config": asdict(self._config),
            "lr": self._training.rate(self._training.number),
            **self._training.stamp._asdict(),
            "ranks": self._workers.size,
            "machine": bits.machine(),
        }
        is_best = position == 0 and best is not None and history[-1].judged == best
        with _writing():
            self._write(self._folder, facts, is_best)

    def _write(self, folder: Path, facts: dict[str, Any], is_best: bool) -> None:
        """Each rank writes what it keeps, and rank 0 makes one checkpoint of it."""
        workers, what = self._workers, "saving a checkpoint"
        first, draft = workers.rank == 0, Path()
        with together(workers, what):
            if first:
                self._fence.check()
                draft = checkpoints.begin(folder, self._training.number)
        draft = workers.gather(draft)[0]
        try:
            path = draft / f"rank-{workers.rank}.arrays"
            written, failure = array_files.write(path, self._training.parts())
            raise_together(workers, what, failure)
            # Ranks that have died were none that keep parts.
            everyone = [theirs for theirs in workers.gather(written) if theirs is not None]
            for kind in ("files", "arrays"):
                facts[kind] = {k: v for theirs in everyone for k, v in theirs[kind].items()}
            with together(workers, what):
                if first:
                    self._fence.check()
                    checkpoints.complete(draft, facts, is_best)
                    checkpoints.prune(folder, self._config.keep, self._training.number)
        except BaseException:
            if first:
                checkpoints.discard(draft)
            raise

    def restore(self) -> tuple[Beginning, list[Epoch]]:
        """Keep other jobs from the folder, and go on from the checkpoint that the run names.

        Returns:
            Where the run begins, and its history.

        Raises:
            NotSaved: Another job holds the folder, or it cannot be made.
            TrainingError: The checkpoint is missing or damaged, or of a run that this one cannot go
                on with.
        """
        facts: dict[str, Any] = {}
        saved: checkpoints.Arrays | None = None
        path: Path | None = None
        what = "looking for a checkpoint"
        with _writing(), together(self._workers, what):
            if self._workers.rank == 0:
                self.hold()
        with together(self._workers, what):
            if self._workers.rank == 0:
                path = self._chosen()
        with together(self._workers, "reading a checkpoint"):
            if path is not None:
                saved, facts = checkpoints.read(path)
                self._check(path, saved, facts)
        saved, facts = self._workers.gather((saved, facts))[0]
        if saved is not None:
            self._verify(saved)
            self._training.restore(saved, facts)
            self._training.losses[:] = facts.get("losses", 0)
        history = [
            Epoch(**{**upgraded(e), "compute": tuple(e["compute"])})
            for e in facts.get("history", ())
        ]
        beginning: Beginning | None = None
        with together(self._workers, "beginning the run"):
            if self._workers.rank == 0:
                beginning = self._beginning(path, facts)
                self._warn_of_later_ones()
                if path is not None:
                    self._warn_of_a_jump(path, facts.get("lr"))
        beginning = self._workers.gather(beginning)[0]
        assert beginning is not None
        return beginning, history

    def _verify(self, saved: checkpoints.Arrays) -> None:
        """Verify all files; those ranks that will read them, each a share."""
        rank, readers = self._workers.rank, self._training.readers
        with together(self._workers, "reading a checkpoint"):
            if rank in readers:
                saved.verify(lambda names: names[rank :: len(readers)])

    def close(self) -> None:
        """The run is over: others may keep checkpoints in its folder."""
        if self._lock is not None:
            self._lock.release()

    def hold(self) -> None:
        """Keep other jobs from the folder; on rank 0.

        Raises:
            OSError: Another job holds it.
        """
        if self._folder is None or self._lock is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._before is None:
            self._lock = Lock(self._folder)
        else:
            self._lock = Lock(self._folder, after=self._before.claim(self._folder))
            # The one before may still be there, and must not complete what it has begun.
            checkpoints.discard_all(self._folder)

    def _beginning(self, path: Path | None, facts: Mapping[str, Any]) -> Beginning:
        """Where the run begins: anew, or as the next attempt of the checkpoint's run."""
        if path is None:
            return Beginning(new_run())
        run, attempt = str(facts.get("run", "")), int(facts.get("attempt", 1))
        if self._config.metrics is not None:
            # Those that ended before they kept a checkpoint have written metrics.
            attempt = max(attempt, metrics.last_attempt(Path(self._config.metrics), run))
        place = (self._training.number, facts["epoch"], facts["position"])
        return Beginning(run, attempt + 1, *place, str(path))

    def _check(self, path: Path, saved: checkpoints.Arrays, facts: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of a run that this one cannot go on with; on rank 0."""
        fixed = self._fixed()
        there, here = (_one_by_one(found, fixed) for found in (facts, fixed))
        for name in here | there:
            was, value = there.get(name, "missing"), here.get(name, "missing")
            if was != value:
                raise ValueError(
                    f"{path}: {name} is {was} there and {value} in this run: give the run what "
                    "the checkpoint has"
                )
        checkpoints.require(saved, facts, self._training.shapes)
        self._warn_of_other_bits(path, facts.get("machine"))

    def _warn_of_a_jump(self, path: Path, saved: object) -> None:
        """A schedule is of all steps of a run: of other steps, it goes on elsewhere."""
        training = self._training
        if not isinstance(saved, float) or not 0 < training.number < training.total:
            return
        if not math.isclose(saved, training.rate(training.number), rel_tol=1e-9, abs_tol=1e-300):
            warnings.warn(
                f"{path}: the learning rate goes from {saved:.6g} in step {training.number} to "
                f"{training.rate(training.number + 1):.6g} in step {training.number + 1}, because "
                "this run has other epochs, steps, lr or schedule: give those of the run before to "
                "go on as it would have, or others to make up for it",
                stacklevel=2,
            )

    def _warn_of_later_ones(self) -> None:
        """Checkpoints of another run in the folder stay, and `resume="auto"` takes the last."""
        if self._folder is None:
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
        """The checkpoint to read, None for none; on rank 0."""
        if self._before is not None:
            # Ranks have died, and with them what the others would need.
            if self._folder is None:
                raise ValueError(
                    "what the others need has died with them, and no checkpoint is kept: give "
                    "checkpoint"
                )
            found = checkpoints.resumed("auto", str(self._folder))
            if found is None:
                raise ValueError(
                    "what the others need has died with them, before the first checkpoint was "
                    f"written to {self._folder}: start again; with a smaller checkpoint_every less "
                    "can be lost"
                )
            return found
        return checkpoints.resumed(self._config.resume, self._config.checkpoint)

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
                name: f"{form.dtype} of shape {list(form.shape)}"
                for name, form in training.forms.items()
            },
            **({"data": self._about} if self._about else {}),
        }


def _one_by_one(facts: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """What must be the same, of all that a checkpoint knows, each parameter by itself."""
    found = {name: facts.get(name, "missing") for name in names if name != "parameters"}
    parameters = facts.get("parameters", {})
    return found | {f"parameter {name}": parameters[name] for name in parameters}
