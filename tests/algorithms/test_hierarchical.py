"""Hierarchical algorithms on nodes of any placement."""

from itertools import product
from math import isqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicoll import algorithms
from mpicoll.schedule import Send, blocks
from mpicoll.schedule.parameters import LABELS
from mpicoll.schedule.topology import nodes_of
from mpicoll.simulate.clock import trace
from mpicoll.tuning import ARGUMENT, NATIVE, Choice, check, from_environment, is_default, placed
from mpicoll.verify import tried, verify

HIERARCHICAL = [a for a in algorithms.catalogue() if LABELS in a.kinds.values()]
every_one = pytest.mark.parametrize("algorithm", HIERARCHICAL, ids=lambda a: a.collective)
PLACEMENTS = st.integers(1, 12).flatmap(
    lambda size: st.lists(st.integers(0, size - 1), min_size=size, max_size=size)
)


def crossing(algorithm, nodes, root=0):
    """Messages and blocks sent from node to node: of all nodes, and by each."""
    size = len(nodes)
    messages, sent = 0, dict.fromkeys(nodes, 0)
    for rank in range(size):
        for channel in algorithm.channels(rank, size, root, {"nodes": nodes}):
            for step in (s for steps in channel.rounds for s in steps if isinstance(s, Send)):
                if nodes[rank] != nodes[step.peer]:
                    messages += 1
                    sent[nodes[rank]] += len(blocks(step.block, algorithm.blocks(size)))
    return messages, sent


def test_there_is_one_of_each():
    assert [a.collective for a in HIERARCHICAL] == [
        "allreduce",
        "bcast",
        "reduce_scatter",
        "allgather",
    ]
    assert all(a.name == "hierarchical" and a.parameters["nodes"] == () for a in HIERARCHICAL)


@every_one
@settings(deadline=None)
@given(nodes=PLACEMENTS, segments=st.integers(1, 5), window=st.integers(1, 5))
def test_any_placement_is_verified(algorithm, nodes, segments, window):
    size = len(nodes)
    for root in range(size) if algorithm.definition.rooted else [0]:
        parameters = {"nodes": nodes, "segments": segments, "window": window}
        case = verify(algorithm, size, root, parameters)
        assert case.ok, (root, case.problems)


@pytest.mark.parametrize("lengths", [(9, 8), (16, 15, 16, 15), (13, 13, 12), (1, 20), (7, 2, 5)])
@every_one
def test_large_nodes_of_unequal_size(algorithm, lengths):
    nodes = [number for number, length in enumerate(lengths) for _ in range(length)]
    for segments, window in ((1, 1), (2, 1), (3, 3)):
        parameters = {"nodes": nodes, "segments": segments, "window": window}
        case = verify(algorithm, len(nodes), 0, parameters)
        assert case.ok, case.problems


@every_one
def test_depth_is_exact_on_equal_nodes(algorithm):
    for count, length in product((1, 2, 3, 5), (1, 2, 3, 6)):
        for nodes in (
            [rank // length for rank in range(count * length)],
            [rank % count for rank in range(count * length)],
        ):
            case = verify(algorithm, len(nodes), 0, {"nodes": nodes})
            assert case.depth == algorithm.count_of("depth", len(nodes), 0, {"nodes": nodes})


@every_one
def test_labels_name_the_nodes_and_nothing_more(algorithm):
    for labels in ((1, 1, 0, 0, 1), (900, 900, 7, 7, 900)):
        for rank in range(5):
            one, other = (
                [tuple(c.rounds) for c in algorithm.channels(rank, 5, 0, {"nodes": nodes})]
                for nodes in (labels, (0, 0, 1, 1, 0))
            )
            assert one == other


@every_one
def test_without_nodes_every_rank_is_one(algorithm):
    for rank in range(4):
        one, other = (
            [tuple(c.rounds) for c in algorithm.channels(rank, 4, 0, parameters)]
            for parameters in ({}, {"nodes": range(4)})
        )
        assert one == other


# --- what crosses from node to node ---


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("in_turn", [False, True])
def test_the_least_leaves_a_node(count, length, in_turn):
    size = count * length
    nodes = [rank % count if in_turn else rank // length for rank in range(size)]
    shares = {"allreduce": 2, "reduce_scatter": 1, "allgather": 1}
    for algorithm in HIERARCHICAL:
        messages, sent = crossing(algorithm, nodes)
        if algorithm.collective == "bcast":
            assert messages == sum(sent.values()) == count - 1
            continue
        # Each node has to send this part of the vector, (N - 1)/N, as often as `shares` says.
        part = shares[algorithm.collective] * size * (count - 1) // count
        assert set(sent.values()) == {part}


@given(nodes=PLACEMENTS)
def test_about_as_much_leaves_nodes_of_unequal_size(nodes):
    size, count = len(nodes), len(set(nodes))
    allreduce = algorithms.find("allreduce", "hierarchical")
    _, sent = crossing(allreduce, nodes)
    assert sum(sent.values()) == 2 * size * (count - 1)
    columns = nodes_of(tuple(nodes)).columns
    for blocks_sent in sent.values():
        # Blocks cannot be cut: each column's pieces differ by one block at most.
        assert abs(blocks_sent - 2 * size * (count - 1) / count) <= 2 * columns
    _, entered = crossing(algorithms.find("bcast", "hierarchical"), nodes)
    assert sum(entered.values()) == count - 1


def test_fewer_messages_cross_than_round_a_ring_over_ranks_in_turn():
    """In turn on nodes, all messages of a ring cross; here as many as ranks have columns."""
    nodes = [rank % 8 for rank in range(64)]
    ring = algorithms.find("allreduce", "ring")
    steps = 1 + max(t.start for t in trace(ring, 64))
    hierarchical = algorithms.find("allreduce", "hierarchical")
    transfers = trace(hierarchical, 64, 0, {"nodes": nodes})
    between = {t.start for t in transfers if nodes[t.sender] != nodes[t.receiver]}
    assert steps == 2 * 63
    assert len(between) == 2 * 7
    assert 1 + max(t.start for t in transfers) == 2 * 7 + 2 * 7


# --- values of the parameter ---


@pytest.mark.parametrize("nodes", [(0, -1), 3, "01", (True, False), (0.0, 1.0), [None, 0]])
@every_one
def test_what_names_no_nodes_is_refused(algorithm, nodes):
    with pytest.raises(ValueError, match=r"nodes=.* must be a sequence with an integer of .*0,0,1"):
        algorithm.channels(0, 2, 0, {"nodes": nodes})


@pytest.mark.parametrize("size", [1, 3])
@every_one
def test_nodes_of_another_number_of_ranks_are_refused(algorithm, size):
    with pytest.raises(ValueError, match=rf"nodes=\(0, 1\) is for 2 ranks, not for {size}:"):
        verify(algorithm, size, 0, {"nodes": (0, 1)})


@every_one
def test_what_is_tried_shows_all_kinds_of_placements(algorithm):
    for size in (1, 2, 7, 16):
        settings = tried(algorithm, size, [1, 2, 5])
        assert {t["segments"] for t in settings} == {1, 2, 5} or size == 1
        known = [nodes_of(t["nodes"] or tuple(range(size))) for t in settings]
        counts = {len(nodes.ranks) for nodes in known}
        assert {1, size, min(1 + isqrt(size), size)} <= counts
        if size > 3:
            assert any(len(set(nodes.lengths)) > 1 for nodes in known)
    assert tried(algorithm, 64, [1]) == [
        {"nodes": (0,) * 3 + (1,) * 61, "segments": 1},
        {"nodes": tuple(rank % 9 for rank in range(64)), "segments": 1},
    ]


def test_nodes_are_written_and_read():
    value = "hierarchical nodes=0,0,1,1 segments=2"
    table = from_environment({"MPICOLL_ALLREDUCE": value})
    choice = table["allreduce"][0].candidates[0]
    assert choice.words == f"{value} window=8"
    assert dict(choice.parameters)["nodes"] == (0, 0, 1, 1)


# --- the nodes of a communicator ---


def test_open_nodes_are_filled_in():
    def choice(name, **parameters):
        return Choice(name, check("allreduce", name, parameters), ARGUMENT)

    nodes = (0, 1, 0)
    filled = placed("allreduce", choice("hierarchical", segments=4), nodes)
    assert dict(filled.parameters) == {"nodes": nodes, "segments": 4, "window": 8}
    assert filled.source == ARGUMENT
    for other in (
        choice("hierarchical", nodes=(0, 0, 0)),
        choice("ring"),
        choice("ring", order=(2, 1, 0)),
        choice("linear"),
        Choice(NATIVE),
    ):
        assert placed("allreduce", other, nodes) == other


def test_an_algorithm_on_the_nodes_of_the_ranks_is_one_without_parameters():
    named = Choice("hierarchical", check("allreduce", "hierarchical", {}), ARGUMENT)
    filled = placed("allreduce", named, (0, 1, 0))
    assert is_default("allreduce", filled, (0, 1, 0))
    assert not is_default("allreduce", filled, (0, 0, 0))
    assert is_default("allreduce", filled._replace(source="MPICOLL_ALLREDUCE"), (0, 0, 0))
