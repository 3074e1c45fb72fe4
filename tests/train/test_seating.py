"""Which ranks of a mesh go on in which place, where some have died."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.train import Config
from mpicoll.train.driver.seating import chosen, counted, fitted, seated
from mpicoll.train.parallel.mesh import Axis
from mpicoll.train.strategies.kept import Seat
from mpicoll.train.strategies.retained import RetainedPieces, RetainedWhole

AXES = st.builds(
    lambda *n: dict(zip(("data", "pipe", "tensor"), n, strict=True)),
    *[st.integers(1, length) for length in (4, 3, 3)],
)


def begun(axes, number=7, spares=0):
    """What the ranks of a whole mesh hold after a step, and those that sleep."""
    found = []
    for rank in range(axes["data"] * axes["pipe"] * axes["tensor"]):
        rest, part = divmod(rank, axes["tensor"])
        stage, replica = divmod(rest, axes["data"])
        place = stage * axes["tensor"] + part
        found.append([Seat(number, place, replica), Seat(number - 1, place, replica)])
    return [*found, *([] for _ in range(spares))]


def places(axes, order, everyone):
    """The place that each of the chosen ranks has held, by mesh rank; None of others."""
    return [everyone[rank][0].place if everyone[rank] else None for rank in order]


@given(AXES, st.integers(0, 3), st.data())
def test_ranks_keep_their_parts_where_a_replica_can_be_made_of_those_that_are_left(
    axes, spares, data
):
    everyone = begun(axes, spares=spares)
    dead = data.draw(st.sets(st.sampled_from(range(len(everyone)))))
    left = [seats for rank, seats in enumerate(everyone) if rank not in dead]
    place = axes["pipe"] * axes["tensor"]
    replicas = min(axes["data"], len(left) // place)
    if not replicas:
        return
    wanted = {**axes, "data": replicas}
    order = seated(left, wanted)
    assert len(set(order)) == len(order) == replicas * place
    held = {seats[0].place for seats in left if seats}
    whole = len(held) == place
    mine = [seat[0].place for seat in begun(wanted)]
    had = places(wanted, order, left)
    if whole:
        # Each place has a rank that knows it, the first rank among them.
        assert all((p, p) in [*zip(mine, had, strict=True)] for p in range(place))
        assert had[0] == 0
        stays = sum(min(replicas, sum(s[0].place == p for s in left if s)) for p in range(place))
        assert sum(a == b for a, b in zip(mine, had, strict=True)) == stays
    elif any(left):
        assert left[order[0]]


@given(AXES, st.data())
def test_replicas_of_which_nobody_is_missing_go_on_as_they_are(axes, data):
    dead = data.draw(st.integers(0, axes["data"] * axes["pipe"] * axes["tensor"] - 1))
    if axes["data"] == 1:
        return
    everyone = begun(axes)
    (lost, *_) = everyone[dead]
    left = [seats for rank, seats in enumerate(everyone) if rank != dead]
    wanted = {**axes, "data": axes["data"] - 1}
    got = [left[rank][0] for rank in seated(left, wanted)]
    expected = [seats[0] for seats in everyone if seats[0].replica != lost.replica]
    assert got == expected


def test_all_go_back_where_a_part_is_one_step_behind():
    """One stage has been updated on all of its ranks, and the other on none."""
    everyone = [[Seat(8, 0, 0), Seat(7, 0, 0)], [Seat(7, 1, 0), Seat(6, 1, 0)]]
    assert seated(everyone, {"data": 1, "pipe": 2, "tensor": 1}) == [0, 1]
    # Who has slept since an earlier step, and who never trained, come after those.
    behind = [[Seat(3, 0, 0)], [], *everyone]
    assert seated(behind, {"data": 1, "pipe": 2, "tensor": 1}) == [2, 3]
    assert seated([[], [Seat(3, 1, 0)], [Seat(9, 1, 1)]], {"data": 1, "pipe": 2, "tensor": 1}) == [
        *(2, 1)
    ]


@pytest.mark.parametrize(
    ("options", "ranks", "mesh", "microbatches"),
    [
        ({"mesh": "pipe=2", "microbatches": 4}, 8, "data=4,pipe=2,tensor=1", 4),
        ({"mesh": "pipe=2", "microbatches": 4}, 7, "data=3,pipe=2,tensor=1", 6),
        ({"mesh": "pipe=2", "microbatches": 4}, 3, "data=1,pipe=2,tensor=1", 16),
        ({"mesh": "tensor=2"}, 7, "data=3,pipe=1,tensor=2", 2),
        ({"mesh": "pipe=2", "microbatches": 4, "invariant": 16}, 7, "data=2,pipe=2,tensor=1", 8),
    ],
    ids=str,
)
def test_fewer_replicas_cut_the_batch_into_as_many_microbatches(options, ranks, mesh, microbatches):
    began = counted(Config(**options), 8)
    found = fitted(began, ranks)
    assert fitted(began, 2 * found.axes["data"]) == found
    assert (found.mesh, found.step_schedule.microbatches) == (mesh, microbatches)
    assert fitted(began, 8) == began


def test_an_order_that_would_come_to_a_deadlock_gets_more_microbatches():
    options = {"pipeline_schedule": "interleaved", "chunks": 3, "microbatches": 4}
    found = fitted(counted(Config(mesh="pipe=4", **options), 20), 19)
    assert (found.axes["data"], found.microbatches) == (4, 6)  # not 5


@pytest.mark.parametrize(
    ("checkpoint", "remedy"),
    [(None, "give checkpoint, from which"), ("kept", "start again with resume=kept, or give")],
)
def test_too_few_for_a_replica(checkpoint, remedy):
    config = counted(Config(mesh="pipe=2,tensor=2", checkpoint=checkpoint), 4)
    words = rf"mesh data=1,pipe=2,tensor=2 needs 4 ranks, and 3 are left: {remedy}"
    with pytest.raises(ValueError, match=words):
        fitted(config, 3)
    assert chosen(config, begun(config.axes)[1:]) == [0, 1, 2]  # all hear of it


def test_a_step_that_is_not_made_leaves_what_was_before_it():
    weights, state, buffers = np.arange(3.0), np.zeros(3, np.float32), {"n": np.array([4])}
    kept = RetainedWhole([("parameter", 0, weights), ("state/m", 0, state)], buffers, 2)
    assert kept.ends == {"parameter/2": 3, "state/m/2": 3, "buffers/2": 1}
    kept.begin(5, {"then": True})
    weights += 1
    buffers["n"] += 1

    def held():
        facts = lambda: {"then": False}  # noqa: E731
        return [
            (h.number, h.facts["then"], [np.array(v).tolist() for *_, v in h.pieces])
            for h in kept.held(6, facts)
        ]

    before = (5, True, [[0, 1, 2], [0, 0, 0], [4]])
    assert held() == [before]
    kept.made(6, {})
    assert held() == [(6, False, [[1, 2, 3], [0, 0, 0], [5]]), before]
    kept.put("parameter/2", np.full(3, 9.0))
    kept.put("parameter/1", np.full(3, 8.0))
    kept.put("buffers/2", np.array([7.0]))
    assert weights.tolist() == [9, 9, 9] and buffers["n"].tolist() == [7]


def test_pieces_are_those_of_the_last_two_steps():
    """Of one replica: it is the next one itself."""
    weights, buffers = np.arange(3.0), {"n": np.array([4])}
    kept = RetainedPieces([("parameter/w", 5, weights)], buffers, 2, weights.dtype, Axis())
    assert kept.ends == {"parameter/w/2": 8, "buffers/2": 1}
    kept.begin(7, {"step": 7})
    weights += 1
    assert [(h.number, h.facts) for h in kept.held(8, dict)] == [(7, {"step": 7})]
    buffers["n"] += 1
    kept.made(8, {"step": 8})
    kept.begin(8, {"step": "again"})  # it has them
    found = [
        (h.number, h.facts, {kind: (first, v.tolist()) for kind, first, v in h.pieces})
        for h in kept.held(8, lambda: {"step": "now"})
    ]
    assert found == [
        (8, {"step": "now"}, {"parameter/w/2": (5, [1, 2, 3]), "buffers/2": (0, [5])}),
        (7, {"step": 7}, {"parameter/w/2": (5, [0, 1, 2]), "buffers/2": (0, [4])}),
    ]
    kept.put("parameter/w/2", np.arange(10.0))
    assert weights.tolist() == [5, 6, 7]
