"""Which messages go first where ports are few.

A rank has so many ports for output and as many for input.  A message needs one at either end; of
those that could go, the one that waits longest goes, then by position in its round, then by how far
it goes round the ring of ranks, then by channel.  No two messages of the same distance and channel
want the same port, so the ranks are treated alike wherever they stand.  On a network a message
needs the links of its route too.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from mpicoll.schedule.matching import Pair
from mpicoll.simulate.network import LINK, OUT, Network

#: Posted, position in its round, distance, channel, sender: in the order to go.
Key = tuple[int, int, int, int, int]


class Ports:
    """The ports of all ranks, and the messages that wait for them.

    Args:
        size: number of ranks.
        ports: ports of a rank, for output and for input each.
        network: whose links messages go over, if they share any.
    """

    def __init__(self, size: int, ports: int, network: Network | None = None) -> None:
        self._network = network
        self._busy = [False] * (len(network.links) if network else 0)
        # By side: 0 of senders, 1 of receivers.
        self._free = ([ports] * size, [ports] * size)
        # What waits between two ranks; for each rank of a side, first of those queues, by peer.
        self._queues: dict[tuple[int, int], list[tuple[Key, Pair]]] = {}
        self._heads: tuple[list[list[tuple[Key, int]]], ...] = (
            [[] for _ in range(size)],
            [[] for _ in range(size)],
        )
        # Ranks whose ports or queues have changed: no others can begin anything.
        self._changed: tuple[set[int], set[int]] = (set(), set())

    def wait(self, key: Key, sender: int, receiver: int, message: Pair) -> None:
        """A message is ready to go."""
        queue = self._queues.setdefault((sender, receiver), [])
        heapq.heappush(queue, (key, message))
        if queue[0][0] == key:
            self._announce(sender, receiver)
        # The first of all that could go is its sender's first: the receiver need not look for it.
        self._changed[0].add(sender)

    def release(self, sender: int, receiver: int) -> None:
        """A message has arrived."""
        for side, rank in enumerate((sender, receiver)):
            self._free[side][rank] += 1
            self._changed[side].add(rank)

    def free(self, kind: int, number: int) -> None:
        """What a message on a network has occupied is free again."""
        if kind == LINK:
            assert self._network is not None
            self._busy[number] = False
            self._changed[0].update(self._network.senders[number])
        else:
            side = 0 if kind == OUT else 1
            self._free[side][number] += 1
            self._changed[side].add(number)

    def _is_free(self, sender: int, receiver: int) -> bool:
        """Whether the links between two ranks are free."""
        network = self._network
        if network is None:
            return True
        return not any(self._busy[link] for link, _ in network.route(sender, receiver).links)

    def begin(self) -> Iterator[tuple[int, int, Pair]]:
        """Begin all that can go now: sender, receiver and message, in the order to go."""
        # Each rank that has a free port proposes its first message that could go.
        proposed: list[tuple[Key, int, int, int]] = []

        def propose(side: int, rank: int) -> None:
            if self._free[side][rank]:
                found = self._first(side, rank)
                if found is not None:
                    heapq.heappush(proposed, (*found, side))

        for side, ranks in enumerate(self._changed):
            for rank in ranks:
                propose(side, rank)
            ranks.clear()
        while proposed:
            key, sender, receiver, side = heapq.heappop(proposed)
            ends = sender, receiver
            ports = self._free[0][sender] and self._free[1][receiver]
            if ports and self._is_first(key, *ends) and self._is_free(*ends):
                yield sender, receiver, self._take(sender, receiver)
                propose(0, sender)
                propose(1, receiver)
            else:
                propose(side, ends[side])

    def _take(self, sender: int, receiver: int) -> Pair:
        queue = self._queues[sender, receiver]
        message = heapq.heappop(queue)[1]
        self._free[0][sender] -= 1
        self._free[1][receiver] -= 1
        if self._network is not None:
            for link, _ in self._network.route(sender, receiver).links:
                self._busy[link] = True
        if queue:
            self._announce(sender, receiver)
        else:
            del self._queues[sender, receiver]
        return message

    def _announce(self, sender: int, receiver: int) -> None:
        key = self._queues[sender, receiver][0][0]
        heapq.heappush(self._heads[0][sender], (key, receiver))
        heapq.heappush(self._heads[1][receiver], (key, sender))

    def _is_first(self, key: Key, sender: int, receiver: int) -> bool:
        queue = self._queues.get((sender, receiver))
        return queue is not None and queue[0][0] == key

    def _first(self, side: int, rank: int) -> tuple[Key, int, int] | None:
        """The first message of a rank whose other end has a free port, and whose way is free."""
        heads, others = self._heads[side][rank], self._free[1 - side]
        busy, found = [], None
        while heads:
            key, peer = heads[0]
            sender, receiver = (rank, peer) if side == 0 else (peer, rank)
            if not self._is_first(key, sender, receiver):
                heapq.heappop(heads)  # it has gone
            elif others[peer] and self._is_free(sender, receiver):
                found = key, sender, receiver
                break
            else:
                busy.append(heapq.heappop(heads))
        for head in busy:
            heapq.heappush(heads, head)
        return found
