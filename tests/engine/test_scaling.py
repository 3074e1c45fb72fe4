"""Plans that are scaled are those that would have been built."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicoll import algorithms
from mpicoll.engine import planning
from mpicoll.engine.plan import PIECE, Shape
from mpicoll.engine.scaling import Scale, pattern
from mpicoll.engine.spans import Span
from mpicoll.schedule import layout
from mpicoll.schedule.collectives import COLLECTIVES

CASES = [(name, algorithm) for name in COLLECTIVES for algorithm in algorithms.names(name)]


def shape_of(collective, algorithm, size, rank, count, itemsize, in_place=False):
    entry = algorithms.find(collective, algorithm)
    blocks = entry.blocks(size)
    cut = layout.even(count * blocks, blocks)
    parameters = tuple(sorted(entry.complete({}).items()))
    wide = itemsize
    return Shape(
        collective, algorithm, parameters, rank, size, 0, in_place, itemsize, wide, cut, cut
    )


def resized(value, old, new):
    """A plan's content with its lengths scaled."""
    if isinstance(value, Span):
        assert value.offset % old == value.length % old == 0
        return Span(value.buffer, value.offset // old * new, value.length // old * new)
    if isinstance(value, tuple):
        content = [resized(each, old, new) for each in value]
        return type(value)(*content) if hasattr(value, "_fields") else tuple(content)
    return value


@pytest.mark.parametrize(("collective", "algorithm"), CASES)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_what_is_scaled_is_what_would_be_built(collective, algorithm, data):
    size = data.draw(st.integers(1, 9))
    if algorithms.find(collective, algorithm).misfit(size, {}):
        return
    where = data.draw(st.integers(0, size - 1)), data.draw(st.booleans())
    itemsize = data.draw(st.sampled_from([1, 4, 8]))
    counts = [64 * 16 * data.draw(st.integers(1, 20)), 16 * data.draw(st.integers(1, 3000))]
    first, other = (
        shape_of(collective, algorithm, size, where[0], count, itemsize, where[1])
        for count in counts
    )
    assert pattern(first) == pattern(other)
    if pattern(first) is None:
        return
    plan, wanted = planning.build(first), planning.build(other)
    scale = Scale(plan, PIECE)
    part = scale.part_of(other)
    if not part:
        return
    if part % 64 == 0 or not any(plan.temporary):  # else built ones leave gaps in that
        for found, right in zip(plan.channels, wanted.channels, strict=True):
            assert resized(found.phases, scale.part, part) == right.phases
            assert found[1:] == right[1:]
        for found, right in ((plan.before, wanted.before), (plan.after, wanted.after)):
            assert resized(found, scale.part, part) == right


def test_most_plans_can_be_scaled():
    """Of blocks of a power of two, on a power of two of ranks."""
    refused = []
    for collective, algorithm in CASES:
        plan = planning.build(shape_of(collective, algorithm, 8, 1, 4096, 4))
        other = shape_of(collective, algorithm, 8, 1, 8192, 4)
        if not Scale(plan, PIECE).part_of(other):
            refused.append((collective, algorithm))
    assert len(refused) <= len(CASES) // 4, refused


def test_others_are_built_anew():
    plan = planning.build(shape_of("allreduce", "ring", 4, 1, 1024, 4))
    scale = Scale(plan, 64 << 10)
    assert scale.part_of(shape_of("allreduce", "ring", 4, 1, 2000, 4)) == 8000
    assert scale.part_of(shape_of("allreduce", "ring", 4, 1, 1 << 20, 4)) == 0  # would be cut
    uneven = layout.even(7, 4)
    shape = shape_of("allreduce", "ring", 4, 1, 1, 4)
    assert pattern(shape._replace(input=uneven, output=uneven)) is None
    # A message of two blocks is cut between elements, before it is as long as a piece.
    cut = planning.build(shape_of("allgather", "recursive_doubling", 4, 1, 5, 12), 64)
    assert max(m.span.length for c in cut.channels for p in c.phases for m in p.sends) == 60
    assert Scale(cut, 64).part == 0
    by_rows = planning.build(shape_of("allreduce", "linear", 4, 0, 16, 4), PIECE, 128)
    assert any(fold.wide_target for c in by_rows.channels for p in c.phases for fold in p.folds)
    assert Scale(by_rows, PIECE).part == 0
    odd = planning.build(shape_of("allreduce", "ring", 4, 1, 3, 4))
    assert Scale(odd, PIECE).part == 0  # offsets of its temporary space are no multiples
