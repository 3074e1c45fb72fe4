"""``mpicoll report``: sweeps, a training run or a search as one page, and figures for papers."""

from __future__ import annotations

import json
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpicoll.base.wording import plural
from mpicoll.cli import measured, output
from mpicoll.cli.errors import UsageError, one_of, usage
from mpicoll.cli.measured import Mix, Oversubscribed

if TYPE_CHECKING:
    from mpicoll.bench.records import Run
    from mpicoll.model.build import Found
    from mpicoll.model.cells import Cell, Left
    from mpicoll.train.history import History

_FORMATS = ("svg", "png", "pdf")
#: Seconds from one page of --watch to the next.
_EVERY = 5.0


def command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS",
            help="Files of `mpicoll bench -J`; folders of `train --metrics` or `search`.",
        ),
    ],
    file: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Write the page to this file.")
    ] = Path("report.html"),
    model: Annotated[
        Path | None,
        typer.Option(
            "-m",
            "--model",
            metavar="FILE",
            help="Costs written by `mpicoll fit`; fitted to RUNS if not given.",
        ),
    ] = None,
    no_model: Annotated[
        bool, typer.Option("--no-model", help="Show measurements only, without a model.")
    ] = False,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures", metavar="DIR", help="Also write each plot to a file in this folder."
        ),
    ] = None,
    format_: Annotated[
        str,
        typer.Option(
            "--format", metavar="NAME", help=f"Format of --figures: {', '.join(_FORMATS)}."
        ),
    ] = "svg",
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Write a trace of a training run for Chrome or Perfetto.",
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Refresh the page until the training runs end."),
    ] = False,
    mix: Mix = False,
    oversubscribed: Oversubscribed = False,
) -> int:
    """Write a page about sweeps, a training run or a search: one file that works offline.

    For sweeps it shows what to choose and the gain over the MPI library, times and bandwidths, the
    model and its errors, crossovers, the regret of the default choice, and the environment. For a
    training run it shows losses, accuracies and the time of each rank; several runs share the
    plots. For a search it shows values, rungs, and the best so far. The exit status is 1 if results
    of a sweep were wrong.
    """
    if watch and not any(map(_is_run, runs)):
        raise UsageError("--watch follows training runs: give the folders of their --metrics")
    if any((path / "trials.jsonl").is_file() for path in runs):
        return _search(runs, file)
    if any(map(_is_run, runs)):
        return _training(runs, file, trace, watch)
    if trace is not None:
        raise UsageError("--trace needs a training run: give the folder of its --metrics")
    if no_model and model is not None:
        raise UsageError("--no-model and --model exclude each other; drop one")
    one_of("--format", format_, _FORMATS)
    measured.need(["plotly"] + ["matplotlib"] * (figures is not None), "plot")
    from mpicoll.report import page
    from mpicoll.report.collect import collect

    found = measured.runs(runs, mix)
    cells, result, remarks = _modelled(found, model, no_model, oversubscribed)
    with usage():
        content = collect(found, cells, result, oversubscribed=oversubscribed, remarks=remarks)
    for remark in content.remarks:
        output.remark(f"mpicoll: {remark}")
    page.write(file, content)
    output.text(f"written to {file}")
    if figures is not None:
        from mpicoll.report import papers

        figures.mkdir(parents=True, exist_ok=True)
        count = len(papers.write(figures, content, format_))
        output.text(f"{plural(count, 'figure')} written to {figures}")
    return measured.wrong_runs(found)


def _training(folders: list[Path], file: Path, trace: Path | None, watch: bool) -> int:
    """The page of a training run, or of several."""
    for folder in folders:
        if not _is_run(folder):
            raise UsageError(
                f"{folder} has no metrics of a training run: give folders of --metrics alone"
            )
    if trace is not None and len(folders) > 1:
        raise UsageError("--trace is of one training run: give its folder alone")
    measured.need(["plotly"], "plot")
    from mpicoll.base.files import write_atomically
    from mpicoll.train import history

    if watch:
        _watch(folders, file)
    found = _write_runs(folders, file, None)
    output.text(f"written to {file}")
    if trace is not None:
        write_atomically(trace, json.dumps(history.chrome(found[0])))
        output.text(f"trace of {plural(found[0].ranks, 'rank')} written to {trace}")
    return 0


def _watch(folders: list[Path], file: Path) -> None:
    """Write the page again and again while any of the runs goes on, or until Ctrl-C."""
    from mpicoll.base.locks import is_held
    from mpicoll.train.driver.metrics import locked

    with suppress(KeyboardInterrupt), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a line may be half written; the last page tells all
        said = False
        while any(is_held(locked(folder)) for folder in folders):
            _write_runs(folders, file, _EVERY)
            if not said:
                output.text(f"written to {file}, again every {_EVERY:g} s; Ctrl-C ends this")
                said = True
            time.sleep(_EVERY)


def _write_runs(folders: list[Path], file: Path, refresh: float | None) -> list[History]:
    from mpicoll.report import overlay, training
    from mpicoll.train import history

    with usage():
        found = [history.read(folder) for folder in folders]
    if len(found) == 1:
        training.write(file, found[0], refresh)
    else:
        overlay.write(file, found, refresh)
    return found


def _is_run(folder: Path) -> bool:
    return (folder / "rank-0.jsonl").is_file()


def _search(folders: list[Path], file: Path) -> int:
    """The page of a search."""
    if len(folders) > 1:
        raise UsageError(f"{len(folders)} paths, one a search: give its folder alone")
    measured.need(["plotly"], "plot")
    from mpicoll.report import search
    from mpicoll.train.search import trials

    with usage():
        records = trials.read(folders[0] / trials.FILE)
    search.write(file, records)
    output.text(f"written to {file}")
    return 0


def _modelled(
    runs: list[Run], model: Path | None, no_model: bool, oversubscribed: bool
) -> tuple[list[Cell], Found | None, list[str]]:
    """What can be put together, a model of it, and what is to be said of either."""
    from mpicoll.model.cells import gather

    try:
        cells, left = gather(runs, oversubscribed=oversubscribed)
    except ValueError as error:  # there is still what was measured
        return [], None, [f"no recommendation and no model: {error}"]
    if no_model:
        return cells, None, []
    if model is not None:
        return cells, _judged(cells, left, model), []
    try:
        measured.need(["scipy"], "fit")
        return cells, measured.fitted(runs, cells, left), []
    except ValueError as error:
        return cells, None, [f"no model: {error}"]


def _judged(cells: list[Cell], left: Left, path: Path) -> Found:
    """A model of a file, beside measurements that it need not be fitted to."""
    from mpicoll.model.build import judged

    with usage():
        return judged(measured.model(path), cells, left)
