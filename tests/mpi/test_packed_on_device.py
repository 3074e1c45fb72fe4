"""Strided arrays and derived datatypes of device memory, without a GPU (see fake_cuda)."""

import sys
from itertools import product

import numpy as np
import pytest
from exporting import Producer
from fake_cuda import FakeCupy, in_its_place
from mpi4py import MPI

import mpicoll
from mpicoll.comm import messages
from mpicoll.cuda import group
from mpicoll.runtime import staging
from mpicoll.schedule.collectives import COLLECTIVES

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
ROOT = P - 1

REDUCING = ("Allreduce", "Reduce", "Reduce_scatter_block", "Scan", "Exscan")
ROOTED = ("Reduce", "Gather", "Scatter")
REGULAR = (*REDUCING, "Allgather", "Alltoall", "Gather", "Scatter", "Bcast")
WAYS = ("blocking", "nonblocking", "persistent")
EVEN = np.s_[::2]


@pytest.fixture(params=["lazy", "random"])
def fake(request, monkeypatch):
    with in_its_place(how=request.param, seed=RANK) as made:
        monkeypatch.setitem(sys.modules, "cupy", FakeCupy(made))
        monkeypatch.setenv("MPICOLL_GPU", "staged")
        yield made
        monkeypatch.undo()


@pytest.fixture
def cupy(fake):
    return sys.modules["cupy"]


@pytest.fixture
def ours(fake, monkeypatch):
    """A communicator whose longer vectors go in segments, and are reduced on the host."""
    monkeypatch.setattr(staging, "CHUNK", 4096)
    monkeypatch.setattr(group.Group, "reduces", False)
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
        for _ in range(1 if method == "Exscan" else 2):
            plan.Start()
            plan.Wait()
        plan.Free()


def spread(values):
    """Values with others between them."""
    return np.stack([values, np.full_like(values, 99)], axis=1).ravel()


def arguments(method, count):
    """Send and receive buffer of this rank, and what the MPI library makes of the latter."""
    whole, random = count * P, np.random.default_rng([count, RANK])
    sent = count if method in ("Allgather", "Gather") else whole
    received = count if method in ("Reduce_scatter_block", "Scatter") else whole
    if method in (*REDUCING[:2], *REDUCING[3:], "Bcast"):
        sent = received = count
    send = random.integers(-9, 9, sent).astype("i4")
    recv = np.full(received, 77, "i4")
    if method == "Bcast":
        recv = send.copy()
        expected = recv.copy()
        WORLD.Bcast(expected, ROOT)
        return None, recv, expected
    if method in ROOTED and RANK != ROOT:
        send, recv = (None, recv) if method == "Scatter" else (send, None)
    expected = None if recv is None else recv.copy()
    more = [*([MPI.SUM] if method in REDUCING else []), *([ROOT] if method in ROOTED else [])]
    getattr(WORLD, method)(send, expected, *more)
    return send, recv, expected


@pytest.mark.parametrize("method", REGULAR)
@pytest.mark.parametrize("count", [5, 3000])
def test_strided_arrays(fake, cupy, ours, method, count):
    name = {v.method: k for k, v in COLLECTIVES.items()}[method]
    ways = WAYS if count == 5 else WAYS[:1]
    for way, algorithm in product(ways, (None, "native", mpicoll.algorithms.names(name)[0])):
        send, recv, expected = arguments(method, count)
        given = [None if a is None else fake.array(spread(a), stream=5) for a in (send, recv)]
        parts = [None if a is None else cupy.view(a, EVEN) for a in given]
        for array, part, values in zip(given, parts, (send, recv), strict=True):
            if array is not None:
                part.stream = 5
                array.set(spread(values))  # when it must have come
        more = [*([MPI.SUM] if method in REDUCING else []), *([ROOT] if method in ROOTED else [])]
        if method == "Bcast":
            run(ours, way, method, parts[1], ROOT, algorithm=algorithm)
        else:
            run(ours, way, method, *parts, *more, algorithm=algorithm)
        if expected is not None:
            np.testing.assert_array_equal(given[1].get(), spread(expected))
        if send is not None:
            np.testing.assert_array_equal(given[0].get(), spread(send))


def test_in_place(fake, cupy, ours):
    for count in (3, 3000):
        array = fake.array(spread(np.full(count, RANK + 1, "i4")))
        ours.Allreduce(MPI.IN_PLACE, cupy.view(array, EVEN))
        total = np.full(count, P * (P + 1) // 2, "i4")
        np.testing.assert_array_equal(array.get(), spread(total))
    arrays = [fake.array(spread(np.full(n, RANK, "f4"))) for n in (3, 700)]
    ours.Allreduce(MPI.IN_PLACE, [cupy.view(array, EVEN) for array in arrays])
    for array in arrays:
        assert {*array.get()} == {P * (P - 1) // 2, 99}


def test_a_cuda_aware_library_gets_what_is_packed_by_value(fake, cupy, monkeypatch):
    """Which it would not take as it is; other ranks may pass it contiguous arrays."""
    monkeypatch.setattr(group.libraries, "cuda_aware", lambda: True)
    monkeypatch.setattr(messages, "library_takes", lambda: True)
    monkeypatch.setenv("MPICOLL_GPU", "aware")
    monkeypatch.setattr(staging, "CHUNK", 4096)
    comm = mpicoll.Intracomm(WORLD.Dup())
    assert comm.gpu_transport().startswith("aware")
    values = spread(np.arange(3000, dtype="i4"))
    array = fake.array(values if RANK == ROOT else np.full_like(values, 99))
    for way in WAYS:
        run(comm, way, "Bcast", cupy.view(array, EVEN), ROOT)
        np.testing.assert_array_equal(array.get(), values)
    assert {*comm.stats().calls} == {("bcast", "native")}
    got = fake.array(np.full_like(values, 99))
    request = comm.Isend(cupy.view(array, EVEN), (RANK + 1) % P)
    comm.Recv(cupy.view(got, EVEN), (RANK - 1) % P)
    request.Wait()
    np.testing.assert_array_equal(got.get(), values)
    comm.Free()


# --- derived datatypes ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_broadcast_as_in_mpi4pys_tests(fake, ours, way):
    kinds = ("i2", MPI.SHORT), ("f4", MPI.FLOAT), ("f8", MPI.DOUBLE)
    for algorithm, (code, datatype) in product((None, "native", "binomial"), kinds):
        for first, root in ((0, 0), (1, P - 1)):
            values = np.arange(10) if root == RANK else np.full(10, -1)
            array = fake.array(values.astype(code))
            indexed = datatype.Create_indexed_block(1, [*range(first, 10, 2)]).Commit()
            run(ours, way, "Bcast", [array, 1, indexed], root, algorithm=algorithm)
            indexed.Free()
            expected = values.copy()
            expected[first::2] = np.arange(first, 10, 2)
            np.testing.assert_array_equal(array.get(), expected)


def test_ranks_that_describe_the_same_in_other_ways(fake, cupy, ours):
    matrix = np.arange(3000 * 4, dtype="f4").reshape(3000, 4)
    column = MPI.FLOAT.Create_vector(3000, 1, 4).Commit()
    array = fake.array(matrix if RANK == ROOT else np.zeros_like(matrix))
    alone = fake.array(np.zeros(3000, "f4"))
    message = [array, 1, column], cupy.view(array, np.s_[:, 0]), alone
    ours.Bcast(message[0 if RANK == ROOT else RANK % 3], ROOT)
    found = alone.get() if RANK != ROOT and RANK % 3 == 2 else array.get()[:, 0]
    np.testing.assert_array_equal(found, matrix[:, 0])
    column.Free()


@pytest.mark.parametrize("way", WAYS)
def test_blocks_of_columns(fake, ours, way):
    """A transposition; and each rank's column, gathered to a matrix."""
    column = MPI.DOUBLE.Create_vector(P, 1, P).Create_resized(0, 8).Commit()
    mine = np.arange(P * P, dtype="f8").reshape(P, P) + 100 * RANK
    expected = np.zeros((P, P))
    WORLD.Alltoall([mine, 1, column], [expected, P, MPI.DOUBLE])
    found = fake.array(np.zeros((P, P)))
    run(ours, way, "Alltoall", [fake.array(mine), 1, column], [found, P, MPI.DOUBLE])
    np.testing.assert_array_equal(found.get(), expected)
    counts, places = [1] * P, [*range(P)]
    found = fake.array(np.full((P, P), -1.0))
    ours.Allgatherv([fake.array(mine[0]), P, MPI.DOUBLE], [found, (counts, places), column])
    np.testing.assert_array_equal(found.get(), np.arange(P)[:, None] + 100 * np.arange(P))
    found = fake.array(np.zeros((P, P)))
    sent = [8 * P * rank for rank in places], [MPI.DOUBLE] * P
    got = [8 * rank for rank in places], [column] * P
    ours.Alltoallw(
        [fake.array(mine), ([P] * P, sent[0]), sent[1]], [found, (counts, got[0]), got[1]]
    )
    whole = np.arange(P)[:, None] + P * RANK + 100 * np.arange(P)
    np.testing.assert_array_equal(found.get(), whole)
    column.Free()


def test_reductions_of_derived_datatypes_are_refused(fake, ours):
    column = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
    array = fake.array(np.zeros(4))
    with pytest.raises(BufferError, match=r"Allreduce of an array in device memory: .*derived"):
        ours.Allreduce(MPI.IN_PLACE, [array, 1, column])
    column.Free()


# --- messages -------------------------------------------------------------------------------------


def test_messages(fake, cupy, ours):
    right, left = (RANK + 1) % P, (RANK - 1) % P
    vector = MPI.INT32_T.Create_vector(4, 1, 2).Commit()
    given = fake.array(spread(np.arange(4, dtype="i4") + 10 * RANK))
    expected = spread(np.arange(4, dtype="i4") + 10 * left)

    def checked(array):
        np.testing.assert_array_equal(array.get(), expected)
        array.set(spread(np.full(4, -1, "i4")))

    got = fake.array(spread(np.full(4, -1, "i4")))
    for sent, received in (
        ([given, 1, vector], [got, 1, vector]),
        (cupy.view(given, EVEN), cupy.view(got, EVEN)),
    ):
        request = ours.Isend(sent, right)
        ours.Recv(received, left)
        request.Wait()
        checked(got)
        request = ours.Irecv(received, left)
        ours.Send(sent, right)
        request.Wait()
        checked(got)
        ours.Sendrecv(sent, right, recvbuf=received, source=left)
        checked(got)
        plans = [ours.Send_init(sent, right), ours.Recv_init(received, left)]
        for _ in range(2):
            mpicoll.Prequest.Startall(plans)
            mpicoll.Request.Waitall(plans)
            checked(got)
    vector.Free()


def test_a_message_that_is_shorter_than_a_strided_buffer(fake, cupy, ours):
    right, left, status = (RANK + 1) % P, (RANK - 1) % P, MPI.Status()
    for persistent in (False, True):
        got = fake.array(spread(np.arange(5, dtype="i4")))
        request = ours.Isend(np.full(2, 7, "i4"), right)
        if persistent:
            plan = ours.Recv_init(cupy.view(got, EVEN), left)
            plan.Start()
            while not plan.Get_status():  # after which MPICH forgets the status
                pass
            plan.Wait(status)
            assert status.Get_elements(MPI.BYTE) == 8
        else:
            ours.Recv(cupy.view(got, EVEN), left, 0, status)
        request.Wait()
        np.testing.assert_array_equal(got.get(), spread(np.array([7, 7, 2, 3, 4], "i4")))


# --- exports by DLPack ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(0, 8), (1, 0)])
def test_exports_of_either_memory(fake, ours, version):
    for count in (3, 3000):
        given, wanted = np.full(count, RANK + 1.0), np.zeros(count)
        producers = Producer(given, version=version), Producer(wanted, version=version)
        ours.Allreduce(*producers)
        assert (wanted == P * (P + 1) / 2).all()
        array = fake.array(given)
        there = Producer(array, array.ptr, (2, 0), version)
        ours.Allreduce(MPI.IN_PLACE, there)
        assert (array.get() == P * (P + 1) / 2).all()
        for each in (*producers, there):
            assert each.deleted == 0
