"""``mpicoll predict`` and ``mpicoll explain``: how long a collective takes, and what is fastest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpicoll.base.wording import plural
from mpicoll.cli import measured, output, parse
from mpicoll.cli.errors import UsageError, usage
from mpicoll.cli.measured import ModelFile, PerNode
from mpicoll.cli.options import Algorithm, Collective, Json, Ranks, Set, Sizes

if TYPE_CHECKING:
    from mpicoll.tuning.predict import Prediction

_MODEL = Path("model.json")


def command(
    collective: Collective,
    algorithm: Algorithm,
    ranks: Ranks = "4",
    size: Sizes = "1M",
    model: ModelFile = _MODEL,
    per_node: PerNode = None,
    set_: Set = None,
    json: Json = False,
) -> int:
    """Predict how long a collective takes by one algorithm, with an interval."""
    from mpicoll import algorithms, tuning
    from mpicoll.base.sizes import parse_sizes
    from mpicoll.tuning import predict

    counts = parse.ranks(ranks)
    with usage():
        sizes = parse_sizes(size)
        checked = tuning.check(collective, algorithm, parse.parameters(set_ or []))
    parameters = measured.model(model)
    choice = tuning.Choice(algorithm, checked)
    with usage():
        found = []
        for count in counts:
            if algorithm != tuning.NATIVE:
                algorithms.find(collective, algorithm).fitting(count, dict(checked))
            nodes = measured.nodes(parameters, count, per_node)
            for n in sizes:
                made = predict.predict(parameters, collective, choice, count, n, nodes=nodes)
                found.append(made)
    return _show(collective, found, json)


def explain(
    collective: Collective,
    ranks: Annotated[int, typer.Option("-P", min=1, metavar="P", help="Number of ranks.")] = 4,
    size: Annotated[
        str, typer.Option("-n", "--size", metavar="SIZE", help="Bytes of the whole vector.")
    ] = "1M",
    model: ModelFile = _MODEL,
    per_node: PerNode = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Algorithms that were not measured, too.")
    ] = False,
    json: Json = False,
) -> int:
    """Rank the algorithms of a collective for one size: time, interval and reason."""
    from mpicoll.base.sizes import parse_size
    from mpicoll.schedule import collectives
    from mpicoll.tuning.predict import ranking

    with usage():
        collectives.collective(collective)
        nbytes = parse_size(size)
    parameters = measured.model(model)
    nodes = measured.nodes(parameters, ranks, per_node)
    with usage():
        found = ranking(parameters, collective, ranks, nbytes, unmeasured=all_, nodes=nodes)
    if not found:
        raise UsageError(
            f"no algorithm of {collective} that was measured serves {plural(ranks, 'rank')}"
        )
    return _show(collective, found, json)


def _show(collective: str, found: list[Prediction], json: bool) -> int:
    """Print predictions, and what speaks against them; the exit status."""
    for warning in dict.fromkeys(w for prediction in found for w in prediction.warnings):
        output.remark(f"mpicoll: warning: {warning}")
    if json:
        output.facts([_facts(prediction) for prediction in found])
    else:
        _table(collective, found)
    return 0


def _facts(prediction: Prediction) -> dict[str, Any]:
    kept = ("collective", "choice", "ranks", "nbytes", "seconds", "low", "high", "source")
    return {
        **{name: getattr(prediction, name) for name in kept},
        "parts": dict(prediction.parts),
        "reason": prediction.reason,
        "warnings": list(prediction.warnings),
    }


def _table(collective: str, found: list[Prediction]) -> None:
    from mpicoll.base.sizes import format_size
    from mpicoll.bench.table import microseconds

    output.text(f"{collective}: predicted time of the slowest rank; size of the whole vector")
    numbers = ("P", "size [B]", "time [us]", "from", "to")
    output.table(
        ("choice", *numbers, "by", "made of"),
        (
            (
                p.choice,
                str(p.ranks),
                format_size(p.nbytes),
                *map(microseconds, (p.seconds, p.low, p.high)),
                p.source,
                p.reason,
            )
            for p in found
        ),
        right=numbers,
        fold="made of",
    )
