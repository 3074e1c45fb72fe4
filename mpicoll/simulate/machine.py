"""The machine of a simulation: its costs as whole numbers, and how long blocks are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm

from mpicoll.schedule import Block, number_of_blocks
from mpicoll.schedule.layout import part
from mpicoll.schedule.steps import Elsewhere
from mpicoll.simulate.costs import INTER, INTRA, Costs, Piece
from mpicoll.simulate.network import Network


@dataclass(frozen=True)
class Machine:
    """A machine, all costs as integers of one unit: picoseconds, if nothing else is said.

    A message of m bytes occupies two ports for alpha + beta m.  A round in which a rank receives
    something costs it ``step``, and gamma for each byte it reduces, before the next one begins.

    Attributes:
        alpha: time per message.
        beta: time per byte sent.
        gamma: time per byte reduced.
        ports: messages that a rank can send, and as many that it can receive, at a time.
        step: time of every round in which a rank receives; its ports are free meanwhile.
        call: time of every call.
        links: in place of alpha and beta, pieces for each kind of link (see
            :class:`mpicoll.simulate.costs.Costs`), in integers.
        nodes: a label for each rank, the same for ranks of a node; without any, all links are like
            those within a node.
        slow: for each rank that is a straggler, how many times as long everything takes it.  A
            message takes as long as the slower end.
        network: in place of alpha, beta and links, what messages occupy on their way.

    Raises:
        ValueError: a negative cost, fewer than one port, a factor below 1, or a network and links
            or stragglers.
    """

    alpha: int = 1_000_000
    beta: int = 100
    gamma: int = 50
    ports: int = 1
    step: int = 0
    call: int = 0
    links: Mapping[str, tuple[Piece, ...]] = field(default_factory=dict)
    nodes: tuple[int, ...] = ()
    slow: Mapping[int, Fraction] = field(default_factory=dict)
    network: Network | None = None

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "gamma", "step", "call"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
        if self.ports < 1:
            raise ValueError(f"ports={self.ports} must be at least 1")
        for rank, factor in self.slow.items():
            if factor < 1:
                raise ValueError(f"rank {rank} is slowed by {float(factor):g}: give at least 1")
        if self.network and (self.links or self.slow):
            raise ValueError(
                "a network has links of its own and no stragglers: give one or the other"
            )

    @classmethod
    def of(cls, costs: Costs, unit: int = 10**12, ports: int = 1) -> Machine:
        """The machine with costs in seconds, in integers of which ``unit`` are a second."""

        def whole(seconds: float) -> int:
            return round(Fraction(seconds) * unit)

        links = {
            kind: tuple(Piece(p.upto, whole(p.alpha), whole(p.beta)) for p in pieces)
            for kind, pieces in costs.links.items()
        }
        gamma, step, call = (whole(cost) for cost in (costs.gamma, costs.step, costs.call))
        return cls(0, 0, gamma, ports, step, call, links)

    def pieces(self, kind: str) -> tuple[Piece, ...]:
        """Costs of messages over one kind of link, shortest messages first."""
        if not self.links:
            return (Piece(None, self.alpha, self.beta),)
        return self.links.get(kind) or next(iter(self.links.values()))

    def link(self, sender: int, receiver: int) -> str:
        """The kind of link between two ranks."""
        return INTRA if not self.nodes or self.nodes[sender] == self.nodes[receiver] else INTER

    def message(self, sender: int, receiver: int, nbytes: int) -> int:
        """How long a message takes."""
        if self.network:
            return self.network.message(sender, receiver, nbytes)
        if self.links:
            pieces = self.pieces(self.link(sender, receiver))
            piece = next(p for p in pieces if p.upto is None or nbytes <= p.upto)
            time = int(piece.alpha + piece.beta * nbytes)
        else:
            time = self.alpha + self.beta * nbytes
        return self.slowed(time, sender, receiver) if self.slow else time

    def after(self, rank: int, reduced: int) -> int:
        """How long a rank needs at the end of a round in which it received something."""
        time = self.step + self.gamma * reduced
        return self.slowed(time, rank) if self.slow else time

    def slowed(self, time: int, *ranks: int) -> int:
        """A time as long as the slowest of some ranks needs."""
        factors = [self.slow[rank] for rank in ranks if rank in self.slow]
        if not factors:
            return time
        factor = max(factors)
        return time * factor.numerator // factor.denominator

    @property
    def unit(self) -> int:
        """What :meth:`slowdowns` gives for a rank that is not slow."""
        return lcm(*(Fraction(factor).denominator for factor in self.slow.values()))

    def slowdowns(self, ranks: int) -> list[int]:
        """How many times as long everything takes each rank, as whole numbers of ``unit``."""
        unit = self.unit
        return [int(self.slow.get(rank, 1) * unit) for rank in range(ranks)]

    @property
    def per_node(self) -> int | None:
        """Ranks of each node, if all have as many, one after the other; else None."""
        if self.network:
            return None
        if not self.nodes:
            return 1  # all links are alike
        length, count = self.nodes.count(self.nodes[0]), len(self.nodes)
        alike = all(self.nodes[r] == self.nodes[r - r % length] for r in range(count))
        return length if alike and len(set(self.nodes)) * length == count else None


#: The machine that counts steps: a message takes 1, everything else nothing.
STEPS = Machine(alpha=1, beta=0, gamma=0)


class Sizes:
    """Bytes of blocks, of a vector cut into blocks that are as even as can be.

    Args:
        nbytes: of the vector.
        nblocks: blocks; 0 if there is nothing to send.
        segments: segments of each block.
        largest: take every block to be as long as the longest one.
    """

    def __init__(self, nbytes: int, nblocks: int, segments: int, largest: bool = False) -> None:
        length, self._longer = divmod(nbytes, nblocks) if nblocks else (0, 0)
        if largest and self._longer:
            length, self._longer = length + 1, 0
        self._nblocks = max(nblocks, 1)
        # Bytes of a segment of a short block, and what a long block has more.
        self._short = [part(length, segments, segment)[1] for segment in range(segments)]
        long = [part(length + 1, segments, segment)[1] for segment in range(segments)]
        self._more = [a - b for a, b in zip(long, self._short, strict=True)]

    @property
    def lengths(self) -> tuple[list[int], list[int]]:
        """For each segment its bytes in a short block, and what a long block has more."""
        return self._short, self._more

    def counts(self, argument: Block) -> tuple[int, int]:
        """How many blocks an argument names, and how many of them are long ones."""
        return number_of_blocks(argument), self._long_ones(argument) if self._longer else 0

    def of(self, argument: Block, segment: int = 0) -> int:
        """Bytes of a segment of the blocks that an argument names."""
        found = number_of_blocks(argument) * self._short[segment]
        if self._longer and self._more[segment]:
            found += self._long_ones(argument) * self._more[segment]
        return found

    def _long_ones(self, argument: Block) -> int:
        if isinstance(argument, int):
            return int(argument % self._nblocks < self._longer)
        if isinstance(argument, range) and argument.step == 1:
            return self._before(argument.stop) - self._before(argument.start) if argument else 0
        if isinstance(argument, Elsewhere):
            return self._long_ones(argument.block)
        return sum(map(self._long_ones, argument))

    def _before(self, block: int) -> int:
        """Long blocks before one, counted on round and round."""
        turns, place = divmod(block, self._nblocks)
        return turns * self._longer + min(place, self._longer)
