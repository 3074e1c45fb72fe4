"""Which calls go to the GPUs' own collectives, with which arguments, and what they cost others.

In the place of mpicoll.cuda.ipc is what does the same by the MPI library.
"""

import sys
import types

import numpy as np
import pytest
from fake_cuda import FakeArray, FakeCupy, in_its_place
from mpi4py import MPI

import mpicoll
from mpicoll.errors import Unordered
from mpicoll.schedule.methods import VARIANTS

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
ROOT = P - 1


class Peers:
    """See mpicoll.cuda.ipc.Peers."""

    def __init__(self, private, device, fake):
        self.private, self.device, self.fake = private, device, fake
        self.ran, self.learned, self.failure, self.closed = [], [], None, False

    def supports(self, collective, op, dtype, nbytes):
        return collective not in ("scan", "exscan") and op in (None, "sum") and nbytes > 0

    def check(self):
        if self.failure is not None:
            raise self.failure

    def run(self, collective, send, recv, op, root, stream):
        self.check()
        self.ran.append((collective, op, root, stream))
        for array in (send, recv):
            assert array is None or array.device == self.device
        self.fake._put(stream, lambda: self._run(collective, send, recv, op, root))
        self.fake.synchronize(stream)  # all ranks run it now, so that it cannot hang

    def _run(self, collective, send, recv, op, root):
        def memory(array):
            if array is None or not array.nbytes:
                return None
            view = self.fake.find(array.ptr, array.nbytes)[0]
            return view if op is None else view.view(array.dtype)

        send, recv = memory(send), memory(recv)
        if collective == "bcast":
            assert send is None
            self.private.Bcast(recv, root)
            return
        arguments = [] if op is None else [MPI.SUM]
        if collective in ("reduce", "gather", "scatter"):
            arguments.append(root)
            if send is None and recv is not None and collective != "scatter":
                send = MPI.IN_PLACE
            if collective == "scatter" and recv is None:
                recv = MPI.IN_PLACE
        elif send is None:
            send = MPI.IN_PLACE
        getattr(self.private, VARIANTS[collective].name)(send, recv, *arguments)

    def learn(self, *call):
        *known, self.element = call
        self.learned.append(tuple(known))

    def serve(self, collective, sendbuf, recvbuf, op, root):
        self.check()
        if not any(
            self._same(call, (collective, sendbuf, recvbuf, op, root)) for call in self.learned
        ):
            return False
        self.ran.append("short")
        return True

    def _same(self, call, other):
        return all(a is b or a == b for a, b in zip(call, other, strict=True))

    def bind(self, collective, send, recv, op, root):
        outer = self

        class Bound:
            def start(self, stream):
                outer.run(collective, send, recv, op, root, stream)

            def close(self):
                outer.ran.append("closed")

        return Bound()

    def close(self):
        self.closed = True


@pytest.fixture
def fake():
    with in_its_place() as made:
        yield made


@pytest.fixture
def ours(fake, monkeypatch):
    def open_(private, device, seconds):
        return Peers(private, device, fake), ""

    def current(device):
        return types.SimpleNamespace(ptr=0)

    ipc = types.SimpleNamespace(Peers=types.SimpleNamespace(open=open_))
    cuda = types.SimpleNamespace(get_current_stream=current)
    monkeypatch.setitem(sys.modules, "mpicoll.cuda.ipc", ipc)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(ndarray=FakeArray, cuda=cuda))
    comm = mpicoll.Intracomm(WORLD.Dup())
    yield comm
    peers = comm._state.gpus.peers
    comm.Free()
    assert peers.closed


def test_every_collective(fake, ours):
    peers = ours._state.gpus.peers
    assert ours.gpu_transport() == "cuda_ipc"
    one, all_ = np.full(3, RANK + 1, "f4"), np.arange(3 * P, dtype="f4") + RANK
    for method, send, length in (
        ("Allreduce", all_, 3 * P),
        ("Reduce_scatter_block", all_, 3),
        ("Allgather", one, 3 * P),
        ("Alltoall", all_, 3 * P),
    ):
        expected, array = np.zeros(length, "f4"), fake.array(np.zeros(length, "f4"))
        getattr(WORLD, method)(send, expected)
        getattr(ours, method)(fake.array(send), array)
        np.testing.assert_array_equal(array.get(), expected)
    for method, send, length in (("Reduce", all_, 3 * P), ("Gather", one, 3 * P)):
        expected, array = np.zeros(length, "f4"), fake.array(np.zeros(length, "f4"))
        at_root = RANK == ROOT
        getattr(WORLD, method)(send, expected if at_root else None, root=ROOT)
        getattr(ours, method)(fake.array(send), array if at_root else None, root=ROOT)
        np.testing.assert_array_equal(array.get(), expected)
    expected, array = np.zeros(3, "f4"), fake.array(np.zeros(3, "f4"))
    WORLD.Scatter(all_ if at_root else None, expected, ROOT)
    ours.Scatter(fake.array(all_) if at_root else None, array, ROOT)
    np.testing.assert_array_equal(array.get(), expected)
    array = fake.array(one)
    ours.Bcast(array, ROOT)
    assert {*array.get()} == {ROOT + 1}
    for method in ("Allreduce", "Allgather", "Alltoall", "Reduce_scatter_block"):
        expected, array = all_.copy(), fake.array(all_)
        getattr(WORLD, method)(MPI.IN_PLACE, expected)
        getattr(ours, method)(MPI.IN_PLACE, array)
        defined = slice(3 if method.startswith("Reduce_") else None)
        np.testing.assert_array_equal(array.get()[defined], expected[defined])
    assert len(peers.ran) == 12 and {call[3] for call in peers.ran} == {0}
    assert {name for _, name in ours.stats().calls} == {"cuda_ipc"}


def test_what_they_do_not_serve_goes_through_the_host(fake, ours):
    array = fake.array(np.full(4, 2.0))
    ours.Allreduce(MPI.IN_PLACE, array, MPI.PROD)
    ours.Allreduce(MPI.IN_PLACE, array, algorithm="ring")
    ours.Scan(MPI.IN_PLACE, array)
    ours.Allgatherv(fake.array(np.zeros(1)), [fake.array(np.zeros(P)), [1] * P])
    ours.Allreduce(MPI.IN_PLACE, fake.array(np.zeros(0)))
    host = np.ones(2)
    ours.Allreduce(MPI.IN_PLACE, host)
    assert ours._state.gpus.peers.ran == []
    assert {*array.get()} == {2.0**P * P * (RANK + 1)}


def test_a_call_is_learned_and_goes_the_fast_path(fake, ours):
    peers = ours._state.gpus.peers
    array = fake.array(np.ones(4, "f4"))
    ours.Allreduce(MPI.IN_PLACE, array)
    if ours._state.fast_path.path is None:
        pytest.skip("no compiled engine")
    assert peers.learned == [("allreduce", MPI.IN_PLACE, array, MPI.SUM, 0)]
    assert peers.element == np.dtype("f4")
    ours.Allreduce(MPI.IN_PLACE, array)
    assert peers.ran[1:] == ["short"]
    assert ours.stats().calls == {("allreduce", "cuda_ipc"): 2}
    ours.Allreduce(MPI.IN_PLACE, [array, 4], stream=9)
    ours.Allreduce(MPI.IN_PLACE, array, algorithm="ring")
    assert len(peers.learned) == 1 and len(peers.ran) == 3


def test_a_call_that_cannot_be_ordered_leaves_all_as_it_was(fake, ours, monkeypatch):
    peers, array = ours._state.gpus.peers, fake.array(np.ones(4, "f4"))

    def run(*call):
        raise Unordered("a stream is being captured")

    with monkeypatch.context() as place:
        place.setattr(peers, "run", run)
        for call in (ours.Allreduce, ours.Iallreduce):
            with pytest.raises(Unordered):
                call(MPI.IN_PLACE, array)
    ours.Allreduce(MPI.IN_PLACE, array)
    assert {*array.get()} == {P}


def test_what_is_not_blocking(fake, ours):
    array = fake.array(np.ones(4, "f4"))
    request = ours.Iallreduce(MPI.IN_PLACE, array)
    assert request.pending
    mpicoll.Request.Waitall([request])
    assert not request and {*array.get()} == {P}
    plan = ours.Allreduce_init(MPI.IN_PLACE, array)
    for _ in range(2):
        plan.Start()
        with pytest.raises(RuntimeError, match="under way"):
            plan.Start()
        with pytest.raises(RuntimeError, match="under way"):
            plan.Free()
        plan.Wait()
    plan.Free()
    assert {*array.get()} == {P**3}
    assert ours._state.gpus.peers.ran[-1] == "closed"
    assert ours.stats().calls == {("allreduce", "cuda_ipc"): 3}


def test_nobody_waits_for_what_a_graph_is_made_of(fake, ours):
    array = fake.array(np.ones(4, "f4"), stream=7)
    plan = ours.Allreduce_init(MPI.IN_PLACE, array)
    fake.captured.add(7)
    ours.Iallreduce(MPI.IN_PLACE, array).Wait()  # with no event there
    plan.Start()
    assert plan.Test()
    fake.captured.clear()
    plan.Start()
    plan.Wait()
    plan.Free()


def test_requests_outlive_their_communicator(fake, ours):
    array = fake.array(np.ones(4, "f4"))
    comm = mpicoll.Intracomm(WORLD.Dup())
    request = comm.Iallreduce(MPI.IN_PLACE, array)
    plan = comm.Allreduce_init(MPI.IN_PLACE, array)
    plan.Start()
    peers = comm._state.gpus.peers
    comm.Free()
    assert peers.closed
    request.Wait()
    plan.Wait()
    ran = len(peers.ran)
    with pytest.raises(ValueError, match="has been freed"):
        plan.Start()
    assert len(peers.ran) == ran and not plan.pending
    plan.Free()
    comm = mpicoll.Intracomm(WORLD.Dup())
    request = comm.Iallreduce(MPI.IN_PLACE, array)
    peers = comm._state.gpus.peers
    comm.Free()
    peers.failure = RuntimeError("rank 1 has not come")  # found out at the end
    with pytest.raises(RuntimeError, match="rank 1 has not come"):
        request.Wait()


def test_an_array_of_another_device_visits(fake, ours):
    away = fake.array(np.full(5, RANK + 1, "i4"), device=1, stream=7)
    before = len(fake.memory)
    ours.Allreduce(MPI.IN_PLACE, away)
    fake.synchronize(7)
    assert {*away.get()} == {P * (P + 1) // 2}
    fake.synchronize(ours._state.gpus.peers.ran[-1][3])
    assert len(fake.memory) == before  # nothing is left there
    here = fake.array(np.zeros(5, "i4"))
    ours.Allreduce(away, here)
    fake.synchronize(1)
    assert {*here.get()} == {P * P * (P + 1) // 2}


@pytest.mark.parametrize(("device", "stream"), [(1, None), (0, 9), (1, 9)])
def test_persistent_calls_of_another_device_or_stream(fake, ours, device, stream):
    peers, array = ours._state.gpus.peers, fake.array(np.zeros(5, "i4"), device, stream or 0)
    held = len(fake.memory)
    named = {} if stream is None else {"stream": stream}
    plan = ours.Allreduce_init(MPI.IN_PLACE, array, **named)
    for step in range(2):
        array.set(np.full(5, RANK + step))
        plan.Start()
        assert device or peers.ran[-1][3] == stream
        assert {*array.get()} == {P * (P - 1) // 2 + step * P}
        plan.Wait()
    fake.synchronize(peers.ran[-1][3])
    assert len(fake.memory) == held  # no copy is left
    plan.Free()


def test_arrays_on_two_streams(fake, ours):
    """As those of two libraries: both are in the order of their own."""
    send, recv = fake.array(np.zeros(3, "i4"), stream=5), fake.array(np.zeros(3, "i4"), stream=6)
    for blocking in (True, False):
        send.set(np.full(3, RANK))
        recv.set(np.full(3, -1))
        if blocking:
            ours.Allreduce(send, recv)
            assert len(fake.streams[5]) == 1  # what comes there waits for the call
        else:
            ours.Iallreduce(send, recv).Wait()
        assert ours._state.gpus.peers.ran[-1][3] == 6
        send.set(np.full(3, 100))
        assert {*recv.get()} == {P * (P - 1) // 2}
        assert {*send.get()} == {100}


# --- what is packed -------------------------------------------------------------------------------

EVEN = np.s_[::2]


@pytest.fixture
def cupy(fake, ours, monkeypatch):
    """What packs, once the communicator is built."""
    made = FakeCupy(fake)
    monkeypatch.setitem(sys.modules, "cupy", made)
    return made


@pytest.mark.parametrize("device", [0, 1])
def test_strided_arrays(fake, ours, cupy, device):
    peers = ours._state.gpus.peers
    array = fake.array(np.zeros(10, "i4"), device, stream=7)
    view = cupy.view(array, EVEN)
    view.stream = 7
    held = len(fake.memory)
    plan = ours.Allreduce_init(MPI.IN_PLACE, view)
    for step, more in enumerate([{}, {"stream": 9}, {}, {}]):
        array.set(np.arange(10) + RANK)
        fake.synchronize(7)
        ran = len(peers.ran)
        if step < 2:
            ours.Allreduce(MPI.IN_PLACE, view, **more)
        elif step == 2:
            ours.Iallreduce(MPI.IN_PLACE, view).Wait()
        else:
            plan.Start()
            plan.Wait()
        assert len(peers.ran) == ran + 1 and not peers.learned
        assert device or peers.ran[-1][3] == more.get("stream", 7 if step < 3 else 0)
        fake.synchronize(more.get("stream", 7))
        found = array.get()
        np.testing.assert_array_equal(found[::2], P * np.arange(0, 10, 2) + P * (P - 1) // 2)
        np.testing.assert_array_equal(found[1::2], np.arange(1, 10, 2) + RANK)
    plan.Free()
    del plan
    for stream in [*fake.streams]:
        fake.synchronize(stream)
    assert len(fake.memory) == held  # what was packed is given back
    assert ours.stats().calls == {("allreduce", "cuda_ipc"): 4}


def test_what_is_packed_is_complete_when_its_request_is(fake, ours, cupy):
    """Also where it is not on the group's device."""
    for device in (0, 1):
        array = fake.array(np.full(10, RANK, "i4"), device, stream=7)
        view = cupy.view(array, EVEN)
        view.stream = 7
        request = ours.Iallreduce(MPI.IN_PLACE, view)
        request.Wait()
        ((memory, _),) = [found for base, found in fake.memory.items() if base == array.ptr]
        assert {*memory.view("i4")[::2]} == {P * (P - 1) // 2}


def test_a_vector_is_packed(fake, ours, cupy):
    values = np.arange(12, dtype="f4").reshape(4, 3)
    column = MPI.FLOAT.Create_vector(4, 1, 3).Commit()
    array = fake.array(values if RANK == ROOT else np.zeros_like(values))
    ours.Bcast([array, 1, column], ROOT)
    np.testing.assert_array_equal(array.get()[:, 0], values[:, 0])
    assert ours.stats().calls == {("bcast", "cuda_ipc"): 1}
    column.Free()


def test_a_graph_does_not_hold_what_is_packed(fake, ours, cupy):
    view = cupy.view(fake.array(np.zeros(10)), EVEN)
    plan = ours.Allreduce_init(MPI.IN_PLACE, view)
    fake.captured.add(7)
    for call in (ours.Allreduce, ours.Iallreduce, ours.Allreduce_init):
        with pytest.raises(BufferError, match=r"captured for a graph.*contiguous copy"):
            call(MPI.IN_PLACE, view, stream=7)
    plan.Free()


def test_arrays_whose_library_knows_no_stream_have_been_read(fake, ours, monkeypatch):
    """JAX uses the memory again when the array is gone, in an order of its own."""

    class Array:
        def __init__(self, held):
            self.__cuda_array_interface__ = {
                **held.__cuda_array_interface__, "stream": None, "data": (held.ptr, True),
            }  # fmt: skip

        def block_until_ready(self):
            pass

    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(Array=Array))
    held, recv = fake.array(np.full(3, RANK, "i4")), fake.array(np.zeros(3, "i4"), stream=5)
    ours.Allreduce(Array(held), recv)
    assert not fake.streams[0]
    assert {*recv.get()} == {P * (P - 1) // 2}
    with pytest.raises(BufferError, match="receive buffer: a Array that is read-only in device"):
        ours.Allreduce(recv, Array(held))
    ours.Bcast(Array(held) if RANK == 0 else recv)
    assert {*recv.get()} == {0 if RANK else P * (P - 1) // 2}


@pytest.mark.parametrize("where", ["long", "short", "request"])
def test_a_failure_ends_the_communicator(fake, ours, where):
    peers, array = ours._state.gpus.peers, fake.array(np.ones(4, "f4"))
    ours.Allreduce(MPI.IN_PLACE, array)
    request = ours.Iallreduce(MPI.IN_PLACE, array)
    WORLD.Barrier()
    peers.failure = RuntimeError("rank 1 has not come")
    call = {
        "long": lambda: ours.Allreduce(MPI.IN_PLACE, [array, 4]),
        "short": lambda: ours.Allreduce(MPI.IN_PLACE, array),
        "request": request.Wait,
    }[where]
    with pytest.raises(RuntimeError, match="rank 1 has not come"):
        call()
    with pytest.raises(RuntimeError, match=r"cannot be used any more.*rank 1 has not come"):
        ours.Barrier()
    peers.closed = True  # after a failure nothing is given back
