"""Predictions from fitted parameters: how long a collective takes, and of what that is made.

A choice that was measured is predicted by its own parameters, any other by the general ones; the
MPI library's own collective, whose schedule is unknown, by a curve through its measurements.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from mpicoll import algorithms
from mpicoll.base.wording import plural
from mpicoll.simulate import simulate
from mpicoll.simulate.costs import INTER, CostModel, Costs, Evidence, interval
from mpicoll.simulate.critical_path import Path, TooManyMessages, critical_path
from mpicoll.simulate.machine import Machine
from mpicoll.tuning import rules
from mpicoll.tuning.rules import NATIVE, Choice

#: Which parameters a prediction is made with.
OWN, GENERAL, CURVE = "own parameters", "general parameters", "curve through measurements"
#: A warning: of ranks on several nodes, where the parameters know one kind of link.
NO_LINK = "no link between nodes was measured; it is taken to be as fast as one within a node"
_UNIT = 10**15  # of a second, for simulations


@dataclass(frozen=True)
class Prediction:
    """How long a call takes.

    Attributes:
        collective, choice: what is called; algorithm and parameters in words.
        ranks, nbytes: bytes of the whole vector.
        seconds: of the slowest rank.
        low, high: between them 95 % of the fits to resampled measurements, widened by the 90th
            percentile of the errors for what was left out of the fit; by those errors alone for
            so many ranks that the time is simulated.
        source: :data:`OWN`, :data:`GENERAL` or :data:`CURVE`.
        parts: seconds by what they are spent on; none for a curve, or where it is simulated.
        path: what is counted; None for these.
        warnings: why not to trust it.
    """

    collective: str
    choice: str
    ranks: int
    nbytes: int
    seconds: float
    low: float
    high: float
    source: str
    parts: tuple[tuple[str, float], ...]
    path: Path | None
    warnings: tuple[str, ...]

    @property
    def reason(self) -> str:
        """What the time is made of, in words."""
        if self.path is None:
            return "its schedule is unknown" if self.source == CURVE else "simulated"
        messages = sum(self.path.messages.values())
        nbytes = sum(m * count for (_, m), count in self.path.messages.items())
        name, most = max(self.parts, key=lambda part: part[1], default=("", 0.0))
        share = f"; {100 * most / self.seconds:.0f} % {name}" if self.seconds and most else ""
        return (
            f"{plural(messages, 'message')}, {plural(nbytes, 'byte')} and "
            f"{plural(self.path.rounds, 'round')} one after the other{share}"
        )


def predict(
    model: CostModel,
    collective: str,
    choice: Choice,
    ranks: int,
    nbytes: int,
    root: int = 0,
    nodes: tuple[int, ...] = (),
) -> Prediction:
    """Predict the time of a call.

    Args:
        model: the parameters.
        collective, choice: what is called.
        ranks, nbytes: number of ranks, bytes of the whole vector.
        root: of a rooted collective.
        nodes: the node of each rank; none: all ranks are on one.

    Raises:
        ValueError: something is unknown or out of range; or the library's own collective was not
            measured; or the simulation would take too long.
    """
    made = partial(Prediction, collective, choice.words, ranks, nbytes)
    evidence = model.evidence_of(collective, choice.words)
    warnings = tuple(_outside(evidence, ranks, nbytes))
    widen = _error(evidence, ranks)
    if choice.algorithm == NATIVE:
        curve = model.curves.get(collective, {}).get(choice.words)
        if curve is None:
            raise ValueError(
                f"{collective} {NATIVE} was not measured, and its schedule is unknown; measure it "
                "and fit again, or leave it out"
            )
        try:
            seconds, low, high = curve.time(ranks, nbytes)
        except ValueError as error:
            raise ValueError(f"{collective} {NATIVE}: {error}") from None
        low, high = low * (1 - widen), high * (1 + widen)
        return made(seconds, low, high, CURVE, (), None, warnings)
    costs, own = model.costs(collective, choice.words, ranks)
    apart = nodes if len(set(nodes)) > 1 else ()
    if apart and INTER not in costs.links:
        warnings += (NO_LINK,)
    placed = rules.placed(collective, choice, nodes)
    source = OWN if own else GENERAL
    try:
        path = critical_path(
            collective,
            choice.algorithm,
            ranks,
            nbytes,
            placed.parameters,
            root,
            apart,
            model.general,
        )
    except TooManyMessages:
        seconds = _simulated(costs, collective, placed, ranks, nbytes, root, apart)
        low, high = seconds * (1 - widen), seconds * (1 + widen)
        return made(seconds, low, high, source, (), None, warnings)
    replicates = model.replicates(collective, choice.words, ranks)
    seconds = path.seconds(costs)
    low, high = interval(seconds, [path.seconds(r) for r in replicates])
    low, high = low * (1 - widen), high * (1 + widen)
    return made(seconds, low, high, source, _parts(path, costs), path, warnings)


def _simulated(
    costs: Costs,
    collective: str,
    choice: Choice,
    ranks: int,
    nbytes: int,
    root: int,
    nodes: tuple[int, ...],
    largest: bool = False,
) -> float:
    machine = replace(Machine.of(costs, _UNIT), nodes=nodes)
    entry = algorithms.find(collective, choice.algorithm)
    call = entry, ranks, nbytes, machine, root, dict(choice.parameters)
    if largest:
        with suppress(ValueError):  # ranks do not all do the same
            return simulate(*call, method="representative").makespan / _UNIT
    return simulate(*call).makespan / _UNIT


def estimate(
    model: CostModel,
    collective: str,
    choice: Choice,
    ranks: int,
    nbytes: int,
    nodes: tuple[int, ...] = (),
    largest: bool = False,
) -> float:
    """Seconds of a call by one of mpicoll's algorithms, simulated: fast, and without a reason.

    Args:
        model, collective, choice, ranks, nbytes, nodes: see :func:`predict`.
        largest: take all blocks to be as long as the largest; where some ranks then do what all do,
            that is many times as fast.

    Raises:
        ValueError: see :func:`predict`.
    """
    costs, _ = model.costs(collective, choice.words, ranks)
    apart = nodes if len(set(nodes)) > 1 else ()
    placed = rules.placed(collective, choice, nodes)
    return _simulated(costs, collective, placed, ranks, nbytes, 0, apart, largest)


def in_words(
    model: CostModel,
    collective: str,
    choice: Choice,
    ranks: int,
    nbytes: int,
    nodes: tuple[int, ...],
) -> str:
    """The predicted time of a call, or why there is none; see :func:`predict`."""
    try:
        found = predict(model, collective, choice, ranks, nbytes, nodes=nodes)
    except ValueError as error:
        return f"no prediction: {error}"
    doubts = "".join(f"; {warning}" for warning in found.warnings)
    return (
        f"predicted time {found.seconds * 1e6:.4g} us ({found.low * 1e6:.4g} to "
        f"{found.high * 1e6:.4g} us, by {found.source}; {found.reason}{doubts})"
    )


def _parts(path: Path, costs: Costs) -> tuple[tuple[str, float], ...]:
    latency = path.rounds * costs.step
    transfer = 0.0
    for (link, nbytes), count in path.messages.items():
        piece = costs.piece(nbytes, link)
        latency += count * piece.alpha
        transfer += count * nbytes * piece.beta
    factor = costs.factors.get(path.ranks, 1.0)
    return (
        ("overhead of the call", factor * costs.call),
        ("latency", factor * latency),
        ("transfer", factor * transfer),
        ("reduction", factor * path.reduced * costs.gamma),
    )


def _outside(evidence: Evidence | None, ranks: int, nbytes: int) -> list[str]:
    """What lies outside of what was measured."""
    if evidence is None:
        return ["nothing says what the parameters rest on"]
    found = []
    if not evidence.ranks[0] <= ranks <= evidence.ranks[-1]:
        measured = ", ".join(map(str, evidence.ranks))
        found.append(f"P = {ranks} is outside of what was measured, P = {measured}")
    if not evidence.least <= nbytes <= evidence.most:
        found.append(
            f"a size of {plural(nbytes, 'byte')} is outside of what was measured, "
            f"{evidence.least} to {evidence.most} bytes"
        )
    return found


def _error(evidence: Evidence | None, ranks: int) -> float:
    """The error to expect, by what was left out of the fit."""
    if evidence is None:
        return 0.0
    errors = evidence.sizes_left_out
    if ranks not in evidence.ranks and evidence.ranks_left_out is not None:
        errors = evidence.ranks_left_out
    return min(errors.p90, 1.0) if errors else 0.0


def ranking(
    model: CostModel,
    collective: str,
    ranks: int,
    nbytes: int,
    *,
    unmeasured: bool = False,
    root: int = 0,
    nodes: tuple[int, ...] = (),
) -> list[Prediction]:
    """Predict all choices that can serve, the fastest first.

    The library's own is among them where as many ranks were measured.

    Args:
        model, collective, ranks, nbytes, root, nodes: see :func:`predict`.
        unmeasured: whether algorithms that were not measured are among them.

    Raises:
        ValueError: see :func:`predict`.
    """
    measured = {**model.own.get(collective, {}), **model.curves.get(collective, {})}
    found = [rules.parse(collective, words, "") for words in measured]
    if unmeasured or not found:
        known = {choice.algorithm for choice in found}
        names = [name for name in algorithms.names(collective) if name not in known]
        found += [rules.parse(collective, name, "") for name in names]
    return sorted(
        (
            predict(model, collective, choice, ranks, nbytes, root, nodes)
            for choice in found
            if rules.fits(collective, choice, ranks)
            and (choice.algorithm != NATIVE or _was_measured(model, collective, ranks))
        ),
        key=lambda prediction: prediction.seconds,
    )


def _was_measured(model: CostModel, collective: str, ranks: int) -> bool:
    """Whether the library's own was measured on so many ranks, or fewer and more."""
    measured = model.curves[collective][NATIVE].times
    return min(measured) <= ranks <= max(measured)
