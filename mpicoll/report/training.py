"""A training run as a page: what was learnt, and where the time went."""

from __future__ import annotations

from html import escape as escaped
from pathlib import Path

from mpicoll.base.files import write_atomically
from mpicoll.base.wording import plural
from mpicoll.report import page, tables
from mpicoll.report.figures import Figure, bare, line
from mpicoll.report.style import COLORS
from mpicoll.report.tables import Head
from mpicoll.train import history
from mpicoll.train.data import PARTS
from mpicoll.train.history import History

#: Steps that are drawn, at most: of more, means of neighbours.
_POINTS = 1000
_SETS = {"train": "training set", "validation": "validation set", "test": "test set"}
_PHASES = {
    "loading": "reading or awaiting samples",
    "compute": "computing",
    "hidden": "communicating meanwhile",
    "exposed": "communicating alone",
    "waiting": "waiting for slower ranks",
}


def write(path: Path, found: History) -> None:
    """Write the page; an older file is replaced only when the new one is complete.

    Raises:
        OSError: The file cannot be written.
        ImportError: plotly is missing.
    """
    write_atomically(path, render(found))


def render(found: History) -> str:
    """The page as one string."""
    config = found.config
    title = f"Training {config['model']} on {config['dataset']}, {plural(found.ranks, 'rank')}"
    plots = [("loss", _losses(found)), *_measures(found), ("time", _times(found))]
    body = [
        f"<h1>{escaped(title)}</h1>",
        f'<p class="faint">{escaped(_subtitle(found))}</p>',
        '<section><div class="plots">',
        *(page.plot(name, figure) for name, figure in plots),
        "</div>",
        f'<p class="faint">{escaped(_key(found))}</p>',
        "</section><h2>Communication</h2>",
        _communication(found),
        *_served(found),
        "<h2>Epochs</h2>",
        _epochs(found),
        "<h2>Configuration</h2>",
        tables.grid(
            [Head("key", number=False), Head("value", number=False)],
            [(name, str(value)) for name, value in config.items()],
        ),
    ]
    return page.document(title, "".join(body))


def _subtitle(found: History) -> str:
    config = found.config
    return (
        f"{config['strategy']} · {config['optimizer']} with lr {config['lr']:g} · batch "
        f"{config['batch']} · {config['dtype']} · seed {config['seed']} · "
        f"{plural(_most_steps(found), 'step')}, "
        f"{plural(len(found.epochs), 'epoch')}"
    )


def _most_steps(found: History) -> int:
    return max(map(len, found.steps.values()), default=0)


def _key(found: History) -> str:
    group = -(-_most_steps(found) // _POINTS)
    means = f", each point a mean of {group} steps" if group > 1 else ""
    return (
        f"Loss: of each step over its batch, before its update{means}; and over the sets measured "
        "at the end of each epoch. Time: means of each rank's steps."
    )


def _losses(found: History) -> Figure:
    steps = found.steps.get(0, [])
    group = max(1, -(-len(steps) // _POINTS))
    points = []
    for start in range(0, len(steps), group):
        losses = [s["loss"] for s in steps[start : start + group] if s["loss"] is not None]
        if losses:
            points.append((steps[start]["number"], sum(losses) / len(losses)))
    figure = bare("step", "loss")
    figure["data"] = [
        line("batch", points, COLORS[5], "lines"),
        *_by_part(found, "loss"),
    ]
    return figure


def _measures(found: History) -> list[tuple[str, Figure]]:
    """A figure of each measure beside the loss."""
    figures = []
    for name in dict.fromkeys(name for _, name in _measured(found) if name != "loss"):
        figure = bare("step", name)
        figure["data"] = _by_part(found, name)
        figures.append((name, figure))
    return figures


def _measured(found: History) -> list[tuple[str, str]]:
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
        _by_epoch(found, part, name, COLORS[PARTS.index(part)])
        for part, other in _measured(found)
        if other == name
    ]


def _by_epoch(found: History, part: str, name: str, color: str) -> Figure:
    """A line through what was found at the end of each epoch, drawn at its last step."""
    last: dict[int, int] = {}
    for steps in found.steps.values():
        for step in steps:
            last[step["epoch"]] = max(last.get(step["epoch"], 0), step["number"])
    points = [
        (last.get(epoch["number"], epoch["number"]), epoch[part][name])
        for epoch in found.epochs
        if epoch[part].get(name) is not None
    ]
    return line(_SETS[part], points, color, "lines+markers")


def _times(found: History) -> Figure:
    """Bars of each rank; what is hidden happens during the computation, so it is drawn within."""
    means = history.phases(found)
    ranks = [f"rank {rank}" for rank in means]
    figure = bare("", "time of a step [ms]")
    figure["layout"] |= {"barmode": "stack", "bargap": 0.3}
    for number, (name, words) in enumerate(_PHASES.items()):
        values = [1e3 * row[name] for row in means.values()]
        if name == "compute":  # the part in which nothing was under way
            values = [1e3 * max(0.0, row["compute"] - row["hidden"]) for row in means.values()]
            words = "computing alone"
        bar: Figure = {"type": "bar", "name": words, "x": ranks, "y": values}
        bar |= {"marker": {"color": COLORS[number]}, "hovertemplate": "%{y:.3g} ms"}
        figure["data"].append(bar)
    return figure


def _communication(found: History) -> str:
    means = history.phases(found)
    rows = [
        (
            str(rank),
            *(f"{1e3 * row[name]:.3f}" for name in _PHASES),
            f"{row['compute'] / both:.2f}" if both else "",
            f"{1e3 * both:.3f}",
            "" if found.predicted is None else f"{1e3 * found.predicted:.3f}",
        )
        for rank, row in means.items()
        for both in [row["exposed"] + row["hidden"]]
    ]
    heads = [Head("rank"), *(Head(words, "ms a step") for words in _PHASES.values())]
    heads += [Head("compute : communication"), Head("communication measured", "ms a step")]
    heads.append(Head("predicted by the model", "ms a step"))
    return tables.grid(heads, rows)


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
    measured = _measured(found)
    heads = [Head("epoch"), Head("loss of its steps")]
    heads += [Head(f"{_SETS[part]}: {name}") for part, name in measured]
    heads += [Head("time", "s"), Head("communication", "%"), Head("skipped"), Head("straggler")]
    rows = [
        (
            str(epoch["number"]),
            _value(epoch["loss"]),
            *(_value(epoch[part].get(name)) for part, name in measured),
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
