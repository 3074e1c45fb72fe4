"""Plain plots of lines, in plotly's words."""

from __future__ import annotations

from collections.abc import Sequence

from mpicoll.report.figures import Figure


def line(name: str, points: Sequence[tuple[float, float]], color: str, mode: str) -> Figure:
    """A line through points, with a mark at each where the mode says so."""
    x, y = zip(*points, strict=True) if points else ((), ())
    drawn = {"name": name, "x": x, "y": y, "mode": mode, "line": {"color": color, "width": 1.5}}
    return drawn | {"hovertemplate": "%{y:.4g}"}


def figure(x: str, y: str) -> Figure:
    """An empty plot with the titles of its axes."""
    axis = {"gridcolor": "#e3e7ea", "linecolor": "#5b6670", "zeroline": False}
    return {
        "data": [],
        "layout": {
            "xaxis": {**axis, "title": {"text": x}},
            "yaxis": {**axis, "title": {"text": y}},
            "margin": {"l": 60, "r": 12, "t": 12, "b": 44},
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
            "paper_bgcolor": "white",
            "plot_bgcolor": "white",
            "font": {"color": "#1b1f24", "size": 12},
        },
    }
