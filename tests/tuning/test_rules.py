"""The choice of algorithms: pure functions, tested without MPI."""

import pytest

from mpicoll import algorithms, tuning
from mpicoll.tuning import (
    BUILTIN,
    NATIVE,
    Choice,
    Rule,
    check,
    choose,
    combined,
    fits,
    for_layout,
    from_environment,
    from_hints,
)

TABLE = {
    "allreduce": (
        Rule(0, (Choice(NATIVE), Choice("linear"))),
        Rule(1000, (Choice("ring"),)),
        Rule(0, (Choice("recursive_doubling"),), ranks=8),
    )
}


@pytest.mark.parametrize(
    ("size", "nbytes", "algorithm"),
    [(4, 0, NATIVE), (4, 999, NATIVE), (4, 1000, "ring"), (8, 5000, "recursive_doubling")],
)
def test_the_rule_for_the_most_ranks_and_bytes_holds(size, nbytes, algorithm):
    assert choose("allreduce", size, nbytes, TABLE).algorithm == algorithm


def test_candidates_that_cannot_serve_are_passed_over():
    def without(*names):
        return lambda choice: choice.algorithm not in names

    assert choose("allreduce", 4, 2000, TABLE, without("ring")).algorithm == NATIVE
    assert choose("allreduce", 4, 2000, TABLE, without("ring", NATIVE)).algorithm == "linear"
    with pytest.raises(LookupError, match="allreduce"):
        choose("allreduce", 4, 2000, TABLE, lambda name: False)


def test_a_collective_without_rules_is_the_librarys():
    assert choose("scan", 4, 8, {}).algorithm == NATIVE


def test_rules_of_a_higher_rank_come_first_however_small():
    high = {"allreduce": (Rule(0, (Choice("swing"),), rank=tuning.FILE),)}
    assert choose("allreduce", 8, 5000, combined(TABLE, high)).algorithm == "swing"
    assert choose("allreduce", 8, 5000, combined(high, TABLE)).algorithm == "swing"


def test_rules_for_ranks_that_share_memory_or_not():
    near, far = (for_layout(BUILTIN, near) for near in (True, False))
    assert choose("allreduce", 2, 8, near).algorithm != NATIVE
    assert choose("allreduce", 2, 8, far).algorithm == NATIVE
    assert near.keys() == far.keys() == BUILTIN.keys()
    both = {"allreduce": (Rule(0, (Choice("ring"),)),)}
    assert for_layout(both, True) == for_layout(both, False) == both


def test_built_in_choices_are_in_the_catalogue_with_all_their_parameters():
    for collective, rules in BUILTIN.items():
        for rule in rules:
            for choice in rule.candidates:
                if choice.algorithm != NATIVE:
                    entry = algorithms.find(collective, choice.algorithm)
                    given = dict(choice.parameters)
                    assert given.keys() == entry.parameters.keys()
                    assert {**given, "segments": 1} == {**entry.parameters, "segments": 1}


@pytest.mark.parametrize("network", ["25GbE", "100G-IB"])
def test_built_in_segments_gain_on_several_nodes(network):
    """By the costs that come with mpicoll, and a known network: benchmarks/built_in_segments.py."""
    pytest.importorskip("pydantic")
    from mpicoll.simulate.known_networks import find
    from mpicoll.tuning import cost_files
    from mpicoll.tuning.predict import estimate

    between = find(network)
    model = cost_files.built_in().between_nodes(between.alpha, between.beta)
    nodes, rules = tuple(rank // 4 for rank in range(8)), for_layout(BUILTIN, False, True)
    tried = 0
    for rule in rules["allreduce"]:
        name, parameters = rule.candidates[0].algorithm, dict(rule.candidates[0].parameters)
        if parameters.get("segments", 1) > 1:
            one = Choice(name, check("allreduce", name, {}))
            times = [
                estimate(model, "allreduce", choice, 8, rule.nbytes, nodes)
                for choice in (one, rule.candidates[0])
            ]
            assert times[1] < 0.9 * times[0]
            tried += 1
    assert tried


def test_check_fills_in_defaults_and_names_what_is_known():
    assert check("allreduce", "double_binary_tree", {"segments": 2}) == (
        ("segments", 2),
        ("window", algorithms.find("allreduce", "double_binary_tree").parameters["window"]),
    )
    assert check("allreduce", NATIVE, {}) == ()
    with pytest.raises(ValueError, match=r"unknown algorithm 'rign' .*known are .*ring.*native"):
        check("allreduce", "rign", {})
    with pytest.raises(ValueError, match=r"no parameter 'segment': known are segments, window"):
        check("allreduce", "double_binary_tree", {"segment": 2})
    with pytest.raises(ValueError, match=r"native has no parameter 'segments'"):
        check("allreduce", NATIVE, {"segments": 2})
    with pytest.raises(ValueError, match="segments=0 must be an integer of at least 1"):
        check("allreduce", "double_binary_tree", {"segments": 0})


def test_the_environment_comes_first_for_every_size():
    asked = from_environment({"MPICOLL_ALLREDUCE": "double_binary_tree segments=2 window=1"})
    table = combined(BUILTIN, asked)
    for nbytes in (0, 1 << 30):
        choice = choose("allreduce", 4, nbytes, table)
        assert choice.algorithm == "double_binary_tree"
        assert choice.parameters == (("segments", 2), ("window", 1))
        assert choice.source == "MPICOLL_ALLREDUCE" and choice.asked
    # What it cannot serve, the rest of the table does.
    assert (
        choose("allreduce", 4, 0, table, lambda choice: choice.algorithm == NATIVE).algorithm
        == NATIVE
    )
    assert asked.keys() == {"allreduce"}
    assert from_environment({"MPICOLL_ALLREDUCE": ""}) == {}


def test_hints_come_before_the_environment():
    environment = from_environment({"MPICOLL_BCAST": "chain", "MPICOLL_REDUCE": "chain"})
    hints = from_hints({"mpicoll_bcast": "binomial", "other": "x"})
    table = combined(hints, BUILTIN, environment)
    assert choose("bcast", 4, 0, table).algorithm == "binomial"
    assert choose("bcast", 4, 0, table).source == "mpicoll_bcast"
    assert choose("reduce", 4, 0, table).algorithm == "chain"
    with pytest.raises(ValueError, match="mpicoll_bcast='rign': unknown algorithm"):
        from_hints({"mpicoll_bcast": "rign"})


def test_ranks_on_several_nodes_are_grouped_where_a_node_has_several():
    assert [tuning.is_grouped(nodes) for nodes in ([], [0], [0, 0], [0, 1], [0, 1, 0])] == [
        *[False] * 4,
        True,
    ]
    flat, grouped = (for_layout(BUILTIN, False, grouped) for grouped in (False, True))
    for collective in ("allreduce", "reduce_scatter", "bcast"):
        assert choose(collective, 4, 1 << 20, grouped).algorithm == "hierarchical"
        assert choose(collective, 4, 1 << 20, flat).algorithm != "hierarchical"
        assert choose(collective, 4, 8, grouped) == choose(collective, 4, 8, flat)


def test_the_environment_may_name_an_order_of_ranks():
    far = for_layout(BUILTIN, False)
    table = combined(far, from_environment({"MPICOLL_ALLREDUCE": "ring order=2,0,1"}))
    choice = choose("allreduce", 3, 8, table)
    assert choice.parameters == (("order", (2, 0, 1)),)
    assert choice.words == "ring order=2,0,1"
    # A communicator of another size has no use for it.
    assert fits("allreduce", choice, 3) and not fits("allreduce", choice, 2)
    assert (
        choose("allreduce", 2, 8, table, lambda c: fits("allreduce", c, 2))
        == far["allreduce"][0].candidates[0]
    )


@pytest.mark.parametrize(
    "value", ["rign", "ring segments=2", "double_binary_tree segments=a", "ring order=1,2", "a b"]
)
def test_environment_errors_name_the_variable(value):
    with pytest.raises(ValueError, match=f"MPICOLL_ALLREDUCE='{value}'"):
        from_environment({"MPICOLL_ALLREDUCE": value})
    assert tuning.from_environment({"MPICOLL_OTHER": value}) == {}
