"""Where the fastest choice changes: the sizes by measurement, and those by the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mpicoll.model.cells import Array, Resampled, is_native
from mpicoll.model.choose import PointOfUse, Table, crossing, modelled, winners
from mpicoll.model.told import LEAST_GAIN
from mpicoll.simulate.costs import CostModel, interval

#: Share of resampled measurements that tell who is faster.
_MOST = 0.975
#: How far beyond the measured sizes a predicted crossover is looked for: what crosses just within
#: them may be predicted to do so just beyond.
_BEYOND = 1.5


@dataclass(frozen=True)
class Crossover:
    """The size from which one choice is faster than another.

    Where times run almost alongside, the size where they cross is anybody's guess, and does not
    matter: over the sizes that are ``alike`` either choice is as good as the other.

    Attributes:
        place: where.
        before, after: the faster choice below, and above.
        measured, predicted: bytes and their 95 % interval; None where they do not cross.
        alike, predicted_alike: sizes nearest to the measured crossing between which the times are
            the same but for what launches differ by; None where there are none.
        told: whether resampled measurements, too, have the one faster at a smaller size and the
            other one at a larger; if not, only noise says that they cross.
    """

    place: PointOfUse
    before: str
    after: str
    measured: tuple[float, float, float] | None
    predicted: tuple[float, float, float] | None
    alike: tuple[float, float] | None = None
    predicted_alike: tuple[float, float] | None = None
    told: bool = True

    @property
    def factor(self) -> float:
        """How far the predicted size is from the measured one; infinite where there is none."""
        if self.measured is None or self.predicted is None:
            return math.inf
        return _apart(self.measured[:1] * 2, self.predicted[:1] * 2)

    @property
    def factor_alike(self) -> float:
        """How far the sizes that are alike are from those predicted to be; 1 where they overlap."""
        if self.alike is None or self.predicted_alike is None:
            return math.inf
        return _apart(self.alike, self.predicted_alike)


def _apart(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """By which factor two intervals lie apart."""
    return max(1.0, one[0] / other[1], other[0] / one[1])


def find_crossovers(
    found: Sequence[Table],
    model: CostModel,
    resampled: Resampled | None,
    gain: float = LEAST_GAIN,
) -> list[Crossover]:
    """Where the fastest choice changes, by measurement, and where by the model."""
    made = []
    for table in found:
        wide = table.widened(_BEYOND)
        measured = table.times(lambda cell: cell.seconds)
        predicted = wide.times(modelled(model))
        best = winners(measured, gain)
        for index in range(1, len(best)):
            one, other = best[index - 1], best[index]
            if one == other or table.place.ranks < 2:
                continue
            ratios = _ratios(measured[one], measured[other])
            expected = _ratios(predicted[one], predicted[other])
            near = crossing(table.sizes, ratios, index - 1)
            again, expected_again = _replicates(table, wide, model, resampled, (one, other))
            made.append(
                Crossover(
                    table.place,
                    one,
                    other,
                    _with_interval(table.sizes, ratios, near, again),
                    _with_interval(wide.sizes, expected, near, expected_again),
                    _alike(table.sizes, ratios, near, gain),
                    _alike(wide.sizes, expected, near, gain),
                    _told(again, index),
                )
            )
    return made


def _ratios(one: Array, other: Array) -> Array:
    """Logarithms of ratios of times; no numbers where neither time can be predicted."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(one / other))


def _alike(
    sizes: Sequence[int], ratios: Array, near: float, gain: float
) -> tuple[float, float] | None:
    """The sizes nearest to one over which the logarithm of a ratio of times is next to nothing."""
    limit = math.log1p(gain)
    found: list[tuple[float, float]] = []
    for index in range(len(sizes) - 1):
        low, high = max(sizes[index], 1), max(sizes[index + 1], 1)
        before, after = float(ratios[index]), float(ratios[index + 1])
        if not math.isfinite(before - after):
            continue
        shares = [0.0, 1.0]
        if before != after:
            ends = sorted((before + side) / (before - after) for side in (-limit, limit))
            shares = [max(ends[0], 0.0), min(ends[1], 1.0)]
        elif abs(before) > limit:
            continue
        if shares[0] > shares[1]:
            continue
        first, last = (low * (high / low) ** share for share in shares)
        if found and found[-1][1] == first:
            found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return min(found, key=lambda ends: _apart(ends, (near, near)), default=None)


def _told(ratios: Array, index: int) -> bool:
    """Whether most have the first choice faster below a size, and the second one from it on."""
    if not len(ratios):
        return True
    first, second = (ratios < 0).mean(axis=0), (ratios > 0).mean(axis=0)
    return bool(first[:index].max() >= _MOST and second[index:].max() >= _MOST)


def _nearest(sizes: Sequence[int], ratios: Array, near: float) -> float | None:
    """Where the sign changes upwards, nearest to a size."""
    changes = [
        crossing(sizes, ratios, i)
        for i in range(len(sizes) - 1)
        if ratios[i] <= 0 < ratios[i + 1] and math.isfinite(ratios[i + 1] - ratios[i])
    ]
    return min(changes, key=lambda size: abs(math.log(size / near)), default=None)


def _with_interval(
    sizes: Sequence[int], ratios: Array, near: float, replicates: Array
) -> tuple[float, float, float] | None:
    """Where two choices cross nearest to a size, by their ratios and by those of replicates."""
    value = _nearest(sizes, ratios, near)
    if value is None:
        return None
    others = [_nearest(sizes, replicate, near) for replicate in replicates]
    return value, *interval(value, [other for other in others if other is not None])


def _replicates(
    table: Table,
    wide: Table,
    model: CostModel,
    resampled: Resampled | None,
    pair: tuple[str, str],
) -> tuple[Array, Array]:
    """Ratios of two choices in each replicate, and predicted ones of a wider table."""
    if resampled is None:
        return np.empty((0, len(table.sizes))), np.empty((0, len(wide.sizes)))
    one, other = (_replicated(table, wide, model, resampled, choice) for choice in pair)
    return _ratios(one[0], other[0]), _ratios(one[1], other[1])


def _replicated(
    table: Table, wide: Table, model: CostModel, resampled: Resampled, choice: str
) -> tuple[Array, Array]:
    """Measured times of a choice, and predicted ones of a wider table; a row a replicate."""
    row = table.cells[choice]
    never = np.full(resampled.count, math.inf)
    measured = np.stack([never if cell is None else resampled.seconds(cell) for cell in row], 1)
    sets = model.replicates(table.place.collective, choice, table.place.ranks)
    if not sets or is_native(next(filter(None, row))):
        return measured, np.pad(measured, ((0, 0), (1, 1)), constant_values=math.inf)
    paths = [cell and replace(cell, under=model.general).path for cell in wide.cells[choice]]
    predicted = [[path.seconds(costs) if path else math.inf for path in paths] for costs in sets]
    return measured, np.array(predicted)
