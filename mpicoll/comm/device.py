"""Collectives of arrays in device memory: by the group's transport, or through the host.

See :mod:`mpicoll.cuda.group` for the transports.  What ``cuda_ipc`` does not serve, or an algorithm
that the caller names, is run by the host, on pinned memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mpi4py import MPI

from mpicoll.base import caller, libraries
from mpicoll.buffers import Buffer
from mpicoll.cuda.arrays import DeviceArray, current_stream, one_handle
from mpicoll.cuda.driver import driver
from mpicoll.cuda.group import Group
from mpicoll.cuda.streams import PeerCopies, order, release_streams, stream_after
from mpicoll.cuda.transports import AWARE, CUDA_IPC, STAGED
from mpicoll.engine import runner
from mpicoll.errors import TransportWarning, Unordered
from mpicoll.requests.device import Enqueued, EnqueuedPrequest
from mpicoll.runtime import staging
from mpicoll.runtime.calls import Call, Prepared
from mpicoll.runtime.relay import SERVED, Relay
from mpicoll.runtime.state import State
from mpicoll.runtime.unavailable import Unavailable
from mpicoll.tuning import NATIVE, Choice


def choose(state: State, call: Call, blocking: bool) -> Choice | None:
    """What serves a call that names no algorithm; None if it is chosen as on the host.

    The same on all ranks; collective where a blocking call is the first that GPUs reduce.
    """
    group = state.gpus
    if group is None or call.layouts is not None:
        return None
    library = Choice(NATIVE, (), "the MPI library is CUDA-aware")
    if group.transport == AWARE and not call.obstacle(library):
        return library
    if group.peers is not None and _peers_serve(group, call):
        return Choice(CUDA_IPC, (), "arrays in device memory")
    if blocking and group.reduces and staging.has_chunks(call) and state.size > 1:
        relay = _relay(state) if call.definition.name in SERVED else None
        if relay is not None and relay.serves(call.reduction):
            return Choice(STAGED, (), "large arrays in device memory, of one node")
    return None


def _relay(state: State) -> Relay | None:
    """What lets GPUs reduce what comes through the host; made by the first call that asks."""
    found = state.once(Relay, lambda: Relay.open(state))
    if not isinstance(found, Unavailable):
        return found
    caller.warn_once(
        f"arrays in device memory are reduced by the host: {found.reason}",
        TransportWarning,
        MPI.COMM_WORLD.Get_rank(),
    )
    return None


def _peers_serve(group: Group, call: Call) -> bool:
    dtype = None if call.reduction is None else call.reduction.dtype
    return bool(group.peers.supports(call.definition.name, _operator(call), dtype, call.nbytes))


def run(
    state: State,
    prepared: Prepared,
    given: tuple[Any, ...],
    native: Callable[[Call], None],
    step: runner.Step | None,
) -> bool:
    """Run a blocking call on the device, or in segments; False if it has to go as a whole.

    Args:
        state: of the communicator.
        prepared: the call.
        given: its buffers, operator and root as the caller gave them.
        native: runs the MPI library's own collective.
        step: told of every step that ends.
    """
    call = prepared.call
    assert call is not None
    if prepared.choice.algorithm == CUDA_IPC:
        _enqueue(state, call)
        if not all(array.ordered for array in _devices(call)):
            wait_for_streams(call)
        state.count(prepared.definition.name, CUDA_IPC)
        _learn(state, call, given)
        return True
    if prepared.choice.algorithm == STAGED:
        _run_relay(state, call)
        state.count(prepared.definition.name, STAGED)
        return True
    if state.gpus is None or _takes(state.gpus, prepared, blocking=not state.waits):
        return False
    return staging.run(state, prepared, native, step)


def _run_relay(state: State, call: Call) -> None:
    relay = _relay(state)
    assert relay is not None
    with state.guard.failing(call):
        call.load()  # what is packed on its device
        relay.run(call)
        call.write_back()


def _learn(state: State, call: Call, given: tuple[Any, ...]) -> None:
    """Let a call of arrays on the current stream of their library go the fast path.

    The library is CuPy or PyTorch, the same of both buffers.
    """
    group = state.gpus
    assert group is not None
    sendbuf, recvbuf, op, root = given
    owners = [b for b in (sendbuf, recvbuf) if b is not None and b is not MPI.IN_PLACE]
    plain = any(all(type(owner) in kinds for owner in owners) for kinds in _array_kinds())
    at_home = all(
        array.device == group.device and array.stream == current_stream(array.owner, array.device)
        for array in _devices(call)
    )
    direct = call.is_direct and type(root) is int
    if state.fast_path.path is not None and plain and at_home and direct:
        element = _devices(call)[0].dtype
        group.peers.learn(call.definition.name, sendbuf, recvbuf, op, root, element)


def _array_kinds() -> list[tuple[type, ...]]:
    """The classes of plain arrays, by library."""
    cupy, torch = sys.modules.get("cupy"), sys.modules.get("torch")
    found: list[tuple[type, ...]] = []
    if cupy is not None:
        found.append((cupy.ndarray,))
    if torch is not None:
        found.append((torch.Tensor, torch.nn.Parameter))
    return found


def on_host(group: Group | None, prepared: Prepared, blocking: bool) -> Prepared:
    """A call as the host can run it: by value, or as it is where the MPI library takes that.

    ``blocking``: whether it is the library's blocking collective that would run.
    """
    call = prepared.call
    if call is None or not call.on_device:
        return prepared
    if group is not None and call.is_direct and _takes(group, prepared, blocking):
        wait_for_streams(call)
        return prepared
    return prepared._replace(call=call.on_host())


def _takes(group: Group, prepared: Prepared, blocking: bool) -> bool:
    """Whether the MPI library takes the arrays as they are."""
    if group.transport != AWARE or prepared.choice.algorithm != NATIVE:
        return False
    definition = prepared.definition
    reduced = blocking and definition.method in libraries.REDUCING_ON_DEVICE
    return reduced or not definition.reduces


def start(state: State, prepared: Prepared) -> Enqueued:
    """Start a non-blocking call on the device."""
    call, group = prepared.call, state.gpus
    assert call is not None and group is not None
    stream = _enqueue(state, call)
    state.count(prepared.definition.name, CUDA_IPC)
    return Enqueued(group.device, stream, partial(_check, state, group.peers), call)


def bind(state: State, prepared: Prepared) -> EnqueuedPrequest:
    """Make a persistent call on the device."""
    call, group = prepared.call, state.gpus
    assert call is not None and group is not None
    name, peers, arrays = prepared.definition.name, group.peers, _arrays(call)
    at_home = _are_at_home(group, arrays) and call.is_direct
    # What is on another device, or packed, is copied at each start; binding is collective all the
    # same.
    with state.guard.hearing():
        bound = peers.bind(
            name, *(arrays if at_home else (None, None)), _operator(call), call.place.root
        )

    def streams() -> list[int]:
        if call.stream is not None:
            return [call.stream]
        return [current_stream(a.owner, a.device) for a in arrays[::-1] if a is not None]

    def begin() -> int:
        state.guard.check()
        if at_home:
            stream, others = stream_after(group.device, streams())
            try:
                bound.start(stream)
            except Unordered:
                raise  # which leaves everything as it was
            except BaseException as error:
                state.guard.fail_by(error, call)
            release_streams(group.device, stream, others)
        else:
            stream = _enqueue(state, call if call.stream is not None else _as_now(call))
        state.count(name, CUDA_IPC)
        return stream

    check = partial(_check, state, peers)
    return EnqueuedPrequest(group.device, begin, bound.close, check, call)


def _as_now(call: Call) -> Call:
    """The call on the streams that are current now in the libraries of its arrays."""

    def now(buffer: Buffer) -> Buffer:
        if buffer.device is None:
            return buffer
        return buffer.on_stream(current_stream(buffer.device.owner, buffer.device.device))

    return call.with_buffers(now)


def _check(state: State, peers: Any) -> None:
    """Raise what has gone wrong on a device; then the communicator cannot be used any more.

    Also once it has been freed, of what was under way then.
    """
    with state.guard.failing():
        peers.check()


def wait_for_streams(call: Call) -> None:
    """Wait until what the caller has put on the streams of its arrays is done."""
    functions = driver()
    for array in _devices(call):
        with functions.on(array.device):
            functions.synchronize(array.stream)


def handle_of(stream: Any) -> int:
    """The handle of a stream: of CuPy (``.ptr``), PyTorch (``.cuda_stream``), or a number.

    Raises:
        TypeError: it is none of these.
    """
    for name in ("ptr", "cuda_stream", "handle"):
        found = getattr(stream, name, None)
        if found is not None:
            return one_handle(int(found))
    if isinstance(stream, int):
        return one_handle(stream)
    raise TypeError(
        f"stream={stream!r} is no CUDA stream; pass one of CuPy or PyTorch, or its handle"
    )


def _devices(call: Call) -> list[DeviceArray]:
    """The arrays of a call that are in device memory."""
    both = (call.send, None if call.recv is call.send else call.recv)
    return [b.device for b in both if b is not None and b.device is not None]


def _operator(call: Call) -> str | None:
    return None if call.reduction is None else call.reduction.name


def _arrays(call: Call) -> tuple[DeviceArray | None, DeviceArray | None]:
    """What is sent, None in place, and what is received."""
    send, recv = _used(call.send), _used(call.recv)
    if call.in_place and call.definition.name == "scatter" and call.place.is_root:
        return send, None
    return (None, recv) if call.in_place else (send, recv)


def _used(buffer: Buffer | None) -> DeviceArray | None:
    """The part of an array that a call uses."""
    if buffer is None or buffer.device is None:
        return None
    address = buffer.memory.ctypes.data if buffer.memory.size else buffer.device.ptr
    return buffer.device._replace(ptr=address, nbytes=buffer.memory.size, dtype=buffer.dtype)


def _are_at_home(group: Group, arrays: Sequence[DeviceArray | None]) -> bool:
    """Whether arrays are on the group's device."""
    return all(array is None or array.device == group.device for array in arrays)


def _enqueue(state: State, call: Call) -> int:
    """Put a call on its stream, after and before what packs its buffers; returns the handle."""
    call.load()
    stream = _enqueue_peers(state, call)
    call.write_back()
    if call.recv is not None and not call.is_direct and state.gpus is not None:
        array = call.recv.device
        assert array is not None
        order((array.device, array.stream), (state.gpus.device, stream))
    return stream


def _enqueue_peers(state: State, call: Call) -> int:
    group = state.gpus
    assert group is not None
    send, recv = _arrays(call)
    name, root = call.definition.name, call.place.root
    streams = [array.stream for array in (recv, send) if array is not None]
    try:
        if _are_at_home(group, (send, recv)):
            stream, others = stream_after(group.device, streams)
            group.peers.run(name, send, recv, _operator(call), root, stream)
            release_streams(group.device, stream, others)
            return stream
        with PeerCopies(group.device, (send, recv)) as visit:
            group.peers.run(name, *visit.arrays, _operator(call), root, visit.stream)
            if recv is not None:
                visit.copy_out(1)
    except Unordered:
        raise  # which leaves everything as it was
    except BaseException as error:
        state.guard.fail_by(error, call)
    return visit.stream
