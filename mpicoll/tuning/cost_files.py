"""Files of fitted parameters (model.json): what ``mpicoll fit`` writes and others read.

A file is JSON::

    {"mpicoll": "model 1", "about": {...},
     "general": {"links": {"intra": [{"upto": 4096, "alpha": 1e-6, "beta": 1e-10},
                                     {"upto": null, "alpha": 3e-6, "beta": 8e-11}]},
                 "gamma": 5e-11, "call": 2e-6, "step": 0.0, "factors": {"3": 1.04}, "plain": [2, 4],
                 "intervals": {...}, "evidence": {...}},
     "own": {"allreduce": {"ring": {...}, "chain segments=4": {...}}},
     "curves": {"allreduce": {"native": {"times": {"2": [[8, 1e-6, 9e-7, 1.1e-6]]}, ...}}},
     "rules": {"allreduce": [{"ranks": 2, "nbytes": 0, "algorithms": ["ring"]}]}}

Times are seconds, sizes bytes; see :mod:`mpicoll.simulate.costs` for what they mean, and
:mod:`mpicoll.tuning.rule_files` for the rules.  ``links`` is all that a set needs; ``own``,
``curves``, ``rules``, ``about`` and ``evidence`` may be missing.  ``intervals`` is for readers of
the file: it follows from the replicates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpicoll.base.files import checked_json, naming, write_atomically
from mpicoll.simulate.costs import CostModel, Costs, Curve, Errors, Evidence, Piece, check
from mpicoll.tuning import rule_files

FORMAT = "model 1"
#: Measured on one machine, for where no file is: benchmarks/default_costs.py has made it.
_BUILT_IN = Path(__file__).with_name("default_costs.json")


def built_in() -> CostModel:
    """The parameters that come with mpicoll: of one node, that of ``about["machine"]``.

    Raises:
        ModuleNotFoundError: pydantic is missing.
    """
    return read(_BUILT_IN)


def read(path: str | Path) -> CostModel:
    """The parameters of a file.

    Raises:
        ValueError: it cannot be read, or is none; the message names the file and the place.
        ModuleNotFoundError: pydantic is missing.
    """
    with naming(f"model {str(path)!r}", "; give a file that `mpicoll fit` wrote"):
        return _model(_validated(Path(path).read_bytes()))


def write(path: str | Path, model: CostModel) -> None:
    """Write a model; whoever reads at the same time finds the old file or the new one.

    Raises:
        OSError: it cannot be written.
    """
    general = _set(model.general, model.general_evidence)
    own = {
        collective: {
            choice: _set(costs, model.evidence.get(collective, {}).get(choice))
            for choice, costs in sets.items()
        }
        for collective, sets in model.own.items()
    }
    curves = {
        collective: {
            choice: {
                "times": {str(ranks): rows for ranks, rows in curve.times.items()},
                **_evidence(model.evidence.get(collective, {}).get(choice)),
            }
            for choice, curve in sets.items()
        }
        for collective, sets in model.curves.items()
    }
    content = {
        "mpicoll": FORMAT,
        "about": model.about,
        "general": general,
        "own": own,
        "curves": curves,
        "rules": model.rules,
    }
    write_atomically(path, json.dumps(content, indent=1) + "\n")


# --- to JSON --------------------------------------------------------------------------------------


def _set(costs: Costs, evidence: Evidence | None) -> dict[str, Any]:
    links = {
        link: [{"upto": p.upto, "alpha": _short(p.alpha), "beta": _short(p.beta)} for p in pieces]
        for link, pieces in costs.links.items()
    }
    numbers = {name: _short(getattr(costs, name)) for name in ("gamma", "call", "step")}
    factors = {str(ranks): _short(factor) for ranks, factor in costs.factors.items()}
    more = {"factors": factors, "plain": costs.plain}
    return {"links": links, **numbers, **more, **_evidence(evidence, costs)}


def _evidence(evidence: Evidence | None, costs: Costs | None = None) -> dict[str, Any]:
    if evidence is None:
        return {}
    found: dict[str, Any] = {
        name: getattr(evidence, name)
        for name in ("ranks", "least", "most", "points", "launches", "refused")
    }
    found["condition"] = evidence.condition and _short(evidence.condition)
    for name in ("sizes_left_out", "ranks_left_out"):
        errors: Errors | None = getattr(evidence, name)
        found[name] = errors and {key: _short(value) for key, value in vars(errors).items()}
    found["replicates"] = [[*map(_short, r.numbers().values())] for r in evidence.replicates]
    intervals = {} if costs is None else evidence.intervals(costs)
    short = {name: [*map(_short, ends)] for name, ends in intervals.items()}
    return {"intervals": short, "evidence": found}


def _short(value: float) -> float:
    """Six digits: more than any measurement has."""
    return value if isinstance(value, int) else float(f"{value:.6g}")


# --- from JSON ------------------------------------------------------------------------------------


def _model(content: dict[str, Any]) -> CostModel:
    evidence: dict[str, dict[str, Evidence]] = {}
    own: dict[str, dict[str, Costs]] = {}
    curves: dict[str, dict[str, Curve]] = {}
    general, general_evidence = _costs("general", content["general"])
    for collective, sets in content["own"].items():
        for choice, written in sets.items():
            costs, found = _costs(f"own.{collective}.{choice}", written)
            own.setdefault(collective, {})[choice] = costs
            if found is not None:
                evidence.setdefault(collective, {})[choice] = found
    for collective, sets in content["curves"].items():
        for choice, written in sets.items():
            curves.setdefault(collective, {})[choice] = Curve(written["times"])
            if written["evidence"] is not None:
                found = _read_evidence(written["evidence"], None)
                evidence.setdefault(collective, {})[choice] = found
    rules = {
        collective: [{k: v for k, v in rule.items() if v is not None} for rule in written]
        for collective, written in content["rules"].items()
    }
    return CostModel(general, own, curves, evidence, general_evidence, rules, content["about"])


def _costs(place: str, written: Mapping[str, Any]) -> tuple[Costs, Evidence | None]:
    links = {
        link: tuple(Piece(**piece) for piece in pieces) for link, pieces in written["links"].items()
    }
    names = ("gamma", "call", "step", "factors", "plain")
    costs = Costs(links, *(written[name] for name in names))
    try:
        check(costs)
        evidence = written["evidence"] and _read_evidence(written["evidence"], costs)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    return costs, evidence


def _read_evidence(written: Mapping[str, Any], costs: Costs | None) -> Evidence:
    errors = {
        name: written[name] and Errors(**written[name])
        for name in ("sizes_left_out", "ranks_left_out")
    }
    replicates = tuple(costs.with_numbers(r) for r in written["replicates"]) if costs else ()
    return Evidence(**{**written, **errors, "replicates": replicates})


def _validated(content: bytes) -> dict[str, Any]:
    RuleOf = rule_files.rule_type("files of parameters")
    from typing import Annotated, Literal

    import pydantic

    NotNegative = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
    Positive = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
    Number = Annotated[int, pydantic.Field(ge=1)]
    Finite = Annotated[float, pydantic.Field(allow_inf_nan=False)]

    class ErrorsOf(pydantic.BaseModel, extra="forbid"):
        n: Number
        median: NotNegative
        p90: NotNegative
        largest: NotNegative
        bias: Finite

    class EvidenceOf(pydantic.BaseModel, extra="forbid"):
        ranks: tuple[Number, ...]
        least: int
        most: int
        points: int
        launches: int
        condition: float | None = None
        sizes_left_out: ErrorsOf | None = None
        ranks_left_out: ErrorsOf | None = None
        refused: dict[str, str] = {}
        replicates: list[list[NotNegative]] = []

    class PieceOf(pydantic.BaseModel, extra="forbid"):
        upto: int | None
        alpha: NotNegative
        beta: NotNegative

    class SetOf(pydantic.BaseModel, extra="forbid"):
        intervals: dict[str, tuple[float, float]] = {}
        evidence: EvidenceOf | None = None
        links: dict[str, list[PieceOf]]
        gamma: NotNegative = 0.0
        call: NotNegative = 0.0
        step: NotNegative = 0.0
        factors: dict[Number, Positive] = {}
        plain: tuple[Number, ...] = ()

    class CurveOf(pydantic.BaseModel, extra="forbid"):
        intervals: dict[str, tuple[float, float]] = {}
        evidence: EvidenceOf | None = None
        times: Annotated[
            dict[
                Number,
                Annotated[
                    tuple[tuple[int, NotNegative, NotNegative, NotNegative], ...],
                    pydantic.Field(min_length=1),
                ],
            ],
            pydantic.Field(min_length=1),
        ]

    class File(pydantic.BaseModel, extra="forbid"):
        mpicoll: Literal["model 1"]
        about: dict[str, Any] = {}
        general: SetOf
        own: dict[str, dict[str, SetOf]] = {}
        curves: dict[str, dict[str, CurveOf]] = {}
        rules: dict[str, list[RuleOf]] = {}  # type: ignore[valid-type]

    # Local classes cannot be looked up by name, as annotations of this module would be.
    names = {**globals(), **locals()}
    for made in (ErrorsOf, EvidenceOf, PieceOf, SetOf, CurveOf, File):
        made.model_rebuild(_types_namespace=names)
    return checked_json(content, File)
