"""``mpicoll simulate``: how long a collective takes under a model of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpicoll.cli import output, parse
from mpicoll.cli.errors import UsageError, usage
from mpicoll.cli.options import Collective, Json, Set

if TYPE_CHECKING:
    from mpicoll import registry


def command(
    collective: Collective,
    algorithm: Annotated[
        str, typer.Argument(metavar="ALGORITHM", help="Such as ring, or all of them: all.")
    ],
    ranks: Annotated[
        str, typer.Option("-P", metavar="LIST", help="Numbers of ranks, as 4, 1-33 or 2,4,8.")
    ] = "4",
    size: Annotated[
        str, typer.Option("-n", "--size", metavar="LIST", help="Sizes in bytes, as 8,64K,1M.")
    ] = "1M",
    alpha: Annotated[str, typer.Option(metavar="TIME", help="Time per message.")] = "1us",
    beta: Annotated[str, typer.Option(metavar="TIME", help="Time per byte sent.")] = "100ps",
    gamma: Annotated[str, typer.Option(metavar="TIME", help="Time per byte reduced.")] = "50ps",
    ports: Annotated[
        int, typer.Option(min=1, help="Messages a rank sends, and receives, at a time.")
    ] = 1,
    root: Annotated[int, typer.Option(help="Root rank.")] = 0,
    set_: Set = None,
    json: Json = False,
) -> int:
    """Simulate an algorithm under the alpha-beta-gamma model, message by message.

    Beside it stand the textbook's formula, which assumes that P is a power of two and is an upper
    estimate for algorithms of several channels, and the sum of the lower bounds of
    latency, bandwidth and arithmetic, each taken by itself; both for one port.
    """
    from mpicoll import algorithms
    from mpicoll.bench.sizes import parse_sizes
    from mpicoll.simulate import Model, check_call

    counts, parameters = parse.ranks(ranks), parse.parameters(set_ or [])
    costs = {
        name: parse.attoseconds(f"--{name}", text)
        for name, text in (("alpha", alpha), ("beta", beta), ("gamma", gamma))
    }
    if algorithm == "all" and parameters:
        raise UsageError("--set needs one algorithm; name it instead of all")
    with usage():
        names = algorithms.names(collective) if algorithm == "all" else (algorithm,)
        chosen = [algorithms.find(collective, name) for name in names]
        sizes = parse_sizes(size)
        model = Model(**costs, ports=ports)
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
        found = [
            _simulate(entry, count, n, model, root, parameters)
            for entry, count, n in progress.track(calls, description="simulating")
        ]
    if json:
        seconds = {name: value / parse.ATTOSECONDS for name, value in costs.items()}
        output.facts({"model": {**seconds, "ports": ports}, "cases": found})
    else:
        _print(collective, found)
    return 0


def _simulate(
    entry: registry.Algorithm,
    size: int,
    nbytes: int,
    model: Any,
    root: int,
    parameters: dict[str, registry.Value],
) -> dict[str, Any]:
    """One case as plain values; times in seconds."""
    from mpicoll.simulate import simulate

    costs = (model.alpha, model.beta, model.gamma)
    alpha, beta, gamma = (cost / parse.ATTOSECONDS for cost in costs)
    result = simulate(entry, size, nbytes, model, root, parameters)
    complete, one_port = entry.complete(parameters), model.ports == 1
    return {
        "collective": entry.collective,
        "algorithm": entry.name,
        "parameters": complete,
        "P": size,
        "size": nbytes,
        "root": root if entry.definition.rooted else None,
        "time": result.makespan / parse.ATTOSECONDS,
        # Both are for one port; with more, a rank may be faster.
        "formula": entry.textbook(size, nbytes, alpha, beta, gamma, complete) if one_port else None,
        "bound": entry.definition.bound(size, nbytes, alpha, beta, gamma) if one_port else None,
        "rounds": entry.count("rounds", size, root, complete),
        "messages": result.messages,
        "bytes_sent": result.bytes_sent,
        "bytes_sent_max": result.bytes_sent_max,
    }


def _print(collective: str, found: list[dict[str, Any]]) -> None:
    from mpicoll.bench.sizes import format_size
    from mpicoll.bench.table import microseconds

    output.text(
        f"{collective}: time of the slowest rank, in microseconds; size of the total vector"
    )
    numbers = ("P", "size [B]", "time [us]", "formula [us]", "bound [us]", "rounds", "messages")
    traffic = ("sent, all ranks [B]", "sent, most of a rank [B]")
    output.table(
        ("algorithm", *numbers, *traffic),
        (
            (
                case["algorithm"],
                str(case["P"]),
                format_size(case["size"]),
                *(
                    "-" if case[name] is None else microseconds(case[name])
                    for name in ("time", "formula", "bound")
                ),
                str(case["rounds"]),
                str(case["messages"]),
                str(case["bytes_sent"]),
                str(case["bytes_sent_max"]),
            )
            for case in found
        ),
        right=(*numbers, *traffic),
    )
