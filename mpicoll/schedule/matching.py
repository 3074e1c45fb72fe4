"""The one place where sends meet receives outside MPI.

:class:`Matching` runs the schedules of all ranks together: it posts rounds, pairs each send with
its receive in the order posted, stores and folds what arrived when a round is complete, and opens
the next round.  *When* a paired message is delivered and a complete round is closed is the caller's
choice, through :func:`run` (at once) or a clock (:mod:`mpicoll.simulate.clock`).  What values are
is the caller's choice too, through a :class:`~mpicoll.schedule.memory.Memory`: symbols for
:mod:`mpicoll.verify`, arrays for :mod:`mpicoll.local`, nothing for :mod:`mpicoll.simulate.clock`.
So the three cannot drift apart.

A message is delivered only when both sides have posted it (the rendezvous protocol).  That is the
harder case: under the eager protocol a send completes at once, which only takes constraints away.
All peers are named and messages match in order, so the values do not depend on the protocol nor on
the order of delivery, and a schedule that completes here completes under both.  Two more ways to
run show what else a runner may do: ``eager=True`` is the other protocol, ``joint=True`` delivers
no receive of a round before all of them are matched, as a runner short of receive space may.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Generic

from mpicoll.base.wording import plural
from mpicoll.schedule.memory import (
    Cell,
    Memory,
    ScheduleError,
    Value,
    no_peer,
    unequal_copy,
)
from mpicoll.schedule.steps import (
    Block,
    Channel,
    Copy,
    Location,
    Recv,
    RecvReduce,
    Round,
    Send,
    blocks,
    number_of_blocks,
)


class Open:
    """A round under way on one channel of one rank, and its number there."""

    __slots__ = (
        "arrived",
        "channel",
        "held",
        "number",
        "outstanding",
        "rank",
        "steps",
        "unmatched",
    )

    def __init__(self, rank: int, channel: int, number: int, steps: Round) -> None:
        self.rank = rank
        self.channel = channel
        self.number = number
        self.steps = steps
        self.outstanding = self.unmatched = 0
        self.held: list[Pair] = []  # matched receives that wait for the others (joint)
        self.arrived: list[tuple[Recv | RecvReduce, Pair]] = []

    @property
    def place(self) -> tuple[int, int, int]:
        """Its rank, channel and number."""
        return self.rank, self.channel, self.number

    def __str__(self) -> str:
        steps = ", ".join(str(step) for step in self.steps)
        return f"rank {self.rank}, channel {self.channel}: ({steps})"


class Pair:
    """One side, then both sides, of a message.

    ``position``: of the send in its round.  ``distance``: from the sender to the receiver, round
    the ring of all ranks.  ``sent``: the blocks that the sender names.
    """

    __slots__ = ("distance", "position", "receiver", "sender", "sent", "step", "values")

    def __init__(self, sender: Open | None, receiver: Open | None, distance: int) -> None:
        self.sender = sender
        self.receiver = receiver
        self.distance = distance
        self.step: Recv | RecvReduce | None = None
        self.position = 0
        self.sent: Block = ()
        self.values: list = []


class Matching(Generic[Value]):
    """The schedules of all ranks, run together.

    ``ready`` holds the messages whose two sides are posted, in the order paired; the caller takes
    them out and calls :meth:`deliver`.  ``complete`` holds the rounds whose messages are all
    delivered; the caller takes them out and calls :meth:`close`.

    Args:
        programs: each rank's channels.
        nblocks, nscratch: number of blocks and of scratch blocks.
        memories: each rank's memory.
        eager: a send completes as soon as it is posted.
        joint: a round's receives are delivered only when all of them are matched.
        ranks: number of ranks, if ``programs`` are those of some that represent all: rank r does
            what rank r - R does, R representatives in all, with peers R further on.

    Raises:
        ScheduleError: a step that no rank could run, or ranks with different numbers of channels.
    """

    def __init__(
        self,
        programs: Sequence[Sequence[Channel]],
        nblocks: int,
        nscratch: int,
        memories: Sequence[Memory[Value]],
        eager: bool = False,
        joint: bool = False,
        ranks: int | None = None,
    ) -> None:
        shapes = [[(c.segment, c.segments, c.window) for c in program] for program in programs]
        for rank, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise ScheduleError(
                    f"the {plural(len(shape), 'channel')} of rank {rank} and the "
                    f"{len(shapes[0])} of rank 0 do not match"
                )
        self.size = len(programs)
        self.ranks = self.size if ranks is None else ranks
        self.nblocks, self.nscratch = nblocks, nscratch
        self.memories = memories
        self.eager, self.joint = eager, joint
        self.ready: deque[Pair] = deque()
        self.complete: deque[Open] = deque()
        self.channels = programs[0] if programs else ()
        self._rounds: list[list[Iterator[tuple[int, Round]]]] = [
            [enumerate(channel.rounds) for channel in program] for program in programs
        ]
        self._waiting: dict[tuple[int, int, int], deque[Pair]] = {}
        self._running = [self._channels_of_segments() for _ in programs]
        self._open: dict[tuple[int, int], Open] = {}
        for rank in range(self.size):
            for number, channel in enumerate(self.channels):
                if channel.segment < channel.window:
                    self._next(rank, number)

    def _channels_of_segments(self) -> list[int]:
        segments = self.channels[0].segments if self.channels else 0
        running = [0] * segments
        for channel in self.channels:
            running[channel.segment] += 1
        return running

    def deliver(self, message: Pair) -> None:
        """Both sides of a ready message are done with it."""
        sender, receiver = message.sender, message.receiver
        assert sender is not None and receiver is not None and message.step is not None
        if type(message.sent) is not int or type(message.step.block) is not int:
            sent, expected = number_of_blocks(message.sent), number_of_blocks(message.step.block)
            if sent != expected:
                raise ScheduleError(
                    f"rank {sender.rank} sends {plural(sent, 'block')} to rank {receiver.rank}, "
                    f"which expects {expected}: {message.step}"
                )
        receiver.arrived.append((message.step, message))
        if not self.eager:
            sender.outstanding -= 1
            if not sender.outstanding:
                self.complete.append(sender)
        receiver.outstanding -= 1
        if not receiver.outstanding:
            self.complete.append(receiver)

    def close(self, current: Open) -> None:
        """Store and fold what a complete round received, then post the channel's next round."""
        memory = self.memories[current.rank]
        del self._open[current.rank, current.channel]
        if current.arrived and memory.holds_values:
            self._store(current, memory)
        current.arrived.clear()  # else a round and its messages would hold one another
        self._next(current.rank, current.channel)

    def _store(self, current: Open, memory: Memory[Value]) -> None:
        folds: dict[Cell, list[tuple[int, Value]]] = {}
        segment = self.channels[current.channel].segment
        for step, message in self._in_order_written(current):
            cells = self.cells(step.block, segment)
            if isinstance(step, Recv):
                memory.receive(message.values, cells)
            else:
                for cell, value in zip(cells, message.values, strict=True):
                    folds.setdefault(cell, []).append((step.peer, value))
        for cell, received in folds.items():
            memory.reduce(current.rank, cell, received)

    @staticmethod
    def _in_order_written(current: Open) -> Iterable[tuple[Recv | RecvReduce, Pair]]:
        if len(current.arrived) < 2:
            return current.arrived
        place = {id(step): index for index, step in enumerate(current.steps)}
        return sorted(current.arrived, key=lambda arrival: place[id(arrival[0])])

    def _next(self, rank: int, number: int) -> None:
        """Post a channel's next round; after its last one open the segments that wait for it."""
        todo = [number]
        for current in todo:  # grows while it is read
            found = next(self._rounds[rank][current], None)
            if found is not None:
                self._post(Open(rank, current, *found))
                continue
            running, channel = self._running[rank], self.channels[current]
            running[channel.segment] -= 1
            opens = channel.segment + channel.window
            if not running[channel.segment] and opens < channel.segments:
                each = len(self.channels) // channel.segments
                todo += range(opens * each, (opens + 1) * each)

    def _post(self, current: Open) -> None:
        rank, number = current.rank, current.channel
        self._open[rank, number] = current
        memory = self.memories[rank]
        segment = self.channels[number].segment
        kinds = list(map(type, current.steps))
        if self.joint:
            current.unmatched = kinds.count(Recv) + kinds.count(RecvReduce)
        if Copy in kinds:
            for step in current.steps:
                if isinstance(step, Copy):
                    self._copy(rank, step, segment)
        for position, step in enumerate(current.steps):
            if isinstance(step, Copy):
                continue
            peer, block = step
            if peer == rank or not 0 <= peer < self.ranks:
                raise no_peer(step, rank, self.ranks)
            if isinstance(step, Send):
                message = self._pair(rank, peer, number, current, None)
                message.position, message.sent = position, block
                if memory.holds_values:
                    message.values = memory.send(self.cells(block, segment))
                if not self.eager:
                    current.outstanding += 1
            else:
                message = self._pair(peer, rank, number, None, current)
                message.step = step
                current.outstanding += 1
            if message.sender is None or message.receiver is None:
                continue
            if self.joint:
                self._hold(message, message.receiver)
            else:
                self.ready.append(message)
        if not current.outstanding:
            self.complete.append(current)

    def _copy(self, rank: int, step: Copy, segment: int) -> None:
        if number_of_blocks(step.src) != number_of_blocks(step.dst):
            raise unequal_copy(step, rank, "another number of blocks")
        memory = self.memories[rank]
        if memory.holds_values:
            source, target = self.cells(step.src, segment), self.cells(step.dst, segment)
            memory.receive(memory.send(source), target)

    def _hold(self, message: Pair, receiver: Open) -> None:
        """Keep a matched message until all of its receiver's round are matched."""
        receiver.held.append(message)
        receiver.unmatched -= 1
        if not receiver.unmatched:
            self.ready.extend(receiver.held)

    def cells(self, argument: object, segment: int) -> tuple[Cell, ...]:
        """The cells of a segment of the blocks that an argument names.

        Raises:
            ScheduleError: a block of a space that has none.
        """
        return _cells(argument, self.nblocks, self.nscratch, segment)

    def _pair(
        self, source: int, target: int, number: int, sender: Open | None, receiver: Open | None
    ) -> Pair:
        """The message whose other side has been posted first, or a new one.

        Ranks that one rank represents are told apart by how far a message goes.
        """
        distance = (target - source) % self.ranks
        key = (source % self.size, distance, number)
        queue = self._waiting.get(key)
        if queue is None:
            message = Pair(sender, receiver, distance)
            self._waiting[key] = deque((message,))
        elif (queue[0].sender is None) == (sender is None):  # of the same side
            message = Pair(sender, receiver, distance)
            queue.append(message)
        else:
            message = queue.popleft()
            if sender is None:
                message.receiver = receiver
            else:
                message.sender = sender
            if not queue:  # most are used once, and there may be millions
                del self._waiting[key]
        return message

    def stuck(self) -> list[str]:
        """What never finished: rounds under way, sends without receives and the reverse."""
        lines = [f"never completes: {current}" for current in self._open.values()]
        for (source, distance, number), queue in self._waiting.items():
            target = (source + distance) % self.ranks
            for message in queue:
                kind = "receive" if message.sender is None else "send"
                lines.append(f"unmatched {kind}: {source} -> {target} on channel {number}")
        return lines


@lru_cache(maxsize=1 << 16, typed=True)
def _cells(argument: Hashable, nblocks: int, nscratch: int, segment: int) -> tuple[Cell, ...]:
    try:
        places: tuple[Location, ...] = blocks(argument, nblocks, nscratch)
    except ValueError as error:
        raise ScheduleError(str(error)) from None
    return tuple(Cell(place.space, place.block, segment) for place in places)


def run(matching: Matching[Value]) -> None:
    """Deliver and close everything at once, until nothing moves.

    Raises:
        ScheduleError: something is left over (deadlock, unmatched messages).
    """
    while matching.ready or matching.complete:
        if matching.complete:
            matching.close(matching.complete.popleft())
        else:
            matching.deliver(matching.ready.popleft())
    leftover = matching.stuck()
    if leftover:
        raise ScheduleError("; ".join(leftover))
