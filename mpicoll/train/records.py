"""What a run says about itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from mpicoll.base.json_lines import Attempt

#: Values by name.
Measures = dict[str, float]


@dataclass(frozen=True)
class Beginning:
    """Where a run begins or resumes. Equal on all ranks.

    Attributes:
        run: Name of the run; a checkpoint keeps it.
        attempt: 1 for the first, one more for each time the run resumes.
        step: Completed steps.
        epoch: Current epoch, counted from 1.
        position: Completed steps of this epoch.
        checkpoint: The checkpoint it resumes from, or None.
    """

    run: str
    attempt: int = 1
    step: int = 0
    epoch: int = 1
    position: int = 0
    checkpoint: str | None = None

    @property
    def stamp(self) -> Attempt:
        """What files of JSON lines say of each record."""
        return Attempt(self.run, self.attempt)


@dataclass(frozen=True)
class Step:
    """What was measured in one step.

    Attributes:
        number: Number of the step in the run, counted from 1.
        epoch: Number of the epoch, counted from 1.
        position: Number of the step in the epoch, counted from 1.
        of: Steps in one epoch.
        loss: Mean loss over the global batch, before the update, equal on all ranks; on a worker of
            parameter servers, over its own samples.
        lr: Learning rate.
        skipped: Whether the update was skipped because a gradient was not finite.
        compute: Seconds in which this rank computed.
        exposed: Seconds in which it communicated and did not compute, without `waiting`.
        hidden: Seconds in which it communicated while it computed (overlap).
        waiting: Seconds in which it waited for ranks that computed longer.
        slowest: Rank that computed longest; None if ranks have no common steps.
        loading: Seconds in which this rank read samples, or waited for a data server.
        began: Start of the step, by this rank's `time.perf_counter`; 0 if unknown.
        spans: What this rank did in the step: name, start and end in seconds after `began`.
    """

    number: int
    epoch: int
    position: int
    of: int
    loss: float
    lr: float
    skipped: bool
    compute: float
    exposed: float
    hidden: float
    waiting: float
    slowest: int | None
    loading: float
    began: float = 0.0
    spans: tuple[tuple[str, float, float], ...] = ()


@dataclass(frozen=True)
class Epoch:
    """What was measured in one epoch. Equal on all ranks, except `seconds`.

    Measures are by name: `loss`, the mean over a set, and those of the run, such as `accuracy`.

    Attributes:
        number: Number of the epoch, counted from 1.
        loss: Mean loss of the training samples, each before the update of its step; NaN if no step
            was finite.
        train: Measures of the training set at the end of the epoch; empty without
            `Config.evaluate_train`.
        validation: Measures of the validation set; empty if there is none.
        test: Measures of the test set, if there is no validation set.
        seconds: Time of the epoch's steps on this rank, without evaluation.
        communication: Share of that time in which gradients travelled and nothing was computed,
            waiting included; mean of the ranks.
        skipped: Steps whose update was skipped because a gradient was not finite.
        compute: Seconds in which each rank computed.
    """

    number: int
    loss: float
    train: Measures
    validation: Measures
    test: Measures
    seconds: float
    communication: float
    skipped: int
    compute: tuple[float, ...]

    @property
    def held_out(self) -> Measures:
        """Measures of the set that stop rules and the best checkpoint use."""
        return self.validation or self.test

    @property
    def judged(self) -> float | None:
        """The loss that decides which epoch is best: that of the held-out set, or of training.

        None if it is unknown, as in files of older versions.
        """
        found = self.held_out.get("loss") if self.held_out else self.loss
        return None if found is None or math.isnan(found) else found

    @property
    def straggler(self) -> int | None:
        """The rank that computed longest, if more than 1.5 times as long as the median rank."""
        ordered = sorted(self.compute)
        median = ordered[(len(ordered) - 1) // 2]
        slowest = max(range(len(ordered)), key=self.compute.__getitem__)
        return slowest if self.compute[slowest] > 1.5 * median else None


@dataclass(frozen=True)
class Loss:
    """Ranks that died in a run, and the cost. Equal on all ranks, except `seconds`.

    Attributes:
        ranks: Their numbers at the start of the run.
        step: Completed steps when the others continued.
        repeated: Steps that some rank had completed and that are repeated.
        seconds: Time from when this rank noticed until the others were ready for the next step.
        checkpoint: The checkpoint they continued from; None if they had the state in memory.
        left: Number of ranks that train from then on.
        spare: Number of spare ranks from then on.
    """

    ranks: tuple[int, ...]
    step: int
    repeated: int
    seconds: float
    checkpoint: str | None
    left: int
    spare: int = 0


@dataclass(frozen=True, eq=False)
class Result:
    """The outcome of a run.

    Attributes:
        parameters: Final parameters by name. On a mesh with `pipe` or `tensor`, those of this
            rank's layers or parts of layers; with strategy fsdp, this rank's parts, with one axis.
            A checkpoint has all of them.
        history: One entry for each epoch; the last may be of a part of an epoch.
        steps: Completed steps.
        beginning: Where the run began.
        stopped: Why it ended: `epochs`, `steps`, `pause` (after `Config.pause_after`), `target
            loss`, `target accuracy`, `asked` (by a callback) or `signal`.
        test: Measures of the test set with the final parameters; empty if there is no test set, or
            if a signal or a pause ended the run.
        communicated: Mean seconds of a step in which this rank communicated, exposed or hidden.
        predicted: The same, predicted by the fitted model, or None.
        buffers: Arrays that the model keeps beside its parameters, such as statistics of a batch
            norm, by name; of the same layers as `parameters`.
        lost: Ranks that died, in order.
    """

    parameters: dict[str, NDArray[Any]]
    history: tuple[Epoch, ...]
    steps: int
    beginning: Beginning
    stopped: str
    test: Measures = field(default_factory=dict)
    communicated: float = 0.0
    predicted: float | None = None
    buffers: dict[str, NDArray[Any]] = field(default_factory=dict)
    lost: tuple[Loss, ...] = ()


def upgraded(epoch: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an `Epoch` in a file; also of one that had two accuracies in place of measures.

    Its loss was that of the training set at the end of the epoch.
    """
    found = dict(epoch)
    if "train_accuracy" in found and "test_accuracy" in found:
        found["train"] = {"loss": found.get("loss"), "accuracy": found.pop("train_accuracy")}
        found["validation"] = {}
        found["test"] = {"accuracy": found.pop("test_accuracy")}
    return found
