"""What does not fit: the plan that needs least memory, and what would make it fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from mpicoll.base.memory import listed, megabytes
from mpicoll.train.planner.bounds import NEVER, Bounds
from mpicoll.train.planner.layers import Layers
from mpicoll.train.planner.problem import Problem
from mpicoll.train.planner.space import Candidate


@dataclass(frozen=True)
class Need:
    """The plan that needs least memory.

    Attributes:
        candidate: How.
        stages: Bytes of each stage, by what for.
    """

    candidate: Candidate
    stages: tuple[dict[str, int], ...]

    @property
    def nbytes(self) -> int:
        """Of the rank that needs most."""
        return max(sum(stage.values()) for stage in self.stages)


def smallest_need(problem: Problem, layers: int, halves: bool) -> Need:
    """What a rank needs at least, by plans with as many microbatches as can be.

    Args:
        problem: What is to be trained.
        layers: Of the model.
        halves: Whether all backward passes can be made in two parts.

    Raises:
        ValueError: There is no mesh of so many ranks, or a step takes too long on all of them.
    """
    least = _least(problem, layers, halves)
    if least is None:
        problem.require_short(layers, halves)
        raise ValueError(
            f"no mesh of {problem.ranks} ranks can share {layers} layers and batches of "
            f"{problem.batch} samples: give fewer ranks, a larger batch, or fewer other options"
        )
    return least


def _least(problem: Problem, layers: int, halves: bool) -> Need | None:
    frugal: dict[tuple[object, ...], Candidate] = {}
    for candidate in problem.candidates(layers, halves):
        # Those with more microbatches come later.
        frugal[candidate._replace(microbatches=0)] = candidate
    least: Need | None = None
    for candidate in sorted(frugal.values(), key=lambda c: c.chunks > c.pipe):
        least = _need(problem, candidate, least) or least
    return least


def _need(problem: Problem, candidate: Candidate, known: Need | None) -> Need | None:
    """The least that a candidate needs; None where that is not less than what is known.

    Or where so many ranks cannot share layers.
    """
    layers = problem.layers(candidate)
    if layers is None:
        return None
    low, high = 0, known.nbytes if known else 1 << 60
    found = None
    middle = high - 1
    while high - low > max(low >> 10, 1):
        outcome = _within(replace(problem, memory=middle), candidate, layers)
        if outcome is None:
            low = middle
            if found is None and known is not None:
                return None
        else:
            found = Need(candidate, outcome)
            high = found.nbytes
        middle = (low + high) // 2
    return found


def _within(
    problem: Problem, candidate: Candidate, layers: Layers
) -> tuple[dict[str, int], ...] | None:
    """Memory of each stage by a cut that has enough; None where there is none."""
    assert problem.memory is not None
    spans: list[list[tuple[int, int]]] | None = [[(0, len(layers))]]
    if candidate.chunks > candidate.pipe:
        tables = Bounds(problem, candidate, layers)
        if tables.least >= NEVER:
            return None
        every = list(pairwise([*tables.balanced, len(layers)]))
        schedule = candidate.schedule
        spans = [[every[n] for n in schedule.chunks_of(rank)] for rank in range(candidate.pipe)]
    elif candidate.order:
        spans = _furthest(problem, candidate, layers, problem.memory)
    if spans is None:
        return None
    stages = tuple(
        problem.stage_memory(candidate, layers, rank, own) for rank, own in enumerate(spans)
    )
    return stages if max(sum(stage.values()) for stage in stages) <= problem.memory else None


def _furthest(
    problem: Problem, candidate: Candidate, layers: Layers, most: int
) -> list[list[tuple[int, int]]] | None:
    """A cut into chunks that need at most so many bytes, each as long as can be."""
    ends = [n for n in range(1, len(layers) + 1) if layers.cuts[n]]
    if len(ends) < candidate.pipe:
        return None
    spans: list[tuple[int, int]] = []
    start, first = 0, 0
    for rank in range(candidate.pipe):
        # Of the ends that leave one for each chunk behind; memory grows with the end.
        last = len(ends) - (candidate.pipe - rank)
        low, high = first - 1, last
        while low < high:
            middle = (low + high + 1) // 2
            span = [(start, ends[middle])]
            if sum(problem.stage_memory(candidate, layers, rank, span).values()) <= most:
                low = middle
            else:
                high = middle - 1
        if low < first:
            return None
        spans.append((start, ends[low]))
        start, first = ends[low], low + 1
    return [[span] for span in spans] if start == len(layers) else None


def remedies(problem: Problem, need: Need, layers: int, halves: bool) -> list[str]:
    """What would make it fit, each by itself."""

    def fits(other: Problem) -> bool:
        least = _least(other, layers, halves)
        return least is not None and least.nbytes <= (problem.memory or 0)

    unit, shift = ("M", 20) if need.nbytes >> 20 else ("K", 10)
    found = [f"--memory {-(-need.nbytes >> shift)}{unit}"]
    for times in (2, 4, 8, 16):
        cluster = problem.cluster.times(times)
        more = replace(problem, ranks=problem.ranks * times, cluster=cluster)
        if fits(more):
            found.append(f"-P {more.ranks + more.helpers}")
            break
    batch = problem.batch // 2
    while batch:
        if fits(replace(problem, batch=batch)):
            found.append(f"--batch {batch}")
            break
        batch //= 2
    return found


def in_words(need: Need) -> str:
    """What the rank needs that needs most."""
    totals: Sequence[int] = [sum(stage.values()) for stage in need.stages]
    rank = totals.index(max(totals))
    where = f"stage {rank} of {len(need.stages)}" if len(need.stages) > 1 else "a rank"
    parts = listed(need.stages[rank])
    return f"by {need.candidate.words}, {where} needs {megabytes(need.nbytes)} ({parts})"
