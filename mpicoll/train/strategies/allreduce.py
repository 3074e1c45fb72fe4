"""All ranks make the same update, by the sum of their gradients: each whole, or each a part."""

from __future__ import annotations

from mpicoll.train.config import Config
from mpicoll.train.exchange import transfers, tree, wire
from mpicoll.train.exchange.transfers import MakeTransfer
from mpicoll.train.models.flat import Flat
from mpicoll.train.parallel.memory import replica
from mpicoll.train.parallel.replicas import OwnedPieces
from mpicoll.train.ranks.workers import Workers
from mpicoll.train.strategies.holding import Holding
from mpicoll.train.strategies.lockstep import Trainer
from mpicoll.train.strategies.meshed import Meshed, require_one_update
from mpicoll.train.strategies.mixing import Mixing
from mpicoll.train.strategies.protocol import Strategy, slots
from mpicoll.train.strategies.training import Setup


class AllReduce(Strategy):
    """Gradients are all-reduced; what differs in other strategies in lockstep is in methods."""

    takes = frozenset(
        {"wire", "invariant", "deterministic", "balance", "survive", "pipe", "tensor"}
    )
    in_lockstep = True
    #: Whether each rank updates a part of the parameters.
    _sharded = False

    def along(self, config: Config) -> Strategy:
        return Meshed() if config.has_parts else self

    def memory(self, config: Config, rank: int, ranks: int, holding: Holding) -> dict[str, int]:
        """Gradients, optimizer, and what sums and mixtures are made in."""
        weights = holding.weights
        size, count = weights.vector.nbytes, weights.vector.size
        needed = replica(size, slots(config), ranks, self._sharded)
        if config.invariant is not None:
            own = tree.shards_of(rank, ranks, config.invariant)
            needed["gradients"] = tree.slots(tree.program(own, config.invariant)) * size
        sums = self.sums(config, rank, ranks, weights)
        if sums:
            needed["sums"] = sums
        if config.is_narrow:
            needed[f"parameters in {config.dtype}"] = 2 * count
        return needed

    def sums(self, config: Config, rank: int, ranks: int, weights: Flat) -> int:
        """Bytes in which sums are made, beside the gradients."""
        size, count = weights.vector.nbytes, weights.vector.size
        codec = wire.codec(config.wire)
        if config.invariant is not None:
            sums = [
                tree.subtrees(tree.shards_of(r, ranks, config.invariant), config.invariant)
                for r in range(ranks)
            ]
            return len(sums[rank]) * size + sum(map(len, sums)) * -(-size // ranks)
        if isinstance(codec, wire.TopK):
            return (1 + ranks) * codec.length(count) + 3 * size
        if codec is not None:
            # To the owners of parts, there, and back; with what is lost now and before.
            return 3 * codec.length(count) + 2 * size * codec.feedback
        return 0

    def describe(self, config: Config) -> str:
        """By which algorithm, and in which format gradients travel."""
        format_ = "" if config.wire == "full" else f", gradients as {config.wire}"
        by = config.algorithm or "the algorithms of the communicator"
        return f"{config.strategy} by {by}{format_}"

    def make(self, setup: Setup) -> Trainer:
        mixing = self.mixing(setup.config, setup.workers)
        return Trainer(setup, self._transfers(setup.config), self._sharded, mixing)

    def _transfers(self, config: Config) -> MakeTransfer:
        """What makes the transfer of a bucket of gradients."""
        return transfers.summing(wire.codec(config.wire), config.invariant)

    def mixing(self, config: Config, workers: Workers) -> Mixing | None:
        """What happens to parameters, None if they are the same on all ranks."""
        return None


class Zero1(AllReduce):
    """Each rank updates a part, and keeps the optimizer's arrays for that part alone."""

    takes = frozenset({"balance", "survive", "pipe", "tensor"})
    _sharded = True

    def check(self, config: Config) -> None:
        require_one_update(config)

    def along(self, config: Config) -> Strategy:
        return Meshed(OwnedPieces) if config.has_parts else self

    def memory(self, config: Config, rank: int, ranks: int, holding: Holding) -> dict[str, int]:
        """As of all-reduce; with copies of two steps and two ranks, if a rank may die."""
        needed = super().memory(config, rank, ranks, holding)
        if config.survive:
            part = -(-holding.weights.vector.nbytes // ranks)
            needed["copies of parts"] = 4 * (1 + slots(config)) * part
        return needed

    def _transfers(self, config: Config) -> MakeTransfer:
        return transfers.Scatter
