"""The plots of a page, in plotly's words: dictionaries of data and layout.

Texts go in escaped, for plotly reads tags in them.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mpicoll.bench.stats import percentile
from mpicoll.report.content import Section, Value, curve, microseconds, over_native
from mpicoll.report.style import COLORS, Line
from mpicoll.tuning import NATIVE

Figure = dict[str, Any]

BOUND = "lower bound"
#: Repetitions that are drawn of each point, at most.
RAW = 24
_FONT = "system-ui, sans-serif"
_SPREAD = 0.14  # octaves to each side in which the repetitions of a size are drawn
_FAINT, _GRID, _INK = "#5b6670", "#e3e7ea", "#1b1f24"


def bare(x: str, y: str) -> Figure:
    """A figure with titles of its axes, and nothing in it yet."""
    axis = {"gridcolor": _GRID, "linecolor": _FAINT, "zeroline": False}
    return {
        "data": [],
        "layout": {
            "xaxis": {**axis, "title": {"text": x}},
            "yaxis": {**axis, "title": {"text": y}},
            "margin": {"l": 60, "r": 12, "t": 36, "b": 44},  # buttons are above the plot
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
            "paper_bgcolor": "white",
            "plot_bgcolor": "white",
            "font": {"family": _FONT, "color": _INK, "size": 12},
        },
    }


def stacked(
    what: str,
    unit: str,
    labels: Sequence[str],
    parts: Mapping[str, list[float]],
    colors: Mapping[str, str] | None = None,
) -> Figure:
    """A bar for each label, of parts on top of each other.

    Args:
        what: The vertical axis in words.
        unit: Of the values.
        labels: A text for each bar.
        parts: For each name its value in each bar; at most six without `colors`.
        colors: By name.
    """
    figure = bare("", f"{what} [{unit}]")
    figure["layout"] |= {"barmode": "stack", "bargap": 0.3 if len(labels) > 4 else 0.6}
    colors = colors or dict(zip(parts, COLORS, strict=False))
    x = [html.escape(label) for label in labels]
    for name, y in parts.items():
        bar: Figure = {"type": "bar", "name": name, "x": x, "y": y}
        bar |= {"marker": {"color": colors[name]}, "hovertemplate": f"%{{y:.3g}} {unit}"}
        figure["data"].append(bar)
    return figure


def times(section: Section, lines: dict[str, Line]) -> Figure:
    """Time against size, or against the number of ranks."""
    return _against(section, lines, "time of the slowest rank [µs]", microseconds, "µs")


def bandwidths(section: Section, lines: dict[str, Line]) -> Figure:
    """Bus bandwidth against size."""
    return _against(section, lines, "bus bandwidth [GB/s]", section.bandwidth, "GB/s")


def ratios(section: Section, lines: dict[str, Line], noise: float | None) -> Figure:
    """How many times as fast as the library's own, against size; empty where that is unknown."""
    figure = _figure(section, f"× {NATIVE} (above 1: faster)")
    for number, series in enumerate(section.series):
        found = over_native(section, series)
        if found:
            x = [one.at for one in found]
            bars = [(one.middle, one.middle - one.low, one.high - one.middle) for one in found]
            trace = _trace(section, number, series.choice)
            figure["data"].append(_medians(trace, lines[series.choice], x, bars, "×"))
    if figure["data"]:
        figure["layout"]["shapes"] = [_across(1, 1)] + (
            [_across(1 / (1 + noise), 1 + noise)] if noise else []
        )
        _scaled(figure, least=0.9, most=1.1)
    return figure


def residuals(section: Section, lines: dict[str, Line], noise: float | None) -> Figure:
    """What the model says over what was measured, less one, against size."""
    figure = _figure(section, "error of the model [%]")
    for number, series in enumerate(section.series):
        if not series.residuals:
            continue
        line = lines[series.choice]
        x, errors = zip(*series.residuals, strict=True)
        figure["data"].append(
            {
                **_trace(section, number, series.choice),
                "x": x,
                "y": [100 * error for error in errors],
                "mode": "lines+markers",
                "line": {"color": line.color, "width": 1},
                "marker": {"symbol": line.symbol, "size": 7, "color": line.color},
                "hovertemplate": "%{y:+.3g} %",
            }
        )
    reach = 110 * max(
        noise or 0, usual([error for s in section.series for _, error in s.residuals])
    )
    figure["layout"]["yaxis"].update(
        type="linear",
        zeroline=True,
        zerolinecolor=_FAINT,
        range=[-reach, reach],
        ticksuffix=" %",
    )
    figure["layout"]["shapes"] = [_across(-100 * noise, 100 * noise)] if noise else []
    return figure


def usual(errors: Sequence[float]) -> float:
    """How far a plot of errors goes: to the largest, or to twice the 90th percentile of them."""
    ordered = sorted(map(abs, errors))
    return max(min(ordered[-1], 2 * percentile(ordered, 90)), 1e-3) if ordered else 1e-3


def _across(low: float, high: float) -> Figure:
    """A line or a band from the left to the right."""
    where = {"xref": "paper", "x0": 0, "x1": 1, "y0": low, "y1": high, "layer": "below"}
    if low == high:
        return {**where, "type": "line", "line": {"color": _FAINT, "width": 1}}
    grey = {"fillcolor": _FAINT, "opacity": 0.12, "line": {"width": 0}}
    return {**where, "type": "rect", **grey}


def _against(
    section: Section, lines: dict[str, Line], what: str, value: Value, unit: str
) -> Figure:
    """Repetitions, lines through medians with intervals, the model, the bound and crossovers."""
    figure = _figure(section, what)
    many = len(section.series)
    for number, series in enumerate(section.series):
        line, trace = lines[series.choice], _trace(section, number, series.choice)
        beside = 2 ** (_SPREAD * (2 * number / max(1, many - 1) - 1))
        raw = [
            (section.at(mark) * beside, value(mark.size, seconds))
            for mark in series.marks
            for seconds in mark.raw(RAW)
        ]
        if raw:
            figure["data"].append(
                {
                    **trace,
                    "x": [round(at, 3) for at, _ in raw],
                    "y": [float(f"{y:.4g}") for _, y in raw],
                    "mode": "markers",
                    "marker": {"color": line.color, "size": 3, "opacity": 0.3},
                    "hoverinfo": "skip",
                }
            )
        if series.line:
            at, modelled = curve(series.line, value)
            figure["data"].append(
                {
                    **trace,
                    "x": at,
                    "y": modelled,
                    "mode": "lines",
                    "line": {"color": line.color, "dash": "4px,3px", "width": 1},
                    "hoverinfo": "skip",
                }
            )
        x = [section.at(mark) for mark in series.marks]
        bars = [mark.bar(value) for mark in series.marks]
        figure["data"].append(_medians(trace, line, x, bars, f" {unit}"))
    if section.bound:
        x, y = curve(section.bound, value)
        figure["data"].append(
            {
                "type": "scatter",
                "name": BOUND,
                "meta": -1,
                "x": x,
                "y": y,
                "mode": "lines",
                "line": {"color": _FAINT, "dash": "1 3", "width": 2},
                "hoverinfo": "skip",
            }
        )
    _crossings(figure, section)
    return _scaled(figure)


def _medians(
    trace: Figure,
    line: Line,
    x: Sequence[int],
    bars: Sequence[tuple[float, float, float]],
    unit: str,
) -> Figure:
    """A line through medians, each with its interval."""
    middle, below, above = zip(*bars, strict=True)
    return {
        **trace,
        "x": x,
        "y": middle,
        "mode": "lines+markers",
        "line": {"color": line.color, "width": 1.8},
        "marker": {"symbol": line.symbol, "size": 7, "color": line.color},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": above,
            "arrayminus": below,
            "thickness": 1,
            "width": 3,
            "color": line.color,
        },
        "hovertemplate": f"%{{y:.4g}}{unit}",
    }


def _trace(section: Section, number: int, choice: str) -> Figure:
    return {
        "type": "scatter",
        "name": html.escape(choice),
        "meta": number,
        "visible": choice in section.shown,
    }


def _crossings(figure: Figure, section: Section) -> None:
    """Where the fastest choice changes: measured as a line, predicted as a broken one."""
    shapes = []
    for crossover in section.crossovers:
        for found, dash in ((crossover.measured, "solid"), (crossover.predicted, "4 4")):
            if found is not None:
                shapes.append(
                    {
                        "type": "line",
                        "x0": found[0],
                        "x1": found[0],
                        "yref": "paper",
                        "y0": 0,
                        "y1": 1,
                        "line": {"color": "#9aa4ad", "width": 1, "dash": dash},
                        "layer": "below",
                    }
                )
    figure["layout"]["shapes"] = shapes


# --- axes -----------------------------------------------------------------------------------------


def _figure(section: Section, title: str) -> Figure:
    axis = {"type": "log", "showgrid": True, "gridcolor": _GRID, "linecolor": _FAINT}
    measured = section.measured
    low, high = math.log2(max(1, measured[0])), math.log2(max(1, measured[-1]))
    margin = max(0.3, 0.04 * (high - low))
    return {
        "data": [],
        "layout": {
            "font": {"family": _FONT, "size": 13, "color": _INK},
            "title": {"text": title, "x": 0.01, "xanchor": "left", "font": {"size": 15}},
            "xaxis": {
                **axis,
                "title": {"text": section.axis, "standoff": 8},
                "range": [(low - margin) * math.log10(2), (high + margin) * math.log10(2)],
                "tickvals": measured,
                "ticktext": section.ticks,
                "zeroline": False,
            },
            "yaxis": {**axis, "automargin": True, "zeroline": False},
            "showlegend": False,
            "margin": {"l": 60, "r": 15, "t": 40, "b": 45},
            "hovermode": "x unified",
            "plot_bgcolor": "#fff",
            "paper_bgcolor": "#fff",
        },
    }


def _scaled(figure: Figure, least: float = math.inf, most: float = 0.0) -> Figure:
    """The plot with a vertical axis for the medians, and for what it must reach besides.

    Repetitions, intervals and a bound that lie far from all medians are cut off.
    """
    seen = [y for trace in figure["data"] if "error_y" in trace for y in trace["y"] if y > 0]
    if seen:
        ticks, limits = vertical([*seen, *(end for end in (least, most) if 0 < end < math.inf)])
        figure["layout"]["yaxis"].update(
            tickvals=ticks,
            ticktext=[positional(tick) for tick in ticks],
            range=[*map(math.log10, limits)],
        )
    return figure


def vertical(values: Sequence[float]) -> tuple[list[float], tuple[float, float]]:
    """Ticks and limits of a logarithmic axis that has all of some values on it."""
    low, high = min(values), max(values)
    margin = max(0.05, 0.06 * math.log10(high / low))
    return decimal_ticks(low, high), (low / 10**margin, high * 10**margin)


def positional(value: float) -> str:
    """A number without exponent: 0.00001, 5,000."""
    return f"{value:,.12f}".rstrip("0").rstrip(".")


def decimal_ticks(least: float, most: float) -> list[float]:
    """Round numbers that enclose a range: so many of each power of ten that some lie within."""
    decades = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    digits: tuple[float, ...] = (1, 2, 5)
    if len(decades) > 5:
        digits = (1,)
    elif most < 4 * least:
        digits = (1, 1.1, 1.2, 1.3, 1.5, 1.7, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
    ticks = [digit * 10.0**decade for decade in decades for digit in digits]
    inside = [tick for tick in ticks if least <= tick <= most]
    below = max((tick for tick in ticks if tick < least), default=None)
    above = min((tick for tick in ticks if tick > most), default=None)
    return [tick for tick in (below, *inside, above) if tick is not None]


def line(name: str, points: Sequence[tuple[float, float]], color: str, mode: str) -> Figure:
    """A line through points, in plotly's mode: `lines`, or `lines+markers`."""
    x, y = zip(*points, strict=True) if points else ((), ())
    drawn = {"name": name, "x": x, "y": y, "mode": mode, "line": {"color": color, "width": 1.5}}
    return drawn | {"hovertemplate": "%{y:.4g}"}
