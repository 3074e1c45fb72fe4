"""`mpicoll train --explain`: what a step sends along each axis of the mesh."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from mpicoll.base.wording import plural
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset
from mpicoll.train.driver.preparation import Given, prepare
from mpicoll.train.parallel.communication import Total, totals
from mpicoll.train.ranks.workers import TrainingError
from mpicoll.train.registry import STRATEGIES
from mpicoll.train.strategies.protocol import strategy_of

if TYPE_CHECKING:
    from mpi4py import MPI


def explained(
    config: Config, comm: MPI.Intracomm, dataset: Dataset | None = None
) -> tuple[int, list[Total]]:
    """Samples of a full step, and what all ranks send in it; the same on all ranks; collective.

    Args:
        config: The run; nothing of it is trained.
        comm: The ranks.
        dataset: Instead of what the configuration names.

    Raises:
        TrainingError: The run cannot begin, or not all ranks would train; on all ranks.
    """
    for option in ("spares", "data_servers"):
        if count := getattr(config, option):
            raise TrainingError(
                f"explain needs ranks that all train, and {option} is {count}: leave {option} out, "
                "and start that many ranks fewer"
            )
    # Nothing is written.
    config = replace(config, metrics=None, timeline=None)
    setup, _ = prepare(config, comm, Given(dataset))
    training = strategy_of(setup.config).make(setup)
    try:
        samples = min(training.sampler.batch, training.sampler.samples)
        return samples, totals(setup.workers.gather(training.communication()))
    finally:
        training.close()


def words(strategy: str, ranks: int, samples: int, found: list[Total], as_json: bool) -> str:
    """The same as text or as JSON."""
    if as_json:
        return json.dumps([total._asdict() for total in found])
    if not found:
        return (
            "Nothing is sent in a step."
            if ranks == 1
            else f"What strategy {strategy} sends is not known beforehand."
        )
    rows = [f"  {t.axis:<7} {t.calls:>6} {t.name:<15} {t.sent:>16,} bytes" for t in found]
    title = f"A step of {plural(samples, 'sample')} sends, by {plural(ranks, 'rank')} together:"
    if not STRATEGIES[strategy].in_lockstep:
        rows.append("How replicas mix their parameters along data varies, and is not counted.")
    return "\n".join([title, *rows])
