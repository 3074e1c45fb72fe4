"""The choice of algorithms: pure functions, tested without MPI."""

import pytest

from mpicoll import algorithms, tuning
from mpicoll.tuning import BUILTIN, NATIVE, Choice, Rule, check, choose, fits, from_environment

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
    assert choose("scan", 4, 8, BUILTIN).algorithm == NATIVE


def test_built_in_choices_are_in_the_catalogue_with_all_their_parameters():
    for collective, rules in BUILTIN.items():
        for rule in rules:
            for choice in rule.candidates:
                if choice.algorithm != NATIVE:
                    entry = algorithms.find(collective, choice.algorithm)
                    assert dict(choice.parameters) == dict(entry.parameters)


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
    table = from_environment({"MPICOLL_ALLREDUCE": "double_binary_tree segments=2 window=1"})
    for nbytes in (0, 1 << 30):
        choice = choose("allreduce", 4, nbytes, table)
        assert choice.algorithm == "double_binary_tree"
        assert choice.parameters == (("segments", 2), ("window", 1))
        assert choice.source == "MPICOLL_ALLREDUCE"
    # What it cannot serve, the rest of the table does.
    assert (
        choose("allreduce", 4, 0, table, lambda choice: choice.algorithm == NATIVE).algorithm
        == NATIVE
    )
    assert table["bcast"] == BUILTIN["bcast"]
    assert from_environment({"MPICOLL_ALLREDUCE": ""}) == dict(BUILTIN)


def test_the_environment_may_name_an_order_of_ranks():
    table = from_environment({"MPICOLL_ALLREDUCE": "ring order=2,0,1"})
    choice = choose("allreduce", 3, 8, table)
    assert choice.parameters == (("order", (2, 0, 1)),)
    assert choice.words == "ring order=2,0,1"
    # A communicator of another size has no use for it.
    assert fits("allreduce", choice, 3) and not fits("allreduce", choice, 2)
    assert (
        choose("allreduce", 2, 8, table, lambda c: fits("allreduce", c, 2))
        == BUILTIN["allreduce"][0].candidates[0]
    )


@pytest.mark.parametrize(
    "value", ["rign", "ring segments=2", "double_binary_tree segments=a", "ring order=1,2", "a b"]
)
def test_environment_errors_name_the_variable(value):
    with pytest.raises(ValueError, match=f"MPICOLL_ALLREDUCE='{value}'"):
        from_environment({"MPICOLL_ALLREDUCE": value})
    assert tuning.from_environment({"MPICOLL_OTHER": value}) == dict(BUILTIN)
