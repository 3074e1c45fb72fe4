"""Collectives of a communicator that GPUs make: graphs, requests, and waits that do not end."""

import os
import time

import numpy as np
import pytest
import sharing
from mpi4py import MPI

import mpicoll

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank


@pytest.fixture(scope="module")
def cupy(world):
    return pytest.importorskip("cupy")


@pytest.fixture
def made(cupy):
    """What makes a communicator whose waits on the GPU may take so many seconds."""
    comms = []

    def make(seconds=""):
        os.environ["MPICOLL_TIMEOUT"] = seconds
        comm = mpicoll.Intracomm(WORLD.Dup())
        del os.environ["MPICOLL_TIMEOUT"]
        comms.append(comm)
        if comm.gpu_transport() != "cuda_ipc":
            pytest.skip(comm.gpu_transport())
        return comm

    with sharing.allowed():
        yield make
    for comm in comms:
        comm.Free()


@pytest.fixture
def ours(made):
    return made()


def test_a_graph_of_calls_of_every_kind(ours, cupy):
    """Replayed among other calls; blocking ones, requests and persistent ones in it."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x, whole = cupy.zeros(5000, "f8"), cupy.zeros(5000 * P, "f8")
        plan = ours.Allreduce_init(MPI.IN_PLACE, x)
        plan.Start()
        plan.Wait()
        ours.Allreduce(MPI.IN_PLACE, x)
        ours.Allgather(x, whole)
        stream.begin_capture()
        ours.Allreduce(MPI.IN_PLACE, x)
        ours.Iallreduce(MPI.IN_PLACE, x).Wait()
        plan.Start()
        plan.Wait()
        ours.Allgather(x, whole)
        graph = stream.end_capture()
        for step in range(5):
            x[...] = RANK + step
            whole[...] = -1
            graph.launch(stream)
            total = (P * step + P * (P - 1) / 2) * P**2
            assert {*whole.get(stream=stream)} == {total}
            ours.Allreduce(MPI.IN_PLACE, x)
            assert {*x.get(stream=stream)} == {total * P}
        plan.Free()
        graph.launch(stream)  # keeps what the plan had
        ours.Allreduce(MPI.IN_PLACE, x)
    stream.synchronize()
    ours._state.gpus.peers.check()


def test_a_stream_that_the_call_names(ours, cupy):
    current, named = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    x = cupy.zeros(100_000, "i4")
    cupy.cuda.Device().synchronize()
    plan = ours.Allreduce_init(MPI.IN_PLACE, x, stream=named)
    with current:
        for step in range(5):
            with named:
                x[...] = RANK + step
            ours.Allreduce(MPI.IN_PLACE, x, stream=named.ptr)
            ours.Iallreduce(MPI.IN_PLACE, x, stream=named).Wait()
            plan.Start()
            plan.Wait()
            expected = (P * step + P * (P - 1) // 2) * P**2
            assert {*x.get(stream=named)} == {expected}
    plan.Free()


def test_requests_of_many_calls(ours, cupy):
    arrays = [cupy.full(length, RANK, "f4") for length in (1, 1000, 300_001)]
    requests = [ours.Iallreduce(MPI.IN_PLACE, array) for array in arrays]
    requests.append(ours.Ibarrier())
    mpicoll.Request.Waitall(requests)
    for array in arrays:
        assert {*array.get()} == {P * (P - 1) / 2}
    assert not any(requests[:3])


def test_a_rank_that_does_not_come(made, cupy):
    """Whoever waits, tests or calls is told; then the communicator is refused."""
    comm, other, x = made("1"), made(), cupy.ones(100, "f4")
    plan = comm.Allreduce_init(MPI.IN_PLACE, x)

    def told():
        return pytest.raises(RuntimeError, match=r"has waited on its GPU for rank \d")

    if RANK == 0 and P > 1:
        requests = [comm.Iallreduce(MPI.IN_PLACE, x) for _ in range(2)]
        plan.Start()
        end = time.monotonic() + 30
        with told():
            while not requests[0].Test():
                assert time.monotonic() < end
        with told():
            requests[1].Wait()
        with told():
            plan.Wait()
        with told():
            comm.Allreduce(MPI.IN_PLACE, x)
        with told():
            comm.Iallreduce(MPI.IN_PLACE, np.ones(1))
    WORLD.Barrier()
    y = cupy.ones(100, "f4")
    other.Allreduce(MPI.IN_PLACE, y)  # the others and the GPU go on
    assert {*y.get()} == {P}
    comm._state.gpus.close()  # together, which a rank that has been told does not do by itself


@pytest.mark.parametrize("root", [0, P - 1])
def test_bits_are_those_of_the_host(ours, cupy, root):
    """Of what is folded in rank order, by calls that go the slow path, then the fast one."""
    for dtype in ("f2", "f4", "f8", "c8"):
        values = np.random.default_rng(RANK).standard_normal(30_001).astype(dtype)
        host, got = np.empty_like(values), np.empty_like(values)
        ours.Reduce(values, host if root == RANK else None, root=root, algorithm="linear")
        array, wanted = cupy.asarray(values), cupy.zeros(30_001, dtype)
        for _ in range(3):
            ours.Reduce(array, wanted if root == RANK else None, root=root)
        if root == RANK:
            got = wanted.get()
            assert got.tobytes() == host.tobytes()
