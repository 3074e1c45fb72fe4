"""The two ends of a parameter server over MPI: a shard that answers, a worker that asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from mpicoll.arrays import library_of, put
from mpicoll.train import messages
from mpicoll.train.messages import Message, wait_until
from mpicoll.train.shard import Push, Shard

if TYPE_CHECKING:
    from mpi4py import MPI

Array = NDArray[Any]


class Server:
    """Receives what workers send to a shard, and answers.

    Args:
        comm: The ranks; nothing else is sent on it.
        shard: The shard.
        workers: Rank of each worker that pushes to it.
        lockstep: Whether all shards see the gradients of a clock before they answer at the next, so
            that all stop at the same; otherwise the first shard alone may stop the workers.

    Attributes:
        stop: Set: all workers are to stop.
    """

    def __init__(
        self, comm: MPI.Intracomm, shard: Shard, workers: Sequence[int], lockstep: bool
    ) -> None:
        self._comm, self.shard, self._ranks, self._lockstep = comm, shard, workers, lockstep
        count, dtype = shard.weights.size, shard.weights.dtype
        self._arriving = [Message(count, dtype) for _ in workers]
        self._answers = [Message(count, dtype) for _ in workers]
        self.stop = False
        self._stop_clock = -1.0

    def begin(self, clock: int) -> None:
        """Workers start at a clock."""
        self.shard.begin(clock)
        self.stop, self._stop_clock = False, -1.0
        for rank, message in zip(self._ranks, self._arriving, strict=True):
            message.receive(self._comm, rank, messages.TO_SERVER)

    def poll(self) -> bool:
        """Take what has arrived, answer who can be answered; whether there was anything."""
        moved = False
        for number, message in enumerate(self._arriving):
            if message.request is not None and message.done():
                moved = True
                self._take(number, message)
        if self.stop and self._stop_clock < 0:
            self._stop_clock = self.shard.granted + 1
        for number in self.shard.answers():
            moved = True
            answer = self._answers[number]
            wait_until(answer.done, lambda: False)  # of the answer before, which has arrived
            answer.head[messages.STOP_CLOCK] = self._stop_clock
            put(answer.values, self.shard.weights)
            answer.send(self._comm, self._ranks[number], messages.TO_WORKER)
        return moved

    def over(self) -> bool:
        """Whether all workers have left and have got what they asked for."""
        return self.shard.idle and all(answer.done() for answer in self._answers)

    def _gradient(self, message: Message) -> Array:
        """What has come, where the shard is."""
        library = library_of(self.shard.weights)
        gradient: Array = library.asarray(message.values)
        return gradient

    def _take(self, number: int, message: Message) -> None:
        kind, clock, flags, samples, total, seconds, processor = message.head[:7].tolist()
        if kind == messages.PUSH:
            finite = not int(flags) & messages.NOT_FINITE
            push = Push(int(clock), int(samples), int(total), finite, seconds, processor)
            self.shard.push(number, push, self._gradient(message))
        elif kind == messages.PULL:
            self.shard.pull(number)
        else:
            self.shard.leave(number)
        if int(flags) & messages.FAILED:
            self._stop_clock = 0.0  # the run is over
        elif int(flags) & messages.STOP and self._stop_clock < 0:
            self._stop_clock = (clock if self._lockstep else self.shard.granted) + 1
        if kind != messages.LEAVE:
            message.receive(self._comm, self._ranks[number], messages.TO_SERVER)


class Client:
    """A worker's side.

    Args:
        comm: As of `Server`.
        shards: Rank, first element and end of each shard to push to.
        answering: Number of each of them to pull from; the first says when to stop.
        weights: Parameters, overwritten by `pull`.
        gradient: Gradient, sent by `push`.
        meanwhile: Moves on what this rank serves; whether it moved anything.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        shards: Sequence[tuple[int, int, int]],
        answering: Sequence[int],
        weights: Array,
        gradient: Array,
        meanwhile: Callable[[], bool],
    ) -> None:
        self._comm, self._shards, self._answering = comm, shards, answering
        self._weights, self._gradient, self._meanwhile = weights, gradient, meanwhile
        self._outgoing = [Message(end - start, weights.dtype) for _, start, end in shards]
        self._questions = [Message(0, weights.dtype) for _ in shards]
        self._answers = [
            Message(shards[number][2] - shards[number][1], weights.dtype) for number in answering
        ]

    def pull(self, clock: int) -> float:
        """Get the parameters at a clock, waiting as the consistency model says.

        Returns:
            Clock at which to stop, negative for none.
        """
        for number, answer in zip(self._answering, self._answers, strict=True):
            question, rank = self._questions[number], self._shards[number][0]
            self._wait([question])
            answer.receive(self._comm, rank, messages.TO_WORKER)
            question.head[: messages.FLAGS + 1] = messages.PULL, clock, 0
            question.send(self._comm, rank, messages.TO_SERVER)
        self._wait(self._answers)
        for number, answer in zip(self._answering, self._answers, strict=True):
            _, start, end = self._shards[number]
            put(self._weights[start:end], answer.values)
        return float(self._answers[0].head[messages.STOP_CLOCK])

    def push(self, push: Push, stop: bool) -> None:
        """Send the gradient of a step to all shards."""
        self._wait(self._outgoing)
        flags = (0 if push.finite else messages.NOT_FINITE) | (messages.STOP if stop else 0)
        facts = (push.samples, push.total, push.seconds, push.processor)
        for (rank, start, end), message in zip(self._shards, self._outgoing, strict=True):
            message.head[:7] = messages.PUSH, push.clock, flags, *facts
            put(message.values, self._gradient[start:end])
            message.send(self._comm, rank, messages.TO_SERVER)

    def leave(self, failed: bool) -> None:
        """Tell all shards that nothing more will come, and wait until all has been sent."""
        for (rank, _, _), message in zip(self._shards, self._questions, strict=True):
            self._wait([message])
            message.head[: messages.FLAGS + 1] = messages.LEAVE, 0, messages.FAILED * failed
            message.send(self._comm, rank, messages.TO_SERVER)
        self._wait([*self._outgoing, *self._questions])

    def _wait(self, pending: Sequence[Message]) -> None:
        wait_until(lambda: all(message.done() for message in pending), self._meanwhile)
