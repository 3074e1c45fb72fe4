"""One tree over virtual shards, algorithms with a fixed order, and shares that follow speed."""

import dataclasses

import numpy as np
import pytest
from clouds import clouds
from hypothesis import given
from hypothesis import strategies as st

from mpicoll import algorithms
from mpicoll.cli import session
from mpicoll.schedule.layout import part
from mpicoll.train import Config, TrainingError, run
from mpicoll.train.data.sampler import shared
from mpicoll.train.driver import bits, checkpoints
from mpicoll.train.exchange import tree
from mpicoll.train.strategies.balance import Balance


class Expression(str):
    """Adds up to its own spelling."""

    def __add__(self, other):
        return Expression(f"({self}{other})")


def spelled(shards, size):
    """The sum over all shards, as it is made on so many ranks."""
    sums = {}
    for rank in range(size):
        own = tree.shards_of(rank, size, shards)
        steps = tree.program(own, shards)
        slots = [Expression()] * tree.slots(steps)
        for shard, step in zip(own, steps, strict=True):
            slots[step.slot] = Expression(f"{shard}.")
            for target, source in step.folds:
                slots[target] = slots[target] + slots[source]
        nodes = tree.subtrees(own, shards)
        sums |= dict(zip(nodes, slots[: len(nodes)], strict=True))
    return tree.total(sums, shards)


@given(st.integers(1, 40), st.data())
def test_every_number_of_ranks_makes_the_same_sum(shards, data):
    size = data.draw(st.integers(1, shards))
    assert spelled(shards, size) == spelled(shards, shards)


def test_the_tree_is_binary_and_complete():
    assert spelled(5, 3) == "(((0.1.)2.)(3.4.))"
    assert tree.subtrees(tree.shards_of(1, 3, 16), 16) == [(6, 8), (8, 10), (10, 11)]
    assert tree.slots(tree.program(range(16), 16)) == 5
    assert tree.total_of_shards([1.0, 2.0, 3.0]) == 6.0


def test_more_ranks_than_shards_are_refused():
    with pytest.raises(ValueError, match=r"16 virtual shards .* there are 17: give invariant=17"):
        tree.shards_of(0, 17, 16)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_which_algorithms_have_a_fixed_order(size):
    fixed = {name for name in algorithms.names("allreduce") if bits.has_fixed_order(name, size)}
    assert {"linear", "parameter_server", "binomial", "recursive_doubling"} <= fixed
    assert ("ring" in fixed) == (size == 2)  # two numbers have one sum


def test_deterministic_refuses_what_depends_on_the_place(monkeypatch):
    with pytest.raises(ValueError, match=r"with ring the order .* give .*recursive_doubling"):
        bits.require_fixed_order("ring", 4)
    bits.require_fixed_order("recursive_doubling", 1000)
    with pytest.raises(ValueError, match="deterministic needs an all-reduce algorithm"):
        Config(deterministic=True, algorithm=None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"invariant": 16, "strategy": "zero1"}, "invariant does not .* strategy zero1: give stra"),
        ({"invariant": 16, "wire": "fp16"}, "invariant does not go together with wire fp16"),
        ({"invariant": 4, "batch_per_rank": 8}, "with batch_per_rank 8: give batch_per_rank nothi"),
        ({"invariant": 4, "lr_scaling": "sqrt"}, "invariant does not .* lr_scaling sqrt"),
        ({"invariant": 0}, "invariant is 0: give a whole number of at least 1"),
        ({"deterministic": True, "wire": "int8"}, "deterministic does not .* give wire full or fp"),
        ({"balance": "speed", "strategy": "gossip"}, "balance does not .* give strategy allreduce"),
        ({"balance": "fair"}, "unknown balance 'fair': known are none, speed"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(**changes)


@pytest.mark.parametrize(
    ("option", "shards"), [("--invariant", 16), ("--invariant=8", 8)], ids=["left out", "given"]
)
def test_the_number_of_shards_may_be_left_out(command, monkeypatch, option, shards):
    seen = []
    monkeypatch.setattr(session, "communicator", lambda: None)
    monkeypatch.setattr(
        "mpicoll.train.driver.console.main", lambda config, *_, **__: seen.append(config)
    )
    assert command("train", option, "digits").status == 0
    assert [(config.invariant, config.dataset) for config in seen] == [(shards, "digits")]
    done = command("train", "--invariant", "--strategy", "gossip")
    assert "invariant does not go together with strategy gossip" in done.err


def test_invariant_wants_one_thread(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    with pytest.raises(TrainingError, match=r"BLAS threads are .* set OPENBLAS_NUM_THREADS=1"):
        run(Config(invariant=4), dataset=clouds())


def test_a_checkpoint_knows_the_shards_and_the_machine(monkeypatch, tmp_path):
    for name in ("OPENBLAS", "OMP", "MKL", "BLIS"):
        monkeypatch.setenv(f"{name}_NUM_THREADS", "1")
    monkeypatch.setenv("VECLIB_MAXIMUM_THREADS", "1")
    config = Config(invariant=4, batch=16, epochs=1, checkpoint=str(tmp_path))
    run(config, dataset=clouds())
    _, facts = checkpoints.load(checkpoints.find(tmp_path))
    assert facts["invariant"] == 4 and facts["machine"] == bits.machine()
    assert facts["machine"].keys() == {"processor", "NumPy", "BLAS"}
    more = dataclasses.replace(config, checkpoint=None, resume=str(tmp_path), epochs=2)
    with pytest.raises(TrainingError, match="invariant is 4 there and 8 in this run"):
        run(dataclasses.replace(more, invariant=8), dataset=clouds())
    monkeypatch.setattr(bits, "machine", lambda: {"processor": "abacus"})
    with pytest.warns(UserWarning, match=r"another kind of machine .* than this .*abacus"):
        run(more, dataset=clouds())


# --- shares that follow speed ---------------------------------------------------------------------


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=9), st.integers(0, 60))
def test_shares_cover_a_batch_and_follow_the_speeds(speeds, count):
    speeds, items = np.array(speeds), np.arange(count)
    parts = [shared(items, len(speeds), rank, speeds) for rank in range(len(speeds))]
    assert np.array_equal(np.concatenate(parts), items)
    lengths = np.array([len(p) for p in parts])
    if count >= len(speeds):
        assert lengths.min() >= 1
        exact = 1 + speeds / speeds.sum() * (count - len(speeds))
        assert np.abs(lengths - exact).max() <= 1
    even = [shared(items, len(speeds), rank) for rank in range(len(speeds))]
    assert [len(p) for p in even] == [part(count, len(speeds), r)[1] for r in range(len(speeds))]


def test_speeds_are_measured_over_some_steps_and_change_slowly():
    balance = Balance(3)
    changed = [balance.add(np.full(3, 8.0), np.array([1.0, 1.0, 4.0])) for _ in range(10)]
    assert changed == [False] * 4 + [True] + [False] * 4 + [True]
    assert balance.speeds[0] / balance.speeds[2] == pytest.approx(4)
    for _ in range(5):
        balance.add(np.full(3, 8.0), np.full(3, 1.0))
    assert 1 < balance.speeds[0] / balance.speeds[2] < 4


def test_who_had_no_samples_is_as_fast_as_before():
    balance = Balance(2)
    for _ in range(5):
        balance.add(np.array([8.0, 0.0]), np.array([1.0, 0.1]))
    assert balance.speeds.tolist() == [1, 1]
