"""What early exits save as a page: accuracy, bytes and time over the threshold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape as escaped
from pathlib import Path
from typing import TYPE_CHECKING

from mpicoll.base.files import write_atomically
from mpicoll.report import page, tables
from mpicoll.report.figures import Figure, bare, line
from mpicoll.report.style import COLORS
from mpicoll.report.tables import Head

if TYPE_CHECKING:
    from mpicoll.train.exits import Fault, Outcome


def write(path: Path, found: Sequence[Outcome], faults: Mapping[int, Fault]) -> None:
    """Write the page; an older file is replaced only when the new one is complete.

    Args:
        path: Where.
        found: One outcome for each threshold.
        faults: What was wrong with devices, by number.

    Raises:
        OSError: The file cannot be written.
        ImportError: plotly is missing.
    """
    write_atomically(path, render(found, faults))


def render(found: Sequence[Outcome], faults: Mapping[int, Fault]) -> str:
    """The page as one string."""
    ordered = sorted(found, key=lambda outcome: outcome.threshold)
    names = list(ordered[0].leaving)
    title = f"Early exits: {', '.join(names)}"
    plots = [
        ("accuracy", _over("accuracy", [("accuracy", [o.accuracy for o in ordered])], ordered)),
        (
            "leaving",
            _over(
                "share that leaves", [(n, [o.leaving[n] for o in ordered]) for n in names], ordered
            ),
        ),
        ("bytes", _bytes(ordered)),
        ("time", _times(ordered)),
        ("accuracy-by-bytes", _accuracy_by_bytes(ordered)),
    ]
    body = [
        f"<h1>{escaped(title)}</h1>",
        f'<p class="faint">{ordered[0].samples} samples; {ordered[0].raw} bytes of each, sent raw '
        f"as stored in 8 bits{''.join(f'; {word}' for word in _in_words(faults))}</p>",
        '<section><div class="plots">',
        *(page.plot(name, drawn) for name, drawn in plots),
        "</div>",
        '<p class="faint">A sample leaves at the first exit where the entropy of its scores, over '
        "the largest, is at most the threshold. Bytes are counted; time is from when devices begin "
        "with a batch to when the sample leaves.</p></section>",
        _table(ordered, names),
    ]
    return page.document(title, "".join(body))


def _in_words(faults: Mapping[int, Fault]) -> Iterator[str]:
    for device, fault in sorted(faults.items()):
        if fault.silent is not None:
            start = f" from batch {fault.silent}" if fault.silent else ""
            yield f"device {device} silent{start}"
        if fault.late:
            yield f"device {device} late by {fault.late:g} s"


def _over(what: str, lines: list[tuple[str, list[float]]], found: Sequence[Outcome]) -> Figure:
    """Lines over the threshold."""
    drawn = bare("threshold", what)
    thresholds = [outcome.threshold for outcome in found]
    for number, (name, values) in enumerate(lines):
        points = list(zip(thresholds, values, strict=True))
        color = COLORS[number % len(COLORS)]
        drawn["data"].append(line(escaped(name), points, color, "lines+markers"))
    return drawn


def _bytes(found: Sequence[Outcome]) -> Figure:
    counted = [outcome.payload for outcome in found]
    lines = [("counted", counted), ("all samples sent raw", [float(o.raw) for o in found])]
    return _over("bytes a sample", lines, found)


def _times(found: Sequence[Outcome]) -> Figure:
    found = [outcome for outcome in found if outcome.seconds]
    lines = [
        (words, [1e3 * outcome.seconds[name] for outcome in found])
        for name, words in (("median", "median"), ("p95", "95 % are faster"))
    ]
    return _over("latency [ms]", lines, found)


def _accuracy_by_bytes(found: Sequence[Outcome]) -> Figure:
    drawn = bare("bytes a sample", "accuracy")
    points = sorted((outcome.payload, outcome.accuracy) for outcome in found)
    drawn["data"] = [line("thresholds", points, COLORS[0], "lines+markers")]
    return drawn


def _table(found: Sequence[Outcome], names: list[str]) -> str:
    heads = [Head("threshold"), Head("accuracy"), Head("answered", "%")]
    heads += [Head(f"leaves: {name}", "%") for name in names]
    heads += [Head("scores", "B a sample"), Head("features", "B a sample")]
    heads += [Head("heads", "B a sample"), Head("raw / bytes"), Head("median", "ms")]
    rows = [
        (
            f"{outcome.threshold:g}",
            f"{outcome.accuracy:.4f}",
            f"{100 * outcome.answered:.1f}",
            *(f"{100 * outcome.leaving[name]:.1f}" for name in names),
            *(f"{outcome.sent[what]:.1f}" for what in ("scores", "features", "heads")),
            f"{outcome.raw / outcome.payload:.1f}" if outcome.payload else "",
            f"{1e3 * outcome.seconds['median']:.2f}" if outcome.seconds else "",
        )
        for outcome in found
    ]
    return tables.grid(heads, rows)
