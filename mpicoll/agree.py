"""Do all ranks make the same call?  Asked before every call where ``MPICOLL_CHECK=1``.

The ranks exchange what their calls must have in common.  The exchange is the same whatever the
calls are, so it cannot hang where they differ: then every rank raises the same error instead, and
the communicator can still be used.  A rank that finds a mistake in its own arguments says so too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll import algorithms
from mpicoll.watch import ranges

__all__ = ["Disagreement", "Facts", "compare", "schedule_hash", "share"]

#: What ranks must have in common, by name; None: this rank cannot tell, or it need not be equal.
Facts = Mapping[str, Any]

#: Bytes that a rank sends, and the longest error in them.
_RECORD, _WORDS = 1024, 400
#: Ranks whose schedules are hashed.
_SAMPLE = 64


class Disagreement(RuntimeError):
    """Ranks of a communicator do not make the same call; raised on all of them."""


def share(
    private: MPI.Intracomm, facts: Facts, wait: Callable[..., object]
) -> list[dict[str, Any]]:
    """The facts of all ranks.  Collective.

    Args:
        private: the communicator that carries the collectives' messages.
        facts: those of this rank.
        wait: waits for a request, given it and the buffers that it uses.
    """
    text = json.dumps(facts).encode()
    if len(text) > _RECORD:
        text = json.dumps({**facts, "error": str(facts.get("error"))[:_WORDS]}).encode()
    own = np.zeros(_RECORD, np.uint8)
    own[: len(text)] = np.frombuffer(text, np.uint8)
    every = np.empty((private.Get_size(), _RECORD), np.uint8)
    wait(private.Iallgather(own, every), own, every)
    return [json.loads(record.tobytes().rstrip(b"\0")) for record in every]


def compare(facts: Sequence[Facts]) -> None:
    """Raise if the ranks do not agree.

    Args:
        facts: those of all ranks, in rank order.

    Raises:
        Disagreement: names what differs, and the ranks.
    """
    problems = [
        f"{ranges([rank])} raised {own['error']}"
        for rank, own in enumerate(facts)
        if own.get("error")
    ]
    if not problems:
        names = {name: None for own in facts for name in own}
        problems = [text for text in (_difference(name, facts) for name in names) if text]
    if problems:
        # What follows from another collective is not worth telling.
        told = problems[:1] if problems[0].startswith("collective: ") else problems
        raise Disagreement(f"the ranks do not make the same call: {'; '.join(told)}")


def _difference(name: str, facts: Sequence[Facts]) -> str:
    """The ranks by value of a fact, in words; "" where all agree."""
    who: dict[Any, list[int]] = {}
    for rank, own in enumerate(facts):
        if own.get(name) is not None:
            who.setdefault(own[name], []).append(rank)
    if len(who) < 2:
        return ""
    values = ", ".join(f"{value} on {ranges(having)}" for value, having in who.items())
    return f"{name}: {values}"


@lru_cache(maxsize=256)
def schedule_hash(
    collective: str, algorithm: str, parameters: tuple[tuple[str, int], ...], size: int, root: int
) -> str:
    """A number in place of the schedules of all ranks; of at most 64 of them, evenly spread."""
    entry = algorithms.find(collective, algorithm)
    sample = range(0, size, -(-size // _SAMPLE))
    program = [
        [channel._replace(rounds=[*channel.rounds]) for channel in channels]
        for channels in (entry.channels(rank, size, root, dict(parameters)) for rank in sample)
    ]
    return hashlib.sha256(repr(program).encode()).hexdigest()[:16]
