"""A shard held by several servers, of which any but the last left may die (chain replication).

The holders of a shard stand in a row (van Renesse and Schneider 2004). The first answers for it.
What changes the shard is numbered by the first and passed on from each holder to the next; the last
says back that it has it. Then all have, and only then the worker is answered, which tells it that
its push is kept. So a holder has whatever the ones behind it have, and when one dies, what the next
may lack is sent to it again. Where workers are to stop goes along the row with the change that was
the occasion, and no worker is answered before all have that.

A worker that was not answered sends its push again to the holder that then is the first. The push
has the worker's number and its clock, and one that the shard has counted is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

from mpicoll.train.ranks.workers import AllAlive
from mpicoll.train.servers import messages
from mpicoll.train.servers.messages import ServerMessage, tag
from mpicoll.train.servers.server import Server


class Replica(Server):
    """One holder of a shard.

    Args:
        args: As of `Server`.
        rank: This rank.
        health: Who holds the shard and is alive.
    """

    def __init__(self, *args: Any, rank: int, health: AllAlive, **named: Any) -> None:
        super().__init__(*args, **named)
        self._rank, self._health = rank, health
        self._taken = self._kept = 0  # changes here, and changes that all behind have
        self._log: deque[ServerMessage] = deque()  # changes that not all behind have, oldest first
        self._last = [0] * len(self._ranks)  # number of the last change by each worker
        self._stopping = 0  # number of the change that said where to stop
        self._abandoned: list[ServerMessage] = []
        self._before: int | None = None
        self._behind: int | None = None
        self._heard = self._new(whole=True)  # from the holder before
        self._said = self._new(whole=False)  # to it
        self._back = self._new(whole=False)  # from the holder behind
        self.regroup()

    @property
    def first(self) -> bool:
        """Whether this holder answers for the shard."""
        return self._before is None

    def poll(self) -> bool:
        """Also move on what the holders tell each other."""
        moved = False
        while self._before is not None and self._heard.done():
            number, index = (int(self._heard.head[p]) for p in (messages.WORKER, messages.INDEX))
            if index > self._taken:
                if self._is_early(self._heard):
                    break
                self._accept(number, self._heard)
            moved = True
            self._listen()
        while self._behind is not None and self._back.done():
            moved = True
            self._forget(int(self._back.head[messages.INDEX]))
            self._back.receive(self._comm, self._behind, tag(self._number, messages.BACK))
        news = self._said.done() and self._said.head[messages.INDEX] < self._kept
        if self._before is not None and news:
            moved = True
            self._said.head[messages.INDEX] = self._kept
            self._said.send(self._comm, self._before, tag(self._number, messages.BACK))
        # What a worker sends to a holder behind, which it takes for the first already, waits in
        # MPI: the change may be on its way along the row, too.
        return (self.first and super().poll()) or moved

    def over(self) -> bool:
        """Also whether all holders have everything."""
        said = self.first or (self._said.done() and self._said.head[messages.INDEX] == self._kept)
        return super().over() and self._kept == self._taken and said

    def free(self) -> None:
        super().free()
        self._heard.cancel()
        self._back.cancel()

    # --- changes ---

    def _change(self, number: int, message: ServerMessage) -> None:
        """A change by a worker, unless it has been made."""
        kind, clock = (int(value) for value in message.head[: messages.CLOCK + 1])
        known = (
            self.shard.has(number, clock)
            if kind == messages.PUSH
            else not self.shard.is_active(number)
        )
        if not known:
            self._accept(number, message)

    def _accept(self, number: int, message: ServerMessage) -> None:
        stop_clock = self._stop_clock
        super()._change(number, message)
        self._taken += 1
        self._last[number] = self._taken
        if self._stop_clock != stop_clock:
            self._stopping = self._taken
        if self._behind is None:
            self._kept = self._taken
            return
        entry = message.copy()
        entry.head[messages.WORKER], entry.head[messages.INDEX] = number, self._taken
        self._log.append(entry)
        self._forward(entry)

    def _heed(self, message: ServerMessage) -> None:
        """The first says where to stop, which alone knows what it has given out."""
        if self.first:
            super()._heed(message)
            signalled = messages.SIGNALLED if self.stop else 0
            message.head[messages.FLAGS] = int(message.head[messages.FLAGS]) | signalled
            message.head[messages.STOP_AT] = self._stop_clock
        else:
            self.stop |= bool(int(message.head[messages.FLAGS]) & messages.SIGNALLED)
            self._stop_clock = float(message.head[messages.STOP_AT])

    def _forward(self, entry: ServerMessage) -> None:
        assert self._behind is not None
        entry.send(self._comm, self._behind, tag(self._number, messages.FORWARD))

    def _forget(self, index: int) -> None:
        """All behind have the changes up to one."""
        self._kept = max(self._kept, index)
        while self._log and self._log[0].head[messages.INDEX] <= self._kept:
            self._abandoned.append(self._log.popleft())
        self._abandoned = [message for message in self._abandoned if not message.done()]

    # --- answers ---

    def _held(self) -> Collection[int]:
        if self._stopping > self._kept:
            return range(len(self._ranks))
        return [number for number, last in enumerate(self._last) if last > self._kept]

    def _settled(self) -> bool:
        return self.shard.idle and self._kept == self._taken

    # --- the row ---

    def regroup(self) -> None:
        """Ranks have died, or none yet: find the place in the row."""
        chain = self._health.chain(self._number)
        at = chain.index(self._rank)
        before = chain[at - 1] if at else None
        behind = chain[at + 1] if at + 1 < len(chain) else None
        if before != self._before:
            self._abandoned += [self._heard, self._said]
            self._heard, self._said = self._new(whole=True), self._new(whole=False)
            self._before = before
            if before is None:
                self.shard.take_over()
            else:
                self._listen()
        if behind != self._behind:
            self._abandoned += [self._back, *self._log]
            self._back, self._behind = self._new(whole=False), behind
            self._log = deque(entry.copy() for entry in self._log)
            if behind is None:
                self._forget(self._taken)
            else:
                self._back.receive(self._comm, behind, tag(self._number, messages.BACK))
                for entry in self._log:
                    self._forward(entry)

    def _listen(self) -> None:
        assert self._before is not None
        self._heard.receive(self._comm, self._before, tag(self._number, messages.FORWARD))

    def _new(self, whole: bool) -> ServerMessage:
        return ServerMessage(self.shard.weights.size if whole else 0, self.shard.weights.dtype)
