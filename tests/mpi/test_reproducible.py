"""reproducible=True: the exact sum, rounded once, on every rank."""

import math

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll.buffers import Unsupported
from mpicoll.comm import Intracomm
from mpicoll.engine import planning
from mpicoll.ops import exact

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
DTYPES = ["f4", "f8", "c8", "c16", "i4"]


@pytest.fixture(scope="module")
def ours():
    return Intracomm(WORLD)


def contributions(count, dtype):
    """Those of all ranks: numbers of all magnitudes, whose sum depends on the order."""
    random = np.random.default_rng(count)
    values = random.standard_normal((P, count)) * 10.0 ** random.integers(-12, 7, (P, count))
    return (values * (1 + 2j) if dtype[0] == "c" else values).astype(dtype)


def summed(rows):
    want = np.empty(rows.shape[1], rows.dtype)
    exact.reduction(rows.dtype).fold(want, list(rows))
    return want


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", sorted({0, 1, P - 1, P, P + 1, 1009}))
def test_all_ranks_get_the_exact_sum(ours, dtype, count):
    rows = contributions(count, dtype)
    want = summed(rows)
    if dtype == "f8":
        assert want.tolist() == [math.fsum(column) for column in rows.T]
    out = np.zeros(count, dtype)
    ours.Allreduce(rows[RANK], out, reproducible=True)
    assert out.tobytes() == want.tobytes()
    out = rows[RANK].copy()
    ours.Allreduce(MPI.IN_PLACE, out, reproducible=True)
    assert out.tobytes() == want.tobytes()
    for root in {0, P - 1}:
        out = np.zeros(count, dtype) if RANK == root else None
        ours.Reduce(rows[RANK], out, root=root, reproducible=True)
        if RANK == root:
            assert out.tobytes() == want.tobytes()
    rows = contributions(count * P, dtype)
    block = np.zeros(count, dtype)
    ours.Reduce_scatter_block(rows[RANK], block, reproducible=True)
    assert block.tobytes() == summed(rows)[RANK * count : (RANK + 1) * count].tobytes()


def test_unequal_blocks_and_lists_of_arrays(ours):
    counts = [(5 * rank) % 7 for rank in range(P)]
    rows = contributions(sum(counts), "f8")
    block = np.zeros(counts[RANK])
    ours.Reduce_scatter(rows[RANK], block, counts, reproducible=True)
    first = sum(counts[:RANK])
    assert block.tobytes() == summed(rows)[first : first + counts[RANK]].tobytes()
    rows = contributions(30, "f4")
    parts = [rows[RANK][:11].copy(), rows[RANK][11:].copy()]
    ours.Allreduce(MPI.IN_PLACE, parts, reproducible=True)
    assert np.concatenate(parts).tobytes() == summed(rows).tobytes()


def test_neither_order_nor_zeros_nor_layout_matter(ours):
    """The same numbers on other ranks, in longer vectors, beside ranks that have none."""
    rows = contributions(50, "f4")
    want = summed(rows)
    turned = ours.Split(0, -RANK)
    out = np.zeros(50, "f4")
    turned.Allreduce(rows[RANK], out, reproducible=True)
    assert out.tobytes() == want.tobytes()
    turned.Free()
    longer = np.concatenate([np.ones(13, "f4"), rows[RANK], np.ones(7, "f4")])
    ours.Allreduce(MPI.IN_PLACE, longer, reproducible=True)
    assert longer[13:63].tobytes() == want.tobytes()
    own = rows.sum(0) if RANK == 0 else np.zeros(50, "f4")
    ours.Allreduce(own, out, reproducible=True)
    assert out.tobytes() == rows.sum(0).tobytes()


def test_special_values(ours):
    big = np.finfo("f8").max
    mine = {0: [big, np.inf, np.inf, -0.0, 1.0], 1: [big, 1.0, -np.inf, -0.0, 2.0**-53]}
    own = np.array(mine.get(RANK, [0.0, 0.0, 0.0, -0.0, 2.0**-200]))
    if RANK == 2:
        own[0] = -big
    out = np.zeros(5)
    ours.Allreduce(own, out, reproducible=True)
    assert out[1] == np.inf and out[3] == 0 and np.signbit(out[3])
    if P > 1:
        assert np.isnan(out[2])
    assert out[0] == (np.inf if P == 2 else big)
    assert out[4] == (1 if P < 3 else 1 + 2.0**-52)


def test_where_space_is_short_every_fold_is_still_whole(ours, monkeypatch):
    def built(shape, *limits):
        made = original(shape, piece=256, space=1024)
        folds = [f for c in made.channels for phase in c.phases for f in phase.folds]
        assert all(len(fold.operands) == P and not fold.wide_target for fold in folds)
        assert P == 1 or folds
        return made

    original = planning.build
    monkeypatch.setattr(planning, "build", built)
    rows = contributions(3001, "f8")
    out = np.zeros(3001)
    ours.Allreduce(rows[RANK], out, reproducible=True)
    assert out.tobytes() == summed(rows).tobytes()


def test_it_is_told_and_counted(ours):
    fresh = ours.Dup()
    fresh.Allreduce(np.ones(3), np.zeros(3), reproducible=True)
    assert fresh.stats().calls == {("allreduce", "exact"): 1}
    fresh.Free()


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "words"),
    [
        ((np.ones(3), np.ones(3)), {"algorithm": "ring"}, ValueError, "algorithm of its own"),
        ((np.ones(3), np.ones(3)), {"algorithm": "native"}, ValueError, "algorithm of its own"),
        ((np.ones(3), np.ones(3), MPI.MAX), {}, ValueError, "must be MPI.SUM, not max"),
        ((np.ones(3, "f2"), np.ones(3, "f2")), {}, TypeError, "cannot sum float16"),
        ((np.ones(3, "g"), np.ones(3, "g")), {}, TypeError, "cannot sum"),
        (([None, 0, MPI.INT], [MPI.BOTTOM, 0, MPI.INT]), {}, Unsupported, "MPI.BOTTOM"),
    ],
)
def test_what_it_cannot_do_is_an_error(ours, arguments, keywords, error, words):
    with pytest.raises(error, match=words):
        ours.Allreduce(*arguments, reproducible=True, **keywords)
