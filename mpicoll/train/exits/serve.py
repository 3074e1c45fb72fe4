"""A trained network with exits on the ranks of tiers: who decides what, and what it costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.base.sleeping import meet
from mpicoll.train.driver.evaluation import data_of, loaded, samples_of
from mpicoll.train.exits import layout
from mpicoll.train.exits.layout import Tier
from mpicoll.train.exits.node import Account, Fault, Node
from mpicoll.train.exits.stages import Stage
from mpicoll.train.models.exits import EarlyExits
from mpicoll.train.ranks.mail import Mail
from mpicoll.train.ranks.workers import AllReduceWorkers, together

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result for all samples at one threshold; equal on all ranks.

    Attributes:
        threshold: Threshold of the entropy, from 0 to 1.
        samples: Number of samples.
        answered: Share of them that a tier answered; samples that only silent devices saw have no
            answer.
        accuracy: Share of all samples that were answered correctly.
        leaving: Share of all samples that left at each tier, by its name.
        sent: Bytes sent for each sample, counted: up `scores`, `features` and their `heads` (number
            of the batch, which rows), and down `answers`.
        formula: Bytes a sample of scores and features by `layout.costs`; None where devices were
            silent or late.
        raw: Bytes a sample of the inputs, a byte for each value: what it takes to send all up.
        seconds: Latency of the samples that were answered, from when the devices began with their
            batch: `median`, `mean` and `p95`; empty where none was.
        late: Messages that came too late.
        tiers: Tier at which each sample left, -1 for none, shape (samples,).
        scores: Scores with which it left, shape (samples, classes); zeros for none.
    """

    threshold: float
    samples: int
    answered: float
    accuracy: float
    leaving: dict[str, float]
    sent: dict[str, float]
    formula: float | None
    raw: int
    seconds: dict[str, float]
    late: int
    tiers: Array = field(repr=False)
    scores: Array = field(repr=False)

    @property
    def payload(self) -> float:
        """Bytes a sample of scores and features, counted."""
        return self.sent["scores"] + self.sent["features"]


def serve(
    run: str | Path,
    comm: MPI.Intracomm,
    counts: Mapping[str, int],
    thresholds: Iterable[float],
    *,
    batch: int = 64,
    samples: int | None = None,
    data: str | None = None,
    part: str = "test",
    best: bool = False,
    patience: float = 1.0,
    faults: Mapping[int, Fault] | None = None,
) -> list[Outcome]:
    """Let samples through the tiers, once for each threshold; collective.

    Args:
        run: A folder of checkpoints, whose last is taken, or one of them; of an `EarlyExits`.
        comm: An `mpicoll.Intracomm`.
        counts: Ranks of each tier by its name, devices first.
        thresholds: A sample leaves where the entropy of its scores over the largest is at most so
            much: below 0 none does before the last tier, at 1 all do on the devices.
        batch: Samples that devices take at a time.
        samples: How many, the first; None for all.
        data, part: As of `mpicoll.train.evaluate`.
        best: Take the best checkpoint instead of the last.
        patience: Seconds that the tier above the devices waits for one that is silent, once; it
            waits again when the device has spoken.
        faults: What is wrong with devices, by number.

    Raises:
        TrainingError: There is no checkpoint, its model has no exits or other tiers, or the data do
            not fit; on all ranks.
    """
    workers = AllReduceWorkers(comm, None)
    from mpicoll.base import clocks  # starts MPI

    path, facts, trained = loaded(workers, Path(run), best)
    faults = faults or {}
    with together(workers, "sharing out the tiers"):
        model = trained.model
        if not isinstance(model, EarlyExits):
            raise ValueError(
                f"{path}: its model has no exits: train a mpicoll.train.models.EarlyExits"
            )
        tiers = layout.tiers(model, dict(counts), comm.Get_size())
        _require_faults(faults, tiers[0])
        if batch < 1 or not 0 < patience < math.inf:
            raise ValueError(
                f"batch is {batch} and patience {patience:g}: give a batch of at least 1, and "
                "seconds above 0"
            )
        thresholds = [*thresholds]
        if any(map(math.isnan, thresholds)):
            raise ValueError("a threshold is nan: give numbers, from 0 to 1 or below 0")
    parameters = {**trained.parameters, **trained.buffers}
    seen, targets, raw = None, np.zeros(0, int), 0
    with together(workers, "reading the data"):
        if workers.rank in tiers[0].ranks:  # rank 0 is among them
            dataset = data_of(path, facts, trained, data)
            samples_of(trained, dataset, part)
            if dataset.classes is None:
                raise ValueError(f"data set {dataset.name} has no class numbers: give another")
            inputs, targets = (rows[:samples] for rows in dataset.parts[part])
            own = (workers.rank - tiers[0].ranks.start) % tiers[0].parts
            seen = Stage(model, parameters, 0, own, tiers[0].parts).sight(inputs)
            raw = prod(inputs.shape[1:])
    count, raw = workers.gather((len(targets), raw))[0]
    mail = Mail(comm)
    ahead = clocks.ahead(comm)
    node = Node(
        *(model, parameters, tiers, mail, count, batch, seen),
        *(lambda: clocks.clock() + ahead, patience, faults.get(workers.rank, Fault())),
    )
    item = next(iter(parameters.values())).dtype.itemsize
    costs = layout.costs(model, item) if not faults else None
    outcomes = []
    for threshold in thresholds:
        meet(comm)
        account = node.run(threshold)
        meet(comm)
        unread = mail.drain()
        if workers.rank not in tiers[0].ranks:  # a device that is silent reads no answers
            account.late += unread
        every = workers.gather(account)
        outcomes.append(_outcome(threshold, every, tiers, targets, count, raw, costs))
    mail.close()
    everything: list[Outcome] = workers.gather(outcomes)[0]
    return everything


def _require_faults(faults: Mapping[int, Fault], devices: Tier) -> None:
    """Refuse faults of devices that are not there.

    Raises:
        ValueError: With the numbers that there are.
    """
    for device in faults:
        if device not in devices.ranks:
            raise ValueError(
                f"silent or late {devices.name} {device} does not exist, there are "
                f"{len(devices.ranks)}: give numbers from 0 to {len(devices.ranks) - 1}"
            )


def _outcome(
    threshold: float,
    every: Sequence[Account],
    tiers: Sequence[Tier],
    targets: Array,
    count: int,
    raw: int,
    costs: Sequence[layout.Bytes] | None,
) -> Outcome:
    """What came of all ranks' accounts; right on rank 0, which has the targets."""
    left = [found for account in every for found in account.left]
    at, seconds = np.full(count, -1), np.zeros(count)
    scores = np.zeros((count, left[0].scores.shape[1] if left else 1))
    for found in left:
        at[found.samples], seconds[found.samples] = found.tier, found.seconds
        scores[found.samples] = found.scores
    answered = at >= 0
    right = (scores.argmax(axis=1) == targets) & answered if len(targets) == count else answered
    sent = sum((account.sent for account in every), Counter[str]())
    formula = None
    if costs is not None:
        formula = sum(
            cost.scores * np.count_nonzero(at >= tier) + cost.features * np.count_nonzero(at > tier)
            for tier, cost in enumerate(costs)
        )
    times = seconds[answered]
    return Outcome(
        threshold=threshold,
        samples=count,
        answered=float(answered.mean()),
        accuracy=float(right.mean()),
        leaving={tier.name: float((at == n).mean()) for n, tier in enumerate(tiers)},
        sent={what: sent[what] / count for what in ("scores", "features", "heads", "answers")},
        formula=None if formula is None else float(formula) / count,
        raw=raw,
        seconds={}
        if not len(times)
        else {
            "median": float(np.median(times)),
            "mean": float(times.mean()),
            "p95": float(np.quantile(times, 0.95)),
        },
        late=sum(account.late for account in every),
        tiers=at,
        scores=scores,
    )
