"""Whether a run takes a candidate with its other options, by the checks of the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpicoll.train.config import Config
from mpicoll.train.exchange import tree
from mpicoll.train.models import Model
from mpicoll.train.planner import plan_file
from mpicoll.train.planner.space import Candidate
from mpicoll.train.strategies.meshed import parts_of_tree
from mpicoll.train.strategies.protocol import sums_between_ranks


def takes(
    given: Mapping[str, Any], model: Model, samples: int, candidate: Candidate, batch: int
) -> bool:
    """Whether the run takes a candidate.

    Args:
        given: What else the run is told, as `plan_file.write` has it.
        model: The model, whole.
        samples: Of the training set.
        candidate: How to train.
        batch: Samples of a step.
    """
    try:
        config = Config(**{**plan_file.others(given), **plan_file.settings(candidate, batch)})
        sums_between_ranks(config, model)
        if config.has_parts:
            parts_of_tree(config, candidate.data)
        elif config.invariant is not None:
            tree.shards_of(0, candidate.data, config.invariant)
    except ValueError:
        return False
    return config.batch <= samples
