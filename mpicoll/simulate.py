"""Integer clocks over schedules: how long a collective takes under the alpha-beta-gamma model.

A message of m bytes occupies the sender's output port and the receiver's input port for
``alpha + beta m``; a rank that has received everything of a round adds ``gamma`` for each byte it
reduces before the next round begins.  Of the messages whose two ports are free, the one posted
first goes first (both sides must have posted it), then by position in its round, then by sender.
Times are integers, so results are exact and repeatable; :class:`Model` counts picoseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mpicoll import layout
from mpicoll.matching import Blank, Cell, Matching, Memory, Message, Open, ScheduleError
from mpicoll.registry import Algorithm, Parameter
from mpicoll.schedule import RecvReduce

__all__ = ["STEPS", "Model", "Result", "Transfer", "clock", "simulate", "trace"]


@dataclass(frozen=True)
class Model:
    """Cost parameters, as integers.

    Attributes:
        alpha: picoseconds per message.
        beta: picoseconds per byte sent.
        gamma: picoseconds per byte reduced.
        ports: messages that a rank can send, and as many that it can receive, at a time.

    Raises:
        ValueError: a negative cost, or fewer than one port.
    """

    alpha: int = 1_000_000
    beta: int = 100
    gamma: int = 50
    ports: int = 1

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "gamma"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
        if self.ports < 1:
            raise ValueError(f"ports={self.ports} must be at least 1")


#: The model that counts steps: a message takes 1, everything else nothing.
STEPS = Model(alpha=1, beta=0, gamma=0)


@dataclass(frozen=True)
class Result:
    """What a simulation found.

    Attributes:
        makespan: picoseconds until the last rank is done.
        finish: picoseconds until each rank is done.
        messages: messages sent.
        bytes_sent: bytes sent, all ranks together.
        bytes_sent_max: bytes sent by the rank that sends most.
    """

    makespan: int
    finish: tuple[int, ...]
    messages: int
    bytes_sent: int
    bytes_sent_max: int


class Transfer(NamedTuple):
    """One message on its way, for drawings."""

    start: int
    end: int
    sender: int
    receiver: int
    channel: int
    cells: tuple[Cell, ...]
    reduces: bool


class _Sizes:
    """Bytes of each cell."""

    def __init__(self, nbytes: int, nblocks: int, segments: int) -> None:
        lengths = layout.even(nbytes, nblocks).counts
        self.lengths = [
            [layout.part(length, segments, segment)[1] for segment in range(segments)]
            for length in lengths
        ]

    def of(self, cells: tuple[Cell, ...]) -> int:
        return sum(self.lengths[cell.block % len(self.lengths)][cell.segment] for cell in cells)


def clock(
    matching: Matching,
    model: Model,
    sizes: _Sizes | None = None,
    transfers: list[Transfer] | None = None,
) -> Result:
    """Run a matching under the clock; without ``sizes`` every message is empty.

    ``transfers``, if given, receives every message in the order it starts.

    Raises:
        ScheduleError: something is left over (deadlock, unmatched messages).
    """
    output = [model.ports] * matching.size
    arrival = [model.ports] * matching.size
    finish = [0] * matching.size
    sent = [0] * matching.size
    messages = now = number = 0
    # Posted, position in its round, sender, tie-break, receiver, message: in the order to go.
    pending: list[tuple[int, int, int, int, int, Message]] = []
    events: list[tuple[int, int, Message | Open]] = []

    def size(cells: tuple[Cell, ...]) -> int:
        return sizes.of(cells) if sizes else 0

    while True:
        while matching.complete:
            current = matching.complete.popleft()
            reduced = model.gamma * sum(
                size(cells) for step, cells, _ in current.arrived if isinstance(step, RecvReduce)
            )
            finish[current.rank] = max(finish[current.rank], now + reduced)
            if reduced:
                number += 1
                heapq.heappush(events, (now + reduced, number, current))
            else:
                matching.close(current)
        for message in matching.ready:
            assert message.sender is not None and message.receiver is not None
            number += 1
            source, target = message.sender.rank, message.receiver.rank
            pending.append((now, message.position, source, number, target, message))
        matching.ready.clear()
        pending.sort()
        blocked = []
        for entry in pending:
            source, target, message = entry[2], entry[4], entry[5]
            if not output[source] or not arrival[target]:
                blocked.append(entry)
                continue
            output[source] -= 1
            arrival[target] -= 1
            length = size(message.sent)
            sent[source] += length
            messages += 1
            number += 1
            end = now + model.alpha + model.beta * length
            heapq.heappush(events, (end, number, message))
            if transfers is not None:
                assert message.sender is not None
                reduces = isinstance(message.step, RecvReduce)
                channel = message.sender.channel
                transfers.append(Transfer(now, end, source, target, channel, message.sent, reduces))
        pending = blocked
        if not events:
            break
        now = events[0][0]
        while events and events[0][0] == now:
            event = heapq.heappop(events)[2]
            if isinstance(event, Open):
                matching.close(event)
                continue
            assert event.sender is not None and event.receiver is not None
            output[event.sender.rank] += 1
            arrival[event.receiver.rank] += 1
            for rank in (event.sender.rank, event.receiver.rank):
                finish[rank] = max(finish[rank], now)
            matching.deliver(event)
    leftover = matching.stuck()
    if leftover:
        raise ScheduleError("; ".join(leftover))
    return Result(max(finish, default=0), tuple(finish), messages, sum(sent), max(sent, default=0))


def simulate(
    algorithm: Algorithm,
    size: int,
    nbytes: int,
    model: Model | None = None,
    root: int = 0,
    parameters: Mapping[str, Parameter] | None = None,
) -> Result:
    """Simulate one collective of ``nbytes`` (the total vector) on ``size`` ranks, event by event.

    Raises:
        ValueError: a size, root, count or parameter out of range.
    """
    return _run(algorithm, size, nbytes, model or Model(), root, parameters)


def trace(
    algorithm: Algorithm,
    size: int,
    root: int = 0,
    parameters: Mapping[str, Parameter] | None = None,
    nbytes: int = 0,
    model: Model = STEPS,
) -> list[Transfer]:
    """Every message in the order it starts, by default under the :data:`STEPS` clock.

    Raises:
        ValueError: a size, root, count or parameter out of range.
    """
    transfers: list[Transfer] = []
    _run(algorithm, size, nbytes, model, root, parameters, transfers)
    return transfers


def _run(
    algorithm: Algorithm,
    size: int,
    nbytes: int,
    model: Model,
    root: int,
    parameters: Mapping[str, Parameter] | None,
    transfers: list[Transfer] | None = None,
) -> Result:
    if nbytes < 0:
        raise ValueError(f"nbytes={nbytes} must not be negative")
    matching = _matching(algorithm, size, root, parameters)
    segments = matching.channels[0].segments if matching.channels else 1
    sizes = _Sizes(nbytes, matching.nblocks, segments) if matching.nblocks else None
    return clock(matching, model, sizes, transfers)


def _matching(
    algorithm: Algorithm, size: int, root: int, parameters: Mapping[str, Parameter] | None
) -> Matching[None]:
    check_call(size, root)
    programs = [algorithm.channels(rank, size, root, parameters) for rank in range(size)]
    memories: list[Memory[None]] = [Blank() for _ in range(size)]
    return Matching(programs, algorithm.blocks(size), algorithm.scratch(size), memories)


def check_call(size: int, root: int) -> None:
    """Check a number of ranks and a root.

    Raises:
        ValueError: fewer than one rank, or a root that is none of them.
    """
    if size < 1:
        raise ValueError(f"P={size} ranks: at least 1 is needed")
    if not 0 <= root < size:
        raise ValueError(f"root={root} is not among the {size} ranks 0 .. {size - 1}")
