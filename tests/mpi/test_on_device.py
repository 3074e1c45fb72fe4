"""Arrays in device memory through every collective and message, without a GPU (see fake_cuda)."""

from itertools import product

import numpy as np
import pytest
from fake_cuda import in_its_place
from mpi4py import MPI

import mpicoll
from mpicoll.comm import refusing
from mpicoll.cuda import group
from mpicoll.errors import CudaError
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


@pytest.fixture(params=["lazy", "random"])
def fake(request):
    with in_its_place(how=request.param, seed=RANK) as made:
        yield made


@pytest.fixture
def ours(fake, monkeypatch):
    """A communicator whose longer vectors go in segments."""
    monkeypatch.setattr(staging, "CHUNK", 4096)
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


# --- blocks of different lengths ------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [None, "native", "linear"])
def test_blocks_of_different_lengths(fake, ours, algorithm):
    counts = [rank % 3 for rank in range(P)]
    places = [4 * rank for rank in range(P)]
    mine = np.full(counts[RANK], RANK, "f4")
    whole = np.full(4 * P, -1, "f4")
    expected = whole.copy()
    for rank in range(P):
        expected[places[rank] : places[rank] + counts[rank]] = rank
    vector = [(counts, places), MPI.FLOAT]
    for way in WAYS:
        given, wanted = fake.array(mine), fake.array(whole)
        name = algorithm if algorithm != "linear" else "ring"
        run(ours, way, "Allgatherv", given, [wanted, *vector], algorithm=name)
        np.testing.assert_array_equal(wanted.get(), expected)
        wanted = fake.array(whole)
        gathered = [wanted, *vector] if RANK == ROOT else None
        run(ours, way, "Gatherv", given, gathered, ROOT, algorithm=algorithm)
        np.testing.assert_array_equal(wanted.get(), expected if RANK == ROOT else whole)
        scattered = [fake.array(expected), *vector] if RANK == ROOT else None
        wanted = fake.array(np.full_like(mine, -1))
        run(ours, way, "Scatterv", scattered, wanted, ROOT, algorithm=algorithm)
        np.testing.assert_array_equal(wanted.get(), mine)


@pytest.mark.parametrize("algorithm", [None, "native", "pairwise"])
def test_all_to_all_of_different_lengths(fake, ours, algorithm):
    sent = [(RANK + rank) % 3 for rank in range(P)]
    whole = np.concatenate([np.full(n, 10 * RANK + r, "i4") for r, n in enumerate(sent)])
    expected = np.concatenate([np.full(n, 10 * r + RANK, "i4") for r, n in enumerate(sent)])
    starts = [sum(sent[:rank]) for rank in range(P)]
    for way in WAYS:
        given, wanted = fake.array(whole), fake.array(np.zeros_like(expected))
        run(ours, way, "Alltoallv", [given, sent], [wanted, sent], algorithm=algorithm)
        np.testing.assert_array_equal(wanted.get(), expected)
        wanted = fake.array(np.zeros_like(expected))
        blocks = (sent, [4 * start for start in starts]), [MPI.INT32_T] * P
        run(ours, way, "Alltoallw", [given, *blocks], [wanted, *blocks], algorithm=algorithm)
        np.testing.assert_array_equal(wanted.get(), expected)


@pytest.mark.parametrize("way", WAYS)
def test_a_reduction_of_different_lengths(fake, ours, way):
    counts = [1 + rank % 2 for rank in range(P)]
    whole = np.arange(sum(counts), dtype="f8") + RANK
    expected = np.zeros(counts[RANK])
    WORLD.Reduce_scatter(whole, expected, counts)
    wanted = fake.array(np.zeros(counts[RANK]))
    run(ours, way, "Reduce_scatter", fake.array(whole), wanted, counts, algorithm="ring")
    np.testing.assert_array_equal(wanted.get(), expected)


# --- in place, types, lists, streams --------------------------------------------------------------


@pytest.mark.parametrize("count", [5, 3000])
@pytest.mark.parametrize("algorithm", [None, "native"])
def test_in_place(fake, ours, count, algorithm):
    whole = np.arange(count * P, dtype="i4") * (RANK + 1)
    for method in ("Allreduce", "Scan", "Exscan", "Allgather", "Alltoall", "Reduce_scatter_block"):
        expected, array = whole.copy(), fake.array(whole)
        getattr(WORLD, method)(MPI.IN_PLACE, expected)
        getattr(ours, method)(MPI.IN_PLACE, array, algorithm=algorithm)
        defined = slice(count if method == "Reduce_scatter_block" else None)
        if method == "Exscan" and RANK == 0:
            expected = whole
        np.testing.assert_array_equal(array.get()[defined], expected[defined])
    for method in ("Reduce", "Gather"):
        expected, array = whole.copy(), fake.array(whole)
        own = slice(count * P) if method == "Reduce" else slice(RANK * count, (RANK + 1) * count)
        if RANK == ROOT:
            getattr(WORLD, method)(MPI.IN_PLACE, expected, root=ROOT)
            getattr(ours, method)(MPI.IN_PLACE, array, root=ROOT, algorithm=algorithm)
        else:
            part = fake.array(whole[own])
            getattr(WORLD, method)(whole[own], None, root=ROOT)
            getattr(ours, method)(part, None, root=ROOT, algorithm=algorithm)
        np.testing.assert_array_equal(array.get(), expected)
    array, part = fake.array(whole), fake.array(np.zeros(count, "i4"))
    if RANK == ROOT:
        ours.Scatter(array, MPI.IN_PLACE, ROOT, algorithm=algorithm)
    else:
        ours.Scatter(None, part, ROOT, algorithm=algorithm)
        mine = np.arange(count * P, dtype="i4")[RANK * count : (RANK + 1) * count] * (ROOT + 1)
        np.testing.assert_array_equal(part.get(), mine)
    np.testing.assert_array_equal(array.get(), whole)


@pytest.mark.parametrize("dtype", ["f2", "c8", "bfloat16", "?", "u1"])
def test_bits_are_those_of_the_host(fake, ours, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    random = np.random.default_rng(RANK)
    op = MPI.LOR if dtype == "?" else MPI.SUM
    for count in (7, 5000):
        values = (10 * random.standard_normal(count)).astype(dtype)
        host, array = values.copy(), fake.array(values)
        ours.Allreduce(MPI.IN_PLACE, host, op, algorithm="parameter_server")
        ours.Allreduce(MPI.IN_PLACE, array, op, algorithm="parameter_server")
        assert array.get().tobytes() == host.tobytes()


def test_exact_sums_and_operators_of_a_program(fake, ours):
    values = np.random.default_rng(RANK).standard_normal(2000)
    exact, array = values.copy(), fake.array(values)
    ours.Allreduce(MPI.IN_PLACE, exact, reproducible=True)
    ours.Allreduce(MPI.IN_PLACE, array, reproducible=True)
    np.testing.assert_array_equal(array.get(), exact)

    def larger(left, right, datatype):
        right = np.frombuffer(right, "f8")
        np.maximum(np.frombuffer(left, "f8"), right, out=right)

    op = MPI.Op.Create(larger, commute=True)
    array = fake.array(values)
    ours.Allreduce(MPI.IN_PLACE, array, op)
    op.Free()
    expected = values.copy()
    WORLD.Allreduce(MPI.IN_PLACE, expected, MPI.MAX)
    np.testing.assert_array_equal(array.get(), expected)


def test_lists_of_arrays(fake, ours):
    values = [np.full(n, RANK + n, "f4") for n in (3, 700, 1)]
    arrays = [fake.array(v) for v in values]
    ours.Allreduce(MPI.IN_PLACE, arrays)
    for array, one in zip(arrays, values, strict=True):
        expected = one.copy()
        WORLD.Allreduce(MPI.IN_PLACE, expected)
        np.testing.assert_array_equal(array.get(), expected)


@pytest.mark.parametrize("count", [10, 3000])
def test_order_on_the_callers_stream(fake, ours, count):
    """What the caller puts on the stream before is seen, and what it puts there later sees."""
    array = fake.array(np.zeros(count, "i4"), stream=5)
    later = fake.array(np.zeros(count, "i4"), stream=5)
    for step in range(3):
        array.set(np.full(count, step + RANK, "i4"))
        ours.Allreduce(MPI.IN_PLACE, array)
        with fake.on(0):
            fake.copy(later.ptr, array.ptr, 4 * count, 5)
        array.set(np.full(count, -1, "i4"))
        assert {*later.get()} == {P * step + P * (P - 1) // 2}
    array.set(np.ones(count, "i4"))
    fake.synchronize(5)
    ours.Allreduce(MPI.IN_PLACE, array, stream=6)
    fake.synchronize(6)
    assert {*array.get()} == {P}


def test_slots_are_not_filled_again_too_early(fake, ours):
    """What a call has left in them may still be on its way to another stream's array."""
    for device, in_place, method in product((0, 1), (True, False), ("Allreduce", "Reduce")):
        first = fake.array(np.full(3000, RANK, "i4"), device=device, stream=5)
        given = fake.array(np.full(3000, RANK, "i4"), device=device, stream=5)
        send = fake.array(np.full(3000, 1000, "i4"), stream=6)
        recv = fake.array(np.zeros(3000, "i4"), stream=6)
        gets = method == "Allreduce" or RANK == 0
        ours.Allreduce(MPI.IN_PLACE if in_place else given, first)
        getattr(ours, method)(send, recv if gets else None)
        assert {*first.get()} == {P * (P - 1) // 2}
        assert {*recv.get()} == {1000 * P if gets else 0}


def test_memory_that_cannot_be_pinned_is_tried_once(fake, ours, monkeypatch):
    tried = []

    def register(address, nbytes):
        tried.append(nbytes)
        if RANK == P - 1:
            raise CudaError("out of memory")
        fake.registered[address] = nbytes

    monkeypatch.setattr(fake, "register", register)
    array = fake.array(np.full(3000, RANK, "i4"))
    for _ in range(2):
        with pytest.raises(MemoryError, match=rf"rank {P - 1} cannot pin 24576 bytes .*: out "):
            ours.Allgather(array, fake.array(np.zeros(3000 * P, "i4")))
    assert tried == [24576] and not fake.registered  # what the others have pinned is let go
    few = fake.array(np.full(5, RANK, "i4"))
    ours.Allreduce(MPI.IN_PLACE, few)  # of one segment
    assert {*few.get()} == {P * (P - 1) // 2}


def test_two_devices_in_one_call(fake, ours):
    for count in (10, 3000):
        send, recv = fake.array(np.full(count, RANK), device=1), fake.array(np.zeros(count, "i8"))
        ours.Allreduce(send, recv)
        assert {*recv.get()} == {P * (P - 1) // 2}


def test_what_is_counted(fake, ours, events):
    array = fake.array(np.zeros(3000, "f4"))
    ours.Allreduce(MPI.IN_PLACE, array, algorithm="ring")
    ours.Allreduce(MPI.IN_PLACE, array, algorithm="native")
    ours.Iallreduce(MPI.IN_PLACE, array, algorithm="native").Wait()
    assert ours.stats().calls == {("allreduce", "ring"): 1, ("allreduce", "native"): 2}
    assert [event.nbytes for event in events] == [12000] * 3


# --- messages -------------------------------------------------------------------------------------


def test_messages(fake, ours):
    right, left = (RANK + 1) % P, (RANK - 1) % P
    values = np.arange(6, dtype="f4") + 10 * RANK
    expected = np.append(np.arange(6, dtype="f4") + 10 * left, [-1, -1])

    def room():
        return fake.array(np.full(8, -1, "f4"))

    def arrived(array, status):
        np.testing.assert_array_equal(array.get(), expected)
        assert (status.Get_source(), status.Get_count(MPI.FLOAT)) == (left, 6)

    array, status = fake.array(values), MPI.Status()
    wanted = room()
    request = ours.Isend(array, right, 3)
    ours.Recv(wanted, left, 3, status)
    request.Wait()
    arrived(wanted, status)
    wanted = room()
    request = ours.Irecv(wanted, left)
    ours.Send([array, 6, MPI.FLOAT], right)
    mpicoll.Request.Waitall([request], [status])
    arrived(wanted, status)
    assert request.Test()
    wanted = room()
    ours.Sendrecv(array, right, 1, wanted, left, 1, status)
    arrived(wanted, status)
    wanted = room()
    plans = [ours.Send_init(array, right), ours.Recv_init(wanted, left)]
    for _ in range(2):
        mpicoll.Prequest.Startall(plans)
        with pytest.raises(RuntimeError, match="under way"):
            plans[1].Start()
        plans[0].Wait()
        plans[1].Wait(status)
        arrived(wanted, status)
    for plan in plans:
        plan.Free()


def test_messages_meet_those_of_the_host_and_of_other_objects(fake, ours):
    right, left = (RANK + 1) % P, (RANK - 1) % P
    plain, host = MPI.Intracomm(ours), np.zeros(3)
    request = ours.Isend(fake.array(np.full(3, float(RANK))), right)
    plain.Recv(host, left)
    request.Wait()
    np.testing.assert_array_equal(host, left)
    request = plain.Isend(np.full(3, float(RANK)), right)
    array = fake.array(np.zeros(3))
    ours.Recv(array, left)
    request.Wait()
    np.testing.assert_array_equal(array.get(), left)
    ours.Send(fake.array(np.zeros(3)), MPI.PROC_NULL)
    ours.Recv(array, MPI.PROC_NULL)
    np.testing.assert_array_equal(array.get(), left)


def test_the_librarys_waitall_refuses_what_it_cannot_complete(fake, ours):
    request = ours.Irecv(fake.array(np.zeros(1)), RANK)
    with pytest.raises(TypeError):
        MPI.Request.Waitall([request])
    ours.Send(np.zeros(1), RANK)
    request.Wait()


@pytest.mark.parametrize("method", REDUCING)
@pytest.mark.parametrize("way", [*WAYS[1:], "limited"])
def test_a_cuda_aware_library_reduces_on_the_device_only_where_it_blocks(
    fake, monkeypatch, way, method
):
    """Open MPI's requests would look at the device's memory from the host, and the process die."""
    monkeypatch.setattr(group.libraries, "cuda_aware", lambda: True)
    monkeypatch.setenv("MPICOLL_GPU", "aware")
    if way == "limited":
        monkeypatch.setenv("MPICOLL_TIMEOUT", "60")
    comm = mpicoll.Intracomm(WORLD.Dup())
    assert comm.gpu_transport() == "aware (MPICOLL_GPU=aware asks for it)"
    sent, received = shapes(method, 5)
    send = None if sent is None else np.arange(sent, dtype="i4") + RANK
    recv = None if received is None else np.full(received, 7, "i4")
    given, wanted = (None if a is None else fake.array(a) for a in (send, recv))
    arguments = on_host(method, send, recv, method in ROOTED)
    run(comm, "blocking" if way == "limited" else way, method, given, wanted, *arguments)
    if recv is not None and not (method == "Exscan" and RANK == 0):
        np.testing.assert_array_equal(wanted.get(), recv)
    total = fake.array(np.zeros(2, "i4"))
    run(
        comm, WAYS[0], "Reduce_scatter", fake.array(np.ones(2 * P, "i4")), total, algorithm="native"
    )
    np.testing.assert_array_equal(total.get(), [P, P])
    comm.Free()


def test_between_groups_a_cuda_aware_library_reduces_on_the_device_only_where_it_blocks(
    fake, monkeypatch
):
    if P == 1:
        pytest.skip("one group")
    monkeypatch.setattr(refusing, "library_takes", lambda: True)
    half = WORLD.Split(RANK % 2)
    between = mpicoll.Intercomm(half.Create_intercomm(0, WORLD, 1 - RANK % 2))
    array = fake.array(np.zeros(2))
    for name in ("Iallreduce", "Ireduce_scatter_block"):
        with pytest.raises(BufferError, match=f"{name} of an intercommunicator: a buffer in dev"):
            getattr(between, name)(array, array)
    between.Free()
    half.Free()


def test_what_nothing_serves_does_not_reach_the_library(fake, ours):
    """A user's operator on a derived datatype."""
    pair = MPI.DOUBLE.Create_contiguous(2).Commit()
    op = MPI.Op.Create(lambda invec, inoutvec, datatype: None)
    for name in ("Allreduce", "Iallreduce", "Allreduce_init"):
        with pytest.raises(BufferError, match="Allreduce of an array in device memory: "):
            getattr(ours, name)(MPI.IN_PLACE, [fake.array(np.zeros(4)), 2, pair], op)
    op.Free()
    pair.Free()
