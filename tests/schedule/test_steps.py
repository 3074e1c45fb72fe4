"""The vocabulary: combinators, block arguments, and schedules that break its rules."""

from __future__ import annotations

import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from mpicoll import algorithms
from mpicoll.registry import COMMUTATIVE, RANK_ORDER, SAME_BITS, Algorithm
from mpicoll.schedule import (
    Copy,
    Location,
    Recv,
    RecvReduce,
    Send,
    as_channels,
    blocks,
    channels,
    given,
    pipelined,
    scratch,
    strands,
    then,
    within,
)
from mpicoll.schedule.matching import Matching, run
from mpicoll.schedule.memory import Blank, ScheduleError
from mpicoll.simulate.clock import clock
from mpicoll.simulate.machine import STEPS
from mpicoll.verify import verify


def rounds(schedule):
    return [tuple(channel.rounds) for channel in as_channels(schedule)]


# --- block arguments ---


def test_blocks_are_taken_modulo_their_number_in_the_order_named():
    assert blocks((5, range(-1, 1), (2,)), 4) == tuple(Location("work", i) for i in (1, 3, 0, 2))
    assert blocks((given(6), scratch(range(2))), 4, 1) == (
        Location("given", 2),
        Location("scratch", 0),
        Location("scratch", 0),
    )
    assert blocks((), 0) == ()


@each(st.integers(-100, 100), st.integers(0, 20), st.integers(1, 9))
def test_a_range_names_what_its_numbers_name(start, length, nblocks):
    numbers = range(start, start + length)
    assert blocks(numbers, nblocks) == blocks(tuple(numbers), nblocks)
    assert all(0 <= place.block < nblocks for place in blocks(numbers, nblocks))


@pytest.mark.parametrize("wrong", [1.0, "1", None, [1]])
def test_anything_else_is_no_block(wrong):
    blocks.cache_clear()  # (1.0,) equals (1,), which may be there
    with pytest.raises(TypeError):
        blocks((wrong,), 4)


def test_a_space_without_blocks_has_none_to_name():
    with pytest.raises(ValueError, match="scratch"):
        blocks(scratch(0), 4, 0)


# --- combinators ---


def test_a_bare_step_is_a_round_and_an_empty_round_is_dropped():
    def schedule():
        yield Send(1, 0)
        yield ()
        yield Send(1, 1), Recv(1, 2)

    assert rounds(schedule()) == [((Send(1, 0),), (Send(1, 1), Recv(1, 2)))]


def test_what_is_no_step_is_refused():
    with pytest.raises(TypeError, match="a round is"):
        rounds(iter([[Send(1, 0)]]))
    with pytest.raises(TypeError, match="a round is"):
        rounds(iter([(1, 2)]))


def test_then_appends_channel_by_channel_and_needs_equal_numbers():
    joined = then(channels([Send(1, 0)], [Send(1, 1)]), channels([Recv(1, 0)], [Recv(1, 1)]))
    assert rounds(joined) == [
        ((Send(1, 0),), (Recv(1, 0),)),
        ((Send(1, 1),), (Recv(1, 1),)),
    ]
    with pytest.raises(ValueError, match="2 and 1"):
        then(channels([Send(1, 0)], [Send(1, 1)]), [Recv(1, 0)])


def test_channels_cannot_be_flattened_by_yield_from():
    def schedule():
        yield from channels([Send(1, 0)])

    with pytest.raises(TypeError, match="yield from"):
        rounds(schedule())


def test_pipelined_repeats_the_channels_for_every_segment_in_order():
    piped = as_channels(pipelined(channels([Send(1, 0)], [Send(1, 1)]), 3, window=2))
    assert [(c.segment, c.segments, c.window) for c in piped] == [
        (s, 3, 2) for s in range(3) for _ in range(2)
    ]
    assert [tuple(c.rounds) for c in piped] == [((Send(1, b),),) for _ in range(3) for b in (0, 1)]


@pytest.mark.parametrize("combine", [channels, lambda s: then(s, s), lambda s: pipelined(s, 2)])
def test_pipelined_is_outermost(combine):
    with pytest.raises(TypeError, match="outermost"):
        combine(pipelined([Send(1, 0)], 1))


def test_open_channels_are_bounded_by_the_tags():
    pipelined([Send(1, 0)], 1000, window=256)
    with pytest.raises(ValueError, match="window <= 128"):
        pipelined(channels([Send(1, 0)], [Send(1, 0)]), 1000, window=129)
    with pytest.raises(ValueError, match="segments=0"):
        pipelined([Send(1, 0)], 0)


def test_within_translates_ranks_and_blocks():
    group = [Send(1, (0, given(1))), Copy(0, 1), Recv(2, ())]
    assert rounds(within(group, [7, 5, 3], [range(2), 9])) == [
        (
            (Send(5, (range(2), given(9))),),
            (Copy(range(2), 9),),
            (Recv(3, ()),),
        )
    ]
    with pytest.raises(ValueError, match="scratch"):
        rounds(within([Send(1, scratch(0))], [0, 1], [0]))
    assert len(as_channels(within(channels(group, group), [7, 5, 3], [0, 1]))) == 2


# --- broken schedules: each must be found, and named ---

BASE = algorithms.find("allreduce", "linear")


def broken(schedule, size=2, collective="allreduce", order=(), **changes):
    """Problems of a hand-made schedule, registered counts aside."""
    entry = BASE._replace(
        collective=collective,
        schedule=schedule,
        parameters={},
        order=order,
        **{
            "needs": (COMMUTATIVE,),
            "blocks": lambda P: 1,
            **{
                name: lambda P: 0
                for name in ("rounds", "messages", "blocks_sent", "blocks_sent_max", "fan_in")
            },
            "depth": lambda P: 0,
            **changes,
        },
    )
    assert isinstance(entry, Algorithm)
    case = verify(entry, size)
    return [p for p in case.problems if "registered" not in p]


def exchange(rank, size):
    """Right for two ranks."""
    yield Send(1 - rank, 0), RecvReduce(1 - rank, 0)


def test_the_right_schedule_has_no_problem():
    assert broken(exchange, order=(RANK_ORDER, SAME_BITS)) == []


def test_deadlock_of_two_receives():
    def schedule(rank, size):
        yield RecvReduce(1 - rank, 0)
        yield Send(1 - rank, 0)

    assert "never completes" in broken(schedule)[0]


def test_deadlock_of_two_sends_under_rendezvous_alone():
    def schedule(rank, size):
        yield Send(1 - rank, 0)
        yield RecvReduce(1 - rank, 0)

    assert "never completes" in broken(schedule)[0]
    programs = [as_channels(schedule(rank, 2)) for rank in range(2)]
    run(Matching(programs, 1, 0, [Blank(), Blank()], eager=True))  # the eager protocol lets it pass


def test_a_schedule_that_needs_its_receives_one_by_one_is_found():
    # Rank 1 tells rank 2 only after rank 0 has taken its message; jointly rank 0 takes none.
    def schedule(rank, size):
        if rank == 0:
            yield RecvReduce(1, 0), RecvReduce(2, 0)
            yield Send(1, 0), Send(2, 0)
        elif rank == 1:
            yield Send(0, 0)
            yield Send(2, ())
            yield Recv(0, 0)
        else:
            yield Recv(1, ())
            yield Send(0, 0)
            yield Recv(0, 0)

    assert "joint" in broken(schedule, size=3)[0]


def test_unmatched_send_and_unmatched_receive():
    def send(rank, size):
        yield from exchange(rank, size)
        if rank == 0:
            yield Send(1, 0)

    def receive(rank, size):
        yield from exchange(rank, size)
        if rank == 0:
            yield Recv(1, 0)

    assert "unmatched send: 0 -> 1" in broken(send)[0]
    assert "unmatched receive: 1 -> 0" in broken(receive)[0]


def test_an_eager_send_that_nobody_receives_is_found():
    with pytest.raises(ScheduleError, match="unmatched send"):
        run(
            Matching(
                [as_channels(iter([Send(1, ())])), as_channels(iter(()))],
                0,
                0,
                [Blank(), Blank()],
                eager=True,
            )
        )


def test_double_counting():
    def schedule(rank, size):
        yield from exchange(rank, size)
        yield from exchange(rank, size)

    assert "has some of them already" in broken(schedule)[0]


def test_a_missing_contribution():
    def schedule(rank, size):
        yield Send(1 - rank, 0), Recv(1 - rank, 0)

    assert "contributions" in broken(schedule)[0]


def test_nothing_done_at_all():
    assert "contributions 0b1 of ranks, wanted 0b11" in broken(lambda rank, size: iter(()))[0]


def test_two_steps_that_write_one_block():
    def schedule(rank, size):
        if rank:
            yield Send(0, 0), Send(0, 0)
        else:
            yield Recv(1, 0), RecvReduce(1, 0)

    assert "two steps of a round write work block 0" in broken(schedule)[0]


def test_writing_the_input():
    def schedule(rank, size):
        yield Send(1 - rank, 0), Recv(1 - rank, given(0))

    assert "writes input block 0" in broken(schedule)[0]


def test_a_fault_of_one_strand_alone_is_seen():
    """Strands are unlike, so that a look at the first segment says nothing of the others."""

    def schedule(rank, size):
        wrong = channels(exchange(rank, size), [Copy(given(0), 0)])
        return strands(channels(exchange(rank, size), ()), wrong, segments=2)

    assert "written by one channel and touched by another" in broken(schedule)[0]


@pytest.mark.parametrize(
    ("count", "segments", "window", "words"),
    [
        (2, 0, 1, "segments=0 and window=1 must both be at least 1"),
        (3, 65536, 1, "segments=65536 of each of 3 strands must be at most 21845"),
        (300, 1, 1, "window=1 x 300 channels exceeds 256"),
    ],
)
def test_strands_out_of_range(count, segments, window, words):
    with pytest.raises(ValueError, match=words):
        strands(*[()] * count, segments=segments, window=window)


def test_strands_have_equal_numbers_of_channels():
    with pytest.raises(ValueError, match=r"equal numbers of channels, not \[1, 2\]"):
        strands((), channels((), ()))


def test_strands_take_turns_at_the_segments():
    one, two = [Send(1, 0)], [Send(2, 0)]
    found = as_channels(strands(one, two, segments=2, window=3))
    assert [c[1:] for c in found] == [(s, 4, 6) for s in range(4)]
    assert [c.rounds[0][0].peer for c in found] == [1, 2, 1, 2]


def test_channels_that_share_a_written_block():
    def schedule(rank, size):
        return channels(exchange(rank, size), [Copy(given(0), 0)])

    assert "written by one channel and touched by another" in broken(schedule)[0]


def test_ranks_with_different_numbers_of_channels():
    def schedule(rank, size):
        return channels(*[exchange(rank, size)] * 1, *[iter(())] * rank)

    assert "channels" in broken(schedule)[0]


def test_a_peer_that_is_oneself_or_nobody():
    assert "no such peer" in broken(lambda r, n: iter([Send(r, 0), Recv(r, 0)]))[0]
    assert "no such peer" in broken(lambda r, n: iter([Send(n, 0)]))[0]
    assert "no such peer" in broken(lambda r, n: iter([Recv(-1, 0)]))[0]


def test_messages_of_different_lengths():
    def schedule(rank, size):
        yield (Send(1, (0, 1)),) if rank == 0 else (Recv(0, 0),)

    assert "sends 2 blocks to rank 1, which expects 1" in broken(schedule, blocks=lambda P: 2)[0]


def test_a_block_in_the_place_of_another():
    def schedule(rank, size):
        yield Send(1 - rank, 0), RecvReduce(1 - rank, 1)

    assert "reduced together" in broken(schedule, blocks=lambda P: 2)[0]

    def scratch_of_another_length(rank, size):
        yield Copy(0, scratch(1))

    problems = broken(scratch_of_another_length, blocks=lambda P: 2, scratch=lambda P: 2)
    assert "lengths may differ" in problems[0]


def test_reading_what_was_never_written():
    def schedule(rank, size):
        yield Send(1 - rank, scratch(0)), RecvReduce(1 - rank, 0)

    assert "never written" in broken(schedule, scratch=lambda P: 1)[0]


def test_rank_order_promised_and_broken():
    ring = algorithms.find("allreduce", "ring")
    case = verify(ring._replace(order=(RANK_ORDER, SAME_BITS)), 3)
    assert "not combined in rank order" in case.problems[0]


def test_same_bits_promised_and_broken():
    def schedule(rank, size):
        # Everyone sends its own vector round; partial sums are built in different groupings.
        for k in range(1, size):
            yield Send((rank + k) % size, given(0)), RecvReduce((rank - k) % size, 0)

    assert broken(schedule, size=3) == []
    assert "computed otherwise" in broken(schedule, size=3, order=(SAME_BITS,))[0]


def test_registered_counts_that_are_wrong_are_reported():
    for name in ("rounds", "depth", "messages", "blocks_sent", "blocks_sent_max", "fan_in"):
        case = verify(BASE._replace(**{name: lambda P: 99}), 4)
        assert [p.split(":")[0] for p in case.problems] == [name]


def test_a_barrier_that_hears_too_little():
    def schedule(rank, size):
        yield Send((rank + 1) % size, ()), Recv((rank - 1) % size, ())

    problems = broken(schedule, size=3, collective="barrier", blocks=lambda P: 0)
    assert problems == ["rank 0 leaves without hearing from ranks [1]"]


# --- semantics that only show in the values ---


def test_a_block_sent_and_received_in_one_round_sends_its_old_value():
    def swap(rank, size):
        yield Send(1 - rank, 0), Recv(1 - rank, 0)
        yield Send(1 - rank, 0), RecvReduce(1 - rank, 0)

    # After the swap rank 0 holds 1's, so both end with both contributions.
    assert broken(swap) == []


def test_copies_run_first_in_the_order_written():
    def schedule(rank, size):
        yield Send(1 - rank, scratch(1)), RecvReduce(1 - rank, 0), *COPIES

    COPIES = (Copy(0, scratch(0)), Copy(scratch(0), scratch(1)))
    assert broken(schedule, scratch=lambda P: 2) == []


def test_a_window_opens_segments_one_after_another():
    def schedule(rank, size, window):
        step = Send(1, 0) if rank == 0 else RecvReduce(0, 0)
        back = Recv(1, 0) if rank == 0 else Send(0, 0)
        return pipelined([step, back], 4, window)

    def makespan(window):
        programs = [as_channels(schedule(rank, 2, window)) for rank in range(2)]
        return clock(Matching(programs, 1, 0, [Blank(), Blank()]), STEPS).makespan

    assert makespan(1) == 8  # one segment at a time: there and back
    assert makespan(4) == 5  # all under way: four there, the last one back


def test_more_channels_than_tags_tell_apart_are_refused():
    with pytest.raises(ValueError, match="257 channels exceed the 256"):
        channels(*([Send(1, 0)] for _ in range(257)))


def test_an_operator_that_is_not_commutative_needs_rank_order_unless_it_is_ruled_out():
    def backwards(rank, size):  # the sum runs 2, 1, 0
        if rank < size - 1:
            yield RecvReduce(rank + 1, 0)
        if rank:
            yield Send(rank - 1, 0)
            yield Recv(0, 0)
        else:
            yield tuple(Send(peer, 0) for peer in range(1, size))

    def turned(rank, size):
        yield Send((rank + 1) % size, 0), Recv((rank - 1) % size, 0)
        yield from backwards(rank, size)

    assert broken(turned, size=3) == []
    assert "not commutative" in broken(turned, size=3, needs=())[0]


def test_expressions_are_told_apart_from_inputs():
    # Rank 1 computes 1 + (0 + 2), the others (0 + 1) + 2.
    def schedule(rank, size):
        if rank == 0:
            yield Send(1, given(0))
            yield RecvReduce(2, 0)
            yield Send(2, 0)
            yield Recv(2, 0)
        elif rank == 1:
            yield Copy(given(0), scratch(0))
            yield RecvReduce(0, 0)
            yield Send(2, 0)
            yield RecvReduce(2, scratch(0))
            yield Copy(scratch(0), 0)
        else:
            yield Send(0, given(0))
            yield RecvReduce(1, 0)
            yield Recv(0, scratch(0))
            yield Send(1, scratch(0))
            yield Send(0, 0)

    problems = broken(schedule, size=3, order=(SAME_BITS,), scratch=lambda P: 1)
    assert "computed otherwise" in problems[0]


def test_the_root_of_a_broadcast_is_not_written():
    def schedule(rank, size, root):
        if rank == root:
            yield Send(1 - root, 0)
            yield Recv(1 - root, 0)
        else:
            yield Recv(root, 0)
            yield Send(root, 0)

    assert "the root writes its own buffer" in broken(schedule, collective="bcast")[0]


def test_a_barrier_has_one_channel():
    def schedule(rank, size):
        other = 1 - rank
        return channels([(Send(other, ()), Recv(other, ()))], [])

    assert "one channel" in broken(schedule, collective="barrier", blocks=lambda P: 0)[0]


def test_thousands_of_empty_segments_open_one_after_another():
    programs = [as_channels(pipelined(iter(()), 5000, window=1)) for _ in range(2)]
    run(Matching(programs, 1, 0, [Blank(), Blank()]))


def test_too_many_segments():
    with pytest.raises(ValueError, match="segments=1000000000 must be at most 65536; choose fewer"):
        pipelined([Send(1, 0)], 10**9)
