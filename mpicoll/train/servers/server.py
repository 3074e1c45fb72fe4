"""The end of a parameter server that answers: a shard, and messages from its workers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from mpicoll.base.arrays import library_of, put
from mpicoll.train.ranks.waiting import wait_until
from mpicoll.train.servers import messages
from mpicoll.train.servers.messages import ServerMessage, tag
from mpicoll.train.servers.shard import Push, Shard

if TYPE_CHECKING:
    from mpi4py import MPI


class Server:
    """Receives what workers send to a shard, and answers.

    Args:
        comm: The ranks; nothing else is sent on it.
        shard: The shard.
        number: Its number among all shards.
        workers: Rank of each worker that pushes to it.
        audience: Number of each worker that pulls from it.
        lockstep: Whether all shards see the gradients of a clock before they answer at the next, so
            that all stop at the same; otherwise the first shard alone may stop the workers.
        every: Updates after which parameters are sent unasked (see `Shard.due`), None where workers
            pull.
        last: Where workers are told to stop by shards of their own: steps after the one with which
            a worker asks for it that all make yet, so many that no shard can have granted more.
            None where the first shard alone tells them.

    Attributes:
        stop: Set: all workers are to stop, from the next push on.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        shard: Shard,
        number: int,
        workers: Sequence[int],
        audience: Collection[int],
        lockstep: bool,
        every: int | None,
        last: int | None,
    ) -> None:
        self._last_steps = last
        self._comm, self.shard, self._number, self._ranks = comm, shard, number, workers
        self._audience, self._lockstep, self._every = audience, lockstep, every
        count, dtype = shard.weights.size, shard.weights.dtype
        self._arriving = [ServerMessage(count, dtype) for _ in workers]
        self._answers = [ServerMessage(count, dtype) for _ in workers]
        self._epoch = 0  # so many have begun
        self._early: list[int] = []  # whose message of the next epoch came in this one
        self._unseen: set[int] = set()  # who has not said that the last message has arrived
        self._leaving: set[int] = set()  # who awaits the last message of the epoch
        self._fetching: dict[int, int] = {}  # slot of the optimizer that a worker asks for
        self.stop = False
        self._stop_clock = -1.0
        for number in range(len(workers)):
            self._receive(number)

    def begin(self, clock: int) -> None:
        """Workers start at a clock."""
        self._epoch += 1
        self.shard.begin(clock)
        self.stop, self._stop_clock = False, -1.0
        self._unseen.clear()
        early, self._early = self._early, []
        for number in early:
            self._take(number, self._arriving[number])

    def poll(self) -> bool:
        """Take what has arrived, answer who can be answered; whether there was anything."""
        moved = False
        for number, message in enumerate(self._arriving):
            if message.request is None or number in self._early or not message.done():
                continue
            moved = True
            if self._is_early(message):
                self._early.append(number)
            else:
                self._take(number, message)
        return self._answer() or moved

    def over(self) -> bool:
        """Whether all workers have left and have got what they asked for."""
        waiting = self._leaving or self._fetching
        return self.shard.idle and not waiting and all(answer.done() for answer in self._answers)

    def free(self) -> None:
        """Await nothing more."""
        for message in self._arriving:
            message.cancel()

    # --- what comes ---

    def _receive(self, number: int) -> None:
        source = self._ranks[number]
        self._arriving[number].receive(self._comm, source, tag(self._number, messages.TO_SERVER))

    def _is_early(self, message: ServerMessage) -> bool:
        """Whether it is of an epoch that has not begun here: a worker may hear of it first."""
        return bool(message.head[messages.EPOCH] > self._epoch)

    def _take(self, number: int, message: ServerMessage) -> None:
        """What a worker sent."""
        kind, clock = (int(value) for value in message.head[: messages.CLOCK + 1])
        if kind == messages.PULL:
            self.shard.pull(number)
        elif kind == messages.FETCH:
            self._fetching[number] = clock
        elif kind == messages.ARRIVED:
            self._unseen.discard(number)
        else:
            self._change(number, message)
            if kind == messages.LEAVE and number in self._audience:
                self._leaving.add(number)
        self._receive(number)

    def _change(self, number: int, message: ServerMessage) -> None:
        """A push or a leave: what changes the shard."""
        head = message.head[: messages.VERSION + 1].tolist()
        kind, clock, flags, _, samples, total, seconds, processor, version = head
        if kind == messages.PUSH:
            push = Push(
                int(clock),
                int(samples),
                int(total),
                not int(flags) & messages.NOT_FINITE,
                seconds,
                processor,
                int(version),
            )
            # Where the shard is.
            gradient = library_of(self.shard.weights).asarray(message.values)
            self.shard.push(number, push, gradient)
        else:
            self.shard.leave(number)
        self._heed(message)

    def _heed(self, message: ServerMessage) -> None:
        """What a change says of where to stop."""
        kind, clock, flags = (int(value) for value in message.head[: messages.FLAGS + 1])
        wished = flags & messages.STOP or (self.stop and kind == messages.PUSH)
        if flags & messages.FAILED:
            self._stop_clock = 0.0  # the run is over
        elif wished and self._last_steps is not None:
            end = clock + self._last_steps + 1
            self._stop_clock = end if self._stop_clock < 0 else min(self._stop_clock, end)
        elif wished and self._stop_clock < 0:
            self._stop_clock = (clock if self._lockstep else self.shard.granted) + 1.0

    # --- what goes ---

    def _answer(self) -> bool:
        moved = False
        if self._every is None:
            for number in self.shard.answers(self._held()):
                moved = True
                self._give(number)
        else:
            free = [number for number in self._audience if number not in self._unseen]
            for number, last in self.shard.due(self._every, free):
                moved = True
                self._give(number, last)
                self._unseen.add(number)
        # The last message of a worker has the parameters at the end, when all have left.
        for number in sorted(self._leaving - self._unseen if self._settled() else ()):
            moved = True
            self._leaving.discard(number)
            self._give(number, final=True)
        while self._fetching:
            moved = True
            number, slot = self._fetching.popitem()
            self._give(number, slot=slot)
        return moved

    def _held(self) -> Collection[int]:
        """Workers that may not be answered yet, whatever the shard says."""
        return ()

    def _settled(self) -> bool:
        """Whether the parameters are those at the end of the epoch."""
        return self.shard.idle

    def _give(
        self, number: int, last: int = 0, final: bool = False, slot: int | None = None
    ) -> None:
        """Send parameters, or an array of the optimizer, to a worker."""
        shard, answer = self.shard, self._answers[number]
        # Of the answer before, which has arrived, unless the worker has died.
        wait_until(lambda: answer.lost or answer.done(), lambda: False)
        if answer.lost:
            return
        answer.head[: messages.SKIPPED + 1] = (
            self._stop_clock,
            shard.updates,
            last,
            final,
            shard.skipped,
        )
        put(answer.values, shard.weights if slot is None else list(shard.state.values())[slot])
        answer.send(self._comm, self._ranks[number], tag(self._number, messages.TO_WORKER))
