"""Whether the GPUs of some ranks can map each other's memory."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import NamedTuple

from mpi4py import MPI

from mpicoll import _cuda

__all__ = ["Facts", "facts_of", "problem", "unlinked"]


class Facts(NamedTuple):
    """What a rank tells the others of its GPU."""

    problem: str
    host: str
    pid: int
    uuid: str
    multiprocessors: int


def facts_of(device: int) -> Facts:
    """This rank's facts; they say so if it cannot take part."""
    trouble, uuid, multiprocessors = "", "", 0
    try:
        import cupy

        _cuda.load()
        with cupy.cuda.Device(device) as current:
            cupy.cuda.runtime.free(0)  # makes the context
            uuid = _cuda.uuid(device)
            multiprocessors = current.attributes["MultiProcessorCount"]
    except Exception as error:
        trouble = f"{type(error).__name__}: {error}"
    return Facts(trouble, _host(), os.getpid(), uuid, multiprocessors)


def _host() -> str:
    """A name of this operating system's run, and of the namespace of its processes."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return MPI.Get_processor_name()


def problem(facts: Sequence[Facts], share: bool) -> str:
    """Why these ranks cannot map each other's memory, "" if nothing is known against it.

    The same on all ranks.
    """
    for rank, fact in enumerate(facts):
        if fact.problem:
            return f"rank {rank}: {fact.problem}"
    if len(facts) > 64:
        return f"{len(facts)} ranks, and at most 64 share memory of their GPUs"
    if len({fact.host for fact in facts}) > 1:
        return "the ranks are on several nodes, or in containers of their own"
    devices = [fact.uuid for fact in facts]
    if len(set(devices)) < len(devices) and not share:
        return "several ranks have the same GPU"
    return ""


def unlinked(facts: Sequence[Facts]) -> str:
    """Which GPU this process does not see, or cannot reach from another one by NVLink."""
    try:
        return _unlinked({fact.uuid for fact in facts})
    except RuntimeError as error:  # not to be raised by one rank alone
        return f"{type(error).__name__}: {error}"


def _unlinked(devices: Collection[str]) -> str:
    seen = [_cuda.uuid(device) for device in range(_cuda.count())]
    for device in devices:
        if device not in seen:
            return "a rank's GPU is hidden from the others (CUDA_VISIBLE_DEVICES)"
    ordinals = sorted({seen.index(device) for device in devices})
    for one in ordinals:
        for other in ordinals:
            if one == other:
                continue
            access, atomic = _cuda.linked(one, other)
            if not access:
                return f"GPUs {one} and {other} cannot map each other's memory"
            if not atomic:
                # Packets stay whole on NVLink; on PCIe that is not known.
                return f"GPUs {one} and {other} are not linked by NVLink"
    return ""
