"""The launches of all ranks, interpreted on arrays of the host, have the collective's result.

What is interpreted is what the kernels are told: who pushes which bytes to whom, and what becomes
of them.
"""

from __future__ import annotations

import numpy as np
import pytest

from mpicoll.cuda import kernels, keys
from mpicoll.cuda import launches as shapes
from mpicoll.cuda.keys import LaunchKey
from mpicoll.cuda.launches import Limits

BLOCK = 2048  # elements of float64; blocks are whole multiples of 16 bytes, and of no row
SHORT, LONG = Limits(), Limits(small_bytes=0, one_shot=0, direct=0)
IN_BULK = LONG._replace(bulk_bytes=0)
LIMITS = {"short": SHORT, "long": LONG, "bulk": IN_BULK, "direct": LONG, "ring": LONG}


def folded(values):
    total = values[0].copy()
    for value in values[1:]:
        total = total + value
    return total


def bits(mask):
    return [rank for rank in range(64) if mask >> rank & 1]


def check_masks(launches):
    """Who is sent to expects it."""
    for rank, launch in enumerate(launches):
        for to in {*range(len(launches))} - {rank}:
            assert (launch.sends >> to & 1) == (launches[to].members >> rank & 1)


def exchanged(launches, send, recv, fold):
    """One phase."""
    count = launches[0].n // 8
    for rank, launch in enumerate(launches):
        starts = {p: launches[p].send_stride * rank // 8 for p in bits(launch.members)}
        blocks = {p: send[p][start : start + count] for p, start in starts.items()}
        if fold and blocks:
            recv[rank][:count] = folded([*blocks.values()])
        for p in blocks if not fold else ():
            start = launch.recv_stride * p // 8
            recv[rank][start : start + count] = blocks[p]


def in_phases(launches, send, recv):
    """Every rank folds a block, and hands it out; returns the bytes that each sends and takes."""
    size = len(launches)
    sent, taken = [0] * size, [0] * size

    def moves(length, source, to):
        if source != to:
            sent[source] += length
            taken[to] += length

    for rank, launch in enumerate(launches):
        start = (rank + launch.turn) % size * launch.n
        end = max(start, min(start + launch.n, launch.total))
        if start == end or not launch.members:
            assert not launch.members or start == end >= launch.total
            continue
        part = slice(start // 8, end // 8)
        value = folded([send[p][part].copy() for p in bits(launch.members)])
        for p in bits(launch.members):
            moves(end - start, p, rank)
        for to in bits(launch.targets):
            recv[to][part] = value
            moves(end - start, rank, to)
    return sent, taken


def directly(launches, send, recv):
    """Every rank reads and writes memory of all."""
    for launch in launches:
        passes = range(len(launches)) if launch.stride else [None]
        for to in passes:
            start = (launch.source + (to or 0) * launch.stride) // 8
            values = [send[p][start : start + launch.length // 8] for p in bits(launch.pulls)]
            assert launch.source % 16 == launch.target % 16 == 0
            for q in bits(launch.gives) if to is None else [to]:
                target = launch.target // 8
                recv[q][target : target + launch.length // 8] = folded(values)


def in_a_ring(launches, send, recv):
    """Blocks travel to the right, folded on their way to their owners, then handed around."""
    size, order = len(launches), launches[0].order
    by_place = [launches[rank] for rank in order]
    for place, launch in enumerate(by_place):
        assert (launch.place, launch.left, launch.right) == (
            place, order[place - 1], order[(place + 1) % size]
        )  # fmt: skip

    def part(launch, owner, stride):
        length = max(0, min(launch.n, launch.total - owner * launch.n)) // 8
        return slice(owner * stride // 8, owner * stride // 8 + length)

    done = {}
    for place, owner in enumerate(order):
        travels = [by_place[(place + k) % size] for k in range(1, size + 1)]
        values = [send[a.order[a.place]][part(a, owner, a.send_stride)] for a in travels]
        done[owner] = folded(values) if launches[0].sends else values[-1].copy()
    for rank, launch in enumerate(launches):
        for owner in order if launch.targets else [rank]:
            recv[rank][part(launch, owner, launch.recv_stride)] = done[owner]


def wanted(collective, inputs, rank, root):
    size, total = len(inputs), folded(inputs)
    mine = slice(rank * BLOCK, (rank + 1) * BLOCK)
    return {
        "allreduce": lambda: total,
        "reduce": lambda: total if rank == root else None,
        "scan": lambda: folded(inputs[: rank + 1]),
        "exscan": lambda: folded(inputs[:rank]) if rank else None,
        "bcast": lambda: inputs[root],
        "reduce_scatter": lambda: total[mine],
        "allgather": lambda: np.concatenate([a[:BLOCK] for a in inputs]),
        "gather": lambda: np.concatenate([a[:BLOCK] for a in inputs]) if rank == root else None,
        "scatter": lambda: inputs[root][mine],
        "alltoall": lambda: np.concatenate([inputs[p][mine] for p in range(size)]),
    }[collective]()


@pytest.mark.parametrize("way", LIMITS)
@pytest.mark.parametrize("collective", keys.COLLECTIVES)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_launches_of_all_ranks(size, collective, way):
    if way == "direct" and collective not in keys.DIRECT:
        pytest.skip("its memory is never read where it lies")
    if way == "direct" and collective in keys.REDUCING and size <= 2:
        pytest.skip("each folds all that comes")
    if way == "ring" and (collective not in keys.RING or size <= 2):
        pytest.skip("not in a ring")
    order = tuple(np.random.default_rng(size).permutation(size).tolist())
    limits = LIMITS[way]._replace(ring=order if way == "ring" else ())
    rng = np.random.default_rng(size)
    inputs = [rng.integers(0, 1000, size * BLOCK).astype(float) for _ in range(size)]
    reduces = collective in keys.REDUCING
    for root in {0, size - 1}:
        launches = [
            shapes.launch_of(
                LaunchKey(
                    collective,
                    size * BLOCK * 8,
                    rank,
                    size,
                    root,
                    op="sum" if reduces else "",
                    type="f64" if reduces else "",
                ),
                limits,
                registered=way == "direct",
            )
            for rank in range(size)
        ]
        assert len({(a.kernel, a.blocks, a.threads, a.n) for a in launches}) == 1
        assert launches[0].kernel in kernels.names(size, way == "ring")
        assert launches[0].registered == (way == "direct")
        send = [a.copy() for a in inputs]
        recv = send if collective == "bcast" else [np.full(size * BLOCK, np.nan) for _ in inputs]
        if way == "direct":
            directly(launches, send, recv)
        elif way == "ring":
            in_a_ring(launches, send, recv)
        else:
            check_masks(launches)
            if launches[0].total:
                sent, taken = in_phases(launches, send, recv)
                if collective == "bcast":  # the vector leaves the root once, and comes once to all
                    assert (sent[root], taken[root]) == (launches[0].total, 0)
                    assert {*taken[:root], *taken[root + 1 :]} == {launches[0].total}
                if collective == "reduce":
                    assert sent[root] == taken[root] == launches[0].total
            else:
                exchanged(launches, send, recv, reduces)
        for rank in range(size):
            want = wanted(collective, inputs, rank, root)
            if want is not None:
                assert np.array_equal(recv[rank][: len(want)], want), (rank, root)


def test_launches_fit_their_limits():
    limits = Limits()
    of = {
        "small": (1, limits.small, shapes.ROW),
        "large": (limits.rows, limits.large, shapes.ROW),
        "bulk": (limits.bulk_rows, limits.bulk, shapes.LINES),
    }
    seen = set()
    for nbytes in (8, 480, 481, 10_000, 1 << 19, 1 << 20, 1 << 22, 1 << 25, 1 << 30, 1 << 33):
        launch = shapes.launch_of(
            LaunchKey("allreduce", nbytes, 0, 2, op="sum", type="f32"), limits
        )
        suffix = launch.kernel.split("_")[1]
        seen.add(suffix)
        rows, most, row = of[suffix]
        assert 1 <= launch.blocks <= limits.blocks
        assert launch.threads % 32 == 0 and 32 <= launch.threads <= most
        portions = -(-nbytes // (row * rows))
        warps = launch.blocks * launch.threads // 32
        assert warps < portions + launch.threads // 32  # no block is idle
        steps = -(-portions // warps)
        assert steps == -(-portions // (limits.blocks * most // 32))  # and no step is wasted
        assert launch.in_bulk == (suffix == "bulk")
    assert seen == {*of}


def test_channels_do_not_overlap():
    limits = Limits()
    assert limits.slot % 128 == limits.bulk_slot % 128 == 0
    for size in (2, 8):
        ends = limits.region(size) + limits.bulk_region(size)
        assert limits.window(size) == ends * (1 if size == 2 else 2)


def test_the_family_follows_the_type():
    assert keys.kernel_of("", "") == "copy"
    assert keys.kernel_of("sum", "f32") == "plain"
    assert keys.kernel_of("max", "f16") == "plain"
    assert keys.kernel_of("sum", "bf16") == "narrow"
    assert keys.kernel_of("prod", "c128") == "whole"
    assert keys.kernel_of("minloc", "f64_int") == "whole"


def test_every_operator_and_type_is_in_the_source():
    source = kernels.source()
    for name in (*keys.OPS, *keys.TYPES):
        assert source.count(name) > 1, name
    for name in kernels.FILES:
        assert f'#line 1 "{name}"' in source
