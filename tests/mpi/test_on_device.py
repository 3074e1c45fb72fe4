"""Arrays in device memory through every collective and message, without a GPU (see fake_cuda)."""

import gc
from itertools import product

import numpy as np
import pytest
from fake_cuda import FakeDriver
from mpi4py import MPI

import mpicoll
from mpicoll import staging
from mpicoll.collectives import COLLECTIVES
from mpicoll.cuda import driver

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
ROOT = P - 1

REDUCING = ("Allreduce", "Reduce", "Reduce_scatter_block", "Scan", "Exscan")
ROOTED = ("Reduce", "Gather", "Scatter")
REGULAR = (*REDUCING, "Allgather", "Alltoall", "Gather", "Scatter", "Bcast")
WAYS = ("blocking", "nonblocking", "persistent")


@pytest.fixture(params=["lazy", "random"])
def fake(request):
    made = FakeDriver(how=request.param, seed=RANK)
    undo = driver.use(made)
    yield made
    gc.collect()
    undo()


@pytest.fixture
def ours(fake, monkeypatch):
    """A communicator whose longer vectors go in segments."""
    monkeypatch.setattr(staging, "SEGMENT", 4096)
    comm = mpicoll.Intracomm(WORLD.Dup())
    yield comm
    comm.Free()


def run(comm, way, method, *arguments, **more):
    """One call, or two starts of a persistent one."""
    if way == "blocking":
        getattr(comm, method)(*arguments, **more)
    elif way == "nonblocking":
        getattr(comm, f"I{method.lower()}")(*arguments, **more).Wait()
    else:
        plan = getattr(comm, f"{method}_init")(*arguments, **more)
        plan.Start()
        plan.Wait()
        plan.Free()


def shapes(method, count):
    """Elements that this rank sends and receives; None where it does not."""
    alone = {"Allgather", "Gather"}, {"Reduce_scatter_block", "Scatter"}
    whole = count * P if method in (*alone[0], *alone[1], "Alltoall") else count
    sent = count if method in alone[0] else whole
    received = count if method in alone[1] else whole
    if method in ROOTED and RANK != ROOT:
        return (None, received) if method == "Scatter" else (sent, None)
    return sent, received


def on_host(method, send, recv, root):
    """What the MPI library makes of arrays of the host."""
    arguments = [*([MPI.SUM] if method in REDUCING else []), *([ROOT] if root else [])]
    if method == "Bcast":
        WORLD.Bcast(recv, ROOT)
    else:
        getattr(WORLD, method)(send, recv, *arguments)
    return arguments


def framed(values, offset):
    """Values between others."""
    return np.concatenate([np.full(offset, 5), values, [5, 6]]).astype("i4")


@pytest.mark.parametrize("method", REGULAR)
@pytest.mark.parametrize("count", [5, 3000], ids=["whole", "segments"])
def test_every_collective(fake, ours, method, count):
    for way, algorithm in product(WAYS, (None, "native", "named")):
        offset = 3 if algorithm is None else 0
        name = {v.method: k for k, v in COLLECTIVES.items()}[method]
        if algorithm == "named":
            algorithm = mpicoll.algorithms.names(name)[0]
        sent, received = shapes(method, count)
        random = np.random.default_rng([count, RANK, offset])
        send = None if sent is None else random.integers(-9, 9, sent).astype("i4")
        recv = None if received is None else np.full(received, 77, "i4")
        if method == "Bcast":
            send, recv = None, (send if RANK == ROOT else recv)
        given = [None if a is None else fake.array(framed(a, offset)) for a in (send, recv)]
        messages = [
            None if a is None else [g, (count, offset), MPI.INT32_T]
            for g, a in zip(given, (send, recv), strict=True)
        ]
        for array, values in zip(given, (send, recv), strict=True):
            if array is not None:
                array.set(framed(values, offset))  # when it must have come
        arguments = on_host(method, send, recv, method in ROOTED)
        if method == "Bcast":
            run(ours, way, method, messages[1], ROOT, algorithm=algorithm)
        else:
            run(ours, way, method, *messages, *arguments, algorithm=algorithm)
        if recv is not None:
            found = given[1].get()
            np.testing.assert_array_equal(found[offset : offset + recv.size], recv)
            assert [*found[:offset]] == [5] * offset and [*found[-2:]] == [5, 6]
        if send is not None:
            np.testing.assert_array_equal(given[0].get()[offset : offset + send.size], send)
