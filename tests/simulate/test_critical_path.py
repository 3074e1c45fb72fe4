"""Critical paths: under the costs they were found with, their length is the simulated time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll import algorithms
from mpicoll.simulate import critical_path as paths
from mpicoll.simulate import simulate
from mpicoll.simulate.costs import INTER, INTRA, Costs, Piece
from mpicoll.simulate.critical_path import Path, critical_path, evened, reference
from mpicoll.simulate.machine import Machine
from mpicoll.verify import tried


def costs(nodes=()):
    model = reference(nodes)
    links = {kind: model.pieces(kind) for kind in (INTRA, INTER)}
    return Costs(links, gamma=model.gamma, step=model.step)


CASES = [
    (entry, size, nbytes, parameters)
    for entry in algorithms.catalogue()
    for size in (1, 2, 3, 5, 8)
    if entry.runs_on(size)
    for nbytes, segments in ((8, (1,)), (100_003, (3,)))
    for parameters in tried(entry, size, segments)
]


@pytest.mark.parametrize("collective", dict.fromkeys(entry.collective for entry, *_ in CASES))
def test_a_path_is_as_long_as_the_simulation(collective):
    for entry, size, nbytes, parameters in CASES:
        if entry.collective != collective:
            continue
        root = size - 1 if entry.definition.rooted else 0
        words = tuple(parameters.items())
        path = critical_path(collective, entry.name, size, nbytes, words, root)
        nbytes = evened(entry, size, nbytes)
        simulated = simulate(entry, size, nbytes, reference(), root, parameters)
        assert path.seconds(costs()) == simulated.makespan, (entry.name, size, parameters)


@pytest.mark.parametrize("nodes", [(0, 0, 0, 1, 1, 1), (0, 1, 2, 0, 1, 2), (0, 1, 2, 3, 4, 5)])
def test_a_path_over_nodes_is_as_long_as_the_simulation(nodes):
    for entry, size, nbytes, parameters in CASES:
        if size == 5:
            path = critical_path(
                entry.collective, entry.name, 5, nbytes, tuple(parameters.items()), 0, nodes[:5]
            )
            nbytes = evened(entry, 5, nbytes)
            simulated = simulate(entry, 5, nbytes, reference(nodes[:5]), 0, parameters)
            assert path.seconds(costs(nodes)) == simulated.makespan, (entry.name, parameters)


@pytest.mark.parametrize("step", [0, 3e-7, 1e-3])
def test_a_path_under_given_costs_is_as_long_as_the_simulation(step):
    """Whether latency or transfer decides which messages follow one another."""
    links = {INTRA: (Piece(1000, 1e-6, 4e-9), Piece(None, 5e-6, 2e-9))}
    given = Costs(links, gamma=5e-11, step=step)
    for entry, size, nbytes, parameters in CASES:
        if size not in (3, 5):
            continue
        words = tuple(parameters.items())
        path = critical_path(entry.collective, entry.name, size, nbytes, words, costs=given)
        nbytes = evened(entry, size, nbytes)
        simulated = simulate(entry, size, nbytes, Machine.of(given, 10**15), 0, parameters)
        expected = pytest.approx(simulated.makespan * 1e-15, rel=1e-9)
        assert path.seconds(given) == expected, (entry.name, size, parameters)


def test_who_only_sends_pays_no_step():
    """The root's two messages are under way at the same time."""
    path = critical_path("bcast", "binomial", 3, 800)
    assert path == Path(1, {(INTRA, 800): 2}, 0, 3)


def test_what_the_path_of_a_ring_is_made_of():
    path = critical_path("allreduce", "ring", 4, 4096)
    assert path == Path(6, {(INTRA, 1024): 6}, 3 * 1024, 4)


def test_several_messages_of_a_round_are_one_round():
    assert critical_path("gather", "linear", 5, 500) == Path(1, {(INTRA, 100): 4}, 0, 5)
    assert critical_path("allreduce", "linear", 5, 500) == Path(2, {(INTRA, 500): 8}, 2000, 5)


def test_recursive_halving_has_messages_of_several_sizes():
    path = critical_path("allreduce", "recursive_halving_doubling", 8, 8000)
    assert path.messages == {(INTRA, 4000): 2, (INTRA, 2000): 2, (INTRA, 1000): 2}
    assert (path.rounds, path.reduced) == (6, 7000)


def test_links_between_nodes_are_counted_apart():
    path = critical_path("allreduce", "ring", 4, 4096, nodes=(0, 0, 1, 1))
    assert path.messages == {(INTER, 1024): 6}  # in every round some rank waits for the other node
    nodes = (("nodes", (0, 0, 1, 1)),)
    path = critical_path("allreduce", "hierarchical", 4, 4096, nodes, nodes=(0, 0, 1, 1))
    assert path.messages == {(INTRA, 2048): 2, (INTER, 1024): 2}
    alone = critical_path("allreduce", "ring", 4, 4096, nodes=(0, 1, 2, 3))
    assert alone.messages == {(INTER, 1024): 6}


@given(st.integers(2, 9), st.integers(1, 500), st.data())
def test_a_symmetric_algorithm_has_the_path_of_any_rank(size, block, data):
    symmetric = [a for a in algorithms.catalogue() if a.symmetric and len(a.channels(0, 2)) == 1]
    entry = data.draw(st.sampled_from(symmetric))
    if not entry.runs_on(size):
        return
    nbytes = block * size
    one = critical_path(entry.collective, entry.name, size, nbytes)
    assert one == paths._Walk(entry, size, nbytes, 0, {}, reference()).path()


def test_a_block_that_is_a_byte_longer_holds_nobody_up():
    """On six ranks messages that last unlike would miss their turns: 12 one after the other."""
    under = Costs({INTRA: (Piece(None, 1e-5, 8e-8),)}, gamma=2e-9, step=6e-4)
    even, uneven = (
        critical_path("allreduce", "parameter_server", 6, nbytes, costs=under)
        for nbytes in (6 * 34134, 6 * 34134 - 4)
    )
    assert uneven == even == Path(2, {(INTRA, 34134): 10}, 5 * 34134, 6)
    short = critical_path("allreduce", "parameter_server", 6, 6 * 100 - 4, costs=under)
    assert short.messages.keys() == {(INTRA, 99), (INTRA, 100)}  # these are counted as they are


def test_many_ranks():
    path = critical_path("allreduce", "ring", 4096, 1 << 30)
    assert path == Path(8190, {(INTRA, 1 << 18): 8190}, 4095 << 18, 4096)
    alone = critical_path("allreduce", "ring", 4096, 1 << 30, nodes=tuple(range(4096)))
    assert alone.messages == {(INTER, 1 << 18): 8190}
    with pytest.raises(paths.TooManyMessages, match="has more than 30000 messages"):
        critical_path("allreduce", "recursive_halving_doubling", 1 << 17, 1 << 20)
