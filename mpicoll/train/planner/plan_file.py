"""A plan as a configuration of ``mpicoll train``: TOML for ``--config``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpicoll.base.files import write_atomically
from mpicoll.train.planner.problem import Outcome, Problem
from mpicoll.train.planner.space import Candidate

#: What a plan decides.
DECIDED = (
    *("strategy", "mesh", "microbatches", "pipeline_schedule", "ahead", "chunks", "cut"),
    *("sequence", "recompute"),
)
#: What says how many samples a step has; a plan has its own.
_SAMPLES = ("batch", "batch_per_rank", "accumulate")
#: Names of an order's parameters in a configuration are the order's own.
Keys = dict[str, Any]


def keys(outcome: Outcome, batch: int) -> Keys:
    """What a configuration says of a plan.

    Args:
        outcome: The plan.
        batch: Samples of a step, of all ranks together.
    """
    found = settings(outcome.candidate, batch)
    if "pipeline_schedule" in found:
        found["cut"] = ",".join(map(str, outcome.cut))
    return found


def settings(candidate: Candidate, batch: int) -> Keys:
    """As `keys`, without a cut."""
    if candidate.pipe == candidate.tensor == 1:
        count = candidate.microbatches
        return {"strategy": candidate.strategy, "batch": batch // count, "accumulate": count}
    found: Keys = {
        "strategy": candidate.strategy,
        "batch": batch,
        "mesh": candidate.mesh,
        "microbatches": candidate.microbatches,
    }
    if candidate.sequence:
        found["sequence"] = True
    if candidate.order:
        found["pipeline_schedule"] = candidate.order
        found |= dict(candidate.parameters)
        found["recompute"] = candidate.recompute
    return found


def write(path: str | Path, given: Mapping[str, Any], outcome: Outcome, problem: Problem) -> None:
    """Write the configuration of a plan.

    Args:
        path: Where to.
        given: What else the run is told, as `mpicoll.train.Config` has it; None for nothing.
        outcome: The plan.
        problem: What it is of.

    Raises:
        OSError: It cannot be written.
    """
    candidate = outcome.candidate
    lines = [
        f"# mpirun -n {problem.ranks + problem.helpers} mpicoll train --config {Path(path).name}",
        f"# planned: {candidate.words}: {1e3 * outcome.seconds:.4g} ms a step",
    ]
    values = {**others(given), **keys(outcome, problem.batch)}
    lines += [f"{name} = {_toml(value)}" for name, value in values.items() if value is not None]
    write_atomically(path, "\n".join(lines) + "\n")


def others(given: Mapping[str, Any]) -> Keys:
    """What a configuration says that no plan decides."""
    return {name: v for name, v in given.items() if name not in (*DECIDED, *_SAMPLES)}


def _toml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)  # texts, numbers and truth are written alike
