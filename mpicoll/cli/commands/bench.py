"""``mpicoll bench``: measure collectives, algorithm by algorithm."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mpicoll.base.launcher import launch
from mpicoll.bench.options import FORMATS, Options
from mpicoll.cli import parse, recorder, session, wanted
from mpicoll.cli.errors import UsageError, one_of, reading, usage
from mpicoll.cli.options import from_fields, on_command_line

#: Options that are settings of a sweep as they are written.
_AS_WRITTEN = (
    *("op", "root", "warmup", "precision", "iterations", "point_seconds", "budget", "timeout"),
    *("launch", "start", "cold", "in_place", "skew", "device"),
)


def _configured(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options of a file for those that are not given."""
    if path is not None and not context.resilient_parsing:
        try:
            from mpicoll.bench.config import load

            with reading("--config "):
                context.default_map = load(path).options()
        except ImportError as error:
            raise UsageError(
                f"--config needs the package {error.name}; pip install 'mpicoll[config]'"
            ) from None
    return path


def _sizes(options: Options, invocation: typer.Context) -> Options:
    """The options without what a file says of sizes, where the command line says it otherwise."""
    names = ("size", "minbytes", "maxbytes", "stepfactor", "stepbytes")
    here = {*on_command_line(invocation, names)}
    if not here:
        return options
    dropped: dict[str, Any] = dict.fromkeys(set(names) - here if "size" in here else {"size"})
    return replace(options, **dropped)


@from_fields(Options)
def command(
    invocation: typer.Context,
    collectives: Annotated[
        str,
        typer.Argument(
            metavar="COLLECTIVES", help="Such as allreduce, or allreduce,gatherv; all for all."
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Read options from a TOML file, by their long names; the command line wins.",
            is_eager=True,
            callback=_configured,
        ),
    ] = None,
    **written: Any,
) -> int:
    """Measure collectives for a range of sizes: median time of the slowest rank, with interval.

    Run it under mpirun. The exit status is 1 if any element of any result was wrong.
    """
    options = _sizes(Options(**written), invocation)
    style = "json" if options.json else options.format_
    one_of("--format", style, FORMATS)
    one_of("--start", options.start, ("barrier", "window"))
    one_of("--device", options.device, ("cpu", "gpu"))
    if not options.precision > 0:
        raise UsageError(
            f"--precision {options.precision:g} is out of range; give more than 0, as 0.025"
        )
    if not 0 <= options.skew <= 1:
        raise UsageError(f"--skew {options.skew:g} is out of range; give 0 (equal blocks) to 1")
    if options.resume and options.output_file is None:
        raise UsageError("--resume needs the file to go on with; give it by -J")
    session.seconds_at_least("--point-time", options.point_seconds, 0.001)
    session.seconds_at_least("--budget", options.budget, 0.001)
    session.seconds_at_least("--timeout", options.timeout, 1.0)
    from mpicoll.bench.environment import commit

    # Before MPI starts: some networks do not survive a fork.
    source = commit() if launch().rank == 0 else None
    numbers = () if options.ranks is None else parse.ranks(options.ranks, "--ranks")
    chosen = wanted.algorithms(
        collectives.split(","), options.algorithms, numbers or (launch().size,), options.device
    )
    parameters = parse.parameters(options.set_ or [])
    chosen = wanted.with_parameters(chosen, parameters, options.algorithms == "all")
    sizes = wanted.sizes(options)
    if options.device == "gpu":
        session.use_gpu()
    comm = session.communicator()
    from mpicoll.bench import environment, pattern
    from mpicoll.bench import sweep as engine
    from mpicoll.bench.room import make_room
    from mpicoll.bench.settings import SweepSettings

    numbers = numbers or (comm.Get_size(),)
    if numbers[-1] > comm.Get_size():
        raise UsageError(
            f"--ranks {numbers[-1]} is more than the {comm.Get_size()} launched; launch as many, "
            "or leave it out"
        )
    if not 0 <= options.root < numbers[0]:
        raise UsageError(
            f"--root {options.root} is no rank of {numbers[0]}; give 0 to {numbers[0] - 1}"
        )
    with usage():
        dtypes = tuple(dict.fromkeys(map(pattern.element_type, options.datatype.split(","))))
        for dtype in dtypes:
            pattern.Pattern(dtype, options.op, numbers[-1])
    settings = SweepSettings(
        algorithms=chosen,
        sizes=sizes,
        dtypes=dtypes,
        ranks=numbers,
        check=bool(options.check),
        **{name: getattr(options, name) for name in _AS_WRITTEN},
    )
    try:
        make_room(comm, settings)
    except MemoryError as error:
        raise UsageError(str(error)) from None
    facts = {**environment.gather(comm), "commit": source}
    facts["arguments"] = [environment.without_folders(word) for word in sys.argv[1:]]
    facts["settings"] = settings.plain()
    if options.device == "gpu":
        own: Any = comm
        facts["gpu_transport"] = own.gpu_transport()
    begun = session.on_rank_0(
        comm,
        lambda: recorder.opened(
            facts, settings, options.seed, options.output_file, options.resume, options.html
        ),
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
        status = begun.recorder.finish(style, options.full, options.html) if begun else 0
    finally:
        if begun:
            begun.recorder.close()
    return comm.bcast(status)


def _nobody(outcome: Any) -> None:
    raise AssertionError("only rank 0 has outcomes")
