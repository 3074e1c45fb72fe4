"""What is an array in device memory, and how it gets to the host and back, without a GPU."""

import contextlib
import sys
import types

import numpy as np
import pytest
from exporting import Producer
from fake_cuda import FakeArray, FakeDriver, in_its_place
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from mpicoll import buffers, errors
from mpicoll.base import caller
from mpicoll.buffers import parsing
from mpicoll.comm import messages
from mpicoll.comm.device import handle_of
from mpicoll.cuda import driver, group, ipc, pinned, streams, windows
from mpicoll.cuda.arrays import is_device, recognise
from mpicoll.errors import MemoryGone, TransportWarning
from mpicoll.requests.device import Enqueued
from mpicoll.runtime import relay, staging
from mpicoll.runtime.arguments import parse, place_of
from mpicoll.schedule.methods import METHODS


@pytest.fixture
def fake():
    with in_its_place() as made:
        yield made


# --- recognising ----------------------------------------------------------------------------------


def test_an_array_tells_all_of_itself(fake):
    array = fake.array(np.arange(6, dtype="f4").reshape(2, 3), device=1, stream=7)
    found = recognise(array)
    assert (found.ptr, found.nbytes, found.dtype, found.itemsize) == (array.ptr, 24, "f4", 4)
    assert (found.shape, found.strides, found.writable) == ((2, 3), (12, 4), True)
    assert buffers.parse(array).order == "C"
    assert (found.device, found.stream, found.owner) == (1, 7, array)
    assert found.addresses.ctypes.data == array.ptr
    assert found.addresses.size == 24


def test_host_memory_is_none(fake):
    for owner in (
        np.zeros(3),
        np.zeros((2, 2)).T,
        b"abc",
        bytearray(3),
        [1, 2],
        None,
        3,
        MPI.IN_PLACE,
    ):
        assert not is_device(owner)
        assert recognise(owner) is None


def test_a_message_is_on_the_device_if_its_owner_is(fake):
    array = fake.array(np.zeros(3))
    assert is_device([array, 3]) and is_device((array, (1, 1), MPI.DOUBLE))
    assert not is_device([np.zeros(3), 3]) and not is_device([])


@pytest.mark.parametrize(
    ("shape", "strides", "order"),
    [
        ((4,), None, ""),
        ((4,), (8,), ""),
        ((2, 3), None, "C"),
        ((2, 3), (24, 8), "C"),
        ((2, 3), (8, 16), "F"),
        ((1, 3), (999, 8), ""),
        ((2, 1, 3), (24, 8, 8), "C"),
        ((0, 3), (7, 7), ""),
        ((), None, ""),
        ((), (), ""),
    ],
)
def test_orders(fake, shape, strides, order):
    array = fake.array(np.zeros(shape))
    data = array.__cuda_array_interface__["data"]
    found = buffers.parse(Interface(shape=shape, strides=strides, typestr="<f8", data=data))
    assert (found.order, found.packed) == (order, None)


@pytest.mark.parametrize(
    ("shape", "strides"), [((4,), (16,)), ((2, 3), (48, 8)), ((3,), (-8,)), ((2, 2), (0, 8))]
)
def test_without_cupy_what_is_not_contiguous_is_refused_with_the_remedy(
    fake, monkeypatch, shape, strides
):
    monkeypatch.setitem(sys.modules, "cupy", None)
    array = fake.array(np.zeros(99))
    strided = Interface(shape=shape, strides=strides, typestr="<f8", data=(array.ptr + 160, False))
    with pytest.raises(BufferError, match=r"send buffer: not contiguous.*CuPy.*install it"):
        buffers.parse(strided, what="send buffer")
    assert recognise(strided).strides == strides
    column = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
    with pytest.raises(BufferError, match=r"of a derived datatype, and CuPy.* a contiguous copy"):
        call("Bcast", None, [array, 1, column])
    column.Free()


class Interface:
    def __init__(self, **changes):
        self.__cuda_array_interface__ = {
            "shape": (4,), "typestr": "<f4", "data": (0, False), "version": 2, **changes,
        }  # fmt: skip


def test_odd_interfaces(fake):
    array = fake.array(np.zeros(4, "f4"))
    with pytest.raises(BufferError, match="masked"):
        recognise(Interface(mask=array))
    with pytest.raises(BufferError, match="no CUDA device; has it been freed"):
        recognise(Interface(data=(12345, False)))
    broken = Interface()
    del broken.__cuda_array_interface__["typestr"]
    with pytest.raises(BufferError, match=r"does not tell where it is \(KeyError: 'typestr'\)"):
        recognise(broken)
    assert recognise(Interface(data=(array.ptr, True))).writable is False
    assert recognise(Interface(data=(array.ptr, False))).stream == 0
    empty = recognise(Interface(shape=(0,)))
    assert empty.nbytes == 0 and empty.addresses.size == 0
    with pytest.raises(BufferError, match="a Interface that is read-only in device memory"):
        buffers.parse(Interface(data=(array.ptr, True)), writable=True)


def test_types_that_numpy_has_no_letter_for(fake):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = fake.array(np.zeros(4, ml_dtypes.bfloat16))
    assert recognise(array).dtype.name == "bfloat16"
    tensor = Interface(typestr="<V2", data=(array.ptr, False))
    tensor.dtype = "torch.bfloat16"
    assert recognise(tensor).dtype.name == "bfloat16"
    with pytest.raises(TypeError, match="no MPI datatype"):
        buffers.parse(fake.array(np.zeros(2, [("a", "f4"), ("b", "f4")])))


def test_pytorch_says_its_stream(fake, monkeypatch):
    class Tensor(Interface):
        pass

    def current_stream(device):
        return types.SimpleNamespace(cuda_stream=100 + device)

    torch = types.SimpleNamespace(
        Tensor=Tensor, cuda=types.SimpleNamespace(current_stream=current_stream)
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    array = fake.array(np.zeros(4, "f4"), device=1)
    assert recognise(Tensor(data=(array.ptr, False))).stream == 101


class Raising(Producer):
    """Has an array interface that raises, and DLPack."""

    error: Exception = KeyError("bfloat16")  # as PyTorch, which has no name for the type

    @property
    def __cuda_array_interface__(self):
        raise self.error


def exporter(array, kind=Producer, **more):
    """A producer of DLPack of an array on device 1."""
    return kind(array, array.ptr, (2, 1), **more)


def test_an_interface_that_raises_is_no_answer_where_there_is_dlpack(fake):
    array = fake.array(np.zeros((2, 3), "f4"), device=1)
    tensor = exporter(array, Raising)
    for error in (KeyError("bfloat16"), RuntimeError("it has no name here")):
        tensor.error = error
        assert recognise(tensor).shape == (2, 3)
    tensor.requires_grad = True
    with pytest.raises(BufferError, match=r"send buffer: a tensor .* gradient; .*detach\(\)"):
        buffers.parse(tensor, what="send buffer")

    class Alone:
        __cuda_array_interface__ = property(Raising.__cuda_array_interface__.fget)
        error = RuntimeError("it is lost")

        def __dlpack_device__(self):
            return 2, 0

    with pytest.raises(BufferError, match=r"does not tell where it is \(RuntimeError: it is lost"):
        recognise(Alone())


@pytest.mark.parametrize("version", [(0, 8), (1, 0)])
def test_dlpack(fake, version):
    array = fake.array(np.zeros((2, 3), "f4"), device=1)
    producer = exporter(array, version=version)
    found = recognise(producer)
    assert (found.ptr, found.nbytes, found.dtype, found.device) == (array.ptr, 24, "f4", 1)
    assert (found.shape, found.strides, producer.freed) == ((2, 3), (12, 4), 0)
    assert producer.asked[0]["stream"] == -1  # nothing is to be ordered
    addresses = found.addresses
    del found
    assert producer.freed == 0
    del addresses
    assert (producer.freed, producer.deleted) == (1, 0)
    assert recognise(exporter(array, byte_offset=8)).ptr == array.ptr + 8
    assert recognise(exporter(array, code=1)).dtype == np.uint32
    unknown = buffers.parse(exporter(array, code=17))
    assert (unknown.datatype, unknown.dtype, unknown.length) == (None, None, 6)
    assert not is_device(Producer(np.zeros(1)))


# --- arrays that nobody may write -----------------------------------------------------------------


@pytest.fixture
def jax(monkeypatch):
    """JAX, of whose arrays on a GPU the buffer protocol raises an error of JAX's own."""

    class JaxRuntimeError(RuntimeError):
        pass

    class Array(Interface):
        waited = 0

        def block_until_ready(self):
            self.waited += 1

    def view(owner):
        if isinstance(owner, Array):
            raise JaxRuntimeError("Python buffer protocol is only defined for CPU buffers.")
        return memoryview(owner)

    made = types.SimpleNamespace(Array=Array)
    monkeypatch.setitem(sys.modules, "jax", made)
    monkeypatch.setattr(parsing, "memoryview", view, raising=False)
    return made


def test_arrays_of_jax_are_sent_once_they_are_there(fake, jax):
    array = fake.array(np.arange(4, dtype="f4"))
    owner = jax.Array(data=(array.ptr, False))
    found = buffers.parse(owner, what="send buffer")
    assert (found.device.ptr, found.length, found.dtype) == (array.ptr, 4, "f4")
    assert owner.waited == 1
    assert not found.device.ordered
    assert recognise(array).ordered
    with pytest.raises(BufferError, match="receive buffer: a Array that is read-only in device"):
        buffers.parse(owner, what="receive buffer", writable=True)


def test_an_error_of_the_buffer_protocol_is_said_where_nothing_else_answers(jax):
    class Lost(jax.Array):
        def __init__(self):
            pass

    with pytest.raises(TypeError, match="only defined for CPU buffers"):
        buffers.parse(Lost())


def test_what_jax_exports_from_the_host_is_not_written(jax):
    class OnHost(Producer, jax.Array):
        pass

    held = OnHost(np.zeros(3))
    assert buffers.parse(held).length == 3
    with pytest.raises(BufferError, match="read-only"):
        buffers.parse(held, writable=True)


# --- parsing --------------------------------------------------------------------------------------


def test_a_message_names_a_part(fake):
    array = fake.array(np.arange(12, dtype="f8"))
    found = buffers.parse([array, (2, 3), MPI.DOUBLE], blocks=2)
    assert (found.memory.ctypes.data, found.memory.size) == (array.ptr + 24, 32)
    assert found.device.owner is array
    host = found.on_host()
    host.packed.load()
    assert host.device is None
    np.testing.assert_array_equal(host.memory.view("f8"), [3, 4, 5, 6])
    host.memory.view("f8")[:] = 7
    host.packed.write_back(16)
    np.testing.assert_array_equal(array.get(), [0, 1, 2, 7, 7, 5, 6, 7, 8, 9, 10, 11])


def call(method, send, recv, size=2, op=MPI.SUM):
    definition = METHODS[method].definition
    return parse(definition, place_of(definition, 0, size, 0), send, recv, op)


def test_both_buffers_in_one_kind_of_memory(fake):
    array, host = fake.array(np.zeros(4)), np.zeros(4)
    with pytest.raises(TypeError, match="send buffer in device memory but receive buffer in host"):
        call("Allreduce", array, host)
    with pytest.raises(TypeError, match="send buffer in host memory but receive buffer in device"):
        call("Allreduce", host, array)
    assert call("Allreduce", fake.array(np.zeros(0)), np.zeros(0)).on_device
    with pytest.raises(ValueError, match="the same memory"):
        call("Allreduce", array, array)
    with pytest.raises(ValueError, match="overlap"):
        call("Allreduce", [array, 3], [array, (3, 1), MPI.DOUBLE])


def test_what_is_only_overwritten_does_not_leave_the_device(fake):
    send, recv = fake.array(np.zeros(4)), fake.array(np.zeros(4))
    call("Allreduce", send, recv).on_host().load()
    assert fake.copied == 32
    fake.copied = 0
    call("Allgatherv", [send, 2], [recv, ([2, 1], [0, 3]), MPI.DOUBLE]).on_host().load()
    assert fake.copied == 16 + 32  # there is something between the blocks
    fake.copied = 0
    in_place = call("Allreduce", MPI.IN_PLACE, recv).on_host()
    assert in_place.send is in_place.recv
    in_place.load()
    assert fake.copied == 32


def test_streams(fake):
    assert handle_of(7) == 7
    assert handle_of(types.SimpleNamespace(ptr=8)) == 8
    assert handle_of(types.SimpleNamespace(cuda_stream=9)) == 9
    with pytest.raises(TypeError, match="no CUDA stream"):
        handle_of("default")
    assert (
        call("Allreduce", MPI.IN_PLACE, fake.array(np.zeros(2))).on_stream(5).recv.device.stream
        == 5
    )
    with pytest.raises(TypeError, match="stream= is for arrays in device memory"):
        call("Allreduce", MPI.IN_PLACE, np.zeros(2)).on_stream(5)


# --- pinned memory --------------------------------------------------------------------------------


def test_pinned_memory_is_used_again(fake):
    first = pinned.pinned(5000, 0)
    address = first.ctypes.data
    part = first[100:200]
    del first
    assert pinned.pinned(5000, 0).ctypes.data != address  # a view keeps it
    del part
    assert pinned.pinned(8000, 0).ctypes.data == address  # of the same power of two
    assert pinned.pinned(0, 0).size == 0


def test_no_more_than_so_much_is_kept(fake, monkeypatch):
    monkeypatch.setattr(pinned, "KEPT", 8192)
    held = [pinned.pinned(4096, 0) for _ in range(3)]
    assert len(fake.host) == 3
    del held
    assert len(fake.host) == 2


def test_no_pinned_memory(fake):
    fake.limit = 10000
    array = fake.array(np.zeros(4096))
    with pytest.raises(MemoryError, match="32768 bytes of pinned host memory"):
        buffers.parse(array).on_host()
    assert not fake.host


# --- requests -------------------------------------------------------------------------------------


def test_what_ends_by_a_failure_is_not_complete(fake, monkeypatch):
    """Also where it does so while it is asked."""
    failures = []

    def check():
        if failures:
            raise RuntimeError(failures[0])

    def happened(event):
        failures.append("rank 1 has not come")
        return True

    request = Enqueued(0, 5, check, None)
    monkeypatch.setattr(fake, "happened", happened)
    with pytest.raises(RuntimeError, match="rank 1 has not come"):
        request.Test()
    assert request.pending


# --- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, 12, 3 << 30])
def test_messages_of_any_length_arrive(nbytes):
    written, status = [], MPI.Status()
    room = types.SimpleNamespace(size=4 << 30)
    status.Set_elements(MPI.BYTE, nbytes)
    messages._arrived(types.SimpleNamespace(memory=room, write_back=written.append), status)
    assert written == [nbytes]


# --- segments -------------------------------------------------------------------------------------


@given(
    block=st.integers(0, 1 << 26),
    blocks=st.integers(1, 70),
    itemsize=st.sampled_from([1, 2, 4, 8, 12, 16, 32]),
)
def test_segments_cover_blocks_and_keep_elements_whole(block, blocks, itemsize):
    block -= block % itemsize
    found = staging.cut(block, blocks, itemsize)
    assert [segment.start for segment in found] == [
        sum(s.nbytes for s in found[:n]) for n in range(len(found))
    ]
    assert sum(segment.nbytes for segment in found) == block
    assert all(segment.nbytes and segment.nbytes % itemsize == 0 for segment in found)
    assert all(segment.nbytes * blocks <= staging.CHUNK for segment in found)


# --- memory that runs out -------------------------------------------------------------------------


def at_call(number, error, function):
    """A function that fails when it is called for the so-manieth time."""
    calls = []

    def instead(*arguments):
        calls.append(arguments)
        if len(calls) == number:
            raise error
        return function(*arguments)

    return instead


@pytest.mark.parametrize("name", ["allocate", "copy"])
@pytest.mark.parametrize("number", [1, 2])
def test_copies_of_arrays_of_another_device_are_freed(fake, monkeypatch, name, number):
    """Also where the second one cannot be made."""
    arrays = [fake.array(np.arange(6), device=1, stream=stream) for stream in (5, 6)]
    away = [recognise(array) for array in arrays]
    error = MemoryError("no 48 bytes of device memory; free some")
    monkeypatch.setattr(fake, name, at_call(number, error, getattr(fake, name)))
    visit = streams.PeerCopies(0, away)
    with (
        pytest.raises(MemoryError, match=r"48 bytes .*; free some, or pass an array of device 0"),
        visit,
    ):
        raise AssertionError("it is not entered")
    for stream in (5, 6, visit.stream):
        fake.synchronize(stream)
    assert [*fake.memory] == [array.ptr for array in arrays]
    monkeypatch.undo()
    with streams.PeerCopies(0, [None, away[1]]) as visit:
        assert visit.arrays[0] is None
        assert (visit.arrays[1].device, fake.place(visit.arrays[1].ptr)) == (0, 0)
    fake.synchronize(visit.stream)
    assert [*fake.memory] == [array.ptr for array in arrays]


@pytest.mark.parametrize(
    ("name", "number"),
    [("register", 1), ("stream", 2), ("event", 5), ("allocate", 1), ("", 0)],
)
def test_a_relay_leaves_nothing_behind(fake, monkeypatch, name, number):
    """Neither where it cannot be made."""
    state = types.SimpleNamespace(gpus=types.SimpleNamespace(device=0), rank=0, size=2)
    room = np.zeros(2 * relay.SLOTS * 2 * 4096, np.uint8)
    monkeypatch.setattr(relay, "CHUNK", 4096)
    before = [*fake.streams]
    if name:
        error = MemoryError("there is no more")
        monkeypatch.setattr(fake, name, at_call(number, error, getattr(fake, name)))
        with pytest.raises(MemoryError, match="there is no more"):
            relay.Relay(state, room, None)
    else:
        made = relay.Relay(state, room, None)
        assert fake.registered and fake.memory and fake.events
        del made
    assert not fake.registered and not fake.memory and not fake.events
    assert [*fake.streams] == before


# --- the group ------------------------------------------------------------------------------------


class Ranks:
    """A communicator of ranks that all say the same, but for what is told here."""

    def __init__(self, devices=None, size=2):
        self.devices, self.size = devices or {}, size

    def Get_rank(self):
        return 0

    def allgather(self, own):
        if isinstance(own, group.Device):
            return [self.devices.get(rank, own) for rank in range(self.size)]
        return [own] * self.size


@pytest.fixture
def peers(monkeypatch):
    """A module mpicoll.cuda.ipc; what it is asked, and what it answers."""
    asked, answer = [], [object(), ""]

    def open_(private, device, seconds):
        asked.append((device, seconds))
        return tuple(answer)

    module = types.SimpleNamespace(Peers=types.SimpleNamespace(open=open_))
    monkeypatch.setitem(sys.modules, "mpicoll.cuda.ipc", module)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(ndarray=FakeArray))
    return asked, answer


def aware(monkeypatch, answer):
    monkeypatch.setattr(group.libraries, "cuda_aware", lambda: answer)


@pytest.fixture
def unsaid(monkeypatch):
    """What is warned of once has not been."""
    monkeypatch.setattr(caller, "_WARNED", set())


def apart():
    """Ranks of one node, each with a device of its own."""
    own = group._own()
    return Ranks({1: own._replace(number=1, uuid="GPU-1")})


def test_the_first_transport_that_serves_all(fake, peers, monkeypatch):
    asked, answer = peers
    aware(monkeypatch, True)
    assert group.connect(Ranks(), "auto", 3.0).described() == "cuda_ipc"
    assert asked == [(0, 3.0)]
    answer[:] = None, "the same GPU twice"
    assert group.connect(Ranks(), "auto", 0.0).described() == "aware (the same GPU twice)"
    aware(monkeypatch, None)
    found = group.connect(Ranks(), "auto", 0.0)
    assert found.transport == "staged"
    assert found.why == "the same GPU twice; is the MPI library CUDA-aware? It does not say"


@pytest.mark.parametrize("transport", ["aware", "staged"])
def test_a_slower_transport_than_there_should_be_is_said_once(
    fake, peers, unsaid, monkeypatch, transport
):
    aware(monkeypatch, transport == "aware")
    peers[1][:] = None, "IPC is forbidden here"
    text = f"so {transport} serves: IPC is forbidden here.*MPICOLL_GPU={transport} asks for that"
    with pytest.warns(TransportWarning, match=text):
        assert group.connect(apart(), "auto", 0.0).transport == transport
    # Warnings are errors here.
    assert group.connect(apart(), "auto", 0.0).transport == transport
    assert group.connect(apart(), transport, 0.0).transport == transport


def test_nothing_is_said_where_no_other_transport_is_to_be_expected(
    fake, peers, unsaid, monkeypatch
):
    """Ranks on several nodes, with one device, or without what makes the kernels."""
    aware(monkeypatch, False)
    peers[1][:] = None, "so it is"
    one, other = group._own(), apart().devices[1]
    for second in (other._replace(host="another"), other._replace(cupy=False), one):
        assert group.connect(Ranks({1: second}), "auto", 0.0).transport == "staged"


def test_any_ranks_no_is_no_for_all(fake, peers, monkeypatch):
    aware(monkeypatch, True)
    here = group._own()
    answer = peers[1]
    answer[:] = None, "no peer access"
    unaware = here._replace(aware=False)
    assert group.connect(Ranks({1: unaware}), "auto", 0.0).transport == "staged"
    none = here._replace(problem="no CUDA device")
    with pytest.warns(TransportWarning, match="rank 1: no CUDA device"):
        assert group.connect(Ranks({1: none}), "auto", 0.0) is None


def test_a_transport_that_is_asked_for(fake, peers, unsaid, monkeypatch):
    aware(monkeypatch, True)
    assert group.connect(Ranks(), "staged", 0.0).why == "MPICOLL_GPU=staged asks for it"
    assert group.connect(Ranks(), "aware", 0.0).transport == "aware"
    assert peers[0] == []
    peers[1][:] = None, "IPC is forbidden here"
    text = "MPICOLL_GPU=cuda_ipc is not possible, so {} serves: IPC is forbidden here"
    for transport in ("staged", "aware"):
        aware(monkeypatch, transport == "aware")
        with pytest.warns(TransportWarning, match=text.format(transport)):
            assert group.connect(Ranks(), "cuda_ipc", 0.0).transport == transport


def test_cupy_is_not_imported(fake, monkeypatch):
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    aware(monkeypatch, False)
    assert "import cupy" in group.connect(Ranks(), "auto", 0.0).why
    assert "cupy" not in sys.modules


def test_no_device(monkeypatch):
    undo = driver.use(FakeDriver(devices=0))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    try:
        assert group._own().problem == "no CUDA device (CUDA_VISIBLE_DEVICES='')"
    finally:
        undo()


# --- the driver -----------------------------------------------------------------------------------


def test_without_a_gpu_the_driver_says_why():
    if not driver.problem():
        pytest.skip("there is a driver")
    with pytest.raises(errors.CudaError, match="no CUDA driver: "):
        driver.driver()


def test_what_brings_arrays_is_looked_for_and_not_imported(monkeypatch):
    for name in driver._BRINGERS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert not driver.is_wanted()
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert driver.is_wanted()


# --- the end of a communicator --------------------------------------------------------------------


#: What is taken back of what a `Peers` has.
OWN = "unmap", "free_mappable", "free_pinned", "free_stream"


class Ended:
    """What the end of a `Peers` asks for, in order, in the place of what it has."""

    def __init__(self, monkeypatch, alarm=None, error=None, launcher=True):
        self.told, self._alarm, self._error = [], None, error
        self._late = alarm
        cuda = types.SimpleNamespace(
            synchronize_device=self.synchronize,
            **{name: self._teller(name) for name in OWN},
        )
        for module in (ipc, windows):
            monkeypatch.setattr(module, "_driver", cuda)
        monkeypatch.setattr(ipc.Peers, "_on_device", lambda peers: contextlib.nullcontext())
        came = types.SimpleNamespace(Test=lambda: True)
        private = types.SimpleNamespace(
            Get_rank=lambda: 0, Get_size=lambda: 2, Ibarrier=lambda: came
        )
        facts = [types.SimpleNamespace(multiprocessors=8, pid=1)] * 2
        self.peers = ipc.Peers(private, 0, 3.0, facts, ipc.Limits())
        mine, self.peers._alarm = self.peers._windows, 64
        mine._mapped, mine._owned, mine.stream = [3], [5], 9
        if launcher:
            self.peers._launcher = types.SimpleNamespace(
                close=self._teller("closed"),
                drop_alarm=self._teller("dropped"),
                alarmed=lambda: self._alarm,
            )
            self.peers._watchdog = types.SimpleNamespace(dead=[], close=self._teller("unwatched"))

    def _teller(self, name):
        return lambda *numbers: self.told.append((name, *numbers))

    def synchronize(self):
        self.told.append(("synchronize",))
        self._alarm = self._late
        if self._error:
            raise self._error


END = [
    ("closed",), ("synchronize",), ("unwatched",), ("unmap", 3), ("free_stream", 9), ("dropped",),
    ("free_pinned", 64), ("free_mappable", 5),
]  # fmt: skip


def test_the_end_waits_for_the_gpu_before_it_stops_watching(monkeypatch):
    ended = Ended(monkeypatch)
    ended.peers.close()
    assert ended.told == END
    ended.peers.check()
    ended.told.clear()
    ended.peers.close()
    assert ended.told == [("closed",), ("synchronize",)]  # nothing is freed twice


def test_what_fails_last_is_told(monkeypatch):
    ended = Ended(monkeypatch, alarm=(1, 7))
    with pytest.warns(RuntimeWarning, match="has waited on its GPU for rank 1"):
        ended.peers.close()
    assert ended.told == END
    with pytest.raises(RuntimeError, match="has waited on its GPU for rank 1"):
        ended.peers.check()


def test_a_death_is_told_as_memory_that_is_gone(monkeypatch):
    """By which a communicator that outlives its ranks knows it from other failures."""
    ended = Ended(monkeypatch)
    ended.peers._watchdog.dead.append(1)
    for _ in range(2):
        with pytest.raises(MemoryGone, match="used any more: the process of rank 1 has died"):
            ended.peers.check()


def test_a_gpu_that_is_lost_may_still_look_at_the_alarm(monkeypatch):
    ended = Ended(monkeypatch, error=RuntimeError("the GPU is lost"))
    ended.peers.close()
    assert ended.told == [("closed",), ("synchronize",), ("unwatched",)]
    with pytest.raises(RuntimeError, match="the GPU is lost"):
        ended.peers.check()


def test_what_a_peer_may_have_mapped_is_kept(monkeypatch):
    """Where it does not come in time; MPI forbids to free the barrier that waits for it."""
    ended, left = Ended(monkeypatch), []
    monkeypatch.setattr(windows, "_LEFT", left)
    monkeypatch.setattr(windows, "PATIENCE", 0.0)
    request = types.SimpleNamespace(Test=lambda: False)
    ended.peers._private.Ibarrier = lambda: request
    ended.peers._registry = registry = types.SimpleNamespace(unmap_all=lambda: None)
    ended.peers.close()
    assert ended.told == END[:-1]
    assert left == [(request, registry)]


def test_what_was_not_opened_leaves_nothing_behind(monkeypatch):
    ended = Ended(monkeypatch, launcher=False)
    ended.peers.close()
    assert ended.told == [
        ("synchronize",), ("unmap", 3), ("free_stream", 9), ("free_pinned", 64),
        ("free_mappable", 5),
    ]  # fmt: skip
