"""Plans: the best of all that there are, bounds that hold, and what does not fit."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicoll.simulate.costs import INTER, INTRA, CostModel, Costs, Piece
from mpicoll.train.planner.bounds import NEVER, Bounds, fluid
from mpicoll.train.planner.cluster import Cluster
from mpicoll.train.planner.layers import Layers
from mpicoll.train.planner.problem import Outcome, Problem
from mpicoll.train.planner.search import search
from mpicoll.train.planner.space import Candidate, candidates


def cluster(nodes: list[int], slow: float = 1.0) -> Cluster:
    """Ranks whose links between nodes are so many times as slow as an Ethernet."""
    links = {
        INTRA: (Piece(None, 1e-6, 1e-10),),
        INTER: (Piece(None, 46e-6 * slow, 3e-10 * slow),),
    }
    return Cluster(CostModel(Costs(links, gamma=1e-10, call=1e-6)), nodes)


def problem(seed: int) -> tuple[Problem, list[Candidate]]:
    """A random model on random nodes, and all ways to train it."""
    rng = np.random.default_rng(seed)
    ranks, count = int(rng.integers(2, 9)), int(rng.integers(2, 10))
    batch = int(rng.integers(4, 17))
    where = cluster(sorted(rng.integers(0, 3, ranks).tolist()), float(10 ** rng.uniform(-1, 2)))
    base, fixed = rng.integers(1, 2000, (2, count)) * 10**6
    second = rng.integers(0, 100, count)
    weights, edges = rng.integers(0, 1 << 21, count), rng.integers(1, 1 << 14, count + 1)
    kept, working, begins, waiting = rng.integers(0, 1 << 16, (4, count))
    # The last layer may have the parameters of the first one.
    first = np.arange(count)
    if rng.random() < 0.3:
        weights[-1], first[-1] = weights[0], 0
    cuts = rng.random(count + 1) < 0.9
    cuts[[0, -1]] = True
    takes_halves = bool(rng.random() < 0.7)

    @cache
    def layers_of(tensor: int, samples: int, sequence: bool) -> Layers | None:
        if tensor > 4:
            return None
        forward = fixed + base * samples // tensor
        wire = where.collective("allreduce", [range(tensor)], edges[1:] * samples)
        sent = edges[1:] * samples * 2 * (tensor - 1) // tensor
        return Layers(
            forward + wire,
            forward + wire,
            forward * second // 100,
            *(wire, wire, sent, sent),
            edges * samples,
            kept * samples,
            begins * samples,
            working * samples,
            waiting * samples,
            weights // tensor,
            first,
            cuts if tensor > 1 else np.ones(count + 1, bool),
        )

    memory = None if rng.random() < 0.4 else int(rng.integers(1 << 20, 1 << 25))
    found = Problem(ranks, batch, where, layers_of, slots=int(rng.integers(0, 3)), memory=memory)
    every = list(candidates(ranks, batch, count, takes_halves))
    return found, every


def cuts_of(given: Problem, candidate: Candidate) -> list[tuple[int, ...]]:
    layers = given.layers(candidate)
    if layers is None:
        return []
    if candidate.chunks > candidate.pipe:
        tables = Bounds(given, candidate, layers)
        return [tables.balanced] if tables.least < NEVER else []
    inner = [n for n in range(1, len(layers)) if layers.cuts[n]]
    return [(0, *cut) for cut in combinations(inner, candidate.chunks - 1)]


def brute_force(given: Problem, every: list[Candidate]) -> Outcome | None:
    outcomes = (
        given.outcome(candidate, cut) for candidate in every for cut in cuts_of(given, candidate)
    )
    return min(filter(given.fits, outcomes), key=lambda o: o.picoseconds, default=None)


def some(every: list[Candidate], seed: int, most: int) -> list[Candidate]:
    rng = np.random.default_rng(seed)
    return [every[n] for n in rng.permutation(len(every))[:most]]


@pytest.mark.parametrize("seed", range(6))
def test_the_pick_is_the_best_of_a_part_of_the_space(seed: int) -> None:
    given, every = problem(seed)
    few = some(every, seed, 25)
    found, best = search(given, few), brute_force(given, few)
    assert found.gap == 0
    assert (found.best and found.best.picoseconds) == (best and best.picoseconds)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(60))
def test_the_pick_is_the_best_of_the_whole_space(seed: int) -> None:
    given, every = problem(seed)
    found, best = search(given, every), brute_force(given, every)
    assert found.gap == 0
    assert (found.best and found.best.picoseconds) == (best and best.picoseconds)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.data())
def test_no_step_is_shorter_than_its_bound(seed: int, data: st.DataObject) -> None:
    given, every = problem(seed)
    candidate = data.draw(st.sampled_from(every))
    layers = given.layers(candidate)
    cuts = cuts_of(given, candidate)
    if layers is None or not cuts:
        return
    outcome = given.outcome(candidate, data.draw(st.sampled_from(cuts)))
    assert fluid(given, candidate, layers) <= outcome.picoseconds
    if candidate.order:
        tables = Bounds(given, candidate, layers)
        least = (
            tables.of(outcome.cut)
            if candidate.chunks == candidate.pipe
            else tables.of_ranks(outcome.cut)
        )
        if given.fits(outcome):
            assert tables.least <= outcome.picoseconds
            assert least <= outcome.picoseconds
        elif candidate.chunks == candidate.pipe:
            assert least == NEVER
