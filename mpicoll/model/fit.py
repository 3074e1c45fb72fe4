"""The fit: one set of parameters for all algorithms, one for each, and curves for the library.

Pieces by the size of a message are found one by one: the end that makes the errors smallest is
added as long as the Bayesian information criterion falls, up to :data:`MOST_PIECES`.

The set of one algorithm begins with the pieces of the set of all, for protocols and caches are the
machine's; and it keeps to that set wherever its own measurements do not say otherwise, as if each
parameter had been measured once more, :data:`PULL` as surely as a time.

Which messages a time is made of depends on what they cost, so the set of all algorithms is fitted
:data:`TURNS` times, each time to the critical paths under what was found before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from mpicoll.model import equations
from mpicoll.model.cells import Array, Cell, Resampled, by_choice, is_native, launches
from mpicoll.model.equations import Ends, Equations
from mpicoll.simulate.costs import CostModel, Costs, Curve, Evidence, interval

MOST_PIECES = 4
#: The longest message of a piece is so many times the shortest at least.
LEAST_SPAN = 2.0
REPLICATES = 80
#: Weight of the set of all algorithms in that of one, for each parameter, beside 1 for each time.
PULL = 0.05
TURNS = 3
#: Times of a number of ranks, beside those measured, that agree with the set of all algorithms.
SHRUNK = 2
#: Where an algorithm's own set does not hold: its error is larger than this, and so many times as
#: large as that of the set of all.
_OWN, _WORSE = 0.02, 1.5
#: Cells for each parameter, where there are pieces.
_LEAST_EACH = 2
_QUICK = 2  # rounds of the robust loss while ends are looked for


class NotIdentified(ValueError):
    """The measurements do not tell the parameters that every prediction needs."""


@dataclass(frozen=True)
class Fitted:
    """A set and how it was found.

    Attributes:
        costs: the parameters.
        ends: the pieces.
        names: the parameters that are identified.
        condition: condition number of the equations.
        refused: the others, and why.
        prior: the set that this one keeps to where it can.
    """

    costs: Costs
    ends: Ends
    names: tuple[str, ...]
    condition: float
    refused: Mapping[str, str]
    prior: Fitted | None = None


def fit_set(cells: Sequence[Cell], prior: Fitted | None = None) -> Fitted:
    """Fit one set to some cells.

    Args:
        cells: what was measured, none of it the library's own.
        prior: the set of all algorithms, where the cells are of one.

    Raises:
        NotIdentified: alpha or beta cannot be told; the message says which measurement is missing.
    """
    cells = [cell for cell in cells if cell.ranks > 1]
    if not cells:
        raise NotIdentified("nothing is sent; measure at least two ranks")
    system = Equations(cells)
    ends = _known(prior, system.links)
    trial = _try(system, ends, prior)
    if trial is None:
        raise NotIdentified(_missing(system))
    best = trial
    while True:
        tried = [
            (attempt.criterion, more)
            for more in _more(system, ends)
            if (attempt := _try(system, more, prior, _QUICK)) is not None
        ]
        if not tried:
            break
        _, least = min(tried, key=lambda entry: entry[0])
        refined = _try(system, least, prior)
        if refined is None or refined.criterion >= best.criterion:
            break
        ends, best = least, refined
    columns = system.columns(ends)
    told = equations.identified(columns, system.seconds, equations.tells_gamma(cells))
    fitted = Fitted(
        equations.as_costs(best.names, best.values, system.links, ends),
        ends,
        best.names,
        equations.condition(equations.relative(columns, told, system.seconds)),
        equations.reasons(cells, columns, told),
        prior,
    )
    return fitted if prior is None else _by_ranks(cells, fitted, system.seconds)


def _by_ranks(cells: Sequence[Cell], fitted: Fitted, seconds: Array) -> Fitted:
    """The same with factors for numbers of ranks, where there are several."""
    if len({cell.ranks for cell in cells}) < 2:
        return fitted
    for _ in range(TURNS):
        plain = replace(fitted.costs, factors={})
        factors = _factors(cells, plain)
        fitted = replace(fitted, costs=replace(plain, factors=factors))
        fitted = replace(fitted, costs=refit(cells, fitted, seconds))
    assert fitted.prior is not None
    better = _plain(cells, fitted.costs, fitted.prior.costs)
    return replace(fitted, costs=replace(fitted.costs, plain=better))


def _plain(cells: Sequence[Cell], own: Costs, general: Costs) -> tuple[int, ...]:
    """Numbers of ranks at which the set of all algorithms has clearly smaller squared errors."""
    apart: dict[int, list[tuple[float, float]]] = {}
    for cell in cells:
        mine, all_ = (math.log(cell.seconds / cell.path.seconds(c)) ** 2 for c in (own, general))
        apart.setdefault(cell.ranks, []).append((mine, all_))
    means = {ranks: np.mean(errors, axis=0) for ranks, errors in sorted(apart.items())}
    return tuple(
        ranks for ranks, (mine, all_) in means.items() if mine > max(_OWN**2, _WORSE**2 * all_)
    )


def _factors(cells: Sequence[Cell], costs: Costs) -> dict[int, float]:
    """By number of ranks how many times as long calls take as costs say, so far as is sure."""
    apart: dict[int, list[float]] = {}
    for cell in cells:
        apart.setdefault(cell.ranks, []).append(math.log(cell.seconds / cell.path.seconds(costs)))
    return {
        ranks: math.exp(float(np.median(values)) * len(values) / (len(values) + SHRUNK))
        for ranks, values in apart.items()
    }


def _normalised(cells: Sequence[Cell], seconds: Array, factors: Mapping[int, float]) -> Array:
    """Times without what :func:`_factors` has found."""
    return seconds / np.array([factors.get(cell.ranks, 1.0) for cell in cells])


@dataclass(frozen=True)
class _Attempt:
    names: tuple[str, ...]
    values: Array
    criterion: float


def _try(system: Equations, ends: Ends, prior: Fitted | None, rounds: int = 8) -> _Attempt | None:
    """Fit with given pieces; None where alpha or beta of one is not identifiable."""
    columns = system.columns(ends)
    reduces = equations.tells_gamma(system.cells)
    names = equations.identified(columns, system.seconds, reduces)
    if not _complete(columns, names) and not (prior and ends == _known(prior, system.links)):
        return None
    parameters = len(names) + sum(map(len, ends.values()))
    if prior is not None:
        names = tuple(name for name in columns if " " in name or name in prior.names)
    elif ends and parameters * _LEAST_EACH > len(system.cells):
        return None
    matrix = equations.relative(columns, names, system.seconds)
    values, residual = equations.solve(matrix, rounds, _pull(matrix, names, prior))
    return _Attempt(names, values, equations.criterion(residual, parameters))


def _known(prior: Fitted | None, links: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The pieces of a set on some links."""
    return {link: prior.ends[link] for link in links if prior and prior.ends.get(link)}


def _pull(matrix: Array, names: Sequence[str], prior: Fitted | None) -> tuple[Array, Array] | None:
    """Equations that hold parameters near those of another set, and their right-hand side."""
    if prior is None:
        return None
    rows, wanted = np.zeros((len(names), len(names))), np.zeros(len(names))
    for index, name in enumerate(names):
        value = equations.value(prior.costs, name)
        if value:
            rows[index, index], wanted[index] = PULL / value, PULL
        else:
            rows[index, index] = PULL * matrix[:, index].mean()
    return rows, wanted


def _complete(columns: Mapping[str, Array], names: Sequence[str]) -> bool:
    needed = {name for name in columns if name not in ("call", "step", "gamma")}
    # Barriers send messages without bytes: there is no beta to tell.
    needed -= {name for name in needed if name.startswith("beta") and not columns[name].any()}
    return needed <= set(names)


def _missing(system: Equations) -> str:
    columns = system.columns({})
    names = equations.identified(columns, system.seconds, False)
    missing = [name for name in columns if " " in name and name not in names]
    return (
        f"{' and '.join(missing)} not identified: all messages are alike; measure at least two "
        "sizes" + (", and algorithms that use the links unlike" if len(system.links) > 1 else "")
    )


def _more(system: Equations, ends: Ends) -> Iterator[dict[str, tuple[int, ...]]]:
    """The pieces with one more end, between two sizes of messages."""
    for link in system.links:
        mine = ends.get(link, ())
        sizes = system.sizes(link)
        if len(mine) + 1 >= MOST_PIECES:
            continue
        for low, high in pairwise(sizes):
            end = _between(low, high)
            more = tuple(sorted({*mine, end}))
            if end not in mine and _span_sizes(sizes, more):
                yield {**ends, link: more}


def _span_sizes(sizes: Sequence[int], ends: Sequence[int]) -> bool:
    """Whether each piece has sizes far enough apart: one size does not tell alpha from beta."""
    limits = [0, *ends, math.inf]
    pieces = [[m for m in sizes if low < m <= high] for low, high in pairwise(limits)]
    if sizes and not sizes[0]:
        pieces[0].append(0)
    return all(piece and max(piece) >= LEAST_SPAN * max(min(piece), 1) for piece in pieces)


def _between(low: int, high: int) -> int:
    """An end between two sizes: a power of two, as limits of libraries are, if there is one."""
    middle = int((low * high) ** 0.5) if low else low
    exponents = range(low.bit_length(), high.bit_length())
    powers = [1 << k for k in exponents if 0 < low < 1 << k < high]
    return min(powers, key=lambda power: abs(math.log(power / middle)), default=middle)


def fit_all(cells: Sequence[Cell], under: Costs | None = None) -> tuple[Fitted, list[Cell]]:
    """Fit the set of all algorithms, and find the paths that go with it.

    Args:
        cells: what was measured, none of it the library's own.
        under: costs to begin with.

    Returns:
        The set, and the cells with paths under it.

    Raises:
        NotIdentified: see :func:`fit_set`.
    """
    found = None
    placed = [replace(cell, under=under) for cell in cells]
    for _ in range(TURNS):
        found = fit_set(placed)
        placed = [replace(cell, under=found.costs) for cell in cells]
    assert found is not None
    return found, placed


def refit(cells: Sequence[Cell], fitted: Fitted, seconds: Array) -> Costs:
    """The same pieces and parameters for other times."""
    seconds = _normalised(cells, seconds, fitted.costs.factors)
    system = Equations(cells, seconds)
    matrix = equations.relative(system.columns(fitted.ends), fitted.names, seconds)
    values, _ = equations.solve(matrix, pull=_pull(matrix, fitted.names, fitted.prior))
    found = equations.as_costs(fitted.names, values, system.links, fitted.ends)
    return replace(found, factors=fitted.costs.factors, plain=fitted.costs.plain)


def fit_curve(cells: Sequence[Cell], resampled: Resampled | None = None) -> Curve:
    """A curve through the medians of some cells."""
    times: dict[int, list[tuple[int, float, float, float]]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.ranks, cell.nbytes)):
        seconds = cell.seconds
        again = [] if resampled is None else resampled.seconds(cell).tolist()
        rows = times.setdefault(cell.ranks, [])
        if not rows or rows[-1][0] != cell.nbytes:
            rows.append((cell.nbytes, seconds, *interval(seconds, again)))
    return Curve({ranks: tuple(rows) for ranks, rows in times.items()})


def fit(
    cells: Sequence[Cell],
    *,
    replicates: int = REPLICATES,
    done: Callable[[str], object] = lambda what: None,
) -> CostModel:
    """Fit all sets to some cells.

    Args:
        cells: what was measured.
        replicates: how many times the measurements are resampled; 0: there are no intervals.
        done: called with what has been fitted, as it is done.

    Raises:
        NotIdentified: not even the general set can be told; the message says what is missing.
    """
    known = [cell for cell in cells if not is_native(cell) and cell.ranks > 1]
    if not known:
        raise NotIdentified(
            "alpha and beta not identified: no algorithm of mpicoll's was measured on two ranks or "
            "more; measure some, as `mpicoll bench allreduce --algorithms all`"
        )
    resampled = Resampled(cells, replicates) if replicates else None
    general, placed = fit_all(known)
    general_evidence = _evidence(placed, general, resampled)
    done("general")
    own: dict[str, dict[str, Costs]] = {}
    curves: dict[str, dict[str, Curve]] = {}
    evidence: dict[str, dict[str, Evidence]] = {}
    for (collective, choice), mine in by_choice(cells).items():
        if is_native(mine[0]):
            curves.setdefault(collective, {})[choice] = fit_curve(mine, resampled)
            evidence.setdefault(collective, {})[choice] = _evidence(mine, None, None)
        else:
            mine = [replace(cell, under=general.costs) for cell in mine if cell.ranks > 1]
            try:
                fitted = fit_set(mine, general)
            except NotIdentified as error:
                done(f"{collective} {choice}: no set of its own: {error}")
                continue
            own.setdefault(collective, {})[choice] = fitted.costs
            evidence.setdefault(collective, {})[choice] = _evidence(mine, fitted, resampled)
        done(f"{collective} {choice}")
    return CostModel(general.costs, own, curves, evidence, general_evidence)


def _evidence(
    cells: Sequence[Cell], fitted: Fitted | None, resampled: Resampled | None
) -> Evidence:
    sets: tuple[Costs, ...] = ()
    if fitted is not None and resampled is not None:
        table = np.array([resampled.seconds(cell) for cell in cells])
        sets = tuple(refit(cells, fitted, column) for column in table.T)
    return Evidence(
        ranks=tuple(sorted({cell.ranks for cell in cells})),
        least=min(cell.nbytes for cell in cells),
        most=max(cell.nbytes for cell in cells),
        points=len(cells),
        launches=len(launches(cells)),
        condition=fitted.condition if fitted else None,
        refused=fitted.refused if fitted else {},
        replicates=sets,
    )
