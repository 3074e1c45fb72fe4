"""What ``mpicoll doctor`` finds out about GPUs."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py import MPI


def examine(comm: MPI.Intracomm) -> dict[str, Any]:
    """Devices, links, and how arrays in device memory would travel, with one device a rank.

    Collective.  The same on every rank.  ``problem`` says why the first rank that has no device has
    none, "" if all have one.
    """
    from mpi4py import MPI

    from mpicoll.base import arrays
    from mpicoll.cuda import driver

    node = MPI.Intracomm(comm.Split_type(MPI.COMM_TYPE_SHARED, comm.Get_rank()))
    local, several = node.Get_rank(), node.Get_size() < comm.Get_size()
    problem = driver.problem()
    devices = _devices() if not problem else []
    if not problem and not devices:
        problem = "no CUDA device"
    hosts: dict[str, Any] = {}
    for host, found in comm.allgather((MPI.Get_processor_name(), devices)):
        hosts.setdefault(host, found)
    problems = [text for text in comm.allgather(problem) if text]
    facts: dict[str, Any] = {"hosts": hosts, "problem": problems[0] if problems else ""}
    facts["transport"] = facts["transport_of_a_node"] = None
    if not problems:
        if importlib.util.find_spec("cupy") is not None:  # makes arrays there
            arrays.use("gpu", local)
        facts["transport"] = _transport(comm)
        if comm.allreduce(several, MPI.LOR):
            facts["transport_of_a_node"] = comm.bcast(_transport(node))
    node.Free()
    return facts


def _devices() -> list[dict[str, Any]]:
    """The devices of this process: name, UUID, and how each reaches the others."""
    from mpicoll.cuda.driver import driver

    functions = driver()
    numbers = range(functions.count())
    return [
        {
            "name": functions.name(number),
            "uuid": functions.uuid(number),
            "reaches": {
                other: _reaches(*functions.linked(number, other))
                for other in numbers
                if other != number
            },
        }
        for number in numbers
    ]


def _reaches(access: bool, atomics: bool) -> str:
    """How a device reads memory of another one, in words."""
    if not access:
        return "no access"
    return "peer access with atomics" if atomics else "peer access"


def _transport(comm: MPI.Intracomm) -> str:
    import mpicoll

    own = mpicoll.Intracomm(comm.Dup())
    try:
        return own.gpu_transport() or "none: install CuPy, or another library of device arrays"
    finally:
        own.Free()


def lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts in words."""
    found = []
    for host, devices in facts["hosts"].items():
        for number, device in enumerate(devices):
            links = ", ".join(f"{how} to {other}" for other, how in device["reaches"].items())
            words = f"{device['name']} ({device['uuid']})" + (f"; {links}" if links else "")
            found.append((f"GPU {number} of {host}", words))
    if facts["problem"]:
        return [*found, ("GPUs", f"none for every rank: {facts['problem']}")]
    found.append(("GPU transport", facts["transport"]))
    if facts["transport_of_a_node"] is not None:
        found.append(("of one node", facts["transport_of_a_node"]))
    return found
