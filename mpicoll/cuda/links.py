"""Whether the GPUs of some ranks can map each other's memory."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import NamedTuple

from mpi4py import MPI

from mpicoll.base.peers import host
from mpicoll.cuda import _driver

#: What is said where not all GPUs can map each other's memory, but a ring of them can.
IN_A_RING = (
    "not all GPUs are linked by NVLink: all-reduce, reduce-scatter and all-gather go around a "
    "ring, what else there is through the host"
)

#: Steps of the search for a ring.
_MOST_STEPS = 100_000


class Facts(NamedTuple):
    """What a rank tells the others of its GPU."""

    problem: str
    host: str
    pid: int
    uuid: str
    multiprocessors: int


def facts_of(device: int) -> Facts:
    """This rank's facts; they say so if it cannot take part."""
    problem, uuid, multiprocessors = "", "", 0
    try:
        import cupy

        _driver.load()
        with cupy.cuda.Device(device) as current:
            cupy.cuda.runtime.free(0)  # makes the context
            uuid = _driver.uuid(device)
            multiprocessors = current.attributes["MultiProcessorCount"]
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    return Facts(problem, host() or MPI.Get_processor_name(), os.getpid(), uuid, multiprocessors)


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
    """Which GPU this process does not see, or cannot reach by NVLink, nor by a ring of links."""
    devices = [fact.uuid for fact in facts]
    try:
        seen = _seen()
        if {*devices}.difference(seen):
            return "a rank's GPU is hidden from the others (CUDA_VISIBLE_DEVICES)"
        pairs = itertools.combinations(dict.fromkeys(devices), 2)
        problems = [problem for pair in pairs if (problem := _link(seen, *pair))]
        return problems[0] if problems and not ring_of(_linked(devices)) else ""
    except RuntimeError as error:  # not to be raised by one rank alone
        return f"{type(error).__name__}: {error}"


def _seen() -> dict[str, int]:
    """The ordinals of the GPUs that this process may use."""
    return {_driver.uuid(ordinal): ordinal for ordinal in range(_driver.count())}


def _link(seen: dict[str, int], one: str, other: str) -> str:
    """What is missing between two GPUs, "" if nothing."""
    first, second = seen[one], seen[other]
    if first == second:
        return ""
    there, back = _driver.linked(first, second), _driver.linked(second, first)
    access, atomic = there[0] and back[0], there[1] and back[1]
    if not access:
        return f"GPUs {first} and {second} cannot map each other's memory"
    # Packets stay whole on NVLink; on PCIe that is not known.
    return "" if atomic else f"GPUs {first} and {second} are not linked by NVLink"


def _linked(devices: Sequence[str]) -> list[set[int]]:
    """The ranks whose GPUs are linked with that of each rank."""
    seen = _seen()
    return [
        {rank for rank, other in enumerate(devices) if not _link(seen, device, other)}
        for device in devices
    ]


def ring(facts: Sequence[Facts]) -> tuple[int, ...]:
    """The ranks in the order of a ring of links, empty where all are linked with all."""
    linked = _linked([fact.uuid for fact in facts])
    return () if all(len(others) == len(facts) for others in linked) else ring_of(linked)


def ring_of(linked: Sequence[set[int]]) -> tuple[int, ...]:
    """Ranks in an order in which each is linked with the next one, and the last with the first.

    Empty where none is found; with at least three ranks.
    """
    order, steps = [0], 0
    tried: list[set[int]] = [set()]
    while order and steps < _MOST_STEPS:
        steps += 1
        next_ranks = linked[order[-1]].difference(order, tried[-1])
        if len(order) == len(linked) and order[0] in linked[order[-1]] and len(order) > 2:
            return tuple(order)
        if not next_ranks:
            order.pop()
            tried.pop()
            continue
        # First those with few links to ranks not yet in the order: they would be left over.
        rank = min(next_ranks, key=lambda each: (len(linked[each].difference(order)), each))
        tried[-1].add(rank)
        order.append(rank)
        tried.append(set())
    return ()
