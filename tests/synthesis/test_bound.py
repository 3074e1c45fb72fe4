"""The bound: closed forms, the linear program of all cuts, and that nothing beats it."""

from __future__ import annotations

import os
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pydantic")
pytest.importorskip("scipy")

from machines import HEAD, MACHINES, TEXTS, links

from mpicoll import algorithms
from mpicoll.files import machine_files
from mpicoll.simulate import simulate
from mpicoll.simulate.machine import Machine
from mpicoll.simulate.network import Network, Route
from mpicoll.synthesis.bound import _Program, bound, shares
from mpicoll.synthesis.edges import Edges

LONG = os.environ.get("MPICOLL_TEST_LONG", "") not in ("", "0")
PS = 10**6
COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "bcast", "reduce")


def direct(collective, machine):
    """The linear program with every set of ranks."""
    edges = Edges.of(machine)
    program = _Program(edges, collective, shares(collective, edges.ranks, 0))
    every = range(edges.ranks)
    cuts = [frozenset(c) for n in range(1, edges.ranks) for c in combinations(every, n)]
    return program.solve(cuts).x[0] * edges.unit


@pytest.mark.parametrize(
    ("name", "collective", "ps"),
    [
        ("uniform", "allreduce", 2 * 7 / 8 * 100),
        ("uniform", "allgather", 7 / 8 * 100),
        ("uniform", "reduce_scatter", 7 / 8 * 100),
        ("uniform", "bcast", 100),
        ("uniform", "reduce", 100),
        ("4 + 2 + 1", "allreduce", 2 * 2 / 3 * 400),
        ("slow adapter", "allreduce", 400),
        ("slow adapter", "allgather", 200),
        ("slow down-link", "allreduce", 400),
        ("broken ring", "bcast", 40),
    ],
)
def test_closed_forms(name, collective, ps):
    found = bound(collective, MACHINES[name])
    assert found.exact
    assert found.per_byte == pytest.approx(ps * PS, rel=1e-6)


@pytest.mark.parametrize("name", [n for n in MACHINES if LONG or n in ("cube mesh", "wide area")])
def test_the_bound_is_that_of_all_cuts(name):
    if MACHINES[name].network.ranks > 8:
        pytest.skip("too many sets")
    for collective in COLLECTIVES:
        found = bound(collective, MACHINES[name])
        assert found.per_byte == pytest.approx(direct(collective, MACHINES[name]), rel=1e-3)


def test_the_slow_adapter_is_named():
    found = bound("allreduce", MACHINES["slow adapter"])
    assert found.busiest
    assert all(name.startswith("adapter of host 1") for name in found.busiest)
    assert found.cut in ((0, 1, 2, 3), (4, 5, 6, 7))


def test_capacities_down_and_up_reach_every_set():
    """Of a solution, whatever the set: what goes in, and its share of the roots, make 1."""
    found = bound("allreduce", MACHINES["wide area"])
    edges = Edges.of(MACHINES["wide area"])
    for count in range(1, 6):
        for cut in combinations(range(6), count):
            inside = np.isin(np.arange(6), cut)
            into = inside[edges.target] & ~inside[edges.source]
            out = inside[edges.source] & ~inside[edges.target]
            share = np.array(found.shares)[list(cut)].sum()
            assert found.down[into].sum() + share > 1 - 1e-5
            assert found.up[out].sum() + share > 1 - 1e-5


def test_one_rank_needs_nothing():
    machine = machine_files.parse(HEAD.format(1, 1))
    assert bound("allreduce", machine).per_byte == 0


@settings(deadline=None, max_examples=12)
@given(st.data())
def test_no_algorithm_beats_the_bound(data):
    """Without latencies and arithmetic, on any network."""
    size = data.draw(st.integers(2, 6))
    betas = st.integers(1, 50)
    shared = data.draw(st.integers(0, 3))

    def route(s, r):
        used = data.draw(st.sets(st.integers(0, shared - 1))) if shared else ()
        on = tuple((link, data.draw(betas)) for link in sorted(used))
        return Route(0, data.draw(betas), data.draw(betas), on)

    rows = tuple(tuple(None if s == r else route(s, r) for r in range(size)) for s in range(size))
    ports = data.draw(st.integers(1, 3))
    network = Network(rows, tuple(map(str, range(shared))), 0, tuple(range(size)))
    machine = Machine(0, 0, 0, ports, network=network)
    collective = data.draw(st.sampled_from(COLLECTIVES))
    found, nbytes = bound(collective, machine), 5040
    for name in algorithms.names(collective, size):
        result = simulate(algorithms.find(collective, name), size, nbytes, machine)
        assert result.makespan >= found.time(nbytes) * (1 - 1e-5), name


def test_a_rank_that_cannot_be_reached_is_named():
    with pytest.raises(ValueError, match="no path leads from rank 0 to rank 2"):
        machine_files.parse(HEAD.format(3, 1) + links([(0, 1)], 1))


def test_the_text_of_each_machine_is_read_once_and_the_same():
    assert machine_files.parse(TEXTS["wide area"]) == MACHINES["wide area"]
