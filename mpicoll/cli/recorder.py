"""What rank 0 does with the points of a sweep: keep them, show them, and at the end print them."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mpicoll.base.wording import plural
from mpicoll.cli import output
from mpicoll.cli.errors import RankError, usage
from mpicoll.cli.measured import need, wrong

if TYPE_CHECKING:
    from mpicoll.bench.measurement import Skipped
    from mpicoll.bench.records import Point, Run, Writer
    from mpicoll.bench.settings import Key, SweepSettings

#: Seconds without a finished point after which a line says that the sweep is alive.
_HEARTBEAT = 15.0


class Recorder:
    """Keeps points, shows progress and prints the table.

    Args:
        run: The run, without its points.
        earlier: Points that the sweep has from before.
        total: Number of points left to measure.
        file: Where to keep points, or None.
    """

    def __init__(self, run: Run, earlier: Sequence[Point], total: int, file: Writer | None) -> None:
        self.run, self._earlier, self._total, self._file = run, list(earlier), total, file
        self.skipped: list[Skipped] = []
        self._begin = self._said = time.monotonic()
        self._progress = output.progress()
        self._task = self._progress.add_task("measuring", total=self._total)
        self._progress.start()

    def take(self, outcome: Point | Skipped) -> None:
        """Keep a finished or skipped point."""
        from mpicoll.base.sizes import format_size
        from mpicoll.bench.records import Point
        from mpicoll.bench.table import microseconds

        choice = outcome.choice if isinstance(outcome, Point) else outcome.algorithm
        what = f"{outcome.collective} {choice} {format_size(outcome.size)}, P = {outcome.ranks}"
        if not isinstance(outcome, Point):
            self.skipped.append(outcome)
            self._show(what, f"skipped: {outcome.reason}")
            return
        self.run.points.append(outcome)
        if self._file is not None:
            try:
                self._file.point(outcome)
            except OSError as error:
                raise RankError(
                    f"results cannot be written: {error.strerror}; the points finished before "
                    "are kept, make room and go on with --resume"
                ) from error
        summary = outcome.summary
        time_ = f"{microseconds(summary.median)} us"
        spread = "" if summary.low is None else f" +- {100 * summary.half_width:.1f} %"
        self._show(what, f"{time_}{spread}, n = {summary.n}")

    def beat(self, what: str) -> None:
        """Show that the sweep is alive, and what it measures."""
        self._progress.update(self._task, description=what)
        if self._progress.disable and time.monotonic() - self._said > _HEARTBEAT:
            self._remark(f"measuring {what}")

    def _show(self, what: str, result: str) -> None:
        """Progress: a bar on a terminal, a line for each point elsewhere."""
        self._progress.update(self._task, advance=1, description=what)
        if self._progress.disable:
            self._remark(f"{what}: {result}")

    def _remark(self, what: str) -> None:
        done = len(self.run.points) + len(self.skipped)
        self._said = time.monotonic()
        left = (self._said - self._begin) / max(1, done) * (self._total - done)
        time_left = f"{left:.0f} s left" if done else "time left unknown"
        output.remark(f"[{done}/{self._total}, {time_left}] {what}")

    def finish(self, style: str, full: bool, html: Path | None) -> int:
        """Print the table, write the page; the exit status."""
        from mpicoll.bench import osu, table

        self._progress.stop()
        asked = list(self.run.facts["settings"]["algorithms"])
        points = sorted([*self._earlier, *self.run.points], key=lambda p: asked.index(p.collective))
        points = table.ordered(points)
        if style == "csv":
            sys.stdout.write(table.as_csv(points))
        elif style == "json":
            lines = [point.as_dict() for point in points]
            output.facts({"run": self.run.name, **self.run.facts, "points": lines})
        elif style == "osu":
            sys.stdout.write(osu.tables(points, full))
            for warning in table.warnings(self.run.facts, points):
                output.text(f"# WARNING: {warning}")
        else:
            _print(self.run.facts, points, full)
        if html is not None:
            _write_page(html, self.run, points)
        if not points:
            output.remark("mpicoll: error: no point could be measured; see the reasons above")
            return 1
        return wrong(points)

    def close(self) -> None:
        """Leave the terminal and the file in order, whatever happened."""
        self._progress.stop()
        if self._file is not None:
            self._file.close()


def _write_page(path: Path, run: Run, points: list[Point]) -> None:
    from mpicoll.model.cells import gather
    from mpicoll.report import collect, page

    runs = [replace(run, points=points)]
    remarks: list[str] = []
    try:
        cells, _ = gather(runs)
    except ValueError as error:  # there is still what was measured
        cells, remarks = [], [f"no recommendation: {error}"]
    page.write(path, collect.collect(runs, cells, remarks=remarks))


def _print(facts: dict[str, Any], points: list[Point], full: bool) -> None:
    from mpicoll.bench import table
    from mpicoll.bench.conclusion import against_fastest, conclusion, fastest_first

    hosts = facts["hosts"]
    cores = sum(len(host["cores"]) for host in hosts.values())
    output.text(
        f"# {facts['mpi']}; mpicoll {facts['mpicoll']}; "
        f"{plural(facts['ranks'], 'rank')} on {plural(len(hosts), 'host')}, "
        f"{plural(cores, 'core')}; seed {facts['settings']['seed']}"
    )
    columns = table.COLUMNS + (table.MORE_COLUMNS if full else ())
    heads = [f"{c.name} [{c.unit}]" if c.unit else c.name for c in columns]
    numbers = [head for head, c in zip(heads, columns, strict=True) if c.number]
    after = 1 + [c.name for c in columns].index("time")
    drop = [head for name in table.MINOR for head in heads if head.split()[0] == name]
    for collective in dict.fromkeys(p.collective for p in points):
        chosen = fastest_first(p for p in points if p.collective == collective)
        output.text(f"# {collective}: {table.manner(chosen[0])}")
        rows = [table.row(p, columns) for p in chosen]
        behind = against_fastest(chosen)
        output.table(
            (*heads[:after], "slower by", *heads[after:]),
            [(*r[:after], b, *r[after:]) for r, b in zip(rows, behind, strict=True)],
            right=(*numbers, "slower by"),
            fold=("algo",),
            drop=drop,
        )
    for note in table.notes(points):
        output.text(f"# {note}")
    for warning in table.warnings(facts, points):
        output.text(f"# WARNING: {warning}")
    for line in conclusion(points):
        output.text(line)


class Begun(NamedTuple):
    """A sweep that may begin."""

    recorder: Recorder
    settings: SweepSettings
    done: frozenset[Key]


def opened(
    facts: dict[str, Any],
    settings: SweepSettings,
    seed: int | None,
    path: Path | None,
    resume: bool,
    html: Path | None,
) -> Begun:
    """Open the files, and find what is measured already; on rank 0.

    Raises:
        UsageError: if the sweep to go on with is another one, or plotly is missing for a page.
        OSError: if a file cannot be written.
    """
    from mpicoll.base.json_lines import new_run
    from mpicoll.bench.records import Run, Writer
    from mpicoll.bench.resume import Earlier, earlier
    from mpicoll.bench.settings import groups

    if html is not None:
        # Better now than after an hour of measuring.
        need(["plotly"], "plot")
        open(html, "ab").close()
    # Opened first: it waits for what a killed job may still write.
    file = None if path is None else Writer(path)
    before = Earlier()
    if path is not None and resume:
        with usage(), warnings.catch_warnings():
            # Of a torn line the point is measured again.
            warnings.simplefilter("ignore")
            before = earlier(path, facts, seed)
    import secrets  # with hashes; not for every start of the command

    if seed is None:
        seed = secrets.randbits(32) if before.seed is None else before.seed
    settings = replace(settings, seed=seed)
    facts["settings"] = settings.plain()
    if before.names:
        facts["resumes"] = before.names[-1]
    name = new_run()
    left = groups(settings, facts["ranks"], before.done)
    total = sum(len(group.algorithms) for group in left)
    if file is not None and left:
        file.run(name, facts)
    if before.points:
        output.remark(f"{plural(len(before.points), 'point')} in {path} already, {total} left")
    if facts["ranks"] == 1:
        output.remark(
            "mpicoll: warning: one rank sends no messages; start several, as by "
            "`mpirun -n 4 mpicoll bench`"
        )
    return Begun(Recorder(Run(name, facts), before.points, total, file), settings, before.done)
