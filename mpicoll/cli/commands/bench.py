"""``mpicoll bench``: measure collectives, algorithm by algorithm."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mpicoll.base.launcher import launch
from mpicoll.cli import parse, recorder, session, wanted
from mpicoll.cli.errors import UsageError, describe, usage
from mpicoll.cli.options import Set

_FORMATS = ("nccl", "osu", "csv", "json")

#: Names of options in a file, and of parameters here, where they differ.
_PARAMETERS = {"set": "set_", "iters": "iterations", "warmup_iters": "warmup"}


def command(
    collectives: Annotated[
        list[str],
        typer.Argument(metavar="COLLECTIVE", help="Such as allreduce, gatherv; all for all."),
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="A TOML file with options by their long names; those given here come first.",
            is_eager=True,
            callback=_configured,
        ),
    ] = None,
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
        str | None,
        typer.Option("-m", "--message-size", metavar="MIN:MAX", help="Short for -b and -e."),
    ] = None,
    algorithms: Annotated[
        str, typer.Option("-a", "--algorithms", metavar="LIST", help="Algorithms, or all.")
    ] = "all",
    set_: Set = None,
    datatype: Annotated[
        str,
        typer.Option("-d", "--datatype", metavar="LIST", help="As float or half,float,int32."),
    ] = "float",
    ranks: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="As 2,4,8: the first so many of the ranks launched; else all."
        ),
    ] = None,
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
    validation: Annotated[bool, typer.Option("--validation", help="The same as -c 1.")] = False,
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="One buffer for input and output, where there is a form."),
    ] = False,
    cold: Annotated[
        bool,
        typer.Option("--cold", help="Other buffers each time, beyond the last-level cache."),
    ] = False,
    start: Annotated[
        str,
        typer.Option(
            help="How ranks begin together: barrier, or window (times on synchronised clocks)."
        ),
    ] = "barrier",
    device: Annotated[
        str, typer.Option(help="Where the buffers are: cpu, or gpu (with CuPy).")
    ] = "cpu",
    skew: Annotated[
        float,
        typer.Option(help="Block lengths of the v-variants: 1 - SKEW to 1 + SKEW of their mean."),
    ] = 0.0,
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
    launch_id: Annotated[
        int, typer.Option("--launch-id", min=0, metavar="K", help="Number of this launch.")
    ] = 0,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Measure what FILE does not have of this launch's sweep."),
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots.")
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", help=f"Of the table: {', '.join(_FORMATS)}.")
    ] = "nccl",
    full: Annotated[bool, typer.Option("--full", help="More columns.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
) -> int:
    """Measure collectives for a range of sizes: median time of the slowest rank, with interval.

    Run it under mpirun. The exit status is 1 if any element of any result was wrong.
    """
    style = "json" if json else format_
    _one_of("--format", style, _FORMATS)
    _one_of("--start", start, ("barrier", "window"))
    _one_of("--device", device, ("cpu", "gpu"))
    if not precision > 0:
        raise UsageError(f"--precision {precision:g} is out of range; give more than 0, as 0.025")
    if not 0 <= skew <= 1:
        raise UsageError(f"--skew {skew:g} is out of range; give 0 (equal blocks) to 1")
    if resume and output_file is None:
        raise UsageError("--resume needs the file to go on with; give it by -J")
    session.seconds_at_least("--point-time", point_time, 0.001)
    session.seconds_at_least("--budget", budget, 0.001)
    session.seconds_at_least("--timeout", timeout, 1.0)
    from mpicoll.bench.environment import commit

    # Before MPI starts: some networks do not survive a fork.
    source = commit() if launch().rank == 0 else None
    numbers = () if ranks is None else parse.ranks(ranks, "--ranks")
    chosen = wanted.algorithms(collectives, algorithms, numbers or (launch().size,), device)
    parameters = parse.parameters(set_ or [])
    wanted.check_parameters(chosen, parameters)
    sizes = wanted.sizes(minbytes, maxbytes, stepfactor, stepbytes, message_size)
    if device == "gpu":
        session.use_gpu()
    comm = session.communicator()
    from mpicoll.bench import environment, pattern
    from mpicoll.bench import sweep as engine
    from mpicoll.bench.settings import SweepSettings

    numbers = numbers or (comm.Get_size(),)
    if numbers[-1] > comm.Get_size():
        raise UsageError(
            f"--ranks {numbers[-1]} is more than the {comm.Get_size()} launched; launch as many, "
            "or leave it out"
        )
    if not 0 <= root < numbers[0]:
        raise UsageError(f"--root {root} is no rank of {numbers[0]}; give 0 to {numbers[0] - 1}")
    with usage():
        dtypes = tuple(dict.fromkeys(map(pattern.element_type, datatype.split(","))))
        for dtype in dtypes:
            pattern.Pattern(dtype, op, numbers[-1])
    settings = SweepSettings(
        algorithms=chosen,
        sizes=sizes,
        dtypes=dtypes,
        ranks=numbers,
        op=op,
        root=root,
        warmup=warmup,
        precision=precision,
        iterations=iterations,
        point_seconds=point_time,
        budget=budget,
        check=bool(check) or validation,
        timeout=timeout,
        parameters=parameters,
        launch=launch_id,
        start=start,
        cold=cold,
        in_place=in_place,
        skew=skew,
        device=device,
    )
    facts = {**environment.gather(comm), "commit": source}
    facts["arguments"] = [environment.without_folders(word) for word in sys.argv[1:]]
    facts["settings"] = settings.plain()
    if device == "gpu":
        own: Any = comm
        facts["gpu_transport"] = own.gpu_transport()
    begun = session.on_rank_0(
        comm, lambda: recorder.opened(facts, settings, seed, output_file, resume, html)
    )
    settings, done = comm.bcast(begun and (begun.settings, begun.done))
    report, beat = (begun.recorder.take, begun.recorder.beat) if begun else (_nobody, _nobody)
    try:
        engine.sweep(
            comm,
            settings,
            report,
            run=begun.recorder.run.name if begun else "",
            oversubscribed={n for n in numbers if environment.crowded(facts, n)},
            done=done,
            beat=beat,
        )
        status = begun.recorder.finish(style, full, html) if begun else 0
    finally:
        if begun:
            begun.recorder.close()
    return comm.bcast(status)


def _nobody(outcome: Any) -> None:
    raise AssertionError("only rank 0 has outcomes")


def _configured(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options of a file for those that are not given."""
    if path is not None and not context.resilient_parsing:
        try:
            from mpicoll.bench.config import load
        except ImportError as error:
            raise UsageError(
                f"--config needs the package {error.name}; pip install 'mpicoll[config]'"
            ) from None
        try:
            with usage():
                options = load(path).options()
        except OSError as error:
            raise UsageError(f"--config {describe(error)}") from None
        context.default_map = {
            _PARAMETERS.get(name, name): value for name, value in options.items()
        }
    return path


def _one_of(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"unknown {option} {value!r}; choose one of {', '.join(known)}")
