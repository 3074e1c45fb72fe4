"""Results as one web page that needs nothing else: no network, no second file.

Every collective and number of ranks has a section with two plots, time and bus bandwidth against
size, and the numbers themselves in a table. The page is made for a screen of any width and for
paper.
"""

from __future__ import annotations

import html
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mpicoll.bench import table
from mpicoll.bench.records import Point, Run
from mpicoll.bench.sizes import format_size


class _Line(NamedTuple):
    """How an algorithm is drawn, in every plot alike: in plotly's words, and in the legend."""

    color: str
    dash: str
    symbol: str
    gaps: str
    mark: str


# Okabe and Ito's colours, which the colour-blind can tell apart; marks and dashes differ too, so
# that a print in grey can be read.
_LINES = (
    _Line("#0072B2", "solid", "circle", "", "●"),
    _Line("#D55E00", "dash", "square", "8 4", "■"),
    _Line("#009E73", "dot", "diamond", "2 3", "◆"),
    _Line("#CC79A7", "dashdot", "triangle-up", "8 3 2 3", "▲"),
    _Line("#B8860B", "longdash", "x", "12 4", "✖"),
    _Line("#56B4E9", "longdashdot", "star", "12 3 2 3", "★"),
)
# What the head of a section says already, or the size implies.
_MINOR = ("count", "type", "redop", "root", "P")

_NATIVE_LINE = _Line("#222222", "solid", "circle-open", "", "○")

_STYLE = """
:root { --ink: #1b1f24; --faint: #5b6670; --rule: #d9dee3; --warn: #7a4b00; --ground: #fff6e0; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem clamp(0.8rem, 3vw, 2.5rem); max-width: 84rem;
  color: var(--ink); background: #fff; font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 0.3rem; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 0.4rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 0.2rem; }
p { margin: 0.4rem 0; }
.faint { color: var(--faint); }
.warning { border-left: 4px solid #d98e00; background: var(--ground); color: var(--warn);
  padding: 0.6rem 0.9rem; margin: 1rem 0; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr));
  gap: 1rem; }
/* No wider than paper: a plot keeps its width when it is printed. */
.plot { min-width: 0; max-width: 43rem; height: 22rem; }
.legend { display: flex; flex-wrap: wrap; gap: 0.2rem 0.4rem; margin: 0.4rem 0; }
.legend button { display: flex; align-items: center; gap: 0.4rem; padding: 0.15rem 0.5rem;
  border: 0; border-radius: 4px; background: none; color: inherit; font: inherit;
  font-size: 0.9rem; cursor: pointer; }
.legend button:hover, .legend button:focus-visible { background: #eef1f4; }
.legend button[aria-pressed="false"] { opacity: 0.4; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.6rem; text-align: left; white-space: nowrap;
  border-bottom: 1px solid var(--rule); }
thead th { border-bottom: 2px solid var(--ink); vertical-align: bottom; }
th .unit { display: block; font-weight: normal; color: var(--faint); }
.number { text-align: right; }
tr.first td { border-top: 1px solid var(--faint); }
.facts th { vertical-align: top; padding-left: 0; }
.facts td { white-space: normal; overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  .minor { display: none; }
  .plot { height: 21rem; }
}
@media print {
  @page { margin: 12mm; }
  body { padding: 0; max-width: none; font-size: 10pt; }
  .plots { display: block; }
  .plot { break-inside: avoid; }
  .scroll { overflow: visible; }
  table { font-size: 7pt; }
  th, td { padding: 0.1rem 0.25rem; }
  tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
"""

# Drawn when the whole page is laid out, so that every plot knows its width. The names above the
# plots switch their lines off and on.
_DRAW = """
const plots = document.querySelectorAll(".plot");
for (const plot of plots) {
  const { data, layout } = JSON.parse(plot.querySelector("script").textContent);
  Plotly.newPlot(plot, data, layout, { responsive: true, displayModeBar: false });
}
for (const button of document.querySelectorAll(".legend button"))
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") === "false";
    button.setAttribute("aria-pressed", on);
    for (const plot of button.closest("section").querySelectorAll(".plot"))
      Plotly.restyle(plot, { visible: on },
        plot.data.flatMap((line, i) => (line.name === button.value ? [i] : [])));
  });
"""


def write(path: Path | str, runs: Sequence[Run]) -> None:
    """Write the page of some runs; an older file is replaced only when the new one is complete.

    Raises:
        OSError: if the file cannot be written.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(render(runs), encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def render(runs: Sequence[Run]) -> str:
    """The page of some runs as one string."""
    from plotly.offline import get_plotlyjs

    points = table.ordered(p for run in runs for p in run.points)
    names = ", ".join(dict.fromkeys(p.collective for p in points))
    title = f"{names}: time and bandwidth by algorithm"
    body = "".join(
        [
            f"<h1>{html.escape(title)}</h1>",
            f'<p class="faint">{html.escape(_subtitle(runs))}</p>',
            *(_warning(text) for run in runs for text in table.warnings(run.facts, run.points)),
            *_sections(points),
            "<h2>Environment</h2>",
            *(_facts(run) for run in runs),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n"
        f"<script>{get_plotlyjs()}</script>\n</head>\n<body>\n{body}\n"
        f"<script>{_DRAW}</script>\n</body>\n</html>\n"
    )


def _subtitle(runs: Sequence[Run]) -> str:
    facts = runs[0].facts
    ranks = sorted({p.ranks for run in runs for p in run.points})
    parts = [f"{' and '.join(map(str, ranks))} ranks"]
    if "hosts" in facts:
        parts.append(f"host {', '.join(facts['hosts'])}")
    if "mpi" in facts:
        parts.append(facts["mpi"].split(",")[0])
    if "started" in facts:
        parts.append(facts["started"])
    return " · ".join(parts)


def _warning(text: str) -> str:
    return f'<p class="warning">{html.escape(text)}</p>'


def _sections(points: list[Point]) -> Iterable[str]:
    lines = _lines(points)
    for collective, ranks, kind in dict.fromkeys((p.collective, p.ranks, p.type) for p in points):
        chosen = [p for p in points if (p.collective, p.ranks, p.type) == (collective, ranks, kind)]
        kinds = dict.fromkeys((p.type, p.redop) for p in chosen)
        what = ", ".join(f"{t} {r}" if r != "none" else t for t, r in kinds if t != "none")
        head = f"{collective}, {ranks} ranks" + (f", {what}" if what else "")
        yield f"<section><h2>{html.escape(head)}</h2>"
        yield _legend(dict.fromkeys(p.algorithm for p in chosen), lines)
        yield '<div class="plots">'
        yield _plot(_time_figure(chosen, lines))
        fast = [p for p in chosen if p.size and not p.oversubscribed]
        if fast:
            yield _plot(_bandwidth_figure(fast, lines))
        yield "</div>"
        yield (
            '<p class="faint">Marks are medians of the slowest rank\'s time; bars are 95 % '
            "intervals of the median. Bus bandwidth is size over time, corrected for the "
            "collective and the number of ranks.</p>"
        )
        yield f"<h3>Numbers</h3>{_table(chosen)}"
        yield "".join(f'<p class="faint">{html.escape(n)}</p>' for n in table.notes(chosen))
        yield "</section>"


def _lines(points: list[Point]) -> dict[str, _Line]:
    own = [name for name in dict.fromkeys(p.algorithm for p in points) if name != "native"]
    found = {name: _LINES[i % len(_LINES)] for i, name in enumerate(own)}
    return {**found, "native": _NATIVE_LINE}


def _legend(names: Iterable[str], lines: dict[str, _Line]) -> str:
    """The algorithms with their lines, above the plots they belong to."""
    entries = []
    for name in names:
        line, text = lines[name], html.escape(name)
        entries.append(
            f'<button type="button" value="{text}" aria-pressed="true">'
            '<svg width="36" height="14" aria-hidden="true">'
            f'<path d="M0 7h36" stroke="{line.color}" stroke-width="2" '
            f'stroke-dasharray="{line.gaps}"/><text x="18" y="11" text-anchor="middle" '
            f'font-size="12" fill="{line.color}">{line.mark}</text></svg>{text}</button>'
        )
    return f'<div class="legend">{"".join(entries)}</div>'


def _time_figure(points: list[Point], lines: dict[str, _Line]) -> Any:
    figure = _figure("time of the slowest rank [µs]")
    for name, chosen in _by_algorithm(points):
        medians = [p.summary.median * 1e6 for p in chosen]
        above = [((p.summary.high or p.summary.median) - p.summary.median) * 1e6 for p in chosen]
        below = [(p.summary.median - (p.summary.low or p.summary.median)) * 1e6 for p in chosen]
        _add(figure, name, chosen, medians, lines[name], (above, below), "µs")
    return figure


def _bandwidth_figure(points: list[Point], lines: dict[str, _Line]) -> Any:
    figure = _figure("bus bandwidth [GB/s]")
    for name, chosen in _by_algorithm(points):
        values = [found[1] for p in chosen if (found := table.bandwidths(p))]
        pairs = list(zip(values, (p.summary for p in chosen), strict=True))
        # A short time is a high bandwidth, so the ends of the interval change places.
        above = [value * _gain(times.median, times.low) for value, times in pairs]
        below = [-value * _gain(times.median, times.high) for value, times in pairs]
        _add(figure, name, chosen, values, lines[name], (above, below), "GB/s")
    return figure


def _gain(median: float, end: float | None) -> float:
    """By what share the bandwidth changes from the median time to an end of the interval."""
    return median / end - 1 if end else 0.0


def _by_algorithm(points: list[Point]) -> Iterable[tuple[str, list[Point]]]:
    for name in dict.fromkeys(p.algorithm for p in points):
        yield name, [p for p in points if p.algorithm == name]


def _figure(title: str) -> Any:
    import plotly.graph_objects as go

    axis = {"type": "log", "showgrid": True, "gridcolor": "#e3e7ea", "linecolor": "#5b6670"}
    return go.Figure(
        layout={
            "template": "none",
            "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1b1f24"},
            "title": {"text": title, "x": 0.01, "xanchor": "left", "font": {"size": 15}},
            "xaxis": {**axis, "title": {"text": "size of the total vector [B]", "standoff": 8}},
            "yaxis": {**axis, "automargin": True},
            "showlegend": False,
            "margin": {"l": 60, "r": 15, "t": 40, "b": 45},
            "hovermode": "x unified",
        }
    )


def _add(
    figure: Any,
    name: str,
    points: list[Point],
    values: list[float],
    line: _Line,
    bars: tuple[list[float], list[float]],
    unit: str,
) -> None:
    sizes = [p.size for p in points]
    figure.add_scatter(
        x=sizes,
        y=values,
        name=name,
        mode="lines+markers",
        line={"color": line.color, "dash": line.dash, "width": 1.8},
        marker={"symbol": line.symbol, "size": 7},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": bars[0],
            "arrayminus": bars[1],
            "thickness": 1,
            "width": 3,
        },
        hovertemplate=f"%{{y:.4g}} {unit}",
    )
    shown = sorted({*sizes, *(figure.layout.xaxis.tickvals or ())})
    figure.update_xaxes(tickvals=shown, ticktext=_labels(shown))
    seen = [*(figure.layout.yaxis.tickvals or ()), *values]
    ticks = decimal_ticks(min(seen), max(seen))
    figure.update_yaxes(tickvals=ticks, ticktext=[_positional(tick) for tick in ticks])


def _labels(sizes: list[int]) -> list[str]:
    """Labels of the sizes; where there are many, only of every so many."""
    every = -(-len(sizes) // 7)
    return [format_size(size) if i % every == 0 else "" for i, size in enumerate(sizes)]


def _positional(value: float) -> str:
    """A number without exponent: 0.00001, 5,000."""
    return f"{value:,.12f}".rstrip("0").rstrip(".")


def decimal_ticks(least: float, most: float) -> list[float]:
    """Round numbers that enclose a range: 1, 2 and 5 of each power of ten, or 1 if it is wide."""
    decades = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    digits = (1, 2, 5) if len(decades) <= 5 else (1,)
    ticks = [digit * 10.0**decade for decade in decades for digit in digits]
    inside = [tick for tick in ticks if least <= tick <= most]
    below = max((tick for tick in ticks if tick < least), default=None)
    above = min((tick for tick in ticks if tick > most), default=None)
    return [tick for tick in (below, *inside, above) if tick is not None]


def _plot(figure: Any) -> str:
    # No tag inside the JSON may end the script element.
    described = figure.to_json().replace("<", "\\u003c")
    return f'<div class="plot"><script type="application/json">{described}</script></div>'


def _table(points: list[Point]) -> str:
    heads = "".join(
        f"<th{_side(c)}>{html.escape(c.name)}"
        f'<span class="unit">{html.escape(c.unit) or "&nbsp;"}</span></th>'
        for c in table.COLUMNS
    )
    rows, before = [], None
    for point in points:
        first = ' class="first"' if before is not None and before != point.size else ""
        before = point.size
        cells = "".join(
            f"<td{_side(c)}>{html.escape(cell)}</td>"
            for c, cell in zip(table.COLUMNS, table.row(point), strict=True)
        )
        rows.append(f"<tr{first}>{cells}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _side(column: table.Column) -> str:
    """The class attribute of a column's cells; on a phone minor columns give way."""
    classes = ["number"] * column.number + ["minor"] * (column.name in _MINOR)
    return f' class="{" ".join(classes)}"' if classes else ""


def _facts(run: Run) -> str:
    facts, rows = run.facts, [("run", run.name)]
    for host, entry in facts.get("hosts", {}).items():
        rows.append((f"host {host}", f"{len(entry['ranks'])} ranks, {len(entry['cores'])} cores"))
    if "clock" in facts:
        rows.append(("clock", f"{facts['clock']['name']}, {facts['clock']['cost'] * 1e9:.0f} ns"))
    plain = ("started", "mpi", "mpi_standard", "mpicoll", "commit", "python", "numpy", "mpi4py")
    rows += [(name, str(facts[name])) for name in (*plain, "processor", "system") if name in facts]
    if "arguments" in facts:
        rows.append(("command", " ".join(["mpicoll", *facts["arguments"]])))
    for name in ("settings", "environment", "slurm"):
        if facts.get(name):
            rows.append((name, ", ".join(f"{k}={v}" for k, v in facts[name].items())))
    cells = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in rows
    )
    return f'<div class="scroll"><table class="facts"><tbody>{cells}</tbody></table></div>'
