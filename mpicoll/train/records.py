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
    """Where a run begins, or goes on. Equal on all ranks.

    Attributes:
        run: Name of the run, which a checkpoint hands on.
        attempt: 1 where it begins, and one more each time it goes on.
        step: Steps made.
        epoch: Epoch to make steps in, counted from 1.
        position: Steps made in it.
        checkpoint: What it goes on from, None where it begins.
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
        number: Steps made in the run, this one included.
        epoch: Number of the epoch, counted from 1.
        position: Steps made in this epoch, this one included.
        of: Steps in one epoch.
        loss: Mean loss over the global batch, before the update, equal on all ranks; of a parameter
            server's worker, over its own samples.
        lr: Learning rate.
        skipped: Whether the update was left out because a gradient was not finite.
        compute: Seconds that this rank computed.
        exposed: Seconds in which it communicated and computed nothing, without those below.
        hidden: Seconds in which it communicated while it computed.
        waiting: Seconds that it waited for ranks that computed longer.
        slowest: Rank that computed longest, None where ranks make their steps apart.
        loading: Seconds in which this rank read samples, or waited for a data server.
        began: When it began, by this rank's `time.perf_counter`; 0 where it is not known.
        spans: What this rank did meanwhile: name, start and end in seconds after that.
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
        number: 1 for the first.
        loss: Mean loss of the samples of the epoch, each before the update of its step; NaN where
            no step was finite.
        train: Measures of the training set at the end; empty unless they are asked for.
        validation: Of the validation set; empty where there is none.
        test: Of the test set, where there is no validation set.
        seconds: Time of the epoch's steps on this rank; measuring the rest comes on top.
        communication: Share of that time in which gradients travelled and none were computed,
            waiting included; mean of the ranks.
        skipped: Steps whose update was left out because a gradient was not finite.
        compute: Seconds that each rank computed.
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
        """Of the set that stop rules and the best checkpoint go by."""
        return self.validation or self.test

    @property
    def judged(self) -> float | None:
        """The loss that says which epoch is best: of the set held out, or while training.

        None where that is not known, as of epochs that an older version has written down.
        """
        found = self.held_out.get("loss") if self.held_out else self.loss
        return None if found is None or math.isnan(found) else found

    @property
    def straggler(self) -> int | None:
        """The rank that computed longest, if at least half as long again as the median rank."""
        ordered = sorted(self.compute)
        median = ordered[(len(ordered) - 1) // 2]
        slowest = max(range(len(ordered)), key=self.compute.__getitem__)
        return slowest if self.compute[slowest] > 1.5 * median else None


@dataclass(frozen=True)
class Loss:
    """Ranks that died in a run, and what that cost. Equal on all ranks, except `seconds`.

    Attributes:
        ranks: Their numbers at the start of the run.
        step: Steps made when the others went on.
        repeated: Steps that some rank had made, and that are made again.
        seconds: From when this rank heard of it until the others were ready for the next step.
        checkpoint: What they went on from; None where it was what they held in memory.
        left: Ranks that train from then on.
        spare: Ranks that wait from then on until they are needed.
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
        parameters: Final parameters by name; of the layers, or parts of layers, that this rank has,
            where the mesh has `pipe` or `tensor`, and of strategy fsdp its parts, of one axis: a
            checkpoint has all of them.
        history: One entry an epoch; the last may be of a part of one.
        steps: Steps made.
        beginning: Where it began.
        stopped: Why it ended: `epochs`, `steps`, `pause` (after `Config.pause_after`), `target
            loss`, `target accuracy`, `asked` (by a callback) or `signal`.
        test: Measures of the test set with the final parameters; empty where there is none, and
            where a signal or a pause ended the run.
        communicated: Mean seconds a step in which this rank communicated, exposed or hidden.
        predicted: The same, by the fitted model; None where it says nothing of it.
        buffers: What the model keeps beside its parameters, such as statistics of a batch norm, by
            name; likewise.
        lost: Ranks that died, first to last.
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
