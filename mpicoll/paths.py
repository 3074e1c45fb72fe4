"""What a collective's time is made of: the critical path that the simulator finds, counted.

The path leads from the start to the end of the last rank; each of its messages begins when the
one before it has ended, has been reduced, or has left a port free.  So under the costs that it was
found with, the time of the collective is exactly the sum over the path, and under other costs it
is linear in them as long as the path stays the same.  Fits and predictions count on paths under
:data:`REFERENCE`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mpicoll import algorithms
from mpicoll.cost import INTER, INTRA, Costs
from mpicoll.layout import even
from mpicoll.registry import Algorithm, Value
from mpicoll.schedule import Copy, Recv, RecvReduce, Send, Step, blocks
from mpicoll.simulate import Model, Transfer, trace

__all__ = ["MOST_MESSAGES", "REFERENCE", "Path", "critical_path"]

#: The costs under which paths are found, in picoseconds.
REFERENCE = Model(alpha=1_000_000, beta=100, gamma=50)
#: Messages up to which they are found message by message.
MOST_MESSAGES = 300_000

#: Rank, channel, and number of the round among those of the channel that have messages.
_Round = tuple[int, int, int]


@dataclass(frozen=True)
class Path:
    """What happens one after the other until the last rank is done.

    Attributes:
        rounds: rounds that begin.
        messages: number of messages by link and bytes.
        reduced: bytes reduced.
    """

    rounds: int
    messages: Mapping[tuple[str, int], int]
    reduced: int

    def seconds(self, costs: Costs) -> float:
        """The time of a call."""
        total = costs.call + self.rounds * costs.step + self.reduced * costs.gamma
        for (link, nbytes), count in self.messages.items():
            piece = costs.piece(nbytes, link)
            total += count * (piece.alpha + nbytes * piece.beta)
        return total


@lru_cache(maxsize=1 << 14)
def critical_path(
    collective: str,
    name: str,
    size: int,
    nbytes: int,
    parameters: tuple[tuple[str, Value], ...] = (),
    root: int = 0,
    nodes: tuple[int, ...] = (),
) -> Path:
    """The critical path of an algorithm.

    Args:
        collective, name, parameters: the algorithm.
        size: number of ranks.
        nbytes: bytes of the whole vector.
        root: of a rooted collective.
        nodes: the node of each rank; none: all ranks are on one.

    Raises:
        ValueError: unknown names, a value out of range, or more than :data:`MOST_MESSAGES`
            messages of an algorithm that is not symmetric.
    """
    algorithm = algorithms.find(collective, name)
    given = dict(parameters)
    links = _Links(nodes)
    if size == 1:
        return Path(0, {}, 0)
    if algorithm.count("messages", size, root, given) > MOST_MESSAGES:
        if not algorithm.symmetric or len(set(nodes)) > 1:
            raise ValueError(_too_many(algorithm, size))
        return _of_any_rank(algorithm, size, nbytes, given, links)
    transfers = trace(algorithm, size, root, given, nbytes, REFERENCE)
    return _Walk(algorithm, size, root, given, transfers).path(links)


def _too_many(algorithm: Algorithm, size: int) -> str:
    return (
        f"{algorithm.collective} {algorithm.name} on {size} ranks has more than {MOST_MESSAGES} "
        "messages; `mpicoll simulate` takes so many"
    )


class _Links:
    """Which link two ranks are joined by."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self._nodes = nodes

    def between(self, one: int, other: int) -> str:
        return INTRA if not self._nodes or self._nodes[one] == self._nodes[other] else INTER


class _Walk:
    """The way back from the end of the last rank."""

    def __init__(
        self,
        algorithm: Algorithm,
        size: int,
        root: int,
        parameters: Mapping[str, Value],
        transfers: Iterable[Transfer],
    ) -> None:
        programs = [algorithm.channels(rank, size, root, parameters) for rank in range(size)]
        sent: dict[tuple[int, int, int], list[int]] = {}
        received: dict[tuple[int, int, int], list[int]] = {}
        for rank, channels in enumerate(programs):
            for number, channel in enumerate(channels):
                for index, step in _messages(channel.rounds):
                    if isinstance(step, Send):
                        sent.setdefault((rank, step.peer, number), []).append(index)
                    else:
                        received.setdefault((step.peer, rank, number), []).append(index)
        self.sides: dict[Transfer, tuple[_Round, _Round]] = {}
        self.last: dict[_Round, Transfer] = {}
        self.reduced: Counter[_Round] = Counter()
        self.ended: dict[tuple[str, int, int], Transfer] = {}
        seen: Counter[tuple[int, int, int]] = Counter()
        for transfer in transfers:
            pair = transfer.sender, transfer.receiver, transfer.channel
            # Messages of a pair on a channel go in the order posted.
            index = seen[pair]
            seen[pair] += 1
            at_sender = transfer.sender, transfer.channel, sent[pair][index]
            at_receiver = transfer.receiver, transfer.channel, received[pair][index]
            self.sides[transfer] = at_sender, at_receiver
            for side in (at_sender, at_receiver):
                if side not in self.last or self.last[side].end < transfer.end:
                    self.last[side] = transfer
            if transfer.reduces:
                self.reduced[at_receiver] += _bytes(transfer)
            self.ended["out", transfer.sender, transfer.end] = transfer
            self.ended["in", transfer.receiver, transfer.end] = transfer
        self.opened: dict[tuple[int, int], _Round] = {
            (place[0], self.done(place)): place for place in self.last
        }

    def done(self, place: _Round) -> int:
        """When a rank has stored and reduced what a round received."""
        return self.last[place].end + REFERENCE.gamma * self.reduced[place]

    def path(self, links: _Links) -> Path:
        """The path, counted."""
        messages: Counter[tuple[str, int]] = Counter()
        if not self.last:
            return Path(0, {}, 0)
        place: _Round | None = max(self.last, key=self.done)
        rounds = reduced = 0
        while place is not None:
            rounds += 1
            reduced += self.reduced[place]
            transfer: Transfer = self.last[place]
            place = None
            while True:
                messages[links.between(transfer.sender, transfer.receiver), _bytes(transfer)] += 1
                if not transfer.start:
                    break
                place = self._round_before(transfer)
                if place is not None:
                    break
                transfer = self._port_before(transfer)
        return Path(rounds, dict(messages), reduced)

    def _round_before(self, transfer: Transfer) -> _Round | None:
        """The round whose end let a message start, if one did."""
        for rank, channel, index in self.sides[transfer]:
            before = rank, channel, index - 1
            if index and self.done(before) == transfer.start:
                return before
        for rank, _, index in self.sides[transfer]:
            if not index and ("out", rank, transfer.start) not in self.ended:
                opened = self.opened.get((rank, transfer.start))  # a segment within the window
                if opened is not None:
                    return opened
        return None

    def _port_before(self, transfer: Transfer) -> Transfer:
        """The message that a message waited for, because it had the port."""
        found = self.ended.get(("in", transfer.receiver, transfer.start))
        return found or self.ended["out", transfer.sender, transfer.start]


def _messages(rounds: Iterable[Sequence[Step]]) -> Iterable[tuple[int, Send | Recv | RecvReduce]]:
    """The messages of a channel with the number of their round."""
    index = 0
    for steps in rounds:
        found = [step for step in steps if not isinstance(step, Copy)]
        for step in found:
            yield index, step
        index += bool(found)


def _bytes(transfer: Transfer) -> int:
    return (transfer.end - transfer.start - REFERENCE.alpha) // REFERENCE.beta


def _of_any_rank(
    algorithm: Algorithm, size: int, nbytes: int, parameters: Mapping[str, Value], links: _Links
) -> Path:
    """The path of a symmetric algorithm: all ranks do the same, so rank 0's rounds are it.

    Where the ranks do not divide the bytes, blocks are as long as the longest.
    """
    channels = algorithm.channels(0, size, 0, parameters)
    if len(channels) > 1:
        raise ValueError(_too_many(algorithm, size))
    nblocks, nscratch = algorithm.blocks(size), algorithm.scratch(size)
    block = even(nbytes, nblocks).counts[0] if nblocks else 0
    messages: Counter[tuple[str, int]] = Counter()
    rounds = reduced = 0
    for steps in channels[0].rounds:
        length = [
            (step, block * len(blocks(step.block, nblocks, nscratch)))
            for step in steps
            if not isinstance(step, Copy)
        ]
        rounds += bool(length)
        for step, nbytes in length:
            if isinstance(step, Send):
                messages[links.between(0, step.peer), nbytes] += 1
            elif isinstance(step, RecvReduce):
                reduced += nbytes
    return Path(rounds, dict(messages), reduced)
