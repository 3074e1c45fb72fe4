"""Plans as the compiled engine runs them: what waits for which messages."""

from itertools import pairwise

import pytest

from mpicoll import algorithms
from mpicoll.engine import lowering, plan, planning
from mpicoll.engine.spans import Span
from mpicoll.schedule import layout

PIECE = 64


def lowered(algorithm, rank, size, count, in_place=True, **parameters):
    blocks = algorithms.find("allreduce", algorithm).blocks(size)
    cut = layout.even(count, blocks)
    shape = plan.Shape(
        "allreduce", algorithm, tuple(parameters.items()), rank, size, 0, in_place, 4, 4, cut, cut
    )
    planned = planning.build(shape, piece=PIECE)
    return planned, lowering.lower(planned)


def bytes_of(spans):
    return sum(span.length for span in spans)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize("algorithm", ["parameter_server", "ring", "recursive_doubling", "linear"])
def test_every_byte_is_folded_once_from_the_same_operands(algorithm, size):
    for rank in range(size):
        planned, channels = lowered(algorithm, rank, size, 203)
        for channel, program in zip(planned.channels, channels, strict=True):
            for before, after in zip(channel.phases, program, strict=True):
                folds = [fold for unit in after.units for fold in unit.folds]
                for fold in before.folds:
                    parts = sorted(f.target for f in folds if covers(fold.target, f.target))
                    assert bytes_of(parts) == fold.target.length
                    assert all(a.offset + a.length == b.offset for a, b in pairwise(parts))
                for fold in folds:
                    (whole,) = (f for f in before.folds if covers(f.target, fold.target))
                    start = fold.target.offset - whole.target.offset
                    for operand, place in zip(fold.operands, whole.operands, strict=True):
                        found = operand.span
                        if operand.receive >= 0:
                            landing = after.receives[operand.receive].span
                            assert found.offset + found.length <= landing.length
                            found = found._replace(offset=landing.offset + found.offset)
                        assert found == Span(place.buffer, place.offset + start, found.length)


def covers(whole, part):
    return (
        whole.buffer == part.buffer
        and whole.offset <= part.offset
        and part.offset + part.length <= whole.offset + whole.length
    )


def test_a_piece_is_folded_as_soon_as_every_rank_has_sent_it():
    _, ((first, *_), *_) = lowered("parameter_server", 0, 3, 3 * 3 * PIECE // 4)
    assert len(first.receives) == 2 * 3
    assert len(first.units) == 3
    assert all(len(unit.receives) == 2 for unit in first.units)
    for unit in first.units:
        assert {first.receives[number].peer for number in unit.receives} == {1, 2}


def test_what_is_sent_is_not_overwritten_before():
    # In recursive doubling a rank sends the block that it reduces into.
    _, ((phase,),) = lowered("recursive_doubling", 0, 2, 3 * PIECE // 4)
    assert [unit.sends for unit in phase.units] == [1, 2, 3]
    assert phase.written == {0, 1, 2}
    # In a parameter server it sends others.
    _, ((first, *_),) = lowered("parameter_server", 0, 2, 6 * PIECE // 4)
    assert [unit.sends for unit in first.units] == [0, 0, 0]
    assert not first.written


def test_messages_to_several_peers_go_in_turn():
    _, ((first, *_),) = lowered("parameter_server", 0, 4, 4 * 2 * PIECE // 4)
    peers = [message.peer for message in first.sends]
    assert sorted(peers[:3]) == sorted(peers[3:]) == [1, 2, 3]
    for peer in (1, 2, 3):
        offsets = [m.span.offset for m in first.sends if m.peer == peer]
        assert offsets == sorted(offsets)


def test_partial_values_in_a_wider_type_wait_for_the_whole_phase():
    cut = layout.even(4 * PIECE, 4)
    shape = plan.Shape("allreduce", "parameter_server", (), 0, 4, 0, True, 2, 4, cut, cut)
    planned = planning.build(shape, piece=PIECE, space=4 * PIECE)
    partial = [f for c in planned.channels for p in c.phases for f in p.folds if f.wide_target]
    assert partial
    channels = lowering.lower(planned)
    assert set(partial) <= {f for c in channels for p in c for f in p.folds}


@pytest.mark.parametrize(
    ("collective", "size", "shortest"),
    [
        ("allreduce", 2, 4),
        ("reduce_scatter", 2, 3),
        ("bcast", 2, 2),
        ("alltoall", 5, 2),
        ("allreduce", 3, None),
        ("bcast", 3, None),
    ],
)
def test_from_which_length_on_messages_are_read(collective, size, shortest):
    cut = layout.even(8 * size, size)
    shape = plan.Shape(collective, "any", (), 0, size, 0, False, 4, 4, cut, cut)
    assert lowering.shortest_read(shape, moved=2, folded=3, slot=4) == shortest
