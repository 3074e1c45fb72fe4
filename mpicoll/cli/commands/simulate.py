"""``mpicoll simulate``: how long a collective takes under a model of the machine."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpicoll.base.times import ATTOSECONDS
from mpicoll.base.wording import behind
from mpicoll.cli import measured, output, parse, wanted
from mpicoll.cli.errors import UsageError, needing, usage
from mpicoll.cli.measured import InterAlpha, InterBeta, Network
from mpicoll.cli.options import Collective, Json, Root, Set, Sizes

if TYPE_CHECKING:
    from mpicoll.registry import Algorithm
    from mpicoll.schedule.parameters import Value
    from mpicoll.simulate.costs import CostModel, Costs
    from mpicoll.simulate.machine import Machine


def _time(help: str) -> Any:
    return typer.Option(metavar="TIME", help=help)


def command(
    collective: Collective,
    algorithm: Annotated[
        str, typer.Argument(metavar="ALGORITHM", help="Algorithm, such as ring, or all.")
    ],
    ranks: Annotated[
        str | None,
        typer.Option(
            "-P",
            "--ranks",
            metavar="LIST",
            help="Numbers of ranks; 4, or those of the machine or schedule file.",
        ),
    ] = None,
    size: Sizes = "1M",
    alpha: Annotated[str | None, _time("Time per message; 1us if not given.")] = None,
    beta: Annotated[str | None, _time("Time per byte sent; 100ps if not given.")] = None,
    gamma: Annotated[str | None, _time("Time per byte reduced; 50ps if not given.")] = None,
    step: Annotated[
        str | None, _time("Time per round in which a rank receives; 0 if not given.")
    ] = None,
    call: Annotated[str | None, _time("Time per call; 0 if not given.")] = None,
    inter_alpha: InterAlpha = None,
    inter_beta: InterBeta = None,
    network: Network = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "-m",
            "--model",
            metavar="FILE",
            help="Costs written by `mpicoll fit`, instead of these times.",
        ),
    ] = None,
    machine: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Machine file with hosts and links, instead of costs."),
    ] = None,
    per_node: Annotated[
        int, typer.Option(min=0, metavar="N", help="Consecutive ranks on each node; 0: all on one.")
    ] = 0,
    ports: Annotated[
        int, typer.Option(min=1, help="Messages that a rank sends, and receives, at the same time.")
    ] = 1,
    straggler: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Slow ranks and their factors: 3=2.5,7=4."),
    ] = None,
    stragglers: Annotated[
        float,
        typer.Option(
            min=0, max=1, metavar="CHANCE", help="Probability that a rank is slow, drawn at random."
        ),
    ] = 0.0,
    factor: Annotated[
        str, typer.Option(metavar="FACTOR", help="Factor by which --stragglers are slower.")
    ] = "2",
    draws: Annotated[
        int, typer.Option(min=1, help="Number of random draws; the time is their median.")
    ] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the random draws.")] = 0,
    root: Root = 0,
    set_: Set = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Plot time by number of ranks: .svg, .pdf or .png."),
    ] = None,
    json: Json = False,
) -> int:
    """Simulate an algorithm under the alpha-beta-gamma model.

    The simulator follows each message where there are at most about 100,000. With more, it
    simulates one rank for all equal ones, or round by round; else it follows up to 16 million
    messages. The column `method` says which.

    `formula` is the textbook's time of the algorithm; it assumes that P is a power of two and
    divides the size. `bound` is the sum of the least latency, bandwidth and arithmetic that any
    algorithm needs. Both hold for one port, one kind of link, and no stragglers; otherwise they are
    left empty.
    """
    from mpicoll import algorithms
    from mpicoll.base.sizes import parse_sizes
    from mpicoll.simulate.clock import check_call

    parameters = parse.parameters(set_ or [])
    times = {"alpha": alpha, "beta": beta, "gamma": gamma, "step": step, "call": call}
    alone: dict[str, Any] = {**times, "model": model}
    alone |= {"inter-alpha": inter_alpha, "inter-beta": inter_beta, "network": network}
    alone |= {"per-node": per_node or None, "ports": ports if ports > 1 else None}
    alone |= {"straggler": straggler, "stragglers": stragglers or None}
    described = _network(machine, alone) if machine else None
    source = measured.with_links(
        measured.read_costs(model, times) if model else measured.given_costs(times),
        network,
        inter_alpha,
        inter_beta,
        per_node or None,
        described=model is None,
    )
    if model and per_node and not measured.has_link(source):
        from mpicoll.tuning.predict import NO_LINK

        output.remark(f"mpicoll: warning: {NO_LINK}{measured.LINK_REMEDY}")
    options = _Options(
        machine=described,
        source=source,
        per_node=per_node,
        ports=ports,
        slow=_slow(straggler),
        chance=stragglers,
        factor=_factor("--factor", factor),
        draws=draws,
        seed=seed,
    )
    if algorithm == "all" and parameters:
        raise UsageError("--set needs one algorithm; name it instead of all")
    with usage():
        names = algorithms.names(collective) if algorithm == "all" else (algorithm,)
    chosen = [wanted.algorithm(collective, name) for name in names]
    own = options.ranks or chosen[0].only or 4
    counts = parse.ranks(ranks or str(own))
    if options.ranks and counts != (options.ranks,):
        raise UsageError(f"-P {ranks!r}: the machine has {options.ranks} ranks; leave -P out")
    with usage():
        sizes = parse_sizes(size)
        for count in counts:
            check_call(count, root)
            if algorithm != "all":
                chosen[0].fitting(count, parameters)
    calls = [
        (entry, count, n)
        for count in counts
        for n in sizes
        for entry in chosen
        if algorithm != "all" or entry.runs_on(count)
    ]
    with output.progress() as progress:
        tried = [
            _case(entry, count, n, options, root, parameters, algorithm == "all")
            for entry, count, n in progress.track(calls, description="simulating")
        ]
    found = [case for case in tried if case]
    if plot is not None:
        _plot(plot, collective, found)
    if json:
        output.facts({"model": options.facts(), "cases": found})
    else:
        _print(collective, found)
    return 0


@dataclass(frozen=True)
class _Options:
    """What the options say of the machine."""

    machine: Machine | None
    source: CostModel
    per_node: int
    ports: int
    slow: Mapping[int, Fraction]
    chance: float
    factor: Fraction
    draws: int
    seed: int

    @property
    def ranks(self) -> int | None:
        """Ranks of a machine file."""
        return self.machine.network.ranks if self.machine and self.machine.network else None

    def facts(self) -> dict[str, Any]:
        """For the reader of JSON: seconds."""
        if self.machine:
            seconds = {n: getattr(self.machine, n) / ATTOSECONDS for n in ("gamma", "step")}
            return {**seconds, "ports": self.machine.ports, "hosts": self.machine.nodes}
        general = self.source.general
        pieces = {kind: pieces[-1] for kind, pieces in general.links.items()}
        first = next(iter(pieces.values()))
        return {
            "alpha": first.alpha,
            "beta": first.beta,
            "gamma": general.gamma,
            "step": general.step,
            "call": general.call,
            "ports": self.ports,
            "per_node": self.per_node or None,
        }

    def costs(
        self, entry: Algorithm, parameters: Mapping[str, Value], size: int
    ) -> tuple[Costs, bool]:
        """The costs of an algorithm on so many ranks, and whether they are its own."""
        from mpicoll.schedule.parameters import in_words

        words = " ".join(filter(None, (entry.name, in_words(parameters))))
        return self.source.costs(entry.collective, words, size)

    def nodes(self, size: int) -> tuple[int, ...]:
        """The node of each rank."""
        if self.machine:
            return self.machine.nodes
        return tuple(rank // self.per_node for rank in range(size)) if self.per_node else ()

    def machines(self, costs: Costs, size: int, nodes: tuple[int, ...]) -> list[Machine]:
        """The machine of each draw of stragglers; without any, one."""
        if self.machine:
            return [self.machine]
        from mpicoll.simulate.machine import Machine

        machine = Machine.of(costs, ATTOSECONDS, self.ports)
        machine = replace(machine, nodes=nodes, slow=self.slow)
        if not self.chance:
            return [machine]
        found = []
        for draw in range(self.draws):
            dice = random.Random(f"{self.seed} {size} {draw}")
            slow = {rank: self.factor for rank in range(size) if dice.random() < self.chance}
            found.append(replace(machine, slow={**slow, **self.slow}))
        return found


def _network(path: Path, alone: Mapping[str, Any]) -> Machine:
    """The machine of a file, which says all that the other options would say."""
    from mpicoll.files import machine_files

    both = [name for name, value in alone.items() if value is not None]
    if both:
        raise UsageError(f"--machine and --{both[0]} exclude each other; drop one of them")
    with needing("pydantic", "--machine"), usage():
        return machine_files.read(path)


def _slow(texts: str | None) -> dict[int, Fraction]:
    found = {}
    for text in texts.split(",") if texts else ():
        rank, _, factor = text.partition("=")
        if not rank.isdecimal():
            raise UsageError(f"--straggler {text!r}: write ranks and factors, as 3=2.5,7=4")
        found[int(rank)] = _factor("--straggler", factor)
    return found


def _factor(option: str, text: str) -> Fraction:
    try:
        factor = Fraction(text)
    except (ValueError, ZeroDivisionError):
        factor = Fraction(0)
    if factor < 1:
        raise UsageError(f"{option}: {text!r} is no factor of at least 1, such as 2.5")
    return factor


def _case(
    entry: Algorithm,
    size: int,
    nbytes: int,
    options: _Options,
    root: int,
    given: dict[str, Value],
    one_of_many: bool,
) -> dict[str, Any] | None:
    """One case as plain values, times in seconds; None where it would take too long."""
    from mpicoll.simulate import TooLargeError, simulate

    nodes, parameters = options.nodes(size), dict(given)
    costs, own = options.costs(entry, given, size)
    if "nodes" in entry.parameters:
        named = parameters.setdefault("nodes", nodes)
        nodes = nodes or (named if isinstance(named, tuple) else ())
    try:
        with usage():
            results = [
                simulate(entry, size, nbytes, machine, root, parameters)
                for machine in options.machines(costs, size, nodes)
            ]
    except UsageError as error:
        if not one_of_many or not isinstance(error.__cause__, TooLargeError):
            raise
        output.remark(f"mpicoll: left out: {error}")
        return None
    drawn = sorted(result.makespan / ATTOSECONDS for result in results)
    complete, result = entry.complete(parameters), results[0]
    piece = next(iter(costs.links.values()))[0]
    numbers = (piece.alpha, piece.beta, costs.gamma)
    textbook = options.ports == 1 and not (costs.step or costs.call or options.slow)
    textbook &= options.machine is None
    textbook &= not options.chance and [len(p) for p in costs.links.values()] == [1]
    return {
        "collective": entry.collective,
        "algorithm": entry.name,
        "parameters": complete,
        "P": size,
        "size": nbytes,
        "root": root if entry.definition.rooted else None,
        "time": median_low(drawn),
        **({"slowest": drawn[-1], "draws": drawn} if options.chance else {}),
        "formula": entry.textbook_time(size, nbytes, *numbers, complete) if textbook else None,
        "bound": entry.definition.bound(size, nbytes, *numbers) if textbook else None,
        "own_costs": own,
        "rounds": entry.count_of("rounds", size, root, complete),
        "messages": result.messages,
        "bytes_sent": result.bytes_sent,
        "bytes_sent_max": result.bytes_sent_max,
        "how": result.how,
        "exact": result.exact,
    }


def _plot(path: Path, collective: str, found: list[dict[str, Any]]) -> None:
    from mpicoll.base.sizes import format_size
    from mpicoll.report import papers

    series: dict[str, dict[int, float]] = {}
    for case in found:
        name = f"{case['algorithm']} {format_size(case['size'])}"
        series.setdefault(name, {})[case["P"]] = case["time"]
    with needing("matplotlib", "--plot"), usage():
        papers.by_ranks(path, series, collective, "time [s]")


def _print(collective: str, found: list[dict[str, Any]]) -> None:
    from mpicoll.base.sizes import format_size
    from mpicoll.bench.table import microseconds

    output.text(f"{collective}: simulated time of the slowest rank; size: of the whole vector")
    slowest = {"slowest": "slowest [us]"} if any("slowest" in case for case in found) else {}
    more = {**slowest, "formula": "formula [us]", "bound": "bound [us]"}
    counts = {"rounds": "rounds", "messages": "messages"}
    traffic = {"bytes_sent": "sent, all ranks [B]", "bytes_sent_max": "sent, busiest rank [B]"}
    found = sorted(found, key=lambda case: (case["P"], case["size"], case["time"]))
    marks = behind([c["time"] for c in found], [(c["P"], c["size"]) for c in found])
    marked = ("slower by",) if any(marks) else ()
    heads = ("ranks", "size [B]", "time [us]", *marked, *more.values(), *counts.values())
    numbers = (*heads, *traffic.values())
    output.table(
        ("algorithm", *numbers, "method"),
        (
            (
                case["algorithm"],
                str(case["P"]),
                format_size(case["size"]),
                microseconds(case["time"]),
                *(mark for _ in marked),
                *("-" if case[name] is None else microseconds(case[name]) for name in more),
                *(str(case[name]) for name in counts),
                *(format_size(case[name]) for name in traffic),
                case["how"],
            )
            for case, mark in zip(found, marks, strict=True)
        ),
        right=numbers,
        fold=("method",),
        drop=("method", *traffic.values(), "messages", "formula [us]", "rounds"),
    )
