"""What is measured of several values of parameters, and what a search begins with."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll import algorithms, tuning
from mpicoll.bench import candidates as found
from mpicoll.bench.search import LEFT, halved
from mpicoll.cli import wanted
from mpicoll.cli.errors import UsageError
from mpicoll.simulate.costs import CostModel, Costs, Piece
from mpicoll.verify import verify

COSTS = CostModel(Costs({"intra": (Piece(None, 1e-6, 1e-10),)}, gamma=5e-11))


def test_several_values_are_one_choice_each():
    chosen = {"bcast": ("chain", "binomial", "native")}
    made = wanted.with_parameters(chosen, {"segments": (1, 4), "window": 2}, everything=True)
    assert made == {
        "bcast": ("chain segments=1 window=2", "chain segments=4 window=2", "binomial", "native")
    }
    made = wanted.with_parameters({"allreduce": ("ring",)}, {"order": (1, 0)}, everything=False)
    assert made == {"allreduce": ("ring order=1,0",)}
    with pytest.raises(UsageError, match="bcast binomial has no parameter 'segments'"):
        wanted.with_parameters(chosen, {"segments": 4}, everything=False)
    with pytest.raises(UsageError, match="no algorithm of bcast has a parameter 'depth': known"):
        wanted.with_parameters(chosen, {"depth": 4}, everything=True)
    with pytest.raises(UsageError, match="segments=0 must be an integer of at least 1"):
        wanted.with_parameters(chosen, {"segments": (1, 0)}, everything=True)


@pytest.mark.parametrize("collective", ["allreduce", "bcast", "reduce_scatter"])
@pytest.mark.parametrize("nodes", [(), (0, 1, 0, 1, 0)])
def test_candidates_are_right_and_none_is_there_twice(collective, nodes):
    choices = found.candidates(collective, 5, 1 << 16, nodes)
    words = [choice.words for choice in choices]
    assert len(set(words)) == len(words)
    assert {choice.algorithm for choice in choices} == set(algorithms.names(collective, 5))
    for choice in choices[:: max(1, len(choices) // 12)]:
        entry = algorithms.find(collective, choice.algorithm)
        assert verify(entry, 5, parameters=dict(choice.parameters)).ok, choice.words
    assert all(tuning.parse(collective, each, "").words == each for each in words)


def test_segments_are_not_too_short_and_orders_keep_nodes_together():
    segments = {
        dict(choice.parameters)["segments"]
        for choice in found.candidates("bcast", 8, 16 << 10)
        if choice.algorithm == "chain"
    }
    assert segments == {1, 2, 4, 8, 16}
    orders = {
        dict(choice.parameters)["order"]
        for choice in found.candidates("allreduce", 4, 64, (0, 1, 1, 0))
        if choice.algorithm == "ring"
    }
    assert orders == {(), (0, 2, 1, 3), (0, 3, 1, 2)}


def test_prediction_knows_that_segments_gain():
    """Of a double binary tree of 64 ranks, one segment is among the worst."""
    best = found.promising(COSTS, "bcast", 16, 1 << 20, (), 200)
    trees = [words for words in best if words.startswith("double_binary_tree")]
    assert trees and " segments=1 " not in f" {trees[0]} "
    assert trees.index("double_binary_tree segments=1 window=8") > len(trees) / 2
    assert (
        found.promising(COSTS, "bcast", 8, 64, (), 2)
        == found.promising(COSTS, "bcast", 8, 64, (), 9)[:2]
    )


@given(
    st.dictionaries(
        st.text("abc", min_size=1), st.lists(st.floats(1e-6, 1), min_size=1, max_size=5), min_size=1
    )
)
def test_halving_keeps_the_faster_half(times):
    kept = halved(times)
    assert len(kept) == min(len(times), max(LEFT, (len(times) + 1) // 2))
    middle = {words: sorted(each)[len(each) // 2] for words, each in times.items()}
    assert all(len(times[words]) for words in kept)
    if all(len(each) % 2 for each in times.values()):
        worst = max(middle[words] for words in kept)
        assert all(middle[words] >= worst for words in set(times) - set(kept))
