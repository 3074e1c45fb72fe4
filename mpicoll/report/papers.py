"""The plots of a report as files for papers, one each: as wide as a column, or two for a map."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpicoll.base.files import replacing
from mpicoll.report import style, tables
from mpicoll.report.content import Content, Map, Section, Value, curve, microseconds, over_native
from mpicoll.report.figures import BOUND, positional, usual, vertical
from mpicoll.report.style import Line
from mpicoll.tuning import NATIVE

_COLUMN, _TWO_COLUMNS, _HEIGHT = 3.4, 7.0, 3.0  # inches
_STYLE: Any = {
    "font.size": 7,
    "lines.markersize": 3,
    "lines.linewidth": 0.9,
    "svg.fonttype": "none",
    "text.parse_math": False,  # names come from files
}


def write(folder: Path, content: Content, ending: str) -> list[Path]:
    """Write times, ratios, bandwidths and residuals of each section, and maps of collectives.

    Args:
        folder: where to; it exists.
        content: what is drawn.
        ending: format of the files: svg, png or pdf.

    Returns:
        The files.

    Raises:
        OSError: one cannot be written.
        ImportError: matplotlib is missing.
    """
    import matplotlib

    files: list[Path] = []
    lines = {name: style.lines(content.choices(name)) for name in content.collectives}

    def save(figure: Any, name: str) -> None:
        number = sum(path.stem.startswith(name) for path in files)
        files.append(folder / f"{name}{f'-{number + 1}' if number else ''}.{ending}")
        undated = {"metadata": {"Date": None}} if ending == "svg" else {}
        with replacing(files[-1]) as draft:
            figure.savefig(draft, dpi=300, **undated)

    with matplotlib.rc_context(_STYLE):
        for section in content.sections:
            if not section.series:
                continue  # all results were wrong
            mine = lines[section.collective]
            save(_against(section, mine, "time [µs]", microseconds), f"{section.name}-time")
            ratios = _over_native(section, mine)
            if ratios is not None:
                save(ratios, f"{section.name}-native")
            if section.factor:
                drawn = _against(section, mine, "bus bandwidth [GB/s]", section.bandwidth)
                save(drawn, f"{section.name}-bandwidth")
            if any(series.residuals for series in section.series):
                save(_residuals(section, mine), f"{section.name}-residuals")
        for found in content.maps:
            where = "node" if found.near else "messages"
            save(_map(found, lines[found.collective]), f"{found.collective}-{where}-map")
    return files


def _plot(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _axes(section: Section, what: str) -> tuple[Any, Any]:
    figure, axes = _plot(_COLUMN, _HEIGHT)
    axes.set_xscale("log", base=2)
    axes.set_xticks(section.measured, section.ticks)
    axes.minorticks_off()
    title = f"{section.collective}, P = {section.ranks}" if section.ranks else section.collective
    axes.set(xlabel=section.axis, ylabel=what, title=title)
    axes.grid(color="0.92", linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _against(section: Section, lines: dict[str, Line], what: str, value: Value) -> Any:
    """Lines through medians with their intervals, and thin ones of the model, against size."""
    figure, axes = _axes(section, what)
    seen: list[float] = []
    for series in section.series:
        if series.choice not in section.shown:
            continue
        line = lines[series.choice]
        x = [section.at(mark) for mark in series.marks]
        y, *bars = zip(*(mark.bar(value) for mark in series.marks), strict=True)
        if series.line:
            dashed = {"color": line.color, "linestyle": (0, (4, 3)), "linewidth": 0.5}
            axes.plot(*curve(series.line, value), **dashed)
        _medians(axes, line, series.choice, x, y, bars)
        seen += y
    if section.bound:
        axes.plot(*curve(section.bound, value), color="0.4", linestyle=":", label=BOUND)
    _scale(axes, seen)
    _legend(figure)
    return figure


def _over_native(section: Section, lines: dict[str, Line]) -> Any:
    """How many times as fast as the library's own; None where that was not measured."""
    found = {
        series.choice: ratios
        for series in section.series
        if series.choice in section.shown
        if (ratios := over_native(section, series))
    }
    if not found:
        return None
    figure, axes = _axes(section, f"× {NATIVE} (above 1: faster)")
    axes.axhline(1, color="0.5", linewidth=0.6)
    for choice, ratios in found.items():
        y = [one.middle for one in ratios]
        bars = [[one.middle - one.low for one in ratios], [one.high - one.middle for one in ratios]]
        _medians(axes, lines[choice], choice, [one.at for one in ratios], y, bars)
    _scale(axes, [0.9, 1.1, *(one.middle for ratios in found.values() for one in ratios)])
    _legend(figure)
    return figure


def _medians(axes: Any, line: Line, name: str, x: Any, y: Any, bars: Any) -> None:
    face = {"markerfacecolor": "none"} if line.symbol.endswith("open") else {}
    drawn = {"color": line.color, "marker": line.marker, "label": name, **face}
    axes.errorbar(x, y, bars, elinewidth=0.6, **drawn)


def _scale(axes: Any, values: list[float]) -> None:
    """A logarithmic axis for some values; what lies far from all of them is cut off."""
    ticks, (low, high) = vertical(values)
    ticks = [tick for tick in ticks if low <= tick <= high] or ticks
    axes.set_yscale("log")
    # matplotlib's own labels of powers are formulas, which are not parsed here.
    axes.set_yticks(ticks, [*map(positional, ticks)])
    axes.minorticks_off()
    axes.set_ylim(low, high)


def _residuals(section: Section, lines: dict[str, Line]) -> Any:
    figure, axes = _axes(section, "error of the model [%]")
    axes.axhline(0, color="0.5", linewidth=0.6)
    for series in section.series:
        if series.residuals and series.choice in section.shown:
            line = lines[series.choice]
            x, errors = zip(*series.residuals, strict=True)
            drawn = {"color": line.color, "marker": line.marker}
            axes.plot(x, [100 * error for error in errors], label=series.choice, **drawn)
    every = [error for series in section.series for _, error in series.residuals]
    reach = 110 * usual(every)
    axes.set_ylim(-reach, reach)
    _legend(figure)
    return figure


def _legend(figure: Any) -> None:
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=6)


def _map(found: Map, lines: dict[str, Line]) -> Any:
    """Squares in the colour of the fastest, with the regret of the default choice."""
    from matplotlib.patches import Patch, Rectangle

    figure, axes = _plot(_TWO_COLUMNS, 0.9 + 0.32 * len(found.rows))
    for y, row in enumerate(found.rows.values()):
        for x, square in enumerate(row):
            if square is not None:
                color = tables.tint(lines[square.best].color)
                axes.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, color=color))
                axes.text(x, y, tables.percent(square), ha="center", va="center")
    axes.set_xlim(-0.5, len(found.sizes) - 0.5)
    axes.set_ylim(len(found.rows) - 0.5, -0.5)
    axes.set_xticks(range(len(found.sizes)), [tables.column(*sizes) for sizes in found.sizes])
    axes.set_yticks(range(len(found.rows)), [*map(str, found.rows)])
    title = f"{found.collective}: the fastest, and the regret of the default choice"
    axes.set(xlabel="size of the whole vector [B]", ylabel="ranks", title=title)
    axes.spines[:].set_visible(False)
    names = dict.fromkeys(square.best for row in found.rows.values() for square in row if square)
    figure.legend(
        handles=[Patch(color=tables.tint(lines[name].color), label=name) for name in names],
        loc="outside right upper",
        frameon=False,
    )
    return figure


def by_ranks(
    path: str | Path, series: Mapping[str, Mapping[int, float]], title: str, what: str
) -> None:
    """Draw lines by number of ranks, both axes logarithmic.

    Args:
        path: its ending chooses the format (svg, pdf, png).
        series: for the name of each line, values by number of ranks.
        title: of the plot.
        what: the values, with their unit.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: the ending is of no known format.
    """
    figure, axes = _plot(7, 4.5)
    for name, values in series.items():
        ranks = sorted(values)
        axes.plot(ranks, [values[rank] for rank in ranks], ".-", lw=1, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set(xlabel="number of ranks", ylabel=what, title=title)
    axes.grid(color="0.9")
    axes.legend()
    with replacing(path) as draft:
        ending = draft.suffix[1:] or "png"
        undated = {"Date": None} if ending == "svg" else None
        figure.savefig(draft, format=ending, metadata=undated)
