"""Do all ranks make the same call?  Asked before every call where ``MPICOLL_CHECK=1``.

The ranks exchange what their calls must have in common.  The exchange is the same whatever the
calls are, so it cannot hang where they differ: then every rank raises the same error instead, and
the communicator can still be used.  A rank that finds a mistake in its own arguments says so too.

A blocking call exchanges before it runs, and a persistent operation where it is made, which MPI
allows to wait for other ranks.  A non-blocking call must not wait: its exchange is under way beside
it, and its request is complete when the exchange is too.  So it is its request that raises, and
then the communicator cannot be used any more, because what was started later may be under way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll import algorithms
from mpicoll.base.wording import ranges
from mpicoll.engine import progress
from mpicoll.errors import Disagreement
from mpicoll.schedule.parameters import Value

#: What ranks must have in common, by name; None: this rank cannot tell, or it need not be equal.
CallSignature = Mapping[str, Any]

#: Bytes that a rank sends, and the longest error in them.
_RECORD, _WORDS = 1024, 400
#: Ranks whose schedules are hashed.
_SAMPLE = 64


def share(
    private: MPI.Intracomm, facts: CallSignature, wait: Callable[..., object]
) -> list[dict[str, Any]]:
    """The facts of all ranks.  Collective.

    Args:
        private: the communicator that carries the collectives' messages.
        facts: those of this rank.
        wait: waits for a request, given it and the buffers that it uses.
    """
    exchange = _Exchange(private, facts)
    wait(exchange.request, exchange)
    return exchange.facts()


class _Exchange:
    """The facts of all ranks, once the request is complete."""

    def __init__(self, private: MPI.Intracomm, facts: CallSignature) -> None:
        text = json.dumps(facts).encode()
        if len(text) > _RECORD:
            text = json.dumps({**facts, "error": str(facts.get("error"))[:_WORDS]}).encode()
        self._own = np.zeros(_RECORD, np.uint8)
        self._own[: len(text)] = np.frombuffer(text, np.uint8)
        self._every = np.empty((private.Get_size(), _RECORD), np.uint8)
        self.request = private.Iallgather(self._own, self._every)

    def facts(self) -> list[dict[str, Any]]:
        return [json.loads(record.tobytes().rstrip(b"\0")) for record in self._every]


class Comparison:
    """Whether the ranks agree on a call that does not wait for the answer.

    Args:
        private, facts: see :func:`share`.
        fail: told of an error; returns what that means.

    Attributes:
        over: there is an answer.
        error: that the ranks do not agree, or what MPI has reported.
    """

    owner = None  # it is part of a call that has one

    def __init__(
        self,
        private: MPI.Intracomm,
        facts: CallSignature,
        fail: Callable[[BaseException], BaseException],
    ) -> None:
        self.over = False
        self.error: BaseException | None = None
        self._fail = fail
        self._exchange = _Exchange(private, facts)
        progress.add(self)

    def advance(self) -> None:
        """See :class:`mpicoll.engine.progress.Operation`."""
        try:
            if not self._exchange.request.Test():
                return
            compare(self._exchange.facts())
        except (Disagreement, MPI.Exception) as error:
            self.error = self._fail(error)
        progress.remove(self)
        self.over = True


def compare(facts: Sequence[CallSignature]) -> None:
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


def _difference(name: str, facts: Sequence[CallSignature]) -> str:
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
    collective: str, algorithm: str, parameters: tuple[tuple[str, Value], ...], size: int, root: int
) -> str:
    """A number in place of the schedules of all ranks; of at most 64 of them, evenly spread."""
    entry = algorithms.find(collective, algorithm)
    sample = range(0, size, -(-size // _SAMPLE))
    program = [
        [channel._replace(rounds=[*channel.rounds]) for channel in channels]
        for channels in (entry.channels(rank, size, root, dict(parameters)) for rank in sample)
    ]
    return short_hash(program)


def short_hash(value: object) -> str:
    """A number in place of what is too long to be sent."""
    import hashlib  # seldom needed

    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]
