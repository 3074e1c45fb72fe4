"""`mpicoll train --explain`: what a step sends along each axis of the mesh."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mpicoll.base.wording import plural
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset
from mpicoll.train.driver.preparation import prepare
from mpicoll.train.parallel.communication import Total, totals
from mpicoll.train.strategies.protocol import strategy_of

if TYPE_CHECKING:
    from mpi4py import MPI


def explained(config: Config, comm: MPI.Intracomm, dataset: Dataset | None = None) -> list[Total]:
    """What all ranks send in a full step; the same on all ranks; collective.

    Args:
        config: The run; nothing of it is trained.
        comm: The ranks.
        dataset: Instead of what the configuration names.

    Raises:
        TrainingError: The run cannot begin; on all ranks.
    """
    setup, _ = prepare(config, comm, dataset, None, None, None)
    training = strategy_of(setup.config).make(setup)
    try:
        return totals(setup.workers.gather(training.communication()))
    finally:
        training.close()


def words(config: Config, ranks: int, found: list[Total], as_json: bool) -> str:
    """The same as text or as JSON."""
    if as_json:
        return json.dumps([total._asdict() for total in found])
    if not found:
        return (
            "Nothing is sent in a step."
            if ranks == 1
            else f"What strategy {config.strategy} sends is not known beforehand."
        )
    samples = config.global_batch(ranks) * config.accumulate
    rows = [f"  {t.axis:<7} {t.calls:>6} {t.name:<15} {t.sent:>16,} bytes" for t in found]
    title = f"A step of {plural(samples, 'sample')} sends, by {plural(ranks, 'rank')} together:"
    return "\n".join([title, *rows])
