"""Integer clocks over schedules, message by message.

A message of m bytes occupies the sender's output port and the receiver's input port for
``alpha + beta m``; a rank that has received something in a round needs ``step``, and ``gamma`` for
each byte it reduces, before the next round begins.  Which messages go first where ports are few:
see :mod:`mpicoll.simulate.ports`; what they occupy on a network: :mod:`mpicoll.simulate.network`.
Times are integers, so results are exact and repeatable.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mpicoll.registry import Algorithm
from mpicoll.schedule import Channel, RecvReduce
from mpicoll.schedule.matching import Matching, Open, Pair
from mpicoll.schedule.memory import Blank, Cell, ScheduleError
from mpicoll.schedule.parameters import Parameter
from mpicoll.simulate.machine import STEPS, Machine, Sizes
from mpicoll.simulate.ports import Ports


@dataclass(frozen=True)
class Result:
    """What a simulation found.

    Attributes:
        finish: time until each rank is done.
        sent: bytes sent by each rank.
        messages: messages sent.
        how: how it was found, in words.
        exact: the time is that of every message followed by itself; else an upper bound.
    """

    finish: tuple[int, ...]
    sent: tuple[int, ...]
    messages: int
    how: str = "every message"
    exact: bool = True

    @property
    def makespan(self) -> int:
        """Time until the last rank is done."""
        return max(self.finish, default=0)

    @property
    def bytes_sent(self) -> int:
        """Bytes sent, all ranks together."""
        return sum(self.sent)

    @property
    def bytes_sent_max(self) -> int:
        """Bytes sent by the rank that sends most."""
        return max(self.sent, default=0)


#: Rank, channel, and number of a round in it.
RoundPlace = tuple[int, int, int]


class Transfer(NamedTuple):
    """One message on its way, for drawings and for critical paths.

    ``rounds``: of its sender, and of its receiver.
    """

    start: int
    end: int
    sender: int
    receiver: int
    channel: int
    cells: tuple[Cell, ...]
    reduces: bool
    nbytes: int
    rounds: tuple[RoundPlace, RoundPlace]


def clock(
    matching: Matching,
    machine: Machine,
    sizes: Sizes | None = None,
    transfers: list[Transfer] | None = None,
) -> Result:
    """Run a matching under the clock; without ``sizes`` every message is empty.

    ``transfers``, if given, receives every message in the order it starts.

    Raises:
        ScheduleError: something is left over (deadlock, unmatched messages).
    """
    network = machine.network
    ports = Ports(matching.size, machine.ports, network)
    works = bool(
        machine.step or (sizes and machine.gamma)
    )  # ranks have something to do between rounds
    finish = [0] * matching.size
    sent = [0] * matching.size
    messages = now = number = 0
    events: list[tuple[int, int, Pair | Open | tuple[int, int]]] = []
    while True:
        while matching.complete:
            current = matching.complete.popleft()
            later = now + _after(current, matching, machine, sizes) if works else now
            finish[current.rank] = max(finish[current.rank], later)
            if later > now:
                number += 1
                heapq.heappush(events, (later, number, current))
            else:
                matching.close(current)
        for message in matching.ready:
            assert message.sender is not None and message.receiver is not None
            source, channel = message.sender.rank, message.sender.channel
            key = (now, message.position, message.distance, channel, source)
            ports.wait(key, source, message.receiver.rank, message)
        matching.ready.clear()
        for source, target, message in ports.begin():
            assert message.sender is not None and message.receiver is not None
            channel = message.sender.channel
            length = sizes.of(message.sent, matching.channels[channel].segment) if sizes else 0
            receiver = (source + message.distance) % matching.ranks
            end = now + machine.message(source, receiver, length)
            sent[source] += length
            messages += 1
            number += 1
            heapq.heappush(events, (end, number, message))
            for time, kind, of in network.held(source, receiver, length) if network else ():
                number += 1
                heapq.heappush(events, (now + time, number, (kind, of)))
            if transfers is not None:
                cells = matching.cells(message.sent, matching.channels[channel].segment)
                reduces = isinstance(message.step, RecvReduce)
                rounds = message.sender.place, message.receiver.place
                transfers.append(
                    Transfer(now, end, source, target, channel, cells, reduces, length, rounds)
                )
        if not events:
            break
        now = events[0][0]
        while events and events[0][0] == now:
            event = heapq.heappop(events)[2]
            if isinstance(event, Open):
                matching.close(event)
                continue
            if isinstance(event, tuple):
                ports.free(*event)
                continue
            assert event.sender is not None and event.receiver is not None
            ends = event.sender.rank, event.receiver.rank
            if network is None:
                ports.release(*ends)
            for rank in ends:
                finish[rank] = max(finish[rank], now)
            matching.deliver(event)
    leftover = matching.stuck()
    if leftover:
        raise ScheduleError("; ".join(leftover))
    return Result(tuple(finish), tuple(sent), messages)


def _after(current: Open, matching: Matching, machine: Machine, sizes: Sizes | None) -> int:
    """What a rank still has to do when all messages of a round are through."""
    if not current.arrived:
        return 0
    reduced = 0
    if sizes and machine.gamma:
        segment = matching.channels[current.channel].segment
        reduced = sum(
            sizes.of(step.block, segment)
            for step, _ in current.arrived
            if isinstance(step, RecvReduce)
        )
    return machine.after(current.rank, reduced)


def trace(
    algorithm: Algorithm,
    size: int,
    root: int = 0,
    parameters: Mapping[str, Parameter] | None = None,
    nbytes: int = 0,
    machine: Machine = STEPS,
) -> list[Transfer]:
    """Every message in the order it starts, by default under the :data:`STEPS` clock.

    Raises:
        ValueError: a size, root, count or parameter out of range.
    """
    check_call(size, root, nbytes)
    programs = [algorithm.channels(rank, size, root, parameters) for rank in range(size)]
    transfers: list[Transfer] = []
    follow(algorithm, programs, size, nbytes, machine, transfers=transfers)
    return transfers


def follow(
    algorithm: Algorithm,
    programs: Sequence[Sequence[Channel]],
    size: int,
    nbytes: int,
    machine: Machine,
    largest: bool = False,
    transfers: list[Transfer] | None = None,
) -> Result:
    """Run the schedules of all ranks under the clock, or of some that represent all of ``size``.

    Raises:
        ScheduleError: see :func:`clock`.
    """
    nblocks, memories = algorithm.blocks(size), [Blank() for _ in programs]
    matching = Matching(programs, nblocks, algorithm.scratch(size), memories, ranks=size)
    segments = programs[0][0].segments if programs[0] else 1
    return clock(matching, machine, Sizes(nbytes, nblocks, segments, largest), transfers)


def check_call(size: int, root: int, nbytes: int = 0) -> None:
    """Check a number of ranks, a root and a size.

    Raises:
        ValueError: fewer than one rank, a root that is none of them, or a negative size.
    """
    if nbytes < 0:
        raise ValueError(f"nbytes={nbytes} must not be negative")
    if size < 1:
        raise ValueError(f"P={size} ranks: at least 1 is needed")
    if not 0 <= root < size:
        raise ValueError(f"root={root} is not among the ranks 0 .. {size - 1}")
