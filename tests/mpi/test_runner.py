"""The runner over MPI gives the bits of the in-process runner, for every algorithm."""

from __future__ import annotations

import shutil
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll import algorithms, local, ops, registry
from mpicoll.engine.plan import PIECE, Shape
from mpicoll.engine.planning import SPACE, build
from mpicoll.engine.runner import Execution, temporary_of
from mpicoll.schedule import Copy, Recv, RecvReduce, Send, given, layout, scratch

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()

#: Pieces and receive space: as they are, and so small that every path is taken.
LIMITS = [(PIECE, SPACE), (64, 128), (8, 8)]
COUNTS = sorted({0, 1, SIZE - 1, SIZE, SIZE + 1, 17, 1009})


@pytest.fixture(scope="module")
def private():
    comm = WORLD.Dup()
    yield comm
    comm.Free()


def run(plan, comm, send, recv, reduction=None, space=None):
    """Execute a plan and wait for it."""
    Execution(plan, comm, send, recv, reduction, temporary=space).wait()


def settings(algorithm):
    if "segments" not in algorithm.parameters:
        return [{}]
    return [{"segments": 1}, {"segments": 5, "window": 2}]


def whole(algorithm, count, dtype):
    """The vectors of all ranks, equal on all ranks."""
    random = np.random.default_rng(count)
    length = count * SIZE if algorithm.definition.block_per_rank else count
    return [(random.standard_normal(length) * 100).astype(dtype) for _ in range(SIZE)]


def inputs(algorithm, vectors, count, root):
    if algorithm.collective in ("allgather", "gather"):
        return [vector[:count].copy() for vector in vectors]
    if algorithm.collective in ("bcast", "scatter"):
        return [vector if rank == root else None for rank, vector in enumerate(vectors)]
    return vectors


def bytes_of(array):
    return None if array is None else array.view(np.uint8)


def execute(algorithm, count, dtype, root, parameters, limits, in_place, private):
    """One call over MPI; returns what this rank got and what it should have got."""
    nblocks = algorithm.blocks(SIZE)
    vectors = whole(algorithm, count, dtype)
    given = inputs(algorithm, vectors, count, root)
    reduction = ops.reduction("sum", np.dtype(dtype))
    want = local.execute(algorithm, given, reduction, root, parameters)[RANK]
    send = None if given[RANK] is None else given[RANK].copy()
    recv = None if want is None else np.full(want.size, 7, dtype)
    in_place = in_place and (not algorithm.definition.rooted or RANK == root)
    if algorithm.collective == "bcast":
        in_place = True
        send = recv = recv if send is None else send
    elif in_place and algorithm.definition.input_alone:
        recv[RANK * count : (RANK + 1) * count] = send
        send = recv
    elif in_place and algorithm.collective != "scatter":
        recv = send
    size = 1 if not algorithm.definition.reduces else np.dtype(dtype).itemsize
    length = vectors[0].size * (np.dtype(dtype).itemsize // size)
    cut = layout.even(length, nblocks)
    shape = Shape(
        algorithm.collective,
        algorithm.name,
        tuple(sorted(parameters.items())),
        RANK,
        SIZE,
        root,
        in_place,
        size,
        reduction.wide.itemsize if size > 1 else 1,
        cut,
        cut,
    )
    run(build(shape, *limits), private, bytes_of(send), bytes_of(recv), reduction)
    if want is None:
        return None, None
    if in_place and algorithm.collective == "scatter":
        return send[RANK * count : (RANK + 1) * count], want
    return recv[: want.size], want


MOVING = [a for a in algorithms.catalogue() if a.collective != "barrier"]


@pytest.mark.parametrize("algorithm", MOVING, ids=lambda a: f"{a.collective}-{a.name}")
@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in-place"])
def test_same_bits_as_in_process(algorithm, in_place, private):
    if not algorithm.runs_on(SIZE):
        return
    roots = sorted({0, SIZE // 2, SIZE - 1}) if algorithm.definition.rooted else [0]
    dtypes = ["f4", "f2"] if algorithm.definition.reduces else ["f4"]
    for count, dtype, root, parameters, limits in product(
        COUNTS, dtypes, roots, settings(algorithm), LIMITS
    ):
        if count > 100 * limits[0]:
            continue  # thousands of requests: tests of these take a library longer than they tell
        found, want = execute(algorithm, count, dtype, root, parameters, limits, in_place, private)
        case = (count, dtype, root, parameters, limits)
        assert (found is None) == (want is None), case
        if want is not None:
            assert found.tobytes() == want.tobytes(), case


def test_nobody_leaves_a_barrier_before_everybody_has_entered(private):
    folder = WORLD.bcast(tempfile.mkdtemp() if RANK == 0 else None)
    cut = layout.even(0, 0)
    for algorithm in (a for a in algorithms.catalogue() if a.collective == "barrier"):
        shape = Shape("barrier", algorithm.name, (), RANK, SIZE, 0, False, 1, 1, cut, cut)
        plan = build(shape)
        for late in range(SIZE):
            if RANK == late:
                time.sleep(0.02)
            Path(folder, f"{algorithm.name}-{late}-{RANK}").touch()
            run(plan, private, None, None)
            entered = {path.name for path in Path(folder).glob(f"{algorithm.name}-{late}-*")}
            assert entered == {f"{algorithm.name}-{late}-{rank}" for rank in range(SIZE)}
    WORLD.Barrier()
    if RANK == 0:
        shutil.rmtree(folder)


def test_an_execution_is_driven_by_test_too(private):
    algorithm = algorithms.find("allreduce", "ring")
    cut = layout.even(1000, algorithm.blocks(SIZE))
    shape = Shape("allreduce", "ring", (), RANK, SIZE, 0, True, 8, 8, cut, cut)
    array = np.full(1000, RANK + 1.0)
    reduction = ops.reduction("sum", np.dtype("f8"))
    running = Execution(
        build(shape), private, array.view(np.uint8), array.view(np.uint8), reduction
    )
    while not running.test():
        pass
    assert running.test()
    np.testing.assert_array_equal(array, np.full(1000, SIZE * (SIZE + 1) / 2))


def test_runs_of_a_plan_may_use_the_same_temporary_space(private):
    algorithm = algorithms.find("allreduce", "parameter_server")
    cut = layout.even(64, algorithm.blocks(SIZE))
    shape = Shape("allreduce", "parameter_server", (), RANK, SIZE, 0, True, 4, 4, cut, cut)
    plan = build(shape)
    reduction = ops.reduction("sum", np.dtype("i4"))
    space = temporary_of(plan)
    for _ in range(3):
        array = np.ones(64, np.int32)
        run(plan, private, array.view(np.uint8), array.view(np.uint8), reduction, space)
        np.testing.assert_array_equal(array, np.full(64, SIZE, np.int32))


# --- schedules that the catalogue does not have ---


def all_reduce(schedule, monkeypatch, private, length, scratch=1, limits=()):
    """Sum 10**rank by a throw-away schedule, over MPI and in process, on three ranks."""
    entry = algorithms.find("allreduce", "linear")._replace(
        name="throw-away",
        schedule=schedule,
        scratch=lambda size: scratch,
    )
    monkeypatch.setitem(registry._CATALOGUE, ("allreduce", "throw-away"), entry)
    cut = layout.even(length, 1)
    shape = Shape("allreduce", "throw-away", (), RANK, SIZE, 0, False, 4, 4, cut, cut)
    reduction = ops.reduction("sum", np.dtype("i4"))
    inputs = [np.full(length, 10**rank, np.int32) for rank in range(SIZE)]
    found = np.zeros(length, np.int32)
    run(build(shape, *limits), private, bytes_of(inputs[RANK]), bytes_of(found), reduction)
    np.testing.assert_array_equal(found, local.execute(entry, inputs, reduction)[RANK])


@pytest.mark.mpi(min_size=3)
def test_messages_of_one_peer_match_in_the_order_written(monkeypatch, private):
    def schedule(rank, size):
        if rank == 1:
            yield Recv(0, scratch(0))
            yield Send(0, given(0)), Send(0, scratch(0))
        elif rank == 0:
            yield Send(1, given(0))
            yield RecvReduce(1, 0), Recv(1, scratch(0))

    for limits in LIMITS:
        all_reduce(schedule, monkeypatch, private, 5, limits=limits)


@pytest.mark.mpi(min_size=3)
def test_a_copy_of_several_blocks_copies_all_at_once(monkeypatch, private):
    def schedule(rank, size):
        if rank == 1:
            yield Send(0, given(0))
        elif rank == 0:
            yield Recv(1, scratch(0))
            yield Copy((0, scratch(0), given(0)), (scratch(0), 0, scratch(1)))
            yield Copy((scratch(0), scratch(1)), (scratch(1), scratch(0)))
            yield Send(2, (0, scratch(0), scratch(1)))
        elif rank == 2:
            yield Recv(0, (0, scratch(0), scratch(1)))

    all_reduce(schedule, monkeypatch, private, 3, scratch=2)


@pytest.mark.mpi(min_size=3)
def test_a_message_that_names_a_block_twice(monkeypatch, private):
    def schedule(rank, size):
        if rank == 2:
            yield Send(1, 0)
        elif rank == 1:
            yield Recv(2, scratch(0))
            yield Send(0, (given(0), scratch(0)))
        elif rank == 0:
            yield RecvReduce(1, (0, 0))

    for limits in LIMITS:
        all_reduce(schedule, monkeypatch, private, 9, limits=limits)


def test_thousands_of_segments_without_a_message(private):
    cut = layout.even(0, 1)
    parameters = (("segments", 3000), ("window", 1))
    shape = Shape("bcast", "chain", parameters, RANK, SIZE, 0, True, 1, 1, cut, cut)
    empty = np.empty(0, np.uint8)
    run(build(shape), private, empty, empty)
