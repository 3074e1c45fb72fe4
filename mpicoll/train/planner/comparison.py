"""What is said of a plan: why others lose, what each number means, and what would make it fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter

from mpicoll.base.memory import listed, megabytes
from mpicoll.train.planner import bounds
from mpicoll.train.planner.bounds import NEVER, Bounds
from mpicoll.train.planner.problem import Outcome, Problem
from mpicoll.train.planner.search import Found
from mpicoll.train.planner.space import Candidate

#: Of each mesh and strategy so many candidates are tried for one with enough memory.
_TRIED = 4


def rivals(problem: Problem, every: Iterable[Candidate], found: Found, most: int) -> list[Outcome]:
    """For each other mesh and strategy a good step, simulated: the shortest ones, in order.

    That with the lowest bound, by the cut that is best for its chunks; not always the best one.

    Args:
        problem: What is to be trained.
        every: All candidates.
        found: What the search has found.
        most: How many.
    """
    family = attrgetter("family")
    chosen: list[tuple[int, list[Candidate]]] = []
    for _, group in groupby(sorted(every, key=family), key=family):
        known: list[tuple[int, Candidate]] = []
        for candidate in group:
            layers = problem.layers(candidate)
            if layers is not None:
                least = bounds.fluid(problem, candidate, layers)
                known.append((found.at_least.get(candidate, least), candidate))
        if known:
            known.sort(key=lambda each: each[0])
            chosen.append((known[0][0], [candidate for _, candidate in known]))
    outcomes: dict[object, Outcome] = {}
    for outcome in found.outcomes.values():
        kind = outcome.candidate.family
        if kind not in outcomes or outcome.picoseconds < outcomes[kind].picoseconds:
            outcomes[kind] = outcome
    for _, group_of in sorted(chosen, key=lambda each: each[0])[: 2 * most]:
        kind = group_of[0].family
        if kind not in outcomes:
            fitting = (_outcome(problem, candidate) for candidate in group_of[:_TRIED])
            good = next(filter(None, fitting), None)
            if good is not None:
                outcomes[kind] = good
    best = found.best
    if best is not None:
        del outcomes[best.candidate.family]
    return sorted(outcomes.values(), key=lambda o: o.picoseconds)[:most]


def _outcome(problem: Problem, candidate: Candidate) -> Outcome | None:
    """A step by the cut that is best for its chunks; None where no cut has enough memory."""
    layers = problem.layers(candidate)
    assert layers is not None, "others are not asked for"
    cut: tuple[int, ...] = (0,)
    if candidate.order:
        tables = Bounds(problem, candidate, layers)
        if tables.least >= NEVER:
            return None
        cut = tables.balanced
    outcome = problem.outcome(candidate, cut)
    return outcome if problem.fits(outcome) else None


def why(other: Outcome, best: Outcome) -> str:
    """Why a step takes longer than the best: what has grown most, in per cent of the best step."""
    more = {
        "ranks wait for other stages": other.waiting - best.waiting,
        "collectives inside layers": other.tensor - best.tensor,
        "gathering parameters"
        if other.candidate.sharing.parameters
        else "summing gradients over replicas": other.exchange - best.exchange,
        "layers computed twice"
        if other.candidate.recompute
        else "smaller pieces compute slower": other.computing - best.computing,
    }
    name, most = max(more.items(), key=lambda each: each[1])
    if most <= 0:
        return "no difference"
    return f"{name}: +{100 * most / best.picoseconds:.2g} %"


def explanation(best: Outcome, problem: Problem, found: Found) -> Iterator[str]:
    """A plan in words, a sentence each."""
    candidate = best.candidate
    data, pipe, tensor = candidate.data, candidate.pipe, candidate.tensor
    samples = problem.samples(candidate)
    if data > 1:
        yield (
            f"{data} replicas of the model each take {-(-problem.batch // data)} of the "
            f"{problem.batch} samples of a step; at its end they add up their gradients, which "
            f"sends {megabytes(best.sent['data'])} from each rank."
        )
        if candidate.sharing.words:
            yield candidate.sharing.words
    if pipe > 1:
        yield (
            f"The layers are cut into {candidate.chunks} chunks, which begin at layers "
            f"{', '.join(map(str, best.cut))}; {pipe} stages pass {candidate.microbatches} "
            f"microbatches of {samples} samples from one to the next."
        )
        yield (
            "While the first microbatch has not reached the last stages they have nothing to do, "
            "and neither have the first ones at the end. If all stages were alike, that would be "
            f"(S-1)/(M+S-1) = {100 * (pipe - 1) / (candidate.microbatches + pipe - 1):.0f} % of "
            f"the step with 1f1b; here ranks wait {100 * best.waiting / best.picoseconds:.0f} %."
        )
        if dict(candidate.parameters).get("ahead"):
            yield "Each stage begins with more forward passes, so that messages arrive in time."
        if candidate.splits:
            yield "Gradients of weights, which nobody waits for, are computed in the gaps."
        if candidate.recompute:
            yield "Forward passes are run again on the way back: a third more work, less memory."
    if tensor > 1:
        yield (
            f"{tensor} neighbouring ranks share each layer; they exchange what it makes in each "
            f"microbatch, {megabytes(best.sent['tensor'])} a step, which takes "
            f"{100 * best.tensor / best.picoseconds:.0f} % of the time."
        )
    if candidate.sequence:
        yield "Between these layers each rank has a part of the tokens (sequence)."
    if not candidate.order and candidate.microbatches > 1:
        yield f"Each rank adds up the gradients of {candidate.microbatches} smaller batches."
    if data == pipe == tensor == 1:
        yield "One rank does everything."
    stages = [sum(stage.values()) for stage in best.memory]
    stage = stages.index(max(stages))
    parts = listed(best.memory[stage])
    yield f"The fullest rank needs {megabytes(max(stages))}: {parts}."
    if found.gap:
        yield (
            f"The search ended early: some plan may be up to {100 * found.gap:.1f} % faster, none "
            "more."
        )
    else:
        yield "Of all that is named in the space, as it is simulated, nothing is faster."
