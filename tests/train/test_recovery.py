"""What is left of a run when ranks have died, and from where it goes on."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.train import Config
from mpicoll.train.driver import recovery
from mpicoll.train.driver.recovery import Offer, Span, choose, recover
from mpicoll.train.ranks.workers import Workers
from mpicoll.train.strategies.buffers import Buffers
from mpicoll.train.strategies.copies import Copies
from mpicoll.train.strategies.kept import Held

LENGTH = 12


def facts(epochs=0):
    return {"history": tuple(range(epochs)), "last": None}


def offer(rank, number, *spans, epochs=0):
    return Offer(rank, number, facts(epochs), {"parameter": [Span(*s, rank) for s in spans]})


def covered(spans):
    return sorted(place for start, end, _ in spans for place in range(start, end))


# --- the choice ---


def test_the_rank_that_is_furthest_gives():
    source = choose(
        [offer(0, 4, (0, LENGTH)), offer(1, 5, (0, LENGTH)), offer(2, 5, (0, LENGTH), epochs=1)],
        {"parameter": LENGTH},
    )
    assert (source.number, source.giver) == (5, 2)
    assert source.cover == {"parameter": [Span(0, LENGTH, 1)]}


def test_a_step_that_is_not_whole_is_made_again():
    source = choose(
        [offer(0, 5, (0, 4)), offer(0, 4, (0, 4), (8, 12)), offer(1, 4, (4, 8))],
        {"parameter": LENGTH},
    )
    assert (source.number, source.giver) == (4, 0)
    assert source.cover["parameter"] == [Span(0, 4, 0), Span(4, 8, 1), Span(8, 12, 0)]


def test_nothing_is_chosen_where_a_part_is_gone():
    assert choose([offer(0, 5, (0, 4)), offer(1, 5, (5, 12))], {"parameter": LENGTH}) is None
    assert choose([], {"parameter": LENGTH}) is None


spans = st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(sorted).map(tuple)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(5, 7), st.lists(spans, max_size=4))))
def test_the_last_step_of_which_all_is_there(held):
    everyone = [offer(rank, number, *own) for rank, number, own in held]
    source = choose(everyone, {"parameter": LENGTH})
    whole = [
        number
        for number in (5, 6, 7)
        if {p for o in everyone if o.number == number for p in covered(o.spans["parameter"])}
        == set(range(LENGTH))
    ]
    assert (source is None) == (not whole)
    if source is None:
        return
    assert source.number == max(whole)
    assert covered(source.cover["parameter"]) == list(range(LENGTH))
    for start, end, rank in source.cover["parameter"]:
        own = [o for o in everyone if (o.rank, o.number) == (rank, source.number)]
        assert any(a <= start and end <= b for o in own for a, b, _ in o.spans["parameter"])


# --- copies of parts ---


class Row:
    """All ranks of one process: what is exchanged is there when all have started."""

    def __init__(self, size):
        self.size, self.facts, self.sent = size, [], {}
        self.ranks = [SimpleRank(self, rank) for rank in range(size)]


class SimpleRank(Workers):
    def __init__(self, row, rank):
        self.row, self.rank, self.size = row, rank, row.size

    def gather(self, fact):
        """As if the others had parts of the same lengths."""
        return [fact] * self.size

    def plan_exchange_parts(self, parts, counts, received, received_counts):
        def start():
            self.row.sent[self.rank] = parts.copy()

        def wait():
            source = received_counts.index(max(received_counts))
            received[...] = self.row.sent.get(source, np.nan)

        assert counts.index(max(counts)) == (self.rank + 1) % self.size
        return SimpleNamespace(Start=start, Wait=wait)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_buddy_has_the_last_two_steps(size):
    row = Row(size)
    vectors = [np.zeros(3) for _ in row.ranks]
    copies = [
        Copies(rank, [("state/momentum", 0, own)], own.dtype)
        for rank, own in zip(row.ranks, vectors, strict=True)
    ]
    for number in range(1, 4):
        for turn in range(2):  # who receives looks when all have sent
            for rank in range(size):
                vectors[rank][:] = 10 * number + rank
                if turn:
                    copies[rank].keep(Held(number, facts(), []))
                else:
                    row.sent[rank] = vectors[rank].copy()
    for rank in range(size):
        held = copies[rank].held(3, facts(epochs=1))
        assert sorted(each.number for each in held) == [2, 3]
        for each in held:
            assert len(each.facts["history"]) == (each.number == 3)
            own, theirs = (values for _, _, values in each.pieces)
            assert (own == 10 * each.number + rank).all()
            assert (theirs == 10 * each.number + (rank - 1) % size).all()


def test_a_copy_that_did_not_arrive_is_not_offered():
    row = Row(2)
    copies = Copies(row.ranks[0], [("parameter", 0, np.ones(3))], np.dtype(float))
    copies.keep(Held(1, facts(), []))
    copies._plans[0].Wait = lambda: (_ for _ in ()).throw(RuntimeError("a rank has died"))
    with pytest.raises(RuntimeError, match="has died"):
        copies.keep(Held(2, facts(), []))
    assert {each.number: len(each.pieces) for each in copies.held(2, facts())} == {1: 2, 2: 1}


# --- the state of a run ---


class Kept:
    """A training of one rank that holds what it is told."""

    apart = False

    def __init__(self, number=0, values=None, epochs=0):
        self.weights = SimpleNamespace(vector=np.zeros(LENGTH))
        self.number, self.values, self.history = number, values, list(range(epochs))
        self.lengths = {"parameter": LENGTH}
        self.found, self.told = {}, number

    def held(self):
        return [Held(self.number, facts(len(self.history)), [("parameter", 0, self.values)])]

    def put(self, kind, values):
        self.found[kind] = values.copy()

    def go_on(self, found):
        self.facts = found


def test_the_state_is_handed_over_with_what_a_rank_has_missed():
    new, old = Kept(), Kept(5, np.arange(12.0), epochs=2)
    source, missed = recover(Workers(), new, old)
    assert (new.found["parameter"] == old.values).all()
    assert source.number == 5 and not missed
    behind, last = SimpleNamespace(told=4, history=[0]), SimpleNamespace(number=5)
    told = recovery.Source(5, 0, {"last": last, "history": (0, 1)}, {})
    assert recovery._missed(behind, told) == [last, 1]
    behind.told = 5
    assert recovery._missed(behind, told) == [1]
    assert recovery._missed(None, told) == []
    assert recover(Workers(), Kept(), None) == (None, [])


# --- buffers ---


def buffers(parts, count, shards=None):
    return Buffers(Workers(), {"mean": np.zeros(2)}, parts, shards, count)


@pytest.mark.parametrize("shards", [None, 4])
def test_buffers_of_the_dead_are_there_where_parts_are_the_same(shards):
    own = buffers(range(4), 4, shards)
    for index in range(4):
        own.sets[index]["mean"][:] = index
        own.saw(index, 1 + index)
    rows = np.zeros_like(own.rows)
    own.tell(rows)
    own.told(rows)
    other = buffers(range(1, 3), 4, shards)
    other.put(own.rows.copy())
    assert [s["mean"][0] for s in other.sets] == [1, 2]
    assert (other.rows == own.rows).all()
    # On fewer ranks without shards there are other parts: all have the mean.
    fewer = buffers(range(1), 3)
    fewer.put(own.rows.copy())
    mean = sum(k * (1 + k) for k in range(4)) / 10
    assert fewer.sets[0]["mean"] == pytest.approx([mean] * 2, abs=1e-15)
    assert (fewer.rows[:, 1:] == fewer.sets[0]["mean"]).all()


def test_sets_that_are_equal_stay_so_to_the_bit():
    own = buffers(range(3), 3)
    for index in range(3):
        own.sets[index]["mean"][:] = 0.1
        own.saw(index, 7)
    rows = np.zeros_like(own.rows)
    own.tell(rows)
    fewer = buffers(range(2), 2)
    fewer.put(rows)
    assert all((s["mean"] == 0.1).all() for s in fewer.sets)


# --- what it goes together with ---


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"wire": "int8"}, "wire int8"),
        ({"data_servers": 1}, "data_servers 1"),
        ({"device": "gpu"}, "device gpu"),
        ({"workers": 3}, "workers 3"),
    ],
)
def test_what_survive_does_not_go_together_with(changes, words):
    with pytest.raises(ValueError, match=f"survive does not go together with {words}: give"):
        Config(survive=True, **changes)


def test_spares_are_of_runs_that_go_on():
    with pytest.raises(ValueError, match="spares does not go together with survive False: give"):
        Config(spares=1)
    assert Config(spares=1, survive=True).alone(4).spares == 0


def test_what_depends_on_the_number_of_ranks_stays():
    config = Config(survive=True, batch_per_rank=8, lr=0.1, lr_scaling="linear").for_ranks(4)
    assert config.global_batch(3) == 32
    assert config.lr == pytest.approx(0.4) and config.lr_scaling == "none"
