"""``mpicoll bench``: measure collectives, algorithm by algorithm."""

from __future__ import annotations

import secrets
import sys
import time
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpicoll.cli import output, parse, session
from mpicoll.cli.errors import RankError, UsageError, usage
from mpicoll.cli.launcher import launch
from mpicoll.cli.options import Set

if TYPE_CHECKING:
    from mpicoll.bench.engine import Settings, Skipped
    from mpicoll.bench.records import Point, Writer
    from mpicoll.registry import Value

_FORMATS = ("nccl", "csv", "json")


def command(
    collectives: Annotated[
        list[str], typer.Argument(metavar="COLLECTIVE", help="Such as allreduce.")
    ],
    minbytes: Annotated[
        str,
        typer.Option("-b", "--minbytes", metavar="SIZE", help="First size, or a list of sizes."),
    ] = "8",
    maxbytes: Annotated[
        str | None,
        typer.Option("-e", "--maxbytes", metavar="SIZE", help="Last size; 4M if not given."),
    ] = None,
    stepfactor: Annotated[
        int | None,
        typer.Option("-f", "--stepfactor", help="From one size to the next; 2 if not given."),
    ] = None,
    stepbytes: Annotated[
        str | None,
        typer.Option("-i", "--stepbytes", metavar="SIZE", help="Step instead of a factor."),
    ] = None,
    message_size: Annotated[
        str | None, typer.Option("--message-size", metavar="MIN:MAX", help="Short for -b and -e.")
    ] = None,
    algorithms: Annotated[
        str, typer.Option("-a", "--algorithms", metavar="LIST", help="Algorithms, or all.")
    ] = "all",
    set_: Set = None,
    datatype: Annotated[
        str, typer.Option("-d", "--datatype", metavar="TYPE", help="As float, half, int32.")
    ] = "float",
    op: Annotated[str, typer.Option("-o", "--op", help="As sum, max.")] = "sum",
    root: Annotated[int, typer.Option("-r", "--root", help="Of rooted collectives.")] = 0,
    iterations: Annotated[
        int | None,
        typer.Option("-n", "--iters", "--iterations", min=1, help="Exactly so many repetitions."),
    ] = None,
    warmup: Annotated[
        int,
        typer.Option("-w", "--warmup_iters", "--warmup", min=0, help="Calls before the first one."),
    ] = 5,
    check: Annotated[
        int, typer.Option("-c", "--check", "--validation", min=0, max=1, help="0: do not check.")
    ] = 1,
    precision: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Stop when the 95 % interval is as narrow as this."),
    ] = 0.025,
    point_time: Annotated[
        float, typer.Option("--point-time", metavar="S", help="Most seconds for one point.")
    ] = 2.0,
    budget: Annotated[
        float | None,
        typer.Option(metavar="S", help="Seconds for the whole sweep, shared among the points."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the order of points; a new one if not given.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("-T", "--timeout", metavar="S", help="Longest wait without progress.")
    ] = 120.0,
    output_file: Annotated[
        Path | None,
        typer.Option("-J", "--output_file", metavar="FILE", help="Append results as JSON lines."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots.")
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", help=f"Of the table: {', '.join(_FORMATS)}.")
    ] = "nccl",
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
) -> int:
    """Measure collectives for a range of sizes: median time of the slowest rank, with interval.

    Run it under mpirun. The exit status is 1 if any element of any result was wrong.
    """
    style = "json" if json else format_
    if style not in _FORMATS:
        raise UsageError(f"unknown --format {style!r}; choose one of {', '.join(_FORMATS)}")
    if not precision > 0:
        raise UsageError(f"--precision {precision:g} is out of range; give more than 0, as 0.025")
    session.seconds_at_least("--point-time", point_time, 0.001)
    session.seconds_at_least("--budget", budget, 0.001)
    session.seconds_at_least("--timeout", timeout, 1.0)
    from mpicoll.bench.environment import commit

    # Before MPI starts: some networks do not survive a fork.
    source = commit() if launch().rank == 0 else None
    chosen = _algorithms(collectives, algorithms, launch().size)
    parameters = parse.parameters(set_ or [])
    _check_parameters(chosen, parameters)
    sizes = _sizes(minbytes, maxbytes, stepfactor, stepbytes, message_size)
    comm = session.communicator()
    from mpicoll.bench import engine, environment, workload

    if not 0 <= root < comm.Get_size():
        raise UsageError(
            f"--root {root} is no rank of {comm.Get_size()}; give 0 to {comm.Get_size() - 1}"
        )
    with usage():
        dtype = workload.element_type(datatype)
        workload.Pattern(dtype, op, comm.Get_size())
    settings = engine.Settings(
        algorithms=chosen,
        sizes=sizes,
        dtype=dtype,
        op=op,
        root=root,
        warmup=warmup,
        precision=precision,
        iterations=iterations,
        point_seconds=point_time,
        budget=budget,
        check=bool(check),
        seed=comm.bcast(secrets.randbits(32) if seed is None else seed),
        timeout=timeout,
        parameters=parameters,
    )
    facts = {**environment.gather(comm), "commit": source, "arguments": sys.argv[1:]}
    facts["settings"] = _plain(settings)
    name = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
    recorder = session.on_rank_0(
        comm, lambda: _Recorder(name, facts, settings, comm.Get_size(), output_file, html)
    )
    report = recorder.take if recorder else _nobody
    try:
        engine.sweep(comm, settings, report, run=name, oversubscribed=bool(facts["oversubscribed"]))
        status = recorder.finish(style, html) if recorder else 0
    finally:
        if recorder:
            recorder.close()
    return comm.bcast(status)


def _nobody(outcome: Point | Skipped) -> None:
    raise AssertionError("only rank 0 has outcomes")


def _algorithms(
    collectives: list[str], written: str, ranks: int | None
) -> dict[str, tuple[str, ...]]:
    """The algorithms to measure for each collective: of all, those that serve so many ranks.

    Raises:
        UsageError: for an unknown collective or algorithm, naming the known ones.
    """
    from mpicoll import algorithms
    from mpicoll.bench.workload import WORKLOADS
    from mpicoll.tuning import NATIVE

    chosen = {}
    for collective in collectives:
        with usage():
            known = (*algorithms.names(collective), NATIVE)
        if collective not in WORKLOADS:
            raise UsageError(
                f"{collective} cannot be measured; bench measures {', '.join(sorted(WORKLOADS))}"
            )
        all_names = (*algorithms.names(collective, ranks), NATIVE)
        names = all_names if written == "all" else tuple(dict.fromkeys(written.split(",")))
        for name in names:
            if name not in known:
                raise UsageError(
                    f"unknown algorithm {name!r} for {collective}: known are {', '.join(known)}"
                )
        chosen[collective] = names
    return chosen


def _check_parameters(chosen: dict[str, tuple[str, ...]], parameters: dict[str, Value]) -> None:
    """Refuse parameters that an algorithm to be measured does not have."""
    from mpicoll.tuning import check

    for collective, names in chosen.items():
        for name in names:
            if name != "native":
                with usage():
                    check(collective, name, parameters)


def _sizes(
    first: str, last: str | None, factor: int | None, step: str | None, span: str | None
) -> tuple[int, ...]:
    """The sizes that the options ask for.

    Raises:
        UsageError: if they contradict each other, or one is no size.
    """
    from mpicoll.bench import sizes

    if factor is not None and step is not None:
        raise UsageError("--stepfactor and --stepbytes exclude each other; drop one")
    if span is not None:
        first, colon, last = span.partition(":")
        if not colon:
            raise UsageError(f"--message-size {span!r} has no colon; write it as 8:4M")
    with usage():
        listed = sizes.parse_sizes(first)
        if len(listed) > 1:
            if last or factor or step:
                raise UsageError(f"-b {first!r} lists all sizes; drop -e, -f and -i")
            return listed
        return sizes.sweep(
            listed[0],
            sizes.parse_size(last or "4M"),
            factor or 2,
            None if step is None else sizes.parse_size(step),
        )


def _plain(settings: Settings) -> dict[str, Any]:
    return {**asdict(settings), "dtype": settings.dtype.name}


class _Recorder:
    """What rank 0 does with the points: keep, show, and at the end print them."""

    def __init__(
        self,
        name: str,
        facts: dict[str, Any],
        settings: Settings,
        ranks: int,
        path: Path | None,
        html: Path | None,
    ) -> None:
        from mpicoll.bench.engine import groups
        from mpicoll.bench.records import Run, Writer

        self.run = Run(name, facts)
        self.skipped: list[Skipped] = []
        self._file: Writer | None = None
        if html is not None:
            # Better now than after an hour of measuring.
            open(html, "ab").close()
        if path is not None:
            self._file = Writer(path)
            self._file.run(name, facts)
        self._total = sum(len(settings.algorithms[c]) for c, _ in groups(settings, ranks))
        self._begin = time.monotonic()
        self._progress = output.progress()
        self._task = self._progress.add_task("measuring", total=self._total)
        self._progress.start()

    def take(self, outcome: Point | Skipped) -> None:
        """Keep a finished or skipped point."""
        from mpicoll.bench.records import Point

        if not isinstance(outcome, Point):
            self.skipped.append(outcome)
            self._show(f"{outcome.collective} {outcome.algorithm}", f"skipped: {outcome.reason}")
            return
        self.run.points.append(outcome)
        if self._file is not None:
            try:
                self._file.point(outcome)
            except OSError as error:
                raise RankError(
                    f"results cannot be written: {error.strerror}; the points finished before "
                    "are kept, make room and run the others again"
                ) from error
        from mpicoll.bench.sizes import format_size
        from mpicoll.bench.table import microseconds

        summary = outcome.summary
        time_ = f"{microseconds(summary.median)} us"
        spread = "" if summary.low is None else f" +- {100 * summary.half_width:.1f} %"
        what = f"{outcome.collective} {outcome.algorithm} {format_size(outcome.size)}"
        self._show(what, f"{time_}{spread}, n = {summary.n}")

    def _show(self, what: str, result: str) -> None:
        """Progress: a bar on a terminal, a line for each point elsewhere."""
        self._progress.update(self._task, advance=1, description=what)
        if self._progress.disable:
            done = len(self.run.points) + len(self.skipped)
            left = (time.monotonic() - self._begin) / done * (self._total - done)
            output.remark(f"[{done}/{self._total}, {left:.0f} s left] {what}: {result}")

    def finish(self, style: str, html: Path | None) -> int:
        """Print the table, write the page; the exit status."""
        from mpicoll.bench import table

        self._progress.stop()
        points = table.ordered(self.run.points)
        if style == "csv":
            sys.stdout.write(table.as_csv(points))
        elif style == "json":
            output.facts({"run": self.run.name, **self.run.facts, "points": _dicts(points)})
        else:
            _print(self.run.facts, points)
        if html is not None:
            from mpicoll.bench import page

            page.write(html, [self.run])
        wrong = [p for p in points if p.wrong]
        for point in wrong:
            output.remark(
                f"mpicoll: error: {point.collective} {point.algorithm}, {point.size} bytes: "
                f"{point.wrong} wrong elements, the first at {point.problem}"
            )
        if not points:
            output.remark("mpicoll: error: no point could be measured; see the reasons above")
        return 1 if wrong or not points else 0

    def close(self) -> None:
        """Leave the terminal and the file in order, whatever happened."""
        self._progress.stop()
        if self._file is not None:
            self._file.close()


def _dicts(points: list[Point]) -> list[dict[str, Any]]:
    return [point.as_dict() for point in points]


def _print(facts: dict[str, Any], points: list[Point]) -> None:
    from mpicoll.bench import table

    hosts = facts["hosts"]
    cores = sum(len(host["cores"]) for host in hosts.values())
    output.text(
        f"# {facts['mpi']}; mpicoll {facts['mpicoll']}; "
        f"{output.counted(facts['ranks'], 'rank')} on {output.counted(len(hosts), 'host')}, "
        f"{output.counted(cores, 'core')}; seed {facts['settings']['seed']}"
    )
    heads = [f"{c.name}\n[{c.unit}]" if c.unit else c.name for c in table.COLUMNS]
    numbers = [head for head, c in zip(heads, table.COLUMNS, strict=True) if c.number]
    for collective in dict.fromkeys(p.collective for p in points):
        output.text(
            f"# {collective}: median of the slowest rank's time, 95 % interval; warm buffers"
        )
        rows = [table.row(p) for p in points if p.collective == collective]
        output.table(heads, rows, right=numbers)
    for note in table.notes(points):
        output.text(f"# {note}")
    for warning in table.warnings(facts, points):
        output.text(f"# WARNING: {warning}")
