"""Parts of docs/pipelines.rst: what lines of benchmarks/pipeline.py say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from tables import list_table
from training_figures import lines

from mpicoll.bench.stats import percentile

#: What tasks of a rank take in benchmarks/pipeline.py, forward and backward together.
TASKS = 0.150
#: Microbatches of the steps whose difference is the time of a microbatch.
FEW, MANY = 8, 16

Line = dict[str, Any]
Case = tuple[Any, ...]


def pages() -> dict[str, str]:
    """Text by name of the file."""
    found = lines("pipeline")
    texts = {
        "pipeline_idle.inc": _idle(found),
        "pipeline_costs.inc": [*_overhead(found), *_wall(found)],
        "pipeline_network.inc": _network(lines("pipeline_network")),
    }
    return {name: "\n".join(text) for name, text in texts.items()}


def _medians(
    found: Sequence[Line], case: str, by: Sequence[str], of: Sequence[str]
) -> dict[Case, dict[str, float]]:
    """Medians of some values over the launches of a case, by other values."""
    launches: defaultdict[Case, list[Line]] = defaultdict(list)
    for line in found:
        if line["case"] == case:
            launches[tuple(line.get(name) for name in by)].append(line)
    return {
        place: {name: median(line[name] for line in own) for name in of}
        for place, own in launches.items()
    }


def _idle(found: Sequence[Line]) -> list[str]:
    """Idle time of padded steps beside the formulas."""
    steps = _medians(found, "padded", ("order", "M"), ("idle", "expected"))
    counts = sorted({count for _, count in steps})
    rows = []
    for order in dict.fromkeys(order for order, _ in steps):
        own = [steps[order, count] for count in counts]
        formula = dict.fromkeys(f"{step['expected']:.3f}" for step in own)
        name = f"``{order}``" + ", v = 2" * (order == "interleaved")
        rows.append([name, *(f"{step['idle']:.3f}" for step in own), ", ".join(formula)])
    uneven = _medians(found, "uneven", ("order",), ("idle", "expected"))
    each = (
        f"{step['idle']:.3f} of a step with ``{order}`` (simulated: {step['expected']:.3f})"
        for (order,), step in uneven.items()
    )
    words = f"With stages of 1 : 2 : 1 : 3 and M = 8, ranks are idle for {'; '.join(each)}."
    return [*list_table(["order", *(f"M = {n}" for n in counts), "formula"], rows), words, ""]


def _overhead(found: Sequence[Line]) -> list[str]:
    """What a task costs beside its layers."""
    costs = _medians(found, "overhead", ("order", "S"), ("microseconds_a_task",))
    each = [cost["microseconds_a_task"] for cost in costs.values()]
    return [
        f"A task of layers that do nothing, or a message, takes {min(each):.0f} to {max(each):.0f} "
        "µs, on one rank and on two.",
        "",
    ]


def _wall(found: Sequence[Line]) -> list[str]:
    """Steps of a transformer on two ranks beside their simulation; nothing if there are none."""
    names = "seconds", "simulated", "one_rank", "simulated_to_measured"
    steps = _medians(found, "wall", (), names)
    return [
        f"A transformer of four blocks takes {1e3 * step['one_rank']:.0f} ms a step on one rank "
        f"and {1e3 * step['seconds']:.0f} ms on two, with 8 microbatches. The simulator says "
        f"{1e3 * step['simulated']:.0f} ms from the times of the two stages, measured while both "
        f"compute: a ratio of {step['simulated_to_measured']:.2f}.\n"
        for step in steps.values()
    ]


def _network(found: Sequence[Line]) -> list[str]:
    """Steps over a network beside their simulation, and what a microbatch of 1F1B loses."""
    by = "delay", "bytes", "order", "ahead", "M"
    steps = _medians(found, "network", by, ("seconds", "simulated", "message"))
    rows, off = [], []
    for (delay, nbytes, order, ahead, microbatches), step in steps.items():
        off.append(abs(step["simulated"] / step["seconds"] - 1))
        if microbatches != MANY:
            continue
        lost = formula = ""
        if order == "1f1b":
            few = steps[delay, nbytes, order, ahead, FEW]
            period = (step["seconds"] - few["seconds"]) / (MANY - FEW)
            lost = f"{1e3 * (period - TASKS):.1f}"
            formula = "0" if ahead else f"{1e3 * 2 * step['message'] * 3 / 4:.1f}"
        name = f"``{order}``" if ahead is None else f"``{order}``, ahead={ahead}"
        times = [f"{step[name]:.3f}" for name in ("seconds", "simulated")]
        place = [f"{1e3 * delay:g}", f"{nbytes >> 10}", f"{1e3 * step['message']:.1f}"]
        rows.append([*place, name, *times, lost, formula])
    head = ["delay [ms]", "activation [KiB]", "message, fitted [ms]", "order", "step [s]"]
    head += ["simulated [s]", "lost [ms a microbatch]", "2c(S−1)/S [ms]"]
    words = (
        f"Of {len(off)} steps the simulation is {100 * median(off):.1f} % off in the median and "
        f"{100 * percentile(sorted(off), 90):.1f} % in the 90th percentile."
    )
    return [*list_table(head, rows), words, ""]
