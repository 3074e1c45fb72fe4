"""``mpicoll predict`` and ``mpicoll explain``: how long a collective takes, and what is fastest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpicoll.base.wording import plural
from mpicoll.cli import measured, output, parse
from mpicoll.cli.errors import UsageError, usage
from mpicoll.cli.measured import InterAlpha, InterBeta, ModelFile, Network, PerNode
from mpicoll.cli.options import Algorithm, Collective, Json, Ranks, Set, Sizes

if TYPE_CHECKING:
    from mpicoll.simulate.costs import CostModel
    from mpicoll.tuning import Choice
    from mpicoll.tuning.predict import Prediction


def command(
    collective: Collective,
    algorithm: Algorithm,
    ranks: Ranks = "4",
    size: Sizes = "1M",
    model: ModelFile = measured.MODEL,
    per_node: PerNode = None,
    network: Network = None,
    inter_alpha: InterAlpha = None,
    inter_beta: InterBeta = None,
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
    parameters = measured.with_links(
        measured.model(model), network, inter_alpha, inter_beta, per_node
    )
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
    _warn(found)
    if json:
        output.facts([_facts(prediction) for prediction in found])
    else:
        _table(collective, found)
    return 0


def explain(
    collective: Collective,
    ranks: Annotated[int, typer.Option("-P", min=1, metavar="P", help="Number of ranks.")] = 4,
    size: Annotated[
        str, typer.Option("-n", "--size", metavar="SIZE", help="Bytes of the whole vector.")
    ] = "1M",
    model: Annotated[
        Path | None,
        typer.Option(
            "-m",
            "--model",
            metavar="FILE",
            help="Parameters that `mpicoll fit` wrote; model.json if there is one, else those that "
            "come with mpicoll.",
        ),
    ] = None,
    per_node: PerNode = None,
    network: Network = None,
    inter_alpha: InterAlpha = None,
    inter_beta: InterBeta = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Algorithms that were not measured, too.")
    ] = False,
    json: Json = False,
) -> int:
    """Rank the algorithms of a collective for one size: time, interval and reason."""
    from mpicoll.base.sizes import parse_size
    from mpicoll.schedule import collectives
    from mpicoll.tuning.predict import ranking
    from mpicoll.tuning.reasons import why

    with usage():
        collectives.collective(collective)
        nbytes = parse_size(size)
    parameters, ours = measured.model_or_built_in(model)
    parameters = measured.with_links(parameters, network, inter_alpha, inter_beta, per_node)
    nodes = measured.nodes(parameters, ranks, per_node)
    with usage():
        found = ranking(parameters, collective, ranks, nbytes, unmeasured=all_ or ours, nodes=nodes)
    if not found:
        raise UsageError(
            f"no algorithm of {collective} that was measured serves {plural(ranks, 'rank')}"
        )
    runs = _choice(parameters, ours, collective, ranks, nbytes, nodes)
    reason = _alone(parameters, collective, found) or why(*found[:2])
    _warn(found)
    if json:
        output.facts(
            {
                "runs": {"choice": runs.words, "source": runs.source},
                "costs": _origin(parameters) if ours else str(model or measured.MODEL),
                "why": reason,
                "ranking": [_facts(prediction) for prediction in found],
            }
        )
        return 0
    if ours:
        output.text(f"no model of this machine: costs are those of {_origin(parameters)}")
    output.text(f"without algorithm= runs {runs.words} ({runs.source})")
    output.text(reason)
    _table(collective, found)
    return 0


def _origin(parameters: CostModel) -> str:
    """Where the parameters were measured, in words."""
    evidence = parameters.general_evidence
    machine = ", ".join(f"{name} {value}" for name, value in parameters.about["machine"].items())
    ranks = ", ".join(map(str, evidence.ranks)) if evidence else "unknown"
    return f"another one ({machine}; P = {ranks})"


def _choice(
    parameters: CostModel,
    ours: bool,
    collective: str,
    ranks: int,
    nbytes: int,
    nodes: tuple[int, ...],
) -> Choice:
    """What a communicator takes that has these parameters, or none, and no tuning file."""
    from mpicoll import tuning

    rules: tuning.Table = {}
    if not ours:
        with usage():
            rules = tuning.table_from(parameters.rules, "rules of the model", tuning.MODEL)
    table = tuning.for_layout(
        tuning.combined(tuning.BUILTIN, rules), len(set(nodes)) < 2, tuning.is_grouped(nodes)
    )
    return tuning.choose_fitting(collective, ranks, nbytes, table)


def _alone(parameters: CostModel, collective: str, found: list[Prediction]) -> str:
    """What is to be said where there is nothing to rank; "" where there is."""
    from mpicoll import algorithms

    if len(found) > 1:
        return ""
    (only,) = found
    known = len(algorithms.names(collective))
    return (
        f"{only.choice} is the only one of {plural(known, 'algorithm')} that was measured, so "
        "there is none to hold it against; measure others, or rank them unmeasured by --all"
    )


def _warn(found: list[Prediction]) -> None:
    """Say what speaks against predictions, each once."""
    from mpicoll.tuning.predict import NO_LINK

    for warning in dict.fromkeys(w for prediction in found for w in prediction.warnings):
        remedy = measured.LINK_REMEDY if warning == NO_LINK else ""
        output.remark(f"mpicoll: warning: {warning}{remedy}")


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
