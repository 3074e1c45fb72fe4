"""How good a fit is: errors for what was left out of it, and the noise to hold beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from mpicoll.cost import CostModel, Errors
from mpicoll.model.cells import Cell, by_choice, is_native
from mpicoll.model.fit import NotIdentified, fit_curve, fit_set

FOLDS = 3
#: Sizes, and numbers of ranks, below which nothing is left out: too few would remain.
LEAST_SIZES, LEAST_RANKS = 5, 3

Predict = Callable[[Cell], float]


def summarise(errors: Sequence[float]) -> Errors | None:
    """Relative errors in a few numbers; None if there are none."""
    if not len(errors):
        return None
    absolute = np.abs(errors)
    return Errors(
        n=len(errors),
        median=float(np.median(absolute)),
        p90=float(np.quantile(absolute, 0.9)),
        largest=float(absolute.max()),
        bias=float(np.mean(errors)),
    )


def sizes_left_out(cells: Sequence[Cell]) -> list[float]:
    """Errors for sizes that were left out of the fit, a third of those in between at a time."""
    sizes = sorted({cell.nbytes for cell in cells})
    if len(sizes) < LEAST_SIZES:
        return []
    between = sizes[1:-1]
    return _errors(cells, ({*between[fold::FOLDS]} for fold in range(FOLDS)), lambda c: c.nbytes)


def ranks_left_out(cells: Sequence[Cell]) -> list[float]:
    """Errors for numbers of ranks that were left out of the fit, one at a time."""
    ranks = sorted({cell.ranks for cell in cells if cell.ranks > 1})
    if len(ranks) < LEAST_RANKS:
        return []
    return _errors(cells, ({count} for count in ranks), lambda c: c.ranks)


def _errors(
    cells: Sequence[Cell], folds: Iterable[set[int]], of: Callable[[Cell], int]
) -> list[float]:
    errors = []
    for fold in folds:
        held = [cell for cell in cells if of(cell) in fold]
        try:
            predicted = _fitted([cell for cell in cells if of(cell) not in fold])
            errors += [predicted(cell) / cell.seconds - 1 for cell in held]
        except ValueError:  # what is left does not tell enough, or a curve does not reach as far
            continue
    return errors


def _fitted(cells: Sequence[Cell]) -> Predict:
    """Predictions of one set, or curve, fitted to some cells."""
    if not cells:
        raise NotIdentified("nothing is left to fit")
    if is_native(cells[0]):
        curve = fit_curve(cells)
        return lambda cell: curve.time(cell.ranks, cell.nbytes)[0]
    one_algorithm = len(by_choice(cells)) == 1
    costs = fit_set(cells, one_algorithm=one_algorithm).costs
    return lambda cell: cell.path.seconds(costs)


def validated(
    model: CostModel, cells: Sequence[Cell], done: Callable[[str], object] = lambda what: None
) -> CostModel:
    """The model with the errors for what was left out in the evidence of each set.

    ``about`` gets those of all sets of their own together, without curves.
    """
    known = [cell for cell in cells if not is_native(cell) and cell.ranks > 1]
    evidence = {collective: dict(sets) for collective, sets in model.evidence.items()}
    every: dict[str, list[float]] = {"sizes": [], "ranks": []}
    for (collective, choice), mine in by_choice(cells).items():
        if choice in evidence.get(collective, {}):
            sizes, ranks = sizes_left_out(mine), ranks_left_out(mine)
            if not is_native(mine[0]):
                every["sizes"] += sizes
                every["ranks"] += ranks
            evidence[collective][choice] = replace(
                evidence[collective][choice],
                sizes_left_out=summarise(sizes),
                ranks_left_out=summarise(ranks),
            )
        done(f"{collective} {choice}")
    general = model.general_evidence and replace(
        model.general_evidence,
        sizes_left_out=summarise(sizes_left_out(known)),
        ranks_left_out=summarise(ranks_left_out(known)),
    )
    done("general")
    overall = {f"{name}_left_out": summarise(errors) for name, errors in every.items()}
    about = {**model.about, **{name: errors and vars(errors) for name, errors in overall.items()}}
    return replace(model, evidence=evidence, general_evidence=general, about=about)
