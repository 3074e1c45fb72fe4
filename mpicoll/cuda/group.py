"""How device memory travels between the ranks of a communicator.

All ranks agree on one transport when the communicator is built.  They take the first of these that
works on every rank:

``cuda_ipc``
    each GPU reads and writes memory of the others (:mod:`mpicoll.cuda.ipc`).
``aware``
    the MPI library's own collectives, if the library reports that it is CUDA-aware.
``staged``
    through pinned host memory, in segments: while one travels between the ranks, the next leaves
    its device and the previous one reaches its own.  Large blocking all-reduces, reduces and
    reduce-scatters within a node, with MPI's operators, are reduced by the GPUs
    (:mod:`mpicoll.runtime.relay`); everything else by the host.

If, on some rank, the program has imported no library for device arrays when it builds the
communicator, nothing is agreed, and such arrays go through the host as a whole.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mpi4py import MPI

from mpicoll.base import caller, libraries
from mpicoll.base.consensus import Problem, attempt
from mpicoll.base.wording import ranges
from mpicoll.cuda import driver
from mpicoll.cuda.transports import AWARE, CUDA_IPC, STAGED
from mpicoll.errors import CudaError, TransportWarning

__all__ = [
    "Device",
    "Group",
    "connect",
]


class Device(NamedTuple):
    """The device of a rank.

    Attributes:
        host: name of its host.
        number: as CUDA counts in that process.
        uuid: what names it on every host.
        name: in words.
        aware: whether the MPI library says that it takes its memory; None if it says nothing.
        cupy: whether CuPy is imported, which compiles what a GPU reduces by.
        problem: why it cannot be used, "" if it can.
    """

    host: str
    number: int
    uuid: str
    name: str
    aware: bool | None
    cupy: bool
    problem: str


@dataclass
class Group:
    """What the ranks have agreed.

    Attributes:
        transport: ``cuda_ipc``, ``aware`` or ``staged``.
        why: why no faster one, or not wholly; "" if it is the fastest.
        devices: of all ranks.
        peers: what runs collectives by ``cuda_ipc``, else None.
        device: number of this rank's device.
    """

    transport: str
    why: str
    devices: tuple[Device, ...]
    peers: Any
    device: int

    @property
    def reduces(self) -> bool:
        """Whether GPUs can reduce what comes through the host."""
        return all(device.cupy for device in self.devices)

    def close(self) -> None:
        """The communicator has been freed."""
        if self.peers is not None:
            self.peers.close()
            self.peers = None

    def described(self) -> str:
        """In words."""
        return f"{self.transport} ({self.why})" if self.why else self.transport


def connect(private: MPI.Intracomm, wanted: str, seconds: float) -> Group | None:
    """Agree on a transport; None where a rank has no device.  Collective.

    Args:
        private: the communicator that carries the collectives' messages.
        wanted: one of :data:`mpicoll.cuda.transports.TRANSPORTS`, equal on all ranks.
        seconds: longest wait of a device for another one, 0 for the default one.
    """
    devices = tuple(private.allgather(_own()))
    without = [rank for rank, device in enumerate(devices) if device.problem]
    if without:
        problem = devices[without[0]].problem
        if len(without) < len(devices):  # else there is no such array
            _warn(f"arrays in device memory go through the host: {ranges(without)}: {problem}")
        return None
    number = devices[private.Get_rank()].number
    peers, why = None, f"MPICOLL_GPU={wanted} asks for it"
    if wanted in ("auto", CUDA_IPC):
        peers, why = _peers(private, number, seconds)
    if peers is not None:
        return Group(CUDA_IPC, why, devices, peers, number)
    unaware = [rank for rank, device in enumerate(devices) if not device.aware]
    transport = AWARE if wanted != STAGED and not unaware else STAGED
    if wanted != STAGED and unaware:
        does_not = "says that it is not" if devices[unaware[0]].aware is False else "does not say"
        why += f"; is the MPI library CUDA-aware? It {does_not}"
    if wanted == "auto" and _are_near(devices):
        _warn(
            f"GPUs of one node do not reach each other's memory, so {transport} serves: {why} "
            f"(MPICOLL_GPU={transport} asks for that, without this warning)"
        )
    elif wanted not in ("auto", transport):
        _warn(f"MPICOLL_GPU={wanted} is not possible, so {transport} serves: {why}")
    return Group(transport, why, devices, None, number)


def _are_near(devices: Sequence[Device]) -> bool:
    """Whether ``cuda_ipc`` is for them: all of one node, one for each rank, CuPy imported."""
    return (
        len({device.host for device in devices}) == 1
        and len({device.uuid for device in devices}) == len(devices)
        and all(device.cupy for device in devices)
    )


def _own() -> Device:
    """The device of this rank."""
    host, cupy, problem = MPI.Get_processor_name(), "cupy" in sys.modules, driver.problem()
    none = Device(host, -1, "", "", None, cupy, "")
    if problem:
        return none._replace(problem=f"no CUDA driver ({problem})")
    none, functions = none._replace(aware=libraries.cuda_aware()), driver.driver()
    try:
        if not functions.count():
            hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
            hint = "" if hidden is None else f" (CUDA_VISIBLE_DEVICES={hidden!r})"
            return none._replace(problem=f"no CUDA device{hint}")
        number = functions.current()
        uuid, name = functions.uuid(number), functions.name(number)
        return none._replace(number=number, uuid=uuid, name=name)
    except CudaError as error:
        return none._replace(problem=str(error))


def _peers(private: MPI.Intracomm, number: int, seconds: float) -> tuple[Any, str]:
    """What runs collectives by ``cuda_ipc``, or None and why there is nothing."""
    ipc = attempt(private, _ipc, ImportError)
    if isinstance(ipc, Problem):
        return None, f"{ranges(ipc.ranks)}: {ipc.text}"
    peers, why = ipc.Peers.open(private, number, seconds)
    return peers, why


def _ipc() -> Any:
    if "cupy" not in sys.modules:
        raise ImportError(
            "import cupy, which compiles the kernels, before the communicator is built"
        )
    return importlib.import_module("mpicoll.cuda.ipc")


def _warn(message: str) -> None:
    caller.warn_once(message, TransportWarning, MPI.COMM_WORLD.Get_rank())
