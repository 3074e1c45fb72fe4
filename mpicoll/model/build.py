"""Everything that ``mpicoll fit`` finds: the model, how good it is, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from mpicoll import __version__, tuning
from mpicoll.bench.records import Run
from mpicoll.bench.runs import machine
from mpicoll.model import choose
from mpicoll.model.cells import Cell, Left, Resampled, by_choice, is_native, launches, noise
from mpicoll.model.choose import Pick, Regret
from mpicoll.model.crossovers import Crossover, find_crossovers
from mpicoll.model.fit import REPLICATES, fit
from mpicoll.model.told import LEAST_GAIN
from mpicoll.model.validate import validated
from mpicoll.simulate.costs import CostModel
from mpicoll.tuning import NATIVE


@dataclass(frozen=True)
class Found:
    """What a fit found.

    Attributes:
        model: the parameters, with their evidence and the rules that follow.
        crossovers: where the fastest choice changes.
        regrets: what ways of choosing cost, by name; empty with a single launch.
        noise: spread of identical launches; None with a single one.
        remarks: what the user should know.
    """

    model: CostModel
    crossovers: tuple[Crossover, ...]
    regrets: Mapping[str, Regret]
    noise: float | None
    remarks: tuple[str, ...]


def build(
    runs: Sequence[Run],
    cells: Sequence[Cell],
    left: Left,
    *,
    replicates: int = REPLICATES,
    done: Callable[[], object] = lambda: None,
) -> Found:
    """Fit, validate and choose.

    Args:
        runs: where the cells come from.
        cells, left: what was measured, see :func:`mpicoll.model.cells.gather`.
        replicates: how many times measurements are resampled.
        done: called :func:`steps` times.

    Raises:
        mpicoll.model.fit.NotIdentified: see :func:`mpicoll.model.fit.fit`.
    """
    remarks = left.words()

    def told(what: str) -> None:
        if ": " in what:
            remarks.append(what)
        done()

    model = fit(cells, replicates=replicates, done=told)
    model = validated(model, cells, told)
    found = choose.tables(cells)
    rules = choose.all_rules(found, choose.modelled(model))
    resampled = Resampled(cells, replicates)
    crossovers = find_crossovers(found, model, resampled, gain(cells))
    done()
    regrets = choose.regrets(cells, _ways(cells))
    done()
    names = launches(cells)
    if len(names) < 2:
        remarks.append(
            "a single launch: intervals do not know how launches differ, and there is no regret; "
            "measure several (mpicoll bench --launch-id)"
        )
    spread = noise(cells)
    about = {
        **model.about,
        "mpicoll": __version__,
        "machine": machine(runs[0].facts),
        "runs": [run.name for run in runs],
        "launches": len(names),
        "noise": spread,
        "regret": {way: vars(regret) for way, regret in regrets.items()},
    }
    model = replace(model, rules=rules, about=about)
    return Found(model, tuple(crossovers), regrets, spread, tuple(remarks))


def judged(model: CostModel, cells: Sequence[Cell], left: Left) -> Found:
    """What a model from elsewhere says of measurements; its regret is not known.

    Args:
        model: fitted to these measurements, or to others.
        cells, left: what was measured, see :func:`mpicoll.model.cells.gather`.
    """
    found = choose.tables(cells)
    crossovers = tuple(find_crossovers(found, model, None, gain(cells)))
    regret = measured_regret(cells)
    regrets = {"measurements": regret} if regret else {}
    return Found(model, crossovers, regrets, noise(cells), tuple(left.words()))


def steps(cells: Sequence[Cell]) -> int:
    """How many times :func:`build` says that something is done."""
    return 2 * (len(by_choice(cells)) + 1) + 2


def _ways(cells: Sequence[Cell]) -> dict[str, Callable[[Sequence[Cell]], Pick]]:
    """The ways of choosing whose regret is told."""
    ways: dict[str, Callable[[Sequence[Cell]], Pick]] = {
        "model": lambda some: choose.by_times(cache(choose.modelled(fit(some, replicates=0)))),
        "measurements": lambda some: choose.by_rules(measured_rules(some)),
        "built-in table": lambda some: choose.by_table(tuning.BUILTIN),
    }
    if any(map(is_native, cells)):
        ways[f"always {NATIVE}"] = lambda some: choose.by_library
    return ways


def gain(cells: Sequence[Cell]) -> float:
    """What another choice must gain to replace one: more than launches differ."""
    return max(LEAST_GAIN, min(noise(cells) or 0.0, 0.1))


def measured_rules(cells: Sequence[Cell]) -> dict[str, list[Any]]:
    """The rules that the measurements themselves make."""
    return choose.by_collective(choose.decisions(choose.tables(cells)))


def measured_regret(cells: Sequence[Cell]) -> Regret | None:
    """What choosing by :func:`measured_rules` costs; None with a single launch."""
    ways = {"measurements": lambda some: choose.by_rules(measured_rules(some))}
    return choose.regrets(cells, ways).get("measurements")
