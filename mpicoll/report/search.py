"""A search as a page: which values were good, how trials were promoted, and what it took."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from html import escape as escaped
from pathlib import Path
from typing import Any, NamedTuple

from mpicoll.base.files import write_atomically
from mpicoll.base.json_lines import Record
from mpicoll.base.wording import measures, plural
from mpicoll.report import page, tables
from mpicoll.report.figures import Figure, bare, line
from mpicoll.report.style import COLORS
from mpicoll.report.tables import Head
from mpicoll.train.search import trials
from mpicoll.train.search.space import in_words

#: Trials whose values are drawn and listed, at most; the best ones.
_MOST = 1000


def write(path: Path, records: list[Record]) -> None:
    """Write the page; an older file is replaced only when the new one is complete.

    Args:
        path: Where.
        records: Of the file of a search, as `trials.read` gives them.

    Raises:
        OSError: The file cannot be written.
        ImportError: plotly is missing.
    """
    write_atomically(path, render(records))


def render(records: list[Record]) -> str:
    """The page as one string."""
    space, options = records[0]["space"], records[0]["options"]
    told = list(trials.told(records))
    measure = told[0]["measure"] if told else "loss"
    title = f"Search of {', '.join(space['space'])}: {options['method']}"
    plots = [
        ("epochs", _by_epochs(records, measure)),
        ("best-by-time", _best_so_far(records, measure, "seconds")),
        ("best-by-epochs", _best_so_far(records, measure, "epochs")),
    ]
    body = [
        f"<h1>{escaped(title)}</h1>",
        f'<p class="faint">{escaped(_subtitle(records))}</p>',
        _winner(records),
        "<h2>Values</h2>",
        page.plot("values", _coordinates(space["space"], told, measure)),
        '<p class="faint">Each line is a trial after its last epoch: the bluer, the better its '
        f"validation {escaped(measure)}.</p>",
        '<h2>Epochs</h2><section><div class="plots">',
        *(page.plot(name, drawn) for name, drawn in plots),
        "</div>",
        '<p class="faint">A line ends where its trial was not promoted, or failed.</p></section>',
        "<h2>Trials</h2>",
        _trials(space["space"], records, measure),
    ]
    return page.document(title, "".join(body))


def _subtitle(records: list[Record]) -> str:
    run = records[0]["space"]["run"]
    failed = len(trials.failures(records))
    lost = sum(record["event"] == "lost" for record in records)
    number = len({record["trial"] for record in records if record["event"] == "told"})
    return " · ".join(
        [
            ", ".join(f"{name} {value}" for name, value in run.items()),
            plural(number, "trial"),
            f"{failed or 'none'} failed",
            *([f"{plural(lost, 'group')} lost"] if lost else []),
            plural(trials.epochs_spent(records), "epoch"),
            f"{records[-1]['seconds']:.1f} s",
        ]
    )


def _winner(records: list[Record]) -> str:
    best = trials.best(records)
    if best is None:
        return "<p>No trial has a score.</p>"
    after = plural(best["epochs"], "epoch")
    values = ", ".join(f"{name} {in_words(value)}" for name, value in best["values"].items())
    words = f"Best: trial {best['trial']} ({values}) after {after}, "
    words += f"validation {measures(best['validation'])}"
    for record in records:
        if record["event"] == "winner" and record["test"]:
            words += f"; test {measures(record['test'])}"
    return f"<p>{escaped(words)}.</p>"


def _last(told: list[Record]) -> list[Record]:
    """The last record of each trial, the best first."""
    latest = {record["trial"]: record for record in told}
    return sorted(latest.values(), key=lambda record: -record["score"])[:_MOST]


class _Axis(NamedTuple):
    """An upright axis: where values are on it, from 0 to 1, and its ticks with their texts."""

    place: Callable[[Any], float]
    ticks: list[tuple[float, str]]


def _coordinates(space: dict[str, Any], told: list[Record], measure: str) -> Figure:
    """Parallel coordinates: an axis for each key, and one of what trials are judged by.

    Plotly's own are drawn by WebGL from code made at run time, which the page's policy forbids.
    """
    last = _last(told)[::-1]  # the best on top
    found = [record["validation"][measure] for record in last]
    low, high = min(found, default=0.0), max(found, default=1.0)
    axes = {name: _axis(space[name]) for name in space}
    axes[measure] = _between(low, high, lambda value: value)
    drawn = bare("", "")
    for record, value in zip(last, found, strict=True):
        values = {**record["values"], measure: value}
        share = axes[measure].place(value)
        drawn["data"].append(
            {
                **line(f"trial {record['trial']}", [], _shade(share, measure), "lines"),
                "x": list(range(len(axes))),
                "y": [axis.place(values[name]) for name, axis in axes.items()],
                "text": [f"{escaped(name)} {escaped(in_words(values[name]))}" for name in axes],
                "hovertemplate": "%{text}",
            }
        )
    layout = drawn["layout"]
    layout["showlegend"] = False
    layout["margin"] = {"l": 24, "r": 60, "t": 36, "b": 44}
    names = [escaped(name) for name in axes]
    layout["xaxis"] |= {"tickvals": list(range(len(axes))), "ticktext": names, "title": {}}
    layout["yaxis"] |= {"visible": False, "range": [-0.05, 1.05]}
    layout["annotations"] = [
        {
            **{"x": number, "y": place, "text": escaped(text), "xanchor": "left"},
            **{"showarrow": False, "bgcolor": "white", "opacity": 0.85},  # lines cross the texts
        }
        for number, axis in enumerate(axes.values())
        for place, text in axis.ticks
    ]
    return drawn


def _axis(given: dict[str, Any]) -> _Axis:
    """The axis of a key: logarithmic as its range is, or of choices by their number."""
    if "choice" in given:
        texts = [in_words(choice) for choice in given["choice"]]
        most = max(1, len(texts) - 1)
        ticks = [(number / most, text) for number, text in enumerate(texts)]
        return _Axis(lambda value: texts.index(in_words(value)) / most, ticks)
    if "log" in given:
        low, high = given["log"]
        return _between(low, high, math.log10)
    low, high = given.get("uniform") or given["integer"]
    return _between(low, high, lambda value: value)


def _between(low: float, high: float, scale: Callable[[float], float]) -> _Axis:
    """The axis of a range."""
    start, length = scale(low), scale(high) - scale(low)
    ticks = [(0.0, f"{low:.4g}")] + [(1.0, f"{high:.4g}")] * (length > 0)
    return _Axis(lambda value: (scale(value) - start) / length if length else 0.0, ticks)


def _shade(share: float, measure: str) -> str:
    """From grey to blue, the better the bluer."""
    better = 1 - share if measure == "loss" else share
    ends = zip((0xD5, 0xDA, 0xDE), (0x00, 0x72, 0xB2), strict=True)
    return f"rgb({','.join(str(round(a + (b - a) * better)) for a, b in ends)})"


def _by_epochs(records: list[Record], measure: str) -> Figure:
    """What each trial was at the end of each epoch: where lines end are the rungs."""
    drawn = bare("epoch of a trial", f"validation {measure}")
    found: dict[int, dict[int, float]] = {}
    for record in records:
        if record["event"] == "epoch" and measure in record["validation"]:
            found.setdefault(record["trial"], {})[record["number"]] = record["validation"][measure]
    for trial, values in sorted(found.items())[:_MOST]:
        color = COLORS[trial % len(COLORS)]
        drawn["data"].append(line(f"trial {trial}", sorted(values.items()), color, "lines+markers"))
    drawn["layout"]["showlegend"] = False
    return drawn


def _best_so_far(records: list[Record], measure: str, by: str) -> Figure:
    """The best so far against seconds, or against the epochs spent on all trials."""
    drawn = bare(
        "time [s]" if by == "seconds" else "epochs of all trials",
        f"best validation {measure} so far",
    )
    better = min if measure == "loss" else max
    points: list[tuple[float, float]] = []
    spent = 0
    for record in records:
        spent += record["event"] == "epoch"
        if record["event"] != "told" or record["score"] is None:
            continue
        value = record["validation"][measure]
        best = better(value, points[-1][1]) if points else value
        points.append((record["seconds"] if by == "seconds" else spent, best))
    drawn["data"] = [line("best", points, COLORS[0], "lines+markers")]
    drawn["data"][0]["line"]["shape"] = "hv"
    return drawn


def _trials(space: Iterable[str], records: list[Record], measure: str) -> str:
    """A table of all trials, the best first, then those that have failed."""
    keys = list(space)
    heads = [Head("trial"), *map(Head, keys), Head("epochs"), Head(measure)]
    heads.append(Head("failed", number=False))
    rows = [
        (
            str(record["trial"]),
            *(in_words(record["values"][key]) for key in keys),
            str(record["epochs"]),
            f"{record['validation'][measure]:.4f}",
            "",
        )
        for record in _last(list(trials.told(records)))
    ]
    asked = {(r["trial"], r["epochs"]): r["values"] for r in records if r["event"] == "asked"}
    for record in trials.failures(records):
        values = asked[record["trial"], record["epochs"]]
        cells = (str(record["trial"]), *(in_words(values[key]) for key in keys))
        rows.append((*cells, str(record["epochs"]), "", record["failed"]))
    return tables.grid(heads, rows)
