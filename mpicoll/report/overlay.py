"""Several training runs on one page: what differs, and their lines in the same plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from html import escape as escaped
from pathlib import Path

from mpicoll.base.files import write_atomically
from mpicoll.report import page, tables, training
from mpicoll.report.figures import Figure, bare, line
from mpicoll.report.style import COLORS
from mpicoll.report.tables import Head
from mpicoll.train import history
from mpicoll.train.history import History

#: Points of a run as (steps made, value).
Points = list[tuple[int, float]]


def write(path: Path, runs: Sequence[History], refresh: float | None = None) -> None:
    """Write the page; an older file is replaced only when the new one is complete.

    Args:
        path: Where.
        runs: What is shown; their names are those of their folders.
        refresh: Seconds after which a browser reads the page again; None for never.

    Raises:
        OSError: The file cannot be written.
        ImportError: plotly is missing.
    """
    write_atomically(path, render(runs, refresh))


def render(runs: Sequence[History], refresh: float | None = None) -> str:
    """The page as one string."""
    named = _named(runs)
    title = f"Runs {', '.join(named)}"
    times = {name: history.elapsed(run) for name, run in named.items()}
    plots = [*_both("loss", "loss of a batch", named, times, training.batch_losses)]
    for part, name in dict.fromkeys(one for run in runs for one in training.measured(run)):
        what = f"{name} of the {training.SETS[part]}"
        values = partial(training.by_epoch, part=part, name=name)
        plots += _both(f"{part}-{name}", what, named, times, values)
    body = [
        f"<h1>{escaped(title)}</h1>",
        _summary(named, times),
        "<h2>What differs</h2>",
        _differences(named),
        '<h2>Progress</h2><section><div class="plots">',
        *(page.plot(name, figure) for name, figure in plots),
        "</div>",
        '<p class="faint">Left: over steps. Right: over the seconds that the first rank spent in '
        "steps, without evaluations.</p></section>",
        '<h2>Where the time goes</h2><section><div class="plots">',
        page.plot("time", _times(named)),
        '</div><p class="faint">Mean over the steps of all ranks.</p></section>',
    ]
    return page.document(title, "".join(body), refresh)


def _named(runs: Sequence[History]) -> dict[str, History]:
    """Runs by the names of their folders; where two are alike, with that of the run."""
    folders = [run.folder for run in runs]
    return {
        run.folder if folders.count(run.folder) == 1 else f"{run.folder} ({run.run})": run
        for run in runs
    }


def _both(
    key: str,
    what: str,
    runs: dict[str, History],
    times: dict[str, dict[int, float]],
    values: Callable[[History], Points],
) -> list[tuple[str, Figure]]:
    """A figure over steps and one over seconds."""
    steps, seconds = bare("step", what), bare("time [s]", what)
    for number, (name, run) in enumerate(runs.items()):
        points, color = values(run), COLORS[number % len(COLORS)]
        taken = times[name]
        timed = [(taken[step], value) for step, value in points if step in taken]
        for figure, drawn in ((steps, points), (seconds, timed)):
            mode = "lines" if key == "loss" else "lines+markers"
            figure["data"].append(line(escaped(name), drawn, color, mode))
    return [(f"{key}-by-step", steps), (f"{key}-by-seconds", seconds)]


def _summary(runs: dict[str, History], times: dict[str, dict[int, float]]) -> str:
    heads = [Head("run", number=False), Head("trains", number=False), Head("steps")]
    heads += [Head("epochs"), Head("time", "s"), Head("step", "ms"), Head("last", number=False)]
    rows = []
    for name, run in runs.items():
        taken = times[name]
        seconds = max(taken.values(), default=0.0)
        last = [
            f"{training.SETS[part]} {measure} {points[-1][1]:.4f}"
            for part, measure in training.measured(run)
            if (points := training.by_epoch(run, part, measure))
        ]
        steps = training.most_steps(run)
        mean = f"{1e3 * seconds / len(taken):.3f}" if taken else ""
        rows.append(
            (
                *(name, training.named(run), str(steps), str(len(run.epochs))),
                *(f"{seconds:.2f}", mean, "; ".join(last)),
            )
        )
    return tables.grid(heads, rows)


def _differences(runs: dict[str, History]) -> str:
    """What the configurations do not have in common."""
    configs = [{"ranks": str(run.ranks), **training.told(run)} for run in runs.values()]
    names = [*dict.fromkeys(name for config in configs for name in config)]
    rows = [
        (name, *texts)
        for name in names
        if len({*(texts := [config.get(name, "–") for config in configs])}) > 1
    ]
    if not rows:
        return "<p>The configurations are the same.</p>"
    heads = [Head("key", number=False), *(Head(name, number=False) for name in runs)]
    return tables.grid(heads, rows)


def _times(runs: dict[str, History]) -> Figure:
    begun = {name: run for name, run in runs.items() if run.steps}
    return training.bars([*begun], [history.mean_of_ranks(run) for run in begun.values()])
