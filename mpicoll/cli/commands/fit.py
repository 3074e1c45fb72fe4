"""``mpicoll fit``: what the machine costs, from measurements."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpicoll.base.sizes import about_size
from mpicoll.base.wording import plural
from mpicoll.cli import measured, output
from mpicoll.cli.errors import usage
from mpicoll.cli.measured import Mix, Oversubscribed, Runs
from mpicoll.cli.options import Json

if TYPE_CHECKING:
    from mpicoll.model.build import Found
    from mpicoll.model.crossovers import Crossover
    from mpicoll.simulate.costs import CostModel, Costs, Errors, Evidence

_UNITS = {"alpha": "us a message", "beta": "ns a byte", "gamma": "ns a byte reduced"}
_SCALES = {"beta": 1e9, "gamma": 1e9}


def command(
    runs: Runs,
    file: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Write the costs to this file.")
    ] = Path("model.json"),
    mix: Mix = False,
    oversubscribed: Oversubscribed = False,
    json: Json = False,
) -> int:
    """Fit the costs of messages, bytes, reductions, rounds and calls, with errors.

    Costs that the measurements do not identify are refused, with what to measure for them. Errors
    are those for sizes, and numbers of ranks, that were left out of the fit. The exit status is 1
    if some results were wrong (they are not used), or if a cost lies outside of its own interval.
    """
    measured.need(["scipy"], "fit")
    from mpicoll.tuning import cost_files

    found = measured.runs(runs, mix)
    status = measured.wrong_runs(found)
    cells, left = measured.cells(found, oversubscribed)
    with usage():
        result = measured.fitted(found, cells, left)
    cost_files.write(file, result.model)
    for remark in result.remarks:
        output.remark(f"mpicoll: {remark}")
    for stray in _strays(result.model):
        output.remark(f"mpicoll: error: {stray}")
        status = 1
    if json:
        output.facts(_facts(result, file))
    else:
        _print(result)
        output.text(f"written to {file}")
    return status


def _strays(model: CostModel) -> Iterator[str]:
    """Parameters that lie outside of what fits to resampled measurements give, in words."""
    sets = {
        f"{collective} {choice}": (costs, model.evidence.get(collective, {}).get(choice))
        for collective, choices in model.own.items()
        for choice, costs in choices.items()
    }
    for name, (costs, evidence) in {"": (model.general, model.general_evidence), **sets}.items():
        for parameter, (low, high) in (evidence.strays(costs) if evidence else {}).items():
            value = costs.numbers()[parameter]
            yield (
                f"{parameter}{name and f' of {name}'} is {value:.4g}, outside of its own interval, "
                f"{low:.4g} to {high:.4g}: the fit is not to be trusted; measure more launches and "
                "sizes"
            )


def _facts(result: Found, file: Path) -> dict[str, Any]:
    crossovers = [{**vars(c), "place": c.place._asdict()} for c in result.crossovers]
    general = result.model.general_evidence
    return {
        **result.model.about,
        "file": str(file),
        "general": result.model.general.numbers(),
        "intervals": general.intervals(result.model.general) if general else {},
        "condition": general.condition if general else None,
        "refused": general.refused if general else {},
        "crossovers": crossovers,
        "remarks": result.remarks,
    }


def _print(result: Found) -> None:
    model = result.model
    about, general = model.about, model.general_evidence
    assert general is not None
    named = ", ".join(f"{name} {value}" for name, value in about["machine"].items())
    ranks = ", ".join(map(str, general.ranks))
    output.text(
        f"{about['launches']} launch{'es' * (about['launches'] != 1)}, P = {ranks}; {named}"
    )
    output.text("\nGeneral costs, of all algorithms together (used for what was not measured):")
    _parameters(model.general, general)
    output.text(
        "\nEach algorithm by itself; errors for sizes and numbers of ranks left out of the fit:"
    )
    _sets(model)
    _all_errors(model, result.noise)
    _crossovers(result.crossovers)
    _regrets(result)


def _parameters(costs: Costs, evidence: Evidence) -> None:
    """A row for each parameter, and what there is to say about it."""
    intervals = evidence.intervals(costs)
    rows = []
    for name, value in costs.numbers().items():
        kind = name.split()[0]
        scale, unit = _SCALES.get(kind, 1e6), _UNITS.get(kind, f"us a {kind}")
        if name in evidence.refused:
            why = f"not identified: {evidence.refused[name]}"
            rows.append((name, "-", "-", unit, why))
            continue
        low, high = intervals.get(name, (value, value))
        spread = f"{low * scale:.4g} .. {high * scale:.4g}"
        rows.append((name, f"{value * scale:.4g}", spread, unit, ""))
    heads = ("parameter", "value", "95 % interval", "unit", "remark")
    output.table(heads, rows, right=("value",), fold=("remark",))
    for link, pieces in costs.links.items():
        alone = (costs.step + pieces[0].alpha) * 1e6
        output.text(f"a short message alone, {link}: {alone:.4g} us (step + alpha)")
    output.text(f"condition number {evidence.condition:.3g}, {plural(evidence.points, 'point')}")


def _sets(model: CostModel) -> None:
    rows = []
    for collective, choices in model.evidence.items():
        for choice, evidence in choices.items():
            costs = model.own.get(collective, {}).get(choice)
            pieces = "curve"
            if costs is not None:
                pieces = " + ".join(str(len(own)) for own in costs.links.values())
            rows.append(
                (
                    collective,
                    choice,
                    str(evidence.points),
                    pieces,
                    "-" if evidence.condition is None else f"{evidence.condition:.3g}",
                    *_percents(evidence.sizes_left_out),
                    *_percents(evidence.ranks_left_out),
                )
            )
    numbers = ("points", "pieces", "condition")
    sizes, ranks = (
        [f"{what}: {name} [%]" for name in ("median", "p90", "max", "bias")]
        for what in ("sizes", "ranks")
    )
    heads = ("collective", "algorithm", *numbers, *sizes, *ranks)
    output.table(
        heads,
        rows,
        right=(*numbers, *sizes, *ranks),
        fold=("algorithm",),
        drop=("pieces", "condition", ranks[3], sizes[3], ranks[1], sizes[1], "points"),
    )
    output.text("curve: the schedule is unknown, so times between measured sizes are interpolated")


def _percents(errors: Errors | None) -> tuple[str, ...]:
    if errors is None:
        return ("-",) * 4
    values = (errors.median, errors.p90, errors.largest)
    return (*(f"{100 * value:.1f}" for value in values), f"{100 * errors.bias:+.1f}")


def _all_errors(model: CostModel, noise: float | None) -> None:
    from mpicoll.simulate.costs import Errors

    output.text("")
    rows = []
    for what, name in (("sizes", "sizes_left_out"), ("ranks", "ranks_left_out")):
        own = model.about.get(name)
        general = getattr(model.general_evidence, name)
        rows.append((f"{what} left out, own costs", *_percents(own and Errors(**own))))
        rows.append((f"{what} left out, general costs", *_percents(general)))
    heads = ("error [%]", "median", "p90", "max", "bias")
    output.table(heads, rows, right=heads[1:])
    spread = "unknown: a single launch" if noise is None else f"{100 * noise:.1f} %"
    output.text(f"noise floor, the spread of identical launches: {spread}")


def _crossovers(found: tuple[Crossover, ...]) -> None:
    if not found:
        return
    output.text("\nSizes of the whole vector from which another algorithm is the fastest:")
    sizes = ("measured [B]", "predicted [B]", "no difference [B]")
    heads = ("collective", "ranks", "fastest below", "fastest above", *sizes)
    output.table(
        heads,
        (
            (
                c.place.collective,
                str(c.place.ranks),
                c.before,
                c.after,
                _size(c.measured),
                _size(c.predicted),
                "-" if c.alike is None else " .. ".join(map(about_size, c.alike)),
            )
            for c in found
            if c.told
        ),
        right=("ranks", *sizes),
        fold=sizes[::-1],
        drop=sizes[::-1],
    )
    if untold := sum(not c.told for c in found):
        output.text(f"{untold} more within noise")


def _size(value: tuple[float, float, float] | None) -> str:
    if value is None:
        return "none"
    best, low, high = map(about_size, value)
    return f"{best} ({low} .. {high})"


def _regrets(result: Found) -> None:
    if not result.regrets:
        return
    output.text("\nRegret, t(choice) / t(best) - 1, timed on other launches than those that chose:")
    heads = ("chosen by", "calls", "mean [%]", "worst [%]", "worst case")
    output.table(
        heads,
        (
            (way, str(r.n), f"{100 * r.mean:.2f}", f"{100 * r.worst:.1f}", r.where)
            for way, r in result.regrets.items()
        ),
        right=("calls", "mean [%]", "worst [%]"),
        fold=("worst case", "chosen by"),
    )
