"""`mpicoll search`: search, show what is under way, say what was found. Rank 0 alone prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from mpicoll.base.deaths import dead, survives
from mpicoll.base.json_lines import Record, finite
from mpicoll.base.wording import measures, plural, ranges
from mpicoll.errors import RankLost
from mpicoll.train.config import Config
from mpicoll.train.driver.failure_detector import failure_detector
from mpicoll.train.ranks import health, signals
from mpicoll.train.ranks.workers import TrainingError
from mpicoll.train.search import trials
from mpicoll.train.search.coordinator import Coordinator, Watch
from mpicoll.train.search.loop import Found, search
from mpicoll.train.search.options import SearchOptions
from mpicoll.train.search.space import Space, Values, in_words

if TYPE_CHECKING:
    from mpi4py import MPI
    from rich.table import Table

#: Trials that the live table shows as the best ones.
_BEST = 5
#: Pictures a second of the live table, at most.
_RATE = 4
#: What to say of a death where nothing has been begun that others could go on with.
_TOO_EARLY = "a rank has died before the search has begun: start it again"


def main(
    space: Space,
    options: SearchOptions,
    comm: MPI.Intracomm,
    *,
    resume: bool = False,
    as_json: bool = False,
    progress: bool | None = None,
) -> int:
    """Search on all ranks of `comm`, and print what comes of it; collective.

    Args:
        space, options: What, and how; equal on all ranks.
        comm: An `mpicoll.Intracomm`.
        resume: Whether to continue the search in the folder.
        as_json: Print one JSON object at the end instead of text.
        progress: Draw a live table; None draws one if standard error is a terminal.

    Returns:
        Exit status, the same on all ranks: 0; 1 if the search failed, or no trial has a score;
        `signals.STATUS` if a signal stopped it. Where ranks have died and the others went on
        (`options.survive`), this process ends with it.
    """
    if not options.survive:
        with failure_detector(Config(), comm):
            return _main(space, options, comm, resume, as_json, progress)[0]
    from mpicoll.comm import exit_on_exception  # starts MPI

    with exit_on_exception():
        try:
            status, lost = _main(space, options, comm, resume, as_json, progress)
        except RankLost as error:
            if error.given_up is not None:
                raise
            health.end(comm, RuntimeError(_TOO_EARLY))
        if lost:
            health.leave(status)
        return status


def _main(
    space: Space,
    options: SearchOptions,
    comm: MPI.Intracomm,
    resume: bool,
    as_json: bool,
    progress: bool | None,
) -> tuple[int, tuple[int, ...]]:
    """The exit status, and which ranks have died."""
    first = comm.Get_rank() == 0
    live = sys.stderr.isatty() if progress is None else progress
    try:
        with _watching(options, live=first and live, lines=first and not as_json) as watch:
            found = search(space, options, comm, resume=resume, watch=watch)
    except RankLost:
        raise
    except TrainingError as error:
        if survives() and dead(comm):
            health.end(comm, error)
        if first:
            print(f"error: {error}", file=sys.stderr, flush=True)
        return 1, ()
    if first:
        facts = asdict(found)
        print(json.dumps(finite(facts), indent=2) if as_json else _conclusion(found), flush=True)
        if not found.complete:
            print(
                f"stopped by a signal: --resume continues from {options.out}",
                file=sys.stderr,
                flush=True,
            )
    if not found.complete:
        return signals.STATUS, found.lost
    return int(found.trial is None), found.lost


def _values(values: Values) -> str:
    return ", ".join(f"{name} {in_words(value)}" for name, value in values.items())


def _conclusion(found: Found) -> str:
    lines = [
        f"{plural(found.trials, 'trial')}, {plural(found.epochs, 'epoch')}, "
        f"{found.seconds:.1f} s; {len(found.failed) or 'none'} failed"
    ]
    if found.lost:
        lines.append(f"died: {ranges(found.lost)}")
    if found.trial is None:
        first = next(iter(found.failed.items()), None)
        lines.append("no trial has a score")
        if first is not None:
            lines.append(f"trial {first[0]}: {first[1]}")
        return "\n".join(lines)
    lines.append(
        f"best: trial {found.trial} after {plural(found.trained, 'epoch')}, "
        f"validation {measures(found.validation)}"
    )
    lines.append(_values(found.values))
    if found.test:
        lines.append(f"test {measures(found.test)}")
    lines.append(f"checkpoint: {found.checkpoint}")
    return "\n".join(lines)


@contextmanager
def _watching(options: SearchOptions, live: bool, lines: bool) -> Iterator[Watch | None]:
    """What shows a search: a table that changes, or a line for each job that is done."""
    if live:
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True, force_terminal=True)
        with Live(console=console, transient=True, refresh_per_second=_RATE) as picture:
            yield lambda now: picture.update(table(now, options))
    elif lines:
        yield _Lines()
    else:
        yield None


class _Lines:
    """Prints a line for each job that is done."""

    def __init__(self) -> None:
        self._shown: int | None = None

    def __call__(self, now: Coordinator) -> None:
        records = now.trials.records
        # What an earlier process has written was shown by that one.
        start = self._shown if self._shown is not None else _beginning(records)
        self._shown = len(records)
        for record in records[start:]:
            if record["event"] == "told":
                print(_line(record), flush=True)


def _beginning(records: list[Record]) -> int:
    """Where the records of this process begin."""
    return max(n for n, record in enumerate(records) if record["event"] == "search")


def _line(record: Record) -> str:
    what = record["failed"] or f"validation {measures(record['validation'])}"
    after = plural(record["epochs"], "epoch")
    return f"{record['seconds']:8.1f} s  trial {record['trial']:4}  {after:>10}  {what}"


def table(now: Coordinator, options: SearchOptions) -> Table:
    """What is under way, and the best so far."""
    from rich.table import Table

    records = now.trials.records
    latest = {r["trial"]: r for r in records if r["event"] == "epoch"}
    grid = Table(title=_title(now, options), title_justify="left", box=None, pad_edge=False)
    for head in ("", "trial", "epochs", "validation", "values"):
        right = head in ("trial", "epochs")
        # A number is never cut: words that are too long for a column take two lines.
        grid.add_column(head, justify="right" if right else "left", overflow="fold")
    for group, job in sorted(now.running.items()):
        last = latest.get(job.trial)
        done, found = (last["number"], last["validation"]) if last else (0, {})
        cells = f"{done}/{job.epochs}", measures(found), _values(job.values)
        grid.add_row(f"group {group}", str(job.trial), *cells)
    ranked = sorted(trials.told(records), key=lambda record: -record["score"])
    for place, record in enumerate(ranked[:_BEST], start=1):
        cells = str(record["epochs"]), measures(record["validation"]), _values(record["values"])
        grid.add_row(f"best {place}", str(record["trial"]), *cells)
    return grid


def _title(now: Coordinator, options: SearchOptions) -> str:
    method, records = now.trials.method, now.trials.records
    return (
        f"{options.method}: {plural(len(method.last()), 'trial')} with results, "
        f"{plural(trials.epochs_spent(records), 'epoch')} trained, "
        f"{len(trials.failures(records))} failed, {now.trials.seconds:.0f} s"
    )
