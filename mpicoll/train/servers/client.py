"""The end of a parameter server that asks: a worker, which pulls and pushes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.base.arrays import Array, put
from mpicoll.train.ranks.waiting import wait_until
from mpicoll.train.servers import messages
from mpicoll.train.servers.messages import ServerMessage, tag
from mpicoll.train.servers.shard import Push, ShardRange

if TYPE_CHECKING:
    from mpi4py import MPI


class Client:
    """A worker that asks for parameters before each step.

    Args:
        comm: As of `mpicoll.train.servers.server.Server`.
        shard_ranges: Of each shard; all are pushed to.
        answering: Number of each of them to pull from; the first says when to stop.
        weights: Parameters, overwritten by `pull`.
        gradient: Gradient, sent by `push`.
        meanwhile: Moves on what this rank serves; whether it moved anything.
        limit: Seconds to wait while nothing moves.

    Attributes:
        updates, skipped: What the first shard had made and left out when it was heard last.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        shard_ranges: Sequence[ShardRange],
        answering: Sequence[int],
        weights: Array,
        gradient: Array,
        meanwhile: Callable[[], bool],
        limit: float,
    ) -> None:
        self._comm, self._ranges, self._answering = comm, shard_ranges, answering
        self._weights, self._gradient = weights, gradient
        self._meanwhile, self._limit = meanwhile, limit
        dtype = weights.dtype
        self._outgoing = [ServerMessage(shard.end - shard.start, dtype) for shard in shard_ranges]
        self._questions = [ServerMessage(0, dtype) for _ in shard_ranges]
        self._answers = {number: self._outgoing[number].copy() for number in answering}
        self._versions = dict.fromkeys(answering, 0)
        self._asked: set[int] = set()  # whose answer is awaited
        self._pushed: set[int] = set()  # who has not answered since it was pushed to
        self._abandoned: list[ServerMessage] = []  # what is under way from and to the dead
        self._epoch = 0  # so many have begun
        self.updates = self.skipped = 0

    def begin(self) -> None:
        """A new epoch."""
        self._epoch += 1

    def pull(self, clock: int) -> float:
        """Get the parameters at a clock, waiting as the consistency model says.

        Returns:
            Clock at which to stop, negative for none.
        """
        for number in self._answering:
            self._ask(number, messages.PULL, clock)
        return self._take_answers(self._weights)

    def push(self, push: Push, stop: bool) -> None:
        """Send the gradient of a step to all shards; what version it is of, this adds."""
        self._wait(lambda: all(message.done() for message in self._outgoing))
        flags = (0 if push.finite else messages.NOT_FINITE) | (messages.STOP if stop else 0)
        facts = (push.samples, push.total, push.seconds, push.processor)
        # Shards that this worker does not pull from get the same pushes as the one that it does.
        own = self._versions[self._answering[0]]
        for number, shard in enumerate(self._ranges):
            message, version = self._outgoing[number], self._versions.get(number, own)
            head = (messages.PUSH, push.clock, flags, self._epoch, *facts, version)
            message.head[: messages.VERSION + 1] = head
            put(message.values, self._gradient[shard.start : shard.end])
            message.send(self._comm, shard.rank, tag(number, messages.TO_SERVER))
            self._pushed.add(number)

    def arrive(self) -> None:
        """Look at what has come unasked; called now and then while gradients are computed."""

    def leave(self, failed: bool) -> None:
        """Tell all shards that the epoch is over for this worker, and wait until it is for all.

        Then this worker has the parameters at the end.
        """
        for number in range(len(self._ranges)):
            self._ask(number, messages.LEAVE, 0, messages.FAILED * failed)
        self._take_answers(self._weights)
        self._wait(lambda: all(m.done() for m in (*self._outgoing, *self._questions)))

    def fetch(self, slot: int) -> list[tuple[int, Array]]:
        """Get an array of the optimizer, of all shards, between two epochs.

        Returns:
            Where each part begins, and the part: what was received, until the next answer is.
        """
        for number in self._answering:
            self._ask(number, messages.FETCH, slot)
        self._await_answers()
        return [(self._ranges[n].start, answer.values) for n, answer in self._answers.items()]

    def renew(self, moved: Sequence[int]) -> None:
        """Other ranks answer for some shards than did: send them what was not answered.

        Args:
            moved: Number of each, in `shard_ranges` with its new rank.
        """
        for number in moved:
            rank, to_server = self._ranges[number].rank, tag(number, messages.TO_SERVER)
            push, question = self._outgoing[number], self._questions[number]
            self._abandoned += [push, question, self._answers[number]]
            self._outgoing[number], self._questions[number] = push.copy(), question.copy()
            self._answers[number] = self._answers[number].copy()
            if number in self._pushed:
                self._outgoing[number].send(self._comm, rank, to_server)
            if number in self._asked:
                self._receive(number)
                self._questions[number].send(self._comm, rank, to_server)

    def _ask(self, number: int, kind: int, clock: int, flags: int = 0) -> None:
        """Send a question; where an answer comes, await it."""
        self._wait(lambda: self._questions[number].done())
        if number in self._answers:
            self._asked.add(number)
            self._receive(number)
        self._say(number, kind, clock, flags)

    def _say(self, number: int, kind: int, clock: int = 0, flags: int = 0) -> None:
        """Send what is not answered."""
        question = self._questions[number]
        self._wait(question.done)
        question.head[: messages.EPOCH + 1] = kind, clock, flags, self._epoch
        rank = self._ranges[number].rank
        question.send(self._comm, rank, tag(number, messages.TO_SERVER))

    def _receive(self, number: int) -> None:
        rank = self._ranges[number].rank
        self._answers[number].receive(self._comm, rank, tag(number, messages.TO_WORKER))

    def _take_answers(self, target: Array) -> float:
        """Wait for the answers of all shards, and put them into a vector."""
        self._await_answers()
        for number, answer in self._answers.items():
            shard = self._ranges[number]
            put(target[shard.start : shard.end], answer.values)
            self._versions[number] = int(answer.head[messages.UPDATES])
        return self._facts(self._answers[self._answering[0]].head)

    def _await_answers(self) -> None:
        self._wait(lambda: all(answer.done() for answer in self._answers.values()))
        self._asked.clear()
        self._pushed.clear()

    def _facts(self, head: NDArray[np.float64]) -> float:
        """Note what the first shard says; the clock at which to stop."""
        self.updates, self.skipped = int(head[messages.UPDATES]), int(head[messages.SKIPPED])
        return float(head[messages.STOP_CLOCK])

    def _wait(self, done: Callable[[], bool]) -> None:
        wait_until(done, self._meanwhile, self._limit)


class Listener(Client):
    """A worker to which servers send parameters unasked.

    It begins a step as soon as the newest parameters it has are good for that. It says when a
    message has arrived: so each shard has one under way at most, with its newest parameters.

    Args:
        args: As of `Client`.
        at_once: Whether to take over what arrives while gradients are computed, so that their later
            parts are computed from newer parameters than the earlier.
    """

    def __init__(self, *args: Any, at_once: bool) -> None:
        super().__init__(*args)
        self._at_once = at_once
        self._news = {number: answer.copy() for number, answer in self._answers.items()}
        self._fresh: set[int] = set()
        self._listening: set[int] = set()

    def begin(self) -> None:
        super().begin()
        self._fresh.clear()
        for number, news in self._news.items():
            news.head[messages.LAST], news.head[messages.FINAL] = -1.0, 0.0
            self._listening.add(number)
            self._receive(number)

    def pull(self, clock: int) -> float:
        self._listen_until(lambda head: bool(head[messages.LAST] >= clock))
        self._take_over()
        for number, news in self._news.items():
            self._versions[number] = int(news.head[messages.UPDATES])
        return self._facts(self._news[self._answering[0]].head)

    def arrive(self) -> None:
        self._listen()
        if self._at_once:
            self._take_over()

    def leave(self, failed: bool) -> None:
        for number in range(len(self._ranges)):
            self._say(number, messages.LEAVE, flags=messages.FAILED * failed)
        self._listen_until(lambda head: bool(head[messages.FINAL]))
        self._take_over()
        self._facts(self._news[self._answering[0]].head)
        self._wait(lambda: all(m.done() for m in (*self._outgoing, *self._questions)))

    def _listen_until(self, enough: Callable[[NDArray[np.float64]], bool]) -> None:
        def done() -> bool:
            self._listen()
            return all(enough(news.head) for news in self._news.values())

        self._wait(done)

    def _listen(self) -> None:
        """Keep the newest of what has arrived."""
        for number in sorted(self._listening):
            answer = self._answers[number]
            if not (answer.done() and self._questions[number].done()):
                continue
            self._news[number].data[...] = answer.data
            self._fresh.add(number)
            if answer.head[messages.FINAL]:
                self._listening.discard(number)
                continue
            self._say(number, messages.ARRIVED)
            self._receive(number)

    def _take_over(self) -> None:
        for number in self._fresh:
            shard = self._ranges[number]
            put(self._weights[shard.start : shard.end], self._news[number].values)
        self._fresh.clear()
