"""Waiting for ranks to arrive, told from when they called."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.profile.recorder import KEPT, Channel
from mpicoll.profile.waiting import Clock, Visit, waits, weight
from mpicoll.schedule.collectives import COLLECTIVES


def visits(*times):
    """Of each rank, when it called and when it was done."""
    return {rank: Visit(0, begin, begin, end) for rank, (begin, end) in enumerate(times)}


def test_all_wait_for_the_last():
    assert waits("allreduce", -1, visits((0, 12), (10, 12), (4, 13))) == {0: 10, 1: 0, 2: 6}


def test_a_broadcast_waits_for_its_root():
    assert waits("bcast", 1, visits((0, 9), (5, 6), (7, 9))) == {0: 5, 1: 0, 2: 0}


def test_who_has_left_a_gather_before_its_root_came_has_not_waited():
    assert waits("gather", 0, visits((10, 12), (0, 2), (0, 12))) == {0: 0, 1: 0, 2: 10}
    assert waits("reduce", 0, visits((0, 12), (8, 9), (3, 4))) == {0: 8, 1: 0, 2: 0}


def test_a_scan_waits_for_lower_ranks():
    assert waits("scan", -1, visits((5, 6), (0, 7), (1, 8))) == {0: 0, 1: 5, 2: 4}


def test_of_a_call_that_was_started_only_the_wait_counts():
    found = {0: Visit(0, 0, 8, 11), 1: Visit(0, 10, 10, 11)}
    assert waits("allreduce", -1, found) == {0: 2, 1: 0}


@given(
    st.sampled_from(sorted(COLLECTIVES)),
    st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)), min_size=1, max_size=6),
    st.data(),
)
def test_a_rank_waits_no_longer_than_it_is_in_the_call(collective, spans, data):
    root = data.draw(st.integers(0, len(spans) - 1))
    found = visits(*((begin, begin + length) for begin, length in spans))
    waited = waits(collective, root, found)
    assert set(waited) == set(found)
    for rank, visit in found.items():
        assert 0 <= waited[rank] <= visit.end - visit.begin


def test_calls_that_are_kept_stand_for_all():
    """What a channel keeps, and what its numbers weigh."""
    channel, total = Channel(0, {}, 1), 20 * KEPT
    for number in range(total):
        if not number & channel.mask:
            channel.keep((number, 0, 0.0, 0.0, 0.0))
    numbers = [each[0] for each in channel.times]
    assert numbers[:KEPT] == [*range(KEPT)] and len(numbers) < 5 * KEPT
    assert sum(map(weight, numbers)) == pytest.approx(total, rel=0.01)


def test_clocks_that_go_apart():
    clock = Clock([(1e9, 5e6), (11e9, 6e6)])
    assert clock.common(1e9) == 1e9 - 5e6
    assert clock.common(11e9) == pytest.approx(11e9 - 6e6)
    assert Clock([(1e9, 5e6)]).common(11e9) == 11e9 - 5e6
