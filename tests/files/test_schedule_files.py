"""Schedule files: what they say comes back, and what is wrong with them is refused."""

from __future__ import annotations

import copy
import json
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicoll import algorithms, registry
from mpicoll.files import schedule_files
from mpicoll.files.schedule_files import Content, find, load, misplaced, parse, read, render
from mpicoll.registry import COMMUTATIVE, SAME_BITS
from mpicoll.schedule import Copy, Recv, RecvReduce, Send
from mpicoll.verify import verify

pytest.importorskip("pydantic")

LONG = os.environ.get("MPICOLL_TEST_LONG", "") not in ("", "0")


def two_ranks(**more):
    """An all-reduce of two ranks: rank 0 adds, and sends the sum back."""
    programs = [
        [[[(RecvReduce(1, 0),), (Send(1, 0),)]]],
        [[[(Send(0, 0),), (Recv(0, 0),)]]],
    ]
    asked = {"needs": (COMMUTATIVE,), "order": (SAME_BITS,), **more}
    return Content("allreduce", programs, **asked)


def chain(ranks=4):
    """An all-reduce up and down a chain, from both ends in two strands."""

    def strand(order, rank):
        place = order.index(rank)
        rounds = []
        if place:
            rounds.append((RecvReduce(order[place - 1], 0),))
        if place < ranks - 1:
            rounds += [(Send(order[place + 1], 0),), (Recv(order[place + 1], 0),)]
        if place:
            rounds.append((Send(order[place - 1], 0),))
        return rounds

    order = list(range(ranks))
    programs = [[[strand(order, r)], [strand(order[::-1], r)]] for r in order]
    return Content("allreduce", programs, needs=(COMMUTATIVE,), order=(SAME_BITS,), segments=2)


def changed(content, **more):
    return json.dumps({**json.loads(render(content)), **more}).encode()


@pytest.fixture
def written(tmp_path):
    def write(content, name="a.json"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else render(content))
        return str(path)

    return write


# --- what is right --------------------------------------------------------------------------------


def test_a_file_is_an_algorithm(written):
    path = written(chain())
    entry = find("allreduce", f"file:{path}")
    assert verify(entry, 4, 0, {"segments": 3}).problems == ()
    assert entry.complete({}) == {"segments": 2, "window": 8}
    assert algorithms.find("allreduce", entry.name) is entry
    assert entry.name.startswith(f"file:{path}#")


def test_files_are_found_and_never_listed(written):
    before = algorithms.names("allreduce"), len(registry.catalogue())
    entry = load(written(two_ranks()))
    assert (algorithms.names("allreduce"), len(registry.catalogue())) == before
    with pytest.raises(ValueError, match="for bcast: it is for allreduce"):
        algorithms.find("bcast", entry.name)
    with pytest.raises(ValueError, match="it has not been loaded"):
        algorithms.find("allreduce", "file:other.json#00")


def test_a_file_that_changes_is_another_algorithm(written):
    one = load(written(two_ranks()))
    two = load(written(two_ranks(segments=2)))
    assert one.name != two.name
    assert algorithms.find("allreduce", one.name).complete({})["segments"] == 1


blocks = st.integers(0, 3) | st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)
steps = (
    st.builds(Send, st.integers(0, 3), blocks)
    | st.builds(Recv, st.integers(0, 3), blocks)
    | st.builds(RecvReduce, st.integers(0, 3), blocks)
    | st.builds(Copy, blocks, blocks)
)
rounds = st.lists(steps, min_size=1, max_size=3).map(tuple)


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_what_is_written_comes_back(data):
    shape = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    programs = [
        [
            [data.draw(st.lists(rounds, max_size=2)) for _ in range(shape[1])]
            for _ in range(shape[0])
        ]
        for _ in range(2)
    ]
    entry = parse("x", render(Content("allreduce", programs, blocks=4)))
    for rank in range(2):
        found = entry.channels(rank, 2, 0, {"segments": 1, "window": 1})
        assert [list(c.rounds) for c in found] == [r for strand in programs[rank] for r in strand]


def test_hosts_are_told_apart_by_who_shares_one():
    entry = parse("x", render(two_ranks(hosts=(7, 7))))
    assert not misplaced(entry, (0, 0))
    assert misplaced(entry, (0, 1))
    assert not misplaced(parse("x", render(two_ranks())), (0, 1))


# --- what is wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"extra": 1}, "extra: Extra inputs are not permitted"),
        ({"ranks": True}, "ranks: Input should be a valid integer"),
        ({"ranks": 2.0}, "ranks: Input should be a valid integer"),
        ({"ranks": 3}, "programs: 2 for 3 ranks"),
        ({"strands": 2}, "each rank must have 2 strands"),
        ({"root": 0}, "root: allreduce has no root"),
        ({"window": 257}, "window"),
        ({"segments": 65537}, "segments"),
        ({"hosts": [0]}, "hosts: 1 labels for 2 ranks"),
        ({"collective": "alltoall"}, "collective"),
        ({"mpicoll": "schedule 2"}, "mpicoll"),
        ({"needs": ["luck"]}, "needs"),
        ({"programs": [[[[[["x", 1, 0]]]]]] * 2}, "programs"),
        ({"programs": [[[[[["s", -1, 0]]]]]] * 2}, "programs"),
        ({"programs": [[[[[["s", 1, []]]]]]] * 2}, "programs"),
    ],
)
def test_what_is_no_schedule_names_the_place(written, more, words):
    path = written(changed(two_ranks(), **more))
    with pytest.raises(ValueError, match=f"(?s)schedule .*a.json.*{words}"):
        read(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"NaN", b"null"])
def test_what_is_no_json(written, content):
    with pytest.raises(ValueError, match=r"a\.json"):
        read(written(content))


def test_a_file_that_is_too_large_or_missing(written, monkeypatch, tmp_path):
    path = written(two_ranks())
    monkeypatch.setattr(schedule_files, "_MOST_BYTES", 10)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        read(path)
    with pytest.raises(ValueError, match="No such file"):
        read(str(tmp_path / "none.json"))


def test_too_many_open_channels(written):
    programs = [[[[], []]] * 20, [[[], []]] * 20]
    with pytest.raises(ValueError, match="320 channels are open at a time, more than 256"):
        read(written(Content("allreduce", programs)))


def test_a_wrong_schedule_is_refused_in_the_verifiers_words(written):
    programs = [[[[(Send(1, 0),)]]], [[[(Recv(0, 0),)]]]]
    path = written(Content("allreduce", programs, needs=(COMMUTATIVE,), order=(SAME_BITS,)))
    with pytest.raises(ValueError, match="is wrong: rank 0, block 0 has contributions 0b1"):
        load(path)


def test_an_allreduce_gives_all_ranks_the_same_bits(written):
    """Each of four ranks adds in an order of its own: every value arrives, in other brackets."""

    def program(rank):
        return [[[(Send(p, 0), RecvReduce(p, 0)) for p in (rank ^ 1, rank ^ 2)]]]

    # Ranks 0, 3 | 1, 2: the halves' lower ranks differ, so that folds are in other orders.
    names = [0, 3, 2, 1]
    turned = [None] * 4
    for rank in range(4):
        turned[names[rank]] = [
            [[tuple(type(s)(names[s.peer], s.block) for s in r) for r in program(rank)[0][0]]]
        ]
    content = Content("allreduce", turned, needs=(COMMUTATIVE,), order=(SAME_BITS,))
    with pytest.raises(ValueError, match="was computed otherwise than on other ranks"):
        load(written(content))
    with pytest.raises(ValueError, match="must promise 'same bits on all ranks'"):
        load(written(changed(content, order=[])))


def test_other_ranks_roots_and_collectives_are_refused(written):
    programs = [[[[(Recv(1, 0),)]]], [[[(Send(0, 0),)]]]]
    entry = load(written(Content("bcast", programs, root=1)))
    with pytest.raises(ValueError, match="made for 2 ranks, not for 3"):
        entry.channels(0, 3, 1)
    with pytest.raises(ValueError, match="made for root 1, not for 0"):
        verify(entry, 2, 0)
    with pytest.raises(ValueError, match="is of bcast, not of reduce"):
        find("reduce", f"file:{written(Content('bcast', programs, root=1))}")


def mutated(plain, dice):
    """A file with one step dropped, doubled, or with another peer, block or kind."""
    plain = copy.deepcopy(plain)
    every = [r for p in plain["programs"] for s in p for c in s for r in c]
    steps = dice.choice(every)
    at = dice.randrange(len(steps))
    match dice.randrange(5):
        case 0:
            del steps[at]
        case 1:
            steps.insert(at, copy.deepcopy(steps[at]))
        case 2:
            steps[at][1] = dice.randrange(5)
        case 3:
            steps[at][2] = dice.choice([0, 1, [0, 0], [0, 1]])
        case 4:
            steps[at][0] = dice.choice("sr+c")
    return plain


def test_every_mutation_is_refused_or_right(written):
    """What is loaded is right: a mutation that does not matter has the values of the original."""
    dice, plain = random.Random(0), json.loads(render(chain()))
    refused = 0
    for number in range(1000 if LONG else 80):
        path = written(json.dumps(mutated(plain, dice)).encode(), f"{number}.json")
        try:
            entry = load(path)
        except ValueError:
            refused += 1
            continue
        assert verify(entry, 4, 0, {"segments": 2}).ok
    assert refused > (750 if LONG else 60)
