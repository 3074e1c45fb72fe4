"""A report as one web page that needs nothing else: no network, no second file.

The page is made for a screen of any width and for paper.  Its policy forbids it to load anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape as escaped
from importlib import resources
from pathlib import Path

from mpicoll.base.files import write_atomically
from mpicoll.base.wording import plural
from mpicoll.bench import table
from mpicoll.bench.records import Run
from mpicoll.report import figures, style, tables
from mpicoll.report.advice import first
from mpicoll.report.content import Content, Map, Section
from mpicoll.report.style import Line
from mpicoll.tuning import NATIVE

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
#: Tables of so many rows are shown without being asked for.
_FEW = 40
#: Recommendations on the first screen, at most.
_FIRST = 6


def write(path: Path | str, content: Content) -> None:
    """Write the page; an older file is replaced only when the new one is complete.

    Raises:
        OSError: if the file cannot be written.
        ImportError: if plotly is missing.
    """
    write_atomically(path, render(content))


def render(content: Content) -> str:
    """The page as one string."""
    title = f"{_what(content.collectives)}: time and bandwidth by algorithm"
    body = "".join(
        [
            f"<h1>{escaped(title)}</h1>",
            f'<p class="faint">{escaped(_subtitle(content.runs))}</p>',
            _answer(content),
            *map(_warning, _warnings(content)),
            *(f'<p class="faint">{escaped(remark)}</p>' for remark in content.remarks),
            _contents(content),
            *(_collective(content, name) for name in content.collectives),
            _model(content),
            '<h2 id="environment">Environment</h2>',
            tables.environment(content.runs),
        ]
    )
    return document(title, body)


def document(title: str, body: str, refresh: float | None = None) -> str:
    """A whole page, which loads nothing; it is read again after `refresh` seconds."""
    from plotly.offline import get_plotlyjs

    again = "" if refresh is None else f'<meta http-equiv="refresh" content="{refresh:g}">\n'
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{again}<title>{escaped(title)}</title>\n<style>{_asset('page.css')}</style>\n"
        f"<script>{get_plotlyjs()}</script>\n</head>\n<body>\n{body}\n"
        f"<script>{_asset('page.js')}</script>\n</body>\n</html>\n"
    )


def _what(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} collectives"


def _asset(name: str) -> str:
    return (resources.files("mpicoll.report") / name).read_text(encoding="utf-8")


def _subtitle(runs: Sequence[Run]) -> str:
    facts = runs[0].facts
    ranks = sorted({p.ranks for run in runs for p in run.points})
    parts = [
        f"{', '.join(map(str, ranks))} rank{'' if ranks == [1] else 's'}",
        plural(len(runs), "run"),
    ]
    if "hosts" in facts:
        parts.append(f"host {', '.join(facts['hosts'])}")
    if "mpi" in facts:
        parts.append(facts["mpi"].split(",")[0])
    if "started" in facts:
        parts.append(facts["started"])
    return " · ".join(parts)


def _answer(content: Content) -> str:
    """What to choose, what that gains and how noisy the machine is, before all else."""
    if not content.advice:
        return ""
    spread = (
        "unknown with one launch; measure several"
        if content.noise is None
        else f"identical launches differ by {100 * content.noise:.1f} %"
    )
    lines = [
        f"<li><strong>{escaped(one.choice)}</strong> for {escaped(one.where)}: "
        f"{escaped(one.worth)}</li>"
        for one in first(content.advice)[:_FIRST]
    ]
    rest = (
        f"<details><summary>All {len(content.advice)} recommendations, by number of ranks and size"
        f"</summary>{tables.advice(content.advice)}</details>"
        if len(content.advice) > len(lines)
        else ""
    )
    return (
        f'<section class="answer"><ul>{"".join(lines)}'
        f"<li>Noise floor: {spread}</li></ul>"
        f"{rest}"
        '<p class="faint">To use these choices, run <code>mpicoll tune</code> on the same files '
        "and set <code>MPICOLL_TUNING</code> to the file it writes.</p></section>"
    )


def _warnings(content: Content) -> Iterable[str]:
    """What a reader must know first, each once."""
    return dict.fromkeys(
        text for run in content.runs for text in table.warnings(run.facts, run.points)
    )


def _warning(text: str) -> str:
    return f'<p class="warning">{escaped(text)}</p>'


def _contents(content: Content) -> str:
    links = [(f"c{i}", name) for i, name in enumerate(content.collectives)]
    links += [("model", "model")] * (content.found is not None) + [("environment", "environment")]
    entries = "".join(f'<a href="#{target}">{escaped(name)}</a>' for target, name in links)
    return f"<nav>{entries}</nav>"


def _collective(content: Content, name: str) -> str:
    number = content.collectives.index(name)
    sections = [section for section in content.sections if section.collective == name]
    lines = style.lines(content.choices(name))
    maps = [found for found in content.maps if found.collective == name]
    noise = content.noise
    return "".join(
        [
            f'<h2 id="c{number}">{escaped(name)}</h2>',
            *(_map(found, lines) for found in maps),
            *(_section(section, lines, noise) for section in sections),
        ]
    )


def _map(found: Map, lines: dict[str, Line]) -> str:
    where = "within a node, by shared memory" if found.near else "by messages"
    said = (
        "Each square names the fastest algorithm, and the regret of the built-in choice: how much "
        "longer it takes. Different launches choose the fastest and give the times. Regrets of "
        f"{100 * tables.MUCH:.0f} % and more are bold"
    )
    if any(square and not square.tested for row in found.rows.values() for square in row):
        said += f"; {tables.UNTESTED} marks points of one launch, whose times favour the fastest"
    return (
        f"<h3>The fastest algorithm, ranks {where}</h3>{tables.choices(found, lines)}"
        f'<p class="faint">{said}.</p>'
    )


def _section(section: Section, lines: dict[str, Line], noise: float | None) -> str:
    ranks = plural(section.ranks, "rank") if section.ranks else "by number of ranks"
    head = ", ".join(filter(None, (section.collective, ranks, section.kind.words)))
    plots = [("time", figures.times(section, lines))] if section.series else []
    if plots and (over := figures.ratios(section, lines, noise))["data"]:
        plots.append(("native", over))
    if plots and section.factor:
        plots.append(("bandwidth", figures.bandwidths(section, lines)))
    if any(series.residuals for series in section.series):
        plots.append(("residuals", figures.residuals(section, lines, noise)))
    few = " open" if len(section.points) <= _FEW else ""
    parts = [
        f"<section><h3>{escaped(head)}</h3>",
        _legend(section, lines),
        '<div class="plots">',
        *(plot(f"{section.name}-{what}", figure) for what, figure in plots),
        "</div>",
        f'<p class="faint">{escaped(_key(section, noise, {what for what, _ in plots}))}</p>',
    ]
    if section.crossovers:
        parts.append(f"<h4>Crossovers</h4>{tables.crossovers(section.crossovers)}")
    parts.append(
        f"<details{few}><summary>Numbers: {plural(len(section.points), 'point')}</summary>"
        f"{tables.numbers(section)}"
    )
    notes = table.notes(point for _, point in section.points)
    parts += [f'<p class="faint">{escaped(note)}</p>' for note in notes]
    return "".join([*parts, "</details></section>"])


def _key(section: Section, noise: float | None, plots: set[str]) -> str:
    """How the plots of a section are read."""
    launches = len({launch for launch, _ in section.points})
    said = [
        "Lines go through medians of the slowest rank's time"
        + (f" over {launches} launches; bars go " if launches > 1 else "; bars are its ")
        + (
            "95 % interval over repetitions"
            if launches == 1
            else "from the fastest to the slowest launch"
            if launches < 8
            else "over the 95 % interval of launches"
        ),
        f"dots are repetitions, at most {figures.RAW} of each point, with the extremes",
    ]
    if any(series.line for series in section.series):
        said.append("thin dashed lines are the model")
    if section.crossovers:
        said.append("vertical lines are crossovers, measured (solid) and predicted (dashed)")
    if any(point.wrong for _, point in section.points):
        said.append("points with wrong results are only in the table")
    if "native" in plots:
        said.append(
            f"× {NATIVE} is the library's time divided by that of the algorithm, "
            + ("launch by launch" if launches > 1 else "with bars from both intervals")
        )
    said.append("axes fit the medians, and points far outside are cut off")
    if section.factor:
        said.append(
            "bus bandwidth is size over time, corrected for the collective and the number of ranks"
        )
    if noise:
        said.append("grey bands are the spread of identical launches")
    return "; ".join(said) + "."


def _legend(section: Section, lines: dict[str, Line]) -> str:
    """The choices with their lines, above the plots they belong to."""
    entries = []
    for number, series in enumerate(section.series):
        line, pressed = lines[series.choice], "true" if series.choice in section.shown else "false"
        entries.append(
            f'<button type="button" value="{number}" aria-pressed="{pressed}">'
            f"{_sample(line.color, '8 0', line.sign)}{escaped(series.choice)}</button>"
        )
    if section.bound:
        entries.append(f"<span>{_sample('#5b6670', '1 3', '')}{figures.BOUND}</span>")
    return f'<div class="legend">{"".join(entries)}</div>'


def _sample(color: str, dash: str, sign: str) -> str:
    return (
        '<svg width="36" height="14" aria-hidden="true">'
        f'<path d="M0 7h36" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>'
        f'<text x="18" y="11" text-anchor="middle" font-size="12" fill="{color}">{sign}</text>'
        "</svg>"
    )


def plot(name: str, figure: figures.Figure) -> str:
    """A plot of a page."""
    # No tag inside the JSON may end the script element.
    described = json.dumps(figure, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<div class="plot" data-name="{escaped(name)}">'
        f'<script type="application/json">{described}</script><div class="drawing"></div>'
        '<div class="save"><button type="button" value="svg">SVG</button>'
        '<button type="button" value="png">PNG</button></div></div>'
    )


def _model(content: Content) -> str:
    found = content.found
    if found is None:
        return ""
    parts = ['<h2 id="model">The model</h2>']
    if found.regrets:
        parts += [
            "<h3>Regret: what a choice costs</h3>",
            tables.regrets(found),
            '<p class="faint">How much longer the choice takes than the fastest. Different '
            "launches choose and give the times, so a regret can be negative.</p>",
        ]
    parts += [
        "<h3>Parameters of all algorithms together</h3>",
        tables.parameters(found),
        "<h3>Errors of predictions for what was left out of the fit [%]</h3>",
        f"<details><summary>By algorithm</summary>{tables.worth(found)}</details>",
    ]
    return "".join(parts)
