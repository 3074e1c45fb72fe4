"""What a machine costs: the parameters that a fit finds and that predictions and simulations use.

A call costs ``call`` seconds once.  A message of m bytes costs ``alpha + beta m`` on its link, with
alpha and beta of the first piece whose ``upto`` is at least m: protocols and caches change with the
size of one message, not with that of the whole vector.  Each round in which a rank receives costs
it ``step`` seconds, in which other messages may be under way: most of a long latency.  Each byte
reduced costs ``gamma`` seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

#: Link between ranks of one node, and link between nodes.
INTRA, INTER = "intra", "inter"
#: Relative difference of numbers that are the same but for how they were added up.
_ALIKE = 1e-6


@dataclass(frozen=True)
class Piece:
    """Cost of messages of up to so many bytes.

    Attributes:
        upto: bytes of the longest message that it holds for; None for any.
        alpha: seconds per message.
        beta: seconds per byte.
    """

    upto: int | None
    alpha: float
    beta: float


def words(link: str, upto: int | None) -> str:
    """A piece of a link, as parameters are named by it."""
    return link if upto is None else f"{link} upto {upto}"


@dataclass(frozen=True)
class Costs:
    """One set of parameters.

    Attributes:
        links: pieces of each kind of link, :data:`INTRA` or :data:`INTER`, shortest messages
            first; the last one has no end.
        gamma: seconds per byte reduced.
        call: seconds of every call, whatever it does.
        step: seconds of every round in which a rank receives.
        factors: for numbers of ranks that were measured, how many times as long as the rest says
            calls take: what a critical path does not know, as messages that come early.
        plain: numbers of ranks at which the set of all algorithms says better than this one of a
            single one how long calls take, as where an algorithm has extra messages on others.
    """

    links: Mapping[str, tuple[Piece, ...]]
    gamma: float = 0.0
    call: float = 0.0
    step: float = 0.0
    factors: Mapping[int, float] = field(default_factory=dict)
    plain: tuple[int, ...] = ()

    def __hash__(self) -> int:
        return hash((*self.numbers().items(), *self.factors.items(), self.plain))

    def at(self, ranks: int, general: Costs) -> Costs:
        """The set that holds for so many ranks: this one, or that of all algorithms."""
        return general if ranks in self.plain else self

    def piece(self, nbytes: int, link: str = INTRA) -> Piece:
        """The piece that holds for a message; the other kind of link if this one is not known."""
        pieces = self.links[link] if link in self.links else next(iter(self.links.values()))
        return next(p for p in pieces if p.upto is None or nbytes <= p.upto)

    def between_nodes(self, alpha: float, beta: float) -> Costs:
        """The same, with other links between nodes."""
        return replace(self, links={**self.links, INTER: (Piece(None, alpha, beta),)})

    def numbers(self) -> dict[str, float]:
        """All parameters by name: ``call``, ``step``, ``gamma``, ``alpha intra upto 4096``, ..."""
        found = {"call": self.call, "step": self.step, "gamma": self.gamma}
        for link, pieces in self.links.items():
            for piece in pieces:
                where = words(link, piece.upto)
                found[f"alpha {where}"], found[f"beta {where}"] = piece.alpha, piece.beta
        return found

    def with_numbers(self, numbers: Sequence[float]) -> Costs:
        """The same pieces with other parameters, in the order of :meth:`numbers`.

        Raises:
            ValueError: there are more or fewer numbers than parameters.
        """
        if len(numbers) != len(self.numbers()):
            raise ValueError(f"{len(numbers)} numbers for {len(self.numbers())} parameters")
        call, step, gamma, *rest = numbers
        left: Iterator[float] = iter(rest)
        links = {
            link: tuple(Piece(piece.upto, next(left), next(left)) for piece in pieces)
            for link, pieces in self.links.items()
        }
        return Costs(links, gamma, call, step, self.factors, self.plain)


@dataclass(frozen=True)
class Errors:
    """Relative errors of predictions, (predicted - measured) / measured.

    Attributes:
        n: how many.
        median, p90, largest: of their absolute values.
        bias: their mean, with sign.
    """

    n: int
    median: float
    p90: float
    largest: float
    bias: float


@dataclass(frozen=True)
class Evidence:
    """What a set of parameters rests on.

    Attributes:
        ranks: numbers of ranks that were measured, ascending.
        least, most: bytes of the smallest and the largest vector measured.
        points, launches: how many were used.
        condition: condition number of the equations, columns scaled alike; None for a curve.
        sizes_left_out, ranks_left_out: errors for sizes, and numbers of ranks, that were left out
            of the fit in turn; None where there were too few.
        refused: parameters that the measurements do not tell, and which measurement is missing.
        replicates: the parameters of fits to resampled measurements.
    """

    ranks: tuple[int, ...]
    least: int
    most: int
    points: int
    launches: int
    condition: float | None = None
    sizes_left_out: Errors | None = None
    ranks_left_out: Errors | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    replicates: tuple[Costs, ...] = ()

    def intervals(self, costs: Costs) -> dict[str, tuple[float, float]]:
        """The 95 % interval of each of these parameters; none without replicates."""
        columns: dict[str, list[float]] = {}
        for replicate in self.replicates:
            for name, value in replicate.numbers().items():
                columns.setdefault(name, []).append(value)
        found = costs.numbers()
        return {name: interval(found[name], values) for name, values in columns.items()}

    def strays(self, costs: Costs) -> dict[str, tuple[float, float]]:
        """Those of these parameters that lie outside of what resampled measurements give, and that.

        Such an estimate is no middle of anything: something is wrong with the measurements or the
        fit, and nothing should be built on it.
        """
        found: dict[str, tuple[float, float]] = {}
        for name, estimate in costs.numbers().items():
            ordered = sorted(replicate.numbers()[name] for replicate in self.replicates)
            if ordered:
                low, high = _middle(ordered)
                if not low - _ALIKE * abs(low) <= estimate <= high + _ALIKE * abs(high):
                    found[name] = low, high
        return found


def interval(estimate: float, replicates: Sequence[float]) -> tuple[float, float]:
    """The values between which 95 % of some replicates lie, and what they are replicates of.

    An estimate can lie outside of what resampled measurements give; the interval then reaches to
    it, for whoever uses the estimate must be told of it.
    """
    low, high = _middle(sorted(replicates) or [estimate])
    return min(low, estimate), max(high, estimate)


def _middle(ordered: Sequence[float]) -> tuple[float, float]:
    """The values between which 95 % of some numbers lie."""
    cut = math.floor(0.025 * len(ordered))
    return ordered[cut], ordered[-1 - cut]


#: Bytes, seconds, and the 95 % interval of the seconds.
CurvePoint = tuple[int, float, float, float]


@dataclass(frozen=True)
class Curve:
    """Times of what has no known schedule: between measurements straight in log-log scale.

    Attributes:
        times: for each number of ranks the measured points, ascending.
    """

    times: Mapping[int, tuple[CurvePoint, ...]]

    def time(self, ranks: int, nbytes: int) -> tuple[float, float, float]:
        """Seconds, and their 95 % interval.

        Above the largest size measured they grow with the bytes, below the least they stay.

        Raises:
            ValueError: fewer or more ranks than were measured, of which nothing is known.
        """
        measured = sorted(self.times)
        if not measured[0] <= ranks <= measured[-1]:
            raise ValueError(
                f"P = {ranks} is outside of P = {', '.join(map(str, measured))}, which were "
                "measured, and its schedule is unknown: measure it there"
            )
        return _between(measured, ranks, lambda near: self._at(near, nbytes))

    def _at(self, ranks: int, nbytes: int) -> tuple[float, float, float]:
        rows = {nbytes: (time, low, high) for nbytes, time, low, high in self.times[ranks]}
        time, low, high = _between(sorted(rows), nbytes, rows.__getitem__)
        more = max(1.0, nbytes / max(*rows, 1))
        return time * more, low * more, high * more


Spread = tuple[float, float, float]


def _between(known: list[int], wanted: int, at: Callable[[int], Spread]) -> Spread:
    """Interpolate between the two nearest of the known numbers, straight in log-log scale."""
    upper = bisect_left(known, wanted)
    if upper == len(known):
        return at(known[-1])
    if upper == 0 or known[upper] == wanted:
        return at(known[upper])
    low, high = known[upper - 1], known[upper]
    if low < 1:
        return at(low)
    share = math.log(wanted / low) / math.log(high / low)
    first, last = at(low), at(high)
    mixed = tuple(a ** (1 - share) * b**share for a, b in zip(first, last, strict=True))
    return mixed[0], mixed[1], mixed[2]


@dataclass(frozen=True)
class CostModel:
    """Everything a fit found: one set for all algorithms, and one of its own for each measured.

    Attributes:
        general: serves algorithms that were not measured.
        own: by collective, then by the choice in words, as ``ring`` or ``chain segments=4``.
        curves: the same for what has no known schedule: the MPI library's own collectives.
        evidence: what each set of ``own`` and ``curves`` rests on.
        general_evidence: what ``general`` rests on.
        rules: the choices that follow, as a tuning file has them.
        about: machine, MPI library, runs, and how good the choices are; for the reader.
    """

    general: Costs
    own: Mapping[str, Mapping[str, Costs]] = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, Curve]] = field(default_factory=dict)
    evidence: Mapping[str, Mapping[str, Evidence]] = field(default_factory=dict)
    general_evidence: Evidence | None = None
    rules: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    def between_nodes(self, alpha: float, beta: float) -> CostModel:
        """The same, with links between nodes that cost so much, in all sets."""

        def of(evidence: Evidence) -> Evidence:
            links = tuple(costs.between_nodes(alpha, beta) for costs in evidence.replicates)
            return replace(evidence, replicates=links)

        return replace(
            self,
            general=self.general.between_nodes(alpha, beta),
            own={
                collective: {c: costs.between_nodes(alpha, beta) for c, costs in sets.items()}
                for collective, sets in self.own.items()
            },
            evidence={
                collective: {c: of(found) for c, found in sets.items()}
                for collective, sets in self.evidence.items()
            },
            general_evidence=self.general_evidence and of(self.general_evidence),
        )

    def costs(self, collective: str, choice: str, ranks: int) -> tuple[Costs, bool]:
        """The parameters for a choice on so many ranks, and whether they are its own."""
        own = self.own.get(collective, {}).get(choice)
        found = self.general if own is None else own.at(ranks, self.general)
        return found, found is own

    def replicates(self, collective: str, choice: str, ranks: int) -> tuple[Costs, ...]:
        """The same of fits to resampled measurements."""
        _, own = self.costs(collective, choice, ranks)
        found = self.evidence_of(collective, choice) if own else self.general_evidence
        return found.replicates if found else ()

    def evidence_of(self, collective: str, choice: str) -> Evidence | None:
        """What the parameters for a choice rest on."""
        return self.evidence.get(collective, {}).get(choice, self.general_evidence)


def check(costs: Costs) -> None:
    """Check a set that a file has given.

    Raises:
        ValueError: no link, no piece, pieces that do not follow one another, or a number that is
            negative or not finite.
    """
    if not costs.links or not set(costs.links) <= {INTRA, INTER}:
        raise ValueError(f"links {sorted(costs.links)} must be {INTRA}, {INTER} or both")
    for link, pieces in costs.links.items():
        if not pieces or pieces[-1].upto is not None:
            raise ValueError(f"the last piece of link {link} must have no end (upto null)")
        ends = [piece.upto for piece in pieces[:-1]]
        if None in ends or any(a >= b for a, b in pairwise(filter(None, ends))):
            raise ValueError(f"the pieces of link {link} must have ascending ends, not {ends}")
    for name, value in costs.numbers().items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name}={value} must not be negative, and be finite")
