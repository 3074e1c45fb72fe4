"""The best plan: candidates and cuts in ascending order of what they take at least, simulated.

A branch and bound search (Land and Doig 1960), best first: what it ends with is the shortest step
of all in the space, as the simulator sees it; or, where it has simulated as many as it may, one
whose distance from that is known.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from mpicoll.train.planner import bounds
from mpicoll.train.planner.bounds import NEVER, Bounds, State
from mpicoll.train.planner.problem import Outcome, Problem
from mpicoll.train.planner.space import Candidate

#: Computing tasks that are simulated at most, and parts of cuts that are looked at: half a minute.
MOST_TASKS, MOST_LOOKED_AT = 1 << 20, 50_000


@dataclass
class Found:
    """What a search has found.

    Attributes:
        candidates: How many there were, cuts not counted.
        outcomes: The shortest step of each candidate that was simulated.
        simulated: How many steps, cuts counted.
        least: Picoseconds that whatever was not simulated takes at least.
        at_least: Of candidates, what a step takes at least, as far as it was found out.
    """

    candidates: int = 0
    outcomes: dict[Candidate, Outcome] = field(default_factory=dict)
    simulated: int = 0
    least: int = NEVER
    at_least: dict[Candidate, int] = field(default_factory=dict)

    @property
    def best(self) -> Outcome | None:
        """The shortest step; None where no candidate has enough memory."""
        return min(self.outcomes.values(), key=lambda o: o.picoseconds, default=None)

    @property
    def gap(self) -> float:
        """By what share a step of the space may be shorter than the best, at most."""
        best = self.best
        if best is None or best.picoseconds <= self.least:
            return 0.0
        return 1 - self.least / best.picoseconds

    def take(self, outcome: Outcome) -> None:
        """Note an outcome if it is its candidate's best."""
        before = self.outcomes.get(outcome.candidate)
        if before is None or outcome.picoseconds < before.picoseconds:
            self.outcomes[outcome.candidate] = outcome


def search(
    problem: Problem,
    candidates: Iterable[Candidate],
    most_tasks: int = MOST_TASKS,
    done: Callable[[int], object] = lambda simulated: None,
) -> Found:
    """Find the candidate and the cut whose simulated step is shortest.

    Args:
        problem: What is to be trained, and on what.
        candidates: Of it.
        most_tasks: Computing tasks that are simulated at most.
        done: Called with the number of steps simulated so far.
    """
    found = Found()
    turn = count()
    # What it takes at least; deeper first, then first come; candidate, tables, state, cut, next.
    heap: list[tuple[int, int, int, Candidate, Bounds | None, State | None, tuple[int, ...]]] = []

    def push(least: int, depth: int, *rest: Any) -> None:
        heapq.heappush(heap, (least, -depth, next(turn), *rest))

    for candidate in candidates:
        found.candidates += 1
        layers = problem.layers(candidate)
        if layers is not None:
            push(bounds.fluid(problem, candidate, layers), 0, candidate, None, None, ())
    best, looked_at, tasks = NEVER, 0, 0
    while heap:
        least, _, _, candidate, tables, state, cut = heapq.heappop(heap)
        spent = tasks >= most_tasks or looked_at >= MOST_LOOKED_AT
        if least >= best or (spent and best < NEVER):
            found.least = least
            break
        looked_at += 1
        layers = problem.layers(candidate)
        assert layers is not None, "others are not pushed"
        if tables is None and candidate.order:
            # Cuts that take twice as long are rarely of interest: they wait for their turn.
            limit = min(best, NEVER if cut else 2 * least)
            tables = Bounds(problem, candidate, layers, limit)
            if limit < best:
                push(limit, 0, candidate, None, None, (0,))
            least = max(least, tables.least)
            found.at_least.setdefault(candidate, min(least, limit))
            if least < best and candidate.chunks == candidate.pipe:
                push(least, 0, candidate, tables, tables.first, (0,))
            elif least < best:
                even = tables.balanced
                least = max(least, tables.of_ranks(even))
                push(least, 0, candidate, tables, None, (*even, len(layers)))
            continue
        if tables is not None and state is not None and cut[-1] < len(layers):
            for more, end, following in tables.following(state, cut[-1], best):
                push(max(least, more), len(cut), candidate, tables, following, (*cut, end))
            continue
        outcome = problem.outcome(candidate, cut[:-1] or (0,))
        found.simulated += 1
        tasks += candidate.chunks * candidate.microbatches
        done(found.simulated)
        if problem.fits(outcome):
            found.take(outcome)
            best = min(best, outcome.picoseconds)
    return found
