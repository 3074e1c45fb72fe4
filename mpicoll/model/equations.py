"""Times as linear equations in the parameters, and which of the parameters they tell.

A row is a cell, divided by its time, so that errors are relative.  Columns are ``call``, ``step``,
``gamma``, and alpha and beta of each piece of each link.  A parameter is identified when its column
has a part that no sum of the others has; what is not is refused, not guessed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import nnls

from mpicoll.model.cells import Array, Cell
from mpicoll.schedule.collectives import COLLECTIVES
from mpicoll.simulate.costs import Costs, Piece, words

#: Sine of the angle to all other columns below which a column counts as their sum.
LEAST_ANGLE = 0.02
_HUBER = 1.345
_SPREAD_OF_MAD = 1.4826
_EXACT = 1e-4  # relative; no clock and no machine is better

#: By link the ends of its pieces, without the last, which has none.
Ends = Mapping[str, tuple[int, ...]]


class Equations:
    """The equations of some cells.

    Args:
        cells: the cells, each with a path.
        seconds: their times, if not the measured ones.
    """

    def __init__(self, cells: Sequence[Cell], seconds: Array | None = None) -> None:
        self.cells = cells
        measured = np.array([cell.seconds for cell in cells])
        self.seconds = measured if seconds is None else seconds
        paths = [cell.path for cell in cells]
        self.links = sorted({link for path in paths for link, _ in path.messages})
        # The messages on the paths: an entry for each cell, link and size.
        entries = [
            (row, self.links.index(link), nbytes, count)
            for row, path in enumerate(paths)
            for (link, nbytes), count in path.messages.items()
        ]
        self._row, self._link, *numbers = np.array(entries, int).reshape(-1, 4).T
        self._nbytes, self._count = (column.astype(float) for column in numbers)
        self._single = {
            "call": np.ones(len(cells)),
            "step": np.array([p.rounds for p in paths], float),
            "gamma": np.array([p.reduced for p in paths], float),
        }

    def sizes(self, link: str) -> list[int]:
        """The sizes of messages on a link, ascending."""
        mine = self._link == self.links.index(link)
        return [int(m) for m in np.unique(self._nbytes[mine])]

    def columns(self, ends: Ends) -> dict[str, Array]:
        """The columns, by their names in :meth:`mpicoll.simulate.costs.Costs.numbers`."""
        columns = dict(self._single)
        for number, link in enumerate(self.links):
            limits = ends.get(link, ())
            piece = np.searchsorted(np.array(limits, float), self._nbytes, side="left")
            for index, end in enumerate((*limits, None)):
                mine = (self._link == number) & (piece == index)
                for name, weight in (
                    ("alpha", self._count),
                    ("beta", self._count * self._nbytes),
                ):
                    column = np.zeros(len(self.cells))
                    np.add.at(column, self._row[mine], weight[mine])
                    columns[f"{name} {words(link, end)}"] = column
        return columns


def relative(columns: Mapping[str, Array], names: Sequence[str], seconds: Array) -> Array:
    """The columns of some parameters, each row divided by its time."""
    return np.column_stack([columns[name] for name in names]) / seconds[:, None]


def identified(columns: Mapping[str, Array], seconds: Array, reduces: bool) -> tuple[str, ...]:
    """The parameters that the equations tell, the first ones where only their sum is told.

    Alpha and beta of all pieces come first, then ``call``, ``step``, and ``gamma`` if ``reduces``.
    """
    pieces = [name for name in columns if name not in ("call", "step", "gamma")]
    order = sorted(pieces, key=lambda name: name.startswith("beta"))  # alpha first
    order += ["call", "step", *(["gamma"] if reduces else [])]
    kept: list[str] = []
    basis = np.zeros((len(seconds), 0))
    for name in order:
        column = columns[name] / seconds
        norm = np.linalg.norm(column)
        if not norm:
            continue
        rest = column / norm
        for _ in range(2):  # twice is enough
            rest = rest - basis @ (basis.T @ rest)
        sine = np.linalg.norm(rest)
        if sine >= LEAST_ANGLE:
            kept.append(name)
            basis = np.column_stack([basis, rest / sine])
    return tuple(kept)


def condition(matrix: Array) -> float:
    """The condition number of a matrix whose columns are scaled to the same length."""
    return float(np.linalg.cond(matrix / np.linalg.norm(matrix, axis=0)))


def solve(
    matrix: Array, rounds: int = 8, pull: tuple[Array, Array] | None = None
) -> tuple[Array, Array]:
    """Non-negative least squares with Huber's loss, for a right-hand side of ones.

    Args:
        matrix: a row for each time.
        rounds: of the robust loss.
        pull: further rows, and their right-hand sides, whose errors are squared.

    Returns:
        The parameters, and the residuals: relative errors of what they predict.
    """
    more, wanted = pull or (np.zeros((0, matrix.shape[1])), np.zeros(0))
    scale = np.linalg.norm(np.vstack([matrix, more]), axis=0)
    scale[scale == 0] = 1.0
    scaled, more = matrix / scale, more / scale
    weights = np.ones(len(matrix))
    residual = np.zeros(len(matrix))
    for _ in range(rounds):
        rows = np.vstack([scaled * weights[:, None], more])
        found, _ = nnls(rows, np.concatenate([weights, wanted]))
        before, residual = residual, scaled @ found - 1
        spread = max(_SPREAD_OF_MAD * float(np.median(np.abs(residual))), _EXACT)
        if np.max(np.abs(residual - before)) < _EXACT * spread:
            break
        far = np.abs(residual) / (_HUBER * spread)
        weights = 1 / np.sqrt(np.maximum(far, 1.0))
    return found / scale, residual


def criterion(residual: Array, parameters: int) -> float:
    """The Bayesian information criterion of a fit, for errors with Laplace's distribution."""
    n = len(residual)
    spread = max(float(np.mean(np.abs(residual))), _EXACT)
    return float(2 * n * np.log(spread) + parameters * np.log(n))


def value(costs: Costs, name: str) -> float:
    """A parameter of a set, by a name that may be of a piece within one of its pieces."""
    kind, _, where = name.partition(" ")
    if not where:
        return float(getattr(costs, kind))
    link, _, end = where.partition(" upto ")
    piece = costs.piece(int(end) if end else sys.maxsize, link)
    return piece.alpha if kind == "alpha" else piece.beta


def as_costs(names: Sequence[str], values: Array, links: Sequence[str], ends: Ends) -> Costs:
    """Parameters as a set; those not among the names are nothing."""
    given = dict(zip(names, map(float, values), strict=True))
    nothing = Costs(
        {link: tuple(Piece(end, 0.0, 0.0) for end in (*ends.get(link, ()), None)) for link in links}
    )
    return nothing.with_numbers([given.get(name, 0.0) for name in nothing.numbers()])


def reasons(
    cells: Sequence[Cell], columns: Mapping[str, Array], kept: Sequence[str]
) -> dict[str, str]:
    """For each parameter that is not identifiable: why, and which measurement is missing."""
    found = {}
    for name in columns:
        if name in kept:
            continue
        if name == "gamma":
            found[name] = _why_no_gamma(cells)
        elif name == "step":
            found[name] = (
                "rounds and messages, or calls, grow alike: its share is in alpha or call; measure "
                "an algorithm with several messages in a round (linear, parameter_server) on "
                "several numbers of ranks"
            )
        elif name == "call":
            found[name] = (
                "calls and messages grow alike: its share is in alpha; measure several numbers of "
                "ranks"
            )
        elif not columns[name].any():
            found[name] = "no critical path has such a message"
        else:
            found[name] = "its messages are all alike; measure more sizes and numbers of ranks"
    return found


def _why_no_gamma(cells: Sequence[Cell]) -> str:
    reducing = {COLLECTIVES[cell.collective].reduces for cell in cells}
    if reducing == {False}:
        return "nothing measured reduces; measure reduce_scatter too"
    if reducing == {True}:
        return (
            "bytes sent and bytes reduced grow alike: its share is in beta; measure allgather and "
            "reduce_scatter, which differ in it alone"
        )
    return "bytes sent and bytes reduced grow alike; measure allgather and reduce_scatter"


def tells_gamma(cells: Sequence[Cell]) -> bool:
    """Whether some of what was measured reduces and some does not."""
    return len({COLLECTIVES[cell.collective].reduces for cell in cells if cell.ranks > 1}) == 2
