"""``mpicoll show|verify|simulate pipeline``: orders of computation of a training step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpicoll.base.times import ATTOSECONDS
from mpicoll.base.wording import behind, intervals, plural
from mpicoll.cli import measured, output, parse
from mpicoll.cli.errors import UsageError, needing, usage
from mpicoll.cli.options import Json

if TYPE_CHECKING:
    from mpicoll.simulate.machine import Machine
    from mpicoll.train.step import DeadlockError, Durations, Schedule, Timing, Verdict

Orders = Annotated[str, typer.Argument(metavar="[ORDER]", help="An order, such as 1f1b, or all.")]
Stages = Annotated[
    str,
    typer.Option("-S", "--stages", metavar="LIST", help="Numbers of ranks: 4 or 1-8."),
]
Microbatches = Annotated[
    str,
    typer.Option("-M", "--microbatches", metavar="LIST", help="Numbers: 8 or 1-16."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Parameter of the order: ahead=1 or chunks=2."
    ),
]
Recompute = Annotated[
    bool,
    typer.Option("--recompute", help="Recompute activations before backward passes."),
]


def show(
    order: Annotated[str, typer.Argument(metavar="ORDER", help="Such as 1f1b.")],
    stages: Annotated[
        str, typer.Option("-S", "--stages", metavar="N", help="Number of ranks.")
    ] = "4",
    microbatches: Annotated[
        str, typer.Option("-M", "--microbatches", metavar="N", help="Number of microbatches.")
    ] = "8",
    set_: Set = None,
    recompute: Recompute = False,
    svg: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the drawing to a file: .svg, .pdf or .png."),
    ] = None,
    json: Json = False,
) -> int:
    """Draw the schedule of a pipeline: what each rank computes when.

    Forward passes and both parts of a backward pass take one slot each; messages take no time.
    `F3` is the forward pass for microbatch 3, `B3` the backward pass, `I3` and `W3` its parts, `R3`
    the forward pass again; where a rank has several chunks, `F3.1` is that of its second. With
    --json: the programs of all ranks, messages included.
    """
    from mpicoll.train.step import DeadlockError, check, picture
    from mpicoll.train.step.timing import SLOTS
    from mpicoll.train.step.timing import simulate as timed

    S, M = _one("-S", stages), _one("-M", microbatches)
    (schedule,) = _schedules([order], (S,), (M,), _parameters(set_), recompute, few=True)
    try:
        timing = timed(schedule, SLOTS)
    except DeadlockError as error:
        raise _deadlock(schedule, error) from None
    if svg is not None:
        with needing("matplotlib", "--svg"):
            picture.svg(svg, schedule)
    if json:
        output.facts(picture.plain(schedule))
        return 0
    output.text(f"{schedule.words}: {timing.makespan} slots, {100 * timing.idle:.1f} % idle\n")
    output.text(picture.text(schedule, max(output.width(), 80)))
    output.text("")
    verdict = check(schedule)
    numbers = ("idle slots", "held", "versions")
    output.table(
        ("rank", *numbers),
        (
            (
                str(rank),
                str(timing.makespan - timing.busy[rank]),
                str(verdict.held[rank]),
                str(verdict.versions[rank]),
            )
            for rank in range(S)
        ),
        right=("rank", *numbers),
    )
    return 0


def verify(
    order: Orders = "all",
    stages: Stages = "1-8",
    microbatches: Microbatches = "1-16",
    set_: Set = None,
    recompute: Recompute = False,
    json: Json = False,
) -> int:
    """Verify pipeline schedules: each task once, no deadlock, the promised memory and time.

    The check gives each direction between two chunks one buffer (1f1b with ahead=a: 1 + a/2), and
    senders wait until it is free: what passes also passes with more buffers. Without --set it tries
    some values of each parameter. The exit status is 1 if any is wrong.
    """
    from mpicoll.train.step import check

    sizes, several = parse.ranks(stages, "-S"), parse.ranks(microbatches, "-M")
    schedules = list(_schedules(_names(order), sizes, several, _parameters(set_), recompute))
    with output.progress() as progress:
        verdicts = [check(s) for s in progress.track(schedules, description="verifying")]
    ok = all(verdict.ok for verdict in verdicts)
    if json:
        output.facts({"ok": ok, "cases": [verdict.as_dict() for verdict in verdicts]})
    else:
        _print_verdicts(verdicts)
    return 0 if ok else 1


def simulate(
    order: Orders = "all",
    stages: Stages = "4",
    microbatches: Microbatches = "8",
    forward: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Time of a forward pass on a rank.",
        ),
    ] = "1ms",
    backward: Annotated[str, typer.Option(metavar="TIME", help="Time of a backward pass.")] = "2ms",
    weight: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Its part for weights; half if not given."),
    ] = None,
    load: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="How many times longer each rank computes: 1,2,1,3."),
    ] = None,
    nbytes: Annotated[
        str, typer.Option("--bytes", metavar="SIZE", help="Size of a message.")
    ] = "1M",
    alpha: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time per message; 1us if not given.")
    ] = None,
    beta: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time per byte; 100ps if not given.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Costs written by `mpicoll fit`, instead.",
        ),
    ] = None,
    per_node: Annotated[
        int, typer.Option(min=0, metavar="N", help="Consecutive ranks on each node; 0: all on one.")
    ] = 0,
    set_: Set = None,
    recompute: Recompute = False,
    json: Json = False,
) -> int:
    """Simulate a training step in a pipeline: its time and its idle share.

    Ranks compute while messages are under way; a message takes alpha and beta for each byte, and
    the messages of a rank leave one after the other. `formula` is the time of the literature, where
    messages take no time and ranks are alike; elsewhere there is a dash. `held` is the most
    microbatches whose activations a rank holds at a time.
    """
    from mpicoll.train.step import DeadlockError
    from mpicoll.train.step import simulate as timed

    durations = _durations(forward, backward, weight)
    machine, length = _machine(alpha, beta, model), parse.size(nbytes)
    sizes, several = parse.ranks(stages, "-S"), parse.ranks(microbatches, "-M")
    names = _names(order)
    loads = _loads(load, sizes)
    cases = []
    for schedule in _schedules(names, sizes, several, _parameters(set_), recompute, few=True):
        if not schedule.order.trains and len(names) > 1:
            continue
        nodes = tuple(rank // per_node for rank in range(schedule.stages)) if per_node else ()
        machine = replace(machine, nodes=nodes)
        try:
            timing = timed(schedule, _by_chunk(schedule, durations, loads), machine, length)
        except DeadlockError as error:
            if len(names) == 1:
                raise _deadlock(schedule, error) from None
            output.remark(f"mpicoll: left out: {schedule.words}: {error}")
            continue
        cases.append((schedule.name, _case(schedule, timing, None if load else durations, length)))
    if json:
        output.facts({"cases": [case for _, case in cases]})
    else:
        _print_times(cases)
    return 0


# --- what is asked for ----------------------------------------------------------------------------

#: Values of parameters that are tried where none is given.
_TRIED = {"ahead": (0, 1), "chunks": (1, 2, 3), "vertical": (0, 1)}
#: More tasks take minutes, and gigabytes.
_MOST_TASKS = 1 << 21


def _names(order: str) -> list[str]:
    from mpicoll.train.step import names

    return list(names()) if order == "all" else [order]


def _one(option: str, text: str) -> int:
    numbers = parse.ranks(text, option)
    if len(numbers) != 1:
        raise UsageError(f"{option} {text!r}: a drawing has one number; give one, such as 4")
    return numbers[0]


def _parameters(texts: list[str] | None) -> dict[str, int]:
    found = {}
    for name, value in parse.parameters(texts or []).items():
        if not isinstance(value, int):
            raise UsageError(f"--set {name}: an order takes a whole number, such as {name}=1")
        found[name] = value
    return found


def _schedules(
    names: list[str],
    sizes: tuple[int, ...],
    several: tuple[int, ...],
    given: dict[str, int],
    recompute: bool,
    few: bool = False,
) -> Iterator[Schedule]:
    """Every order for every number of ranks and microbatches.

    Where no parameters are given, some are tried; the defaults alone, if few.
    """
    from mpicoll.train.step import find, schedule

    if given and len(names) > 1:
        raise UsageError("--set needs one order; name it instead of all")
    for name in names:
        with usage():
            parameters = find(name).parameters
        tried: list[dict[str, int]] = [given]
        if not given and not few:
            values = (
                _TRIED.get(parameter, (default,)) for parameter, default in parameters.items()
            )
            tried = [dict(zip(parameters, chosen, strict=True)) for chosen in product(*values)]
        for more, S, M in product(tried, sizes, several):
            with usage():
                found = schedule(name, S, M, recompute=recompute, **more)
            if found.chunks * M > _MOST_TASKS:
                raise UsageError(
                    f"{found.words}: {found.chunks * M:,} forward passes are more than "
                    f"{_MOST_TASKS:,}; give fewer ranks, chunks or microbatches"
                )
            yield found


def _deadlock(schedule: Schedule, error: DeadlockError) -> UsageError:
    several = f"a multiple of {schedule.stages} microbatches"
    return UsageError(f"{schedule.words}: {error}; give {several}, or another order")


def _durations(forward: str, backward: str, weight: str | None) -> Durations:
    from mpicoll.train.step import Durations

    whole = parse.attoseconds("--backward", backward)
    part = whole // 2 if weight is None else parse.attoseconds("--weight", weight)
    if part > whole:
        raise UsageError(f"--weight {weight} is a part of --backward {backward}; give less")
    return Durations(parse.attoseconds("--forward", forward), whole, part)


def _loads(text: str | None, sizes: tuple[int, ...]) -> list[int]:
    if text is None:
        return []
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise UsageError(f"--load {text!r} is no list of whole numbers from 1, such as 1,2,1,3")
    if sizes != (len(parts),):
        raise UsageError(f"--load {text!r} is for {plural(len(parts), 'rank')}: give as many by -S")
    return [int(part) for part in parts]


def _by_chunk(schedule: Schedule, durations: Durations, loads: list[int]) -> list[Durations]:
    """The durations of each chunk."""
    share = durations.divided(schedule.chunks // schedule.stages)
    if not loads:
        return [share] * schedule.chunks
    return [share.times(loads[schedule.place(chunk)]) for chunk in range(schedule.chunks)]


def _machine(alpha: str | None, beta: str | None, model: Path | None) -> Machine:
    from mpicoll.simulate.machine import Machine

    times = {"alpha": alpha, "beta": beta}
    if model is not None:
        return Machine.of(measured.read_costs(model, times).general, ATTOSECONDS)
    return Machine.of(measured.given_costs(times).general, ATTOSECONDS)


# --- what is printed ------------------------------------------------------------------------------


def _print_verdicts(verdicts: list[Verdict]) -> None:
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault(verdict.schedule.name, []).append(verdict)
    output.table(
        ("order", "stages", "microbatches", "cases", "verdict"),
        (
            (
                name,
                intervals(sorted({v.schedule.stages for v in group}), ", "),
                intervals(sorted({v.schedule.microbatches for v in group}), ", "),
                str(len(group)),
                f"{wrong} wrong" if (wrong := sum(not v.ok for v in group)) else "right",
            )
            for name, group in groups.items()
        ),
        right=("cases",),
        fold=("microbatches", "stages"),
    )
    for verdict in verdicts:
        if not verdict.ok:
            output.text(f"{verdict.schedule.words}:")
            for problem in verdict.problems:
                output.text(f"  {problem}")
    right = sum(verdict.ok for verdict in verdicts)
    output.text(f"{right} of {plural(len(verdicts), 'case')} right")


def _case(
    schedule: Schedule, timing: Timing, alike: Durations | None, nbytes: int
) -> dict[str, Any]:
    """One case as plain values, times in seconds; ``alike``: durations of all ranks, if alike."""
    from mpicoll.train.step.checking import held

    formula = schedule.makespan(alike) if alike else None
    return {
        **schedule.facts,
        "time": timing.makespan / ATTOSECONDS,
        "formula": None if formula is None else formula / ATTOSECONDS,
        "idle": timing.idle,
        "held": max(held(schedule)) / (schedule.chunks // schedule.stages),
        "messages": len(timing.messages),
        "bytes_sent": nbytes * len(timing.messages),
    }


def _print_times(cases: list[tuple[str, dict[str, Any]]]) -> None:
    shape = ("stages", "microbatches")
    numbers = (*shape, "time [ms]", "slower by", "formula [ms]", "idle [%]", "held", "messages")
    cases = sorted(cases, key=lambda of: (of[1]["S"], of[1]["M"], of[1]["time"]))
    marks = behind([case["time"] for _, case in cases], [(c["S"], c["M"]) for _, c in cases])
    output.table(
        ("order", *numbers),
        (
            (
                name,
                str(case["S"]),
                str(case["M"]),
                f"{1e3 * case['time']:.6g}",
                mark,
                "-" if case["formula"] is None else f"{1e3 * case['formula']:.6g}",
                f"{100 * case['idle']:.1f}",
                f"{case['held']:g}",
                str(case["messages"]),
            )
            for (name, case), mark in zip(cases, marks, strict=True)
        ),
        right=numbers,
        drop=("messages", "formula [ms]"),
    )
