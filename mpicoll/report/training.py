"""A training run as a page: what was learnt, and where the time went."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from html import escape as escaped
from math import isinf
from pathlib import Path
from statistics import fmean, median

from mpicoll.base.files import write_atomically
from mpicoll.base.wording import plural
from mpicoll.bench.environment import without_folders
from mpicoll.report import page, tables
from mpicoll.report.figures import Figure, bare, line, stacked
from mpicoll.report.style import COLORS
from mpicoll.report.tables import Head
from mpicoll.train import history
from mpicoll.train.config import Config
from mpicoll.train.data import PARTS
from mpicoll.train.history import History

#: Steps that are drawn, at most: of more, means of neighbours.
_POINTS = 1000
SETS = {"train": "training set", "validation": "validation set", "test": "test set"}
_PARTS = {
    "loading": "loading samples",
    "compute": "computing",
    "exposed": "exposed communication",
    "waiting": "waiting for other ranks",
    "servers": "waiting for servers",
    "update": "update",
    "other": "other",
}
#: Measured and predicted times that differ by less are alike.
_ALIKE = 2.0


def write(path: Path, found: History, refresh: float | None = None) -> None:
    """Write the page; an older file is replaced only when the new one is complete.

    Args:
        path: Where.
        found: The run.
        refresh: Seconds after which a browser reads the page again; None for never.

    Raises:
        OSError: The file cannot be written.
        ImportError: plotly is missing.
    """
    write_atomically(path, render(found, refresh))


def render(found: History, refresh: float | None = None) -> str:
    """The page as one string; it is read again every so many seconds where they are given."""
    title = f"{found.folder or 'Run'}: {named(found)}"
    means = history.parts(found)
    plots = [("loss", _losses(found)), *_measures(found), ("time", _times(means))]
    body = [
        f"<h1>{escaped(title)}</h1>",
        f'<p class="faint">{escaped(_subtitle(found))}</p>',
        f"<p>{escaped(_changed(found))}</p>",
        '<section><div class="plots">',
        *(page.plot(name, figure) for name, figure in plots),
        "</div>",
        f'<p class="faint">{escaped(_key(found))}</p>',
        "</section><h2>Where the time goes</h2>",
        _where(found, means),
        f'<p class="faint">{escaped(_predicted(found))}</p>',
        *_granted(found),
        *_served(found),
        "<h2>Epochs</h2>",
        _epochs(found),
        "<h2>Configuration</h2>",
        _configuration(found),
    ]
    return page.document(title, "".join(body), refresh)


def named(found: History) -> str:
    """What a run trains, on what, by how many ranks."""
    config = told(found)
    return f"{config['model']} on {config['dataset']}, {plural(found.ranks, 'rank')}"


def _subtitle(found: History) -> str:
    config = found.config
    parts = [
        *([f"run {found.run}"] if found.run else []),
        *([f"attempt {found.attempt}"] if found.attempt > 1 else []),
        f"{config['strategy']}",
        f"{config['optimizer']} with lr {config['lr']:g}",
        f"batch {config['batch']}",
        f"{config['dtype']}",
        f"seed {config['seed']}",
        f"{plural(most_steps(found), 'step')}, {plural(len(found.epochs), 'epoch')}",
    ]
    return " · ".join(parts)


def changed(found: History) -> dict[str, str]:
    """The values of a configuration that are not the default ones."""
    # Files have lists, where a configuration has tuples.
    usual = {field.name: json.loads(json.dumps(field.default)) for field in fields(Config)}
    return {
        name: text
        for name, text in told(found).items()
        if name not in usual or found.config[name] != usual[name]
    }


def told(found: History) -> dict[str, str]:
    """A configuration in words; of paths the last part alone."""
    return {name: without_folders(str(value)) for name, value in found.config.items()}


def _changed(found: History) -> str:
    own = changed(found)
    said = ", ".join(f"{name} {value}" for name, value in own.items())
    return f"Differs from the default: {said}." if own else "All values are the default ones."


def _configuration(found: History) -> str:
    own = changed(found)
    heads = [Head("key", number=False), Head("value", number=False)]
    rest = [(name, text) for name, text in told(found).items() if name not in own]
    return (
        f"{tables.grid(heads, own.items())}<details><summary>"
        f"{plural(len(rest), 'default value')}</summary>{tables.grid(heads, rest)}</details>"
    )


def most_steps(found: History) -> int:
    """Steps of the rank that has made the most."""
    return max(map(len, found.steps.values()), default=0)


def _key(found: History) -> str:
    group = -(-most_steps(found) // _POINTS)
    means = f", each point a mean of {group} steps" if group > 1 else ""
    return (
        f"Loss: of each batch, before the update{means}; and of the sets that are evaluated after "
        "each epoch. Time: mean over the steps of each rank. The parts add up to a step, from its "
        "start to the start of the next. Hidden communication overlaps with computation and is "
        "not a part. Update includes serving other workers, on a worker that holds parameters. "
        "Other: metrics, callbacks, checkpoints."
    )


def batch_losses(found: History) -> list[tuple[int, float]]:
    """Steps and losses over their batches, on the first rank; of many, means of neighbours."""
    steps = next(iter(found.steps.values()), [])
    group = max(1, -(-len(steps) // _POINTS))
    points = []
    for start in range(0, len(steps), group):
        near = steps[start : start + group]
        losses = [step["loss"] for step in near if step["loss"] is not None]
        if losses:
            points.append((steps[start]["number"], sum(losses) / len(losses)))
    return points


def _losses(found: History) -> Figure:
    figure = bare("step", "loss")
    figure["data"] = [
        line("batch", batch_losses(found), COLORS[5], "lines"),
        *_by_part(found, "loss"),
    ]
    return figure


def _measures(found: History) -> list[tuple[str, Figure]]:
    """A figure of each measure beside the loss."""
    figures = []
    for name in dict.fromkeys(name for _, name in measured(found) if name != "loss"):
        figure = bare("step", name)
        figure["data"] = _by_part(found, name)
        figures.append((name, figure))
    return figures


def measured(found: History) -> list[tuple[str, str]]:
    """Sets and measures of which any epoch has a value."""
    both = (
        (part, name)
        for part in PARTS
        for epoch in found.epochs
        for name, value in epoch[part].items()
        if value is not None
    )
    return [*dict.fromkeys(both)]


def _by_part(found: History, name: str) -> list[Figure]:
    """A line for each set in which a measure was found."""
    return [
        line(SETS[part], by_epoch(found, part, name), COLORS[PARTS.index(part)], "lines+markers")
        for part, other in measured(found)
        if other == name
    ]


def by_epoch(found: History, part: str, name: str) -> list[tuple[int, float]]:
    """What was found of a set at the end of each epoch, and the epoch's last step."""
    last: dict[int, int] = {}
    for steps in found.steps.values():
        for step in steps:
            last[step["epoch"]] = max(last.get(step["epoch"], 0), step["number"])
    return [
        (last.get(epoch["number"], epoch["number"]), epoch[part][name])
        for epoch in found.epochs
        if epoch[part].get(name) is not None
    ]


def _times(means: Mapping[int, Mapping[str, float]]) -> Figure:
    """Bars of each rank."""
    return bars([f"rank {rank}" for rank in means], [*means.values()])


def bars(labels: Sequence[str], means: Sequence[Mapping[str, float]]) -> Figure:
    """What steps are made of; a part has the same colour on all pages."""
    colors = dict(zip(_PARTS.values(), (*COLORS, "#9aa4ad"), strict=True))
    return stacked("time of a step", "ms", labels, in_words(means), colors)


def in_words(means: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Milliseconds of each part in words, of all rows; without parts that no row has."""
    return {
        words: [1e3 * row[name] for row in means]
        for name, words in _PARTS.items()
        if any(row[name] for row in means)
    }


def _where(found: History, means: Mapping[int, Mapping[str, float]]) -> str:
    parts = in_words([*means.values()])
    heads = [Head("rank"), *(Head(words, "ms a step") for words in parts), Head("step", "ms")]
    heads += [Head("hidden communication", "ms a step"), Head("all communication", "ms a step")]
    if found.predicted is not None:
        heads.append(Head("predicted by the model", "ms a step"))
    rows = [
        (
            str(rank),
            *(f"{values[number]:.3f}" for values in parts.values()),
            f"{1e3 * row['seconds']:.3f}",
            f"{1e3 * row['hidden']:.3f}",
            f"{1e3 * (row['exposed'] + row['hidden']):.3f}",
            *([] if found.predicted is None else [f"{1e3 * found.predicted:.3f}"]),
        )
        for number, (rank, row) in enumerate(means.items())
    ]
    return tables.grid(heads, rows)


def _predicted(found: History) -> str:
    """Predicted beside measured communication, and why they differ where they do."""
    if found.predicted is None:
        return (
            "No prediction of the communication: MPICOLL_MODEL names no model, or the model does "
            "not cover these calls."
        )
    rows = [row for steps in found.steps.values() for row in history.in_parts(steps)]
    if not rows or not found.predicted:
        return ""
    times = [row["exposed"] + row["hidden"] for row in rows]
    mean, middle = fmean(times), median(times)
    said = f"Communication: {1e3 * mean:.3g} ms a step measured, {1e3 * found.predicted:.3g} ms "
    said += "predicted for the same calls one after the other"
    if mean and 1 / _ALIKE < mean / found.predicted < _ALIKE:
        return f"{said}."
    hidden = fmean([row["hidden"] for row in rows])
    if mean < found.predicted:
        why = "several buckets are sent at once, or the model was fitted on a slower machine"
    elif middle < _ALIKE * found.predicted:
        why = f"few steps are much slower than the others; the median is {1e3 * middle:.3g} ms"
    elif hidden > mean / 2:
        why = (
            f"{100 * hidden / mean:.0f} % of it is hidden: a bucket that is sent during "
            "computation makes progress only between two layers"
        )
    else:
        why = (
            "the measured time includes ranks that arrive late or share cores, and the model was "
            "fitted to calls in which all ranks start together; or on a faster machine"
        )
    ratio = f"{mean / found.predicted:.2g}"
    return f"{said}: {ratio} × the prediction, because {why}."


def _granted(found: History) -> list[str]:
    """What the shards of a parameter server granted."""
    if not found.shards:
        return []
    heads = [Head("server", "rank"), Head("gradients"), Head("parameters", "asked for")]
    heads += [Head("parameters", "sent unasked"), Head("furthest ahead", "steps")]
    heads.append(Head("bound S", "steps"))
    rows = []
    for rank, trace in found.shards.items():
        did = history.granted(trace)
        bounds = " – ".join(dict.fromkeys("none" if isinf(s) else f"{s:g}" for s in did.bound))
        counts = (did.pushes, did.pulls, did.sends, did.ahead)
        rows.append((str(rank), *map(str, counts), bounds))
    return [
        "<h2>Servers</h2>",
        tables.grid(heads, rows),
        '<p class="faint">What each server granted: a worker gets parameters if it is at most S '
        "steps ahead of the slowest worker.</p>",
    ]


def _served(found: History) -> list[str]:
    """What data servers did: while ranks computed, but for what these waited."""
    if not found.served:
        return []
    heads = [Head("rank"), Head("batches"), Head("samples"), Head("preparing", "s")]
    rows = [
        (
            str(rank),
            str(did["batches"]),
            str(did["samples"]),
            f"{did['preparing']:.2f}",
            f"{did['seconds']:.2f}",
        )
        for rank, did in found.served.items()
    ]
    return ["<h2>Data servers</h2>", tables.grid([*heads, Head("of all its time", "s")], rows)]


def _epochs(found: History) -> str:
    found_of = measured(found)
    heads = [Head("epoch"), Head("training loss")]
    heads += [Head(f"{SETS[part]}: {name}") for part, name in found_of]
    heads += [Head("time", "s"), Head("exposed communication", "%")]
    heads += [Head("skipped", "steps"), Head("straggler")]
    rows = [
        (
            str(epoch["number"]),
            _value(epoch["loss"]),
            *(_value(epoch[part].get(name)) for part, name in found_of),
            f"{epoch['seconds']:.2f}",
            f"{100 * epoch['communication']:.0f}",
            str(epoch["skipped"]),
            "" if epoch.get("straggler") is None else f"rank {epoch['straggler']}",
        )
        for epoch in found.epochs
    ]
    return tables.grid(heads, rows)


def _value(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
