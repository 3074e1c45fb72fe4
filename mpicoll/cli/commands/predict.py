"""``mpicoll predict`` and ``mpicoll explain``: how long a collective takes, and what is fastest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpicoll.base.wording import longer, plural
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
        title = f"{collective}: predicted time of the slowest rank, 95 % interval low to high"
        _table(f"{title}; size: of the whole vector", found, ranked=False)
    return 0


def explain(
    collective: Collective,
    ranks: Annotated[
        int, typer.Option("-P", "--ranks", min=1, metavar="N", help="Number of ranks.")
    ] = 4,
    size: Annotated[
        str, typer.Option("-s", "--size", metavar="SIZE", help="Size of the whole vector.")
    ] = "1M",
    model: Annotated[
        Path | None,
        typer.Option(
            "-m",
            "--model",
            metavar="FILE",
            help="Costs written by `mpicoll fit`; without it model.json if it exists, else "
            "mpicoll's own.",
        ),
    ] = None,
    per_node: PerNode = None,
    network: Network = None,
    inter_alpha: InterAlpha = None,
    inter_beta: InterBeta = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Include algorithms that were not measured.")
    ] = False,
    json: Json = False,
) -> int:
    """Rank the algorithms of a collective for one size: time, interval and reason."""
    from mpicoll.base.sizes import format_size, parse_size
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
    title = f"{collective}, {plural(ranks, 'rank')}, {format_size(nbytes)}: predicted time"
    _table(f"{title} of the slowest rank, 95 % interval low to high", found, ranked=True)
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
    table = tuning.combined(tuning.BUILTIN, rules)
    return tuning.choose_placed(collective, ranks, nbytes, table, nodes)


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


def _table(title: str, found: list[Prediction], *, ranked: bool) -> None:
    """A row for each prediction; of a ranking all are of one size, and say how far behind."""
    from mpicoll.base.sizes import format_size
    from mpicoll.bench.table import microseconds

    output.text(title)
    place = ("slower by",) if ranked else ("ranks", "size [B]")
    interval = ("low [us]", "high [us]")
    rows = []
    for p in found:
        own = (
            (longer(p.seconds, found[0].seconds),)
            if ranked
            else (str(p.ranks), format_size(p.nbytes))
        )
        times = tuple(map(microseconds, (p.seconds, p.low, p.high)))
        rows.append((p.choice, *own, *times, p.source, p.reason))
    output.table(
        ("algorithm", *place, "time [us]", *interval, "costs", "critical path"),
        rows,
        right=(*place, "time [us]", *interval),
        fold=("critical path", "costs", "algorithm"),
        drop=("costs", "critical path"),
    )
