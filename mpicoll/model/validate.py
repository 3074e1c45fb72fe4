"""How good a fit is: errors for what was left out of it, and the noise to hold beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np

from mpicoll.model.cells import Cell, by_choice, is_native
from mpicoll.model.fit import Fitted, NotIdentified, fit_all, fit_curve, fit_set
from mpicoll.simulate.costs import CostModel, Errors

FOLDS = 3
#: Sizes, and numbers of ranks, below which nothing is left out: too few would remain.
LEAST_SIZES, LEAST_RANKS = 5, 3

#: Sizes that differ by this share are one size.
_ALIKE = 0.01

Predict = Callable[[Cell], float]
Of = Callable[[Cell], int]
#: Bytes of the whole vector, and number of ranks.
_NBYTES, _RANKS = attrgetter("nbytes"), attrgetter("ranks")


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


class Without:
    """The sets of all algorithms, fitted without what is left out; each is found once.

    Args:
        cells: of all algorithms, without the library's own.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = cells
        self._found: dict[tuple[frozenset[int], Of], Fitted | None] = {}

    def __call__(self, fold: frozenset[int], of: Of) -> Fitted | None:
        """The set without some sizes or numbers of ranks; None where the rest does not tell it."""
        if (fold, of) not in self._found:
            kept = [cell for cell in self.cells if not _within(of(cell), fold)]
            try:
                self._found[fold, of] = fit_all(kept, kept[0].under)[0] if kept else None
            except NotIdentified:
                self._found[fold, of] = None
        return self._found[fold, of]


def _within(number: int, fold: frozenset[int]) -> bool:
    """Whether a number is left out; sizes cut to equal blocks differ by a little."""
    return any(abs(number - each) <= _ALIKE * each for each in fold)


def sizes_left_out(cells: Sequence[Cell], without: Without | None = None) -> list[float]:
    """Errors for sizes that were left out of the fit, a third of those in between at a time.

    Args:
        cells: of one algorithm, or of all.
        without: the sets that that of one algorithm keeps to.
    """
    sizes = sorted({cell.nbytes for cell in cells})
    if len(sizes) < LEAST_SIZES:
        return []
    folds = [frozenset(sizes[1:-1][fold::FOLDS]) for fold in range(FOLDS)]
    return _errors(cells, folds, _NBYTES, without)


def ranks_left_out(cells: Sequence[Cell], without: Without | None = None) -> list[float]:
    """Errors for numbers of ranks that were left out of the fit, one at a time; see above."""
    found = sorted({cell.ranks for cell in cells if cell.ranks > 1})
    if len(found) < LEAST_RANKS:
        return []
    return _errors(cells, [frozenset({count}) for count in found], _RANKS, without)


def _errors(
    cells: Sequence[Cell], folds: Iterable[frozenset[int]], of: Of, without: Without | None
) -> list[float]:
    errors = []
    for fold in folds:
        held = [cell for cell in cells if of(cell) in fold]
        try:
            prior = without(fold, of) if without else None
            predicted = _fitted([cell for cell in cells if not _within(of(cell), fold)], prior)
            errors += [predicted(cell) / cell.seconds - 1 for cell in held]
        except ValueError:  # what is left does not tell enough, or a curve does not reach as far
            continue
    return errors


def _fitted(cells: Sequence[Cell], prior: Fitted | None) -> Predict:
    """Predictions of one set, or curve, fitted to some cells."""
    if not cells:
        raise NotIdentified("nothing is left to fit")
    if is_native(cells[0]):
        curve = fit_curve(cells)
        return lambda cell: curve.time(cell.ranks, cell.nbytes)[0]
    if prior is None:
        general, _ = fit_all(cells, cells[0].under)
        return lambda cell: replace(cell, under=general.costs).path.seconds(general.costs)
    costs = fit_set([replace(cell, under=prior.costs) for cell in cells], prior).costs

    return lambda cell: replace(cell, under=prior.costs).path.seconds(
        costs.at(cell.ranks, prior.costs)
    )


def validated(
    model: CostModel, cells: Sequence[Cell], done: Callable[[str], object] = lambda what: None
) -> CostModel:
    """The model with the errors for what was left out in the evidence of each set.

    ``about`` gets those of all sets of their own together, without curves.
    """
    cells = [replace(cell, under=model.general) for cell in cells]
    known = [cell for cell in cells if not is_native(cell) and cell.ranks > 1]
    without = Without(known)
    evidence = {collective: dict(sets) for collective, sets in model.evidence.items()}
    every: dict[str, list[float]] = {"sizes": [], "ranks": []}
    for (collective, choice), mine in by_choice(cells).items():
        if choice in evidence.get(collective, {}):
            sizes, counts = sizes_left_out(mine, without), ranks_left_out(mine, without)
            if not is_native(mine[0]):
                every["sizes"] += sizes
                every["ranks"] += counts
            evidence[collective][choice] = replace(
                evidence[collective][choice],
                sizes_left_out=summarise(sizes),
                ranks_left_out=summarise(counts),
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
