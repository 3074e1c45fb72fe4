"""Plans: offsets, pieces, and bounded receive space."""

from __future__ import annotations

import numpy as np
import pytest

from mpicoll import algorithms
from mpicoll.engine.plan import BLOCKS, INPUT, MESSAGES, OUTPUT, PIECE, Move, Shape
from mpicoll.engine.planning import SPACE, build
from mpicoll.engine.spans import Span
from mpicoll.schedule import layout


def shape(collective, algorithm, rank, size, count, **changes):
    entry = algorithms.find(collective, algorithm)
    cut = layout.even(count, entry.blocks(size))
    values = {
        "collective": collective,
        "algorithm": algorithm,
        "parameters": (),
        "rank": rank,
        "size": size,
        "root": 0,
        "in_place": False,
        "itemsize": 4,
        "wide": 4,
        "input": cut,
        "output": cut,
    }
    return Shape(**{**values, **changes})


def receive_space(plan):
    """Bytes of all the buffers that messages are received in."""
    return sum(plan.temporary[MESSAGES - BLOCKS :])


def messages(plan, kind):
    phases = [phase for channel in plan.channels for phase in channel.phases]
    return [message for phase in phases for message in getattr(phase, kind)]


def test_building_is_repeatable_and_hashable():
    one = shape("allreduce", "ring", 1, 4, 10)
    assert hash(one) == hash(shape("allreduce", "ring", 1, 4, 10))
    assert build(one) == build(one)


def test_one_rank_only_copies_and_in_place_does_nothing():
    for entry in algorithms.catalogue():
        if entry.collective in ("barrier", "bcast", "exscan"):
            continue
        plan = build(shape(entry.collective, entry.name, 0, 1, 6))
        assert not messages(plan, "sends") and not messages(plan, "receives")
        moves = [m for c in plan.channels for phase in c.phases for m in phase.moves]
        assert (
            sum(m.target.length for m in (*moves, *plan.after) if m.target.buffer == OUTPUT) == 24
        )
        inside = build(shape(entry.collective, entry.name, 0, 1, 6, in_place=True))
        assert not inside.after or entry.collective == "reduce_scatter"


def test_nothing_is_copied_up_front():
    # A ring reads the input where it lies and writes the output where it belongs.
    plan = build(shape("allreduce", "ring", 0, 3, 9))
    assert plan.before == () and plan.after == () and plan.temporary[0] == 0
    first = plan.channels[0].phases[0]
    assert first.sends[0].span.buffer == INPUT
    assert first.folds[0].target.buffer == OUTPUT
    assert {span.buffer for span in first.folds[0].operands} == {INPUT, MESSAGES}


def test_operands_stand_in_rank_order():
    plan = build(shape("reduce", "linear", 2, 4, 3, root=2))
    (fold,) = plan.channels[0].phases[0].folds
    assert [span.buffer for span in fold.operands] == [MESSAGES, MESSAGES, INPUT, MESSAGES]
    landed = {m.peer: m.span for m in messages(plan, "receives")}
    assert fold.operands == (landed[0], landed[1], Span(INPUT, 0, 12), landed[3])


def test_empty_messages_are_dropped_but_a_barriers_are_not():
    plan = build(shape("allreduce", "ring", 0, 4, 1))
    lengths = [m.span.length for m in messages(plan, "sends") + messages(plan, "receives")]
    assert lengths and min(lengths) == 4
    assert not messages(build(shape("allreduce", "ring", 0, 4, 0)), "sends")
    barrier = build(shape("barrier", "dissemination", 0, 5, 0))
    assert [m.span.length for m in messages(barrier, "sends")] == [0, 0, 0]


@pytest.mark.parametrize("rank", [0, 1])
def test_long_messages_are_cut_alike_on_both_sides(rank):
    count = 3 * PIECE  # bytes / 4 elements, so three pieces a block and a rest of none
    plan = build(shape("allreduce", "ring", rank, 2, count // 2 + 5))
    sends = [m.span.length for m in messages(plan, "sends")]
    receives = [m.span.length for m in messages(plan, "receives")]
    other = build(shape("allreduce", "ring", 1 - rank, 2, count // 2 + 5))
    assert sends == [m.span.length for m in messages(other, "receives")]
    assert max(sends + receives) == PIECE


@pytest.mark.parametrize("algorithm", ["linear", "parameter_server", "ring", "double_binary_tree"])
def test_receive_space_is_bounded(algorithm):
    count = 1 << 26  # 256 MiB
    for rank in (0, 1, 7):
        plan = build(shape("allreduce", algorithm, rank, 8, count))
        assert receive_space(plan) <= SPACE + 64 * len(plan.temporary)


def test_a_fan_too_wide_for_the_space_goes_through_an_accumulator():
    plan = build(shape("reduce", "linear", 3, 9, 5, root=3), piece=8, space=24)
    phases = plan.channels[0].phases
    assert max(sum(m.span.length for m in p.receives) for p in phases) <= 16
    assert [p.last for p in phases] == [False] * (len(phases) - 1) + [True]
    folded = [f for p in phases for f in p.folds]
    assert folded[0].wide_target and not folded[0].wide_first
    assert folded[-1].wide_first and not folded[-1].wide_target
    assert folded[-1].target.buffer == OUTPUT


def test_a_block_sent_and_reduced_in_one_round_is_kept_until_it_is_sent():
    plan = build(shape("allreduce", "recursive_doubling", 0, 2, 4, in_place=True), 4, 4)
    (phase,) = plan.channels[0].phases
    assert phase.last and phase.folds and len(phase.sends) == 4


def test_reduce_scatter_in_place_copies_out_last():
    plan = build(shape("reduce_scatter", "ring", 1, 3, 9, in_place=True))
    assert plan.before == ()
    assert plan.after == (Move(Span(OUTPUT, 0, 12), plan.after[0].source),)
    assert plan.after[0].source.buffer == BLOCKS
    assert all(f.target.buffer == BLOCKS for c in plan.channels for p in c.phases for f in p.folds)


def test_only_blocks_that_are_touched_take_space():
    leaf = build(shape("reduce", "linear", 1, 4, 1000))
    assert sum(leaf.temporary) == 0


def test_a_layout_of_another_number_of_blocks_is_refused():
    wrong = shape("allreduce", "ring", 0, 4, 8, input=layout.even(8, 2))
    with pytest.raises(ValueError, match="has 4 blocks for 4 ranks, not 2"):
        build(wrong)


def test_offsets_hold_beyond_two_gibibytes():
    count = 3 << 30
    plan = build(shape("bcast", "linear", 0, 2, count, in_place=True, itemsize=1, wide=1))
    last = messages(plan, "sends")[-1].span
    assert last.offset + last.length == count > np.iinfo(np.int32).max
