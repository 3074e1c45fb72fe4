"""Ranks that train apart for a while: periodic averaging, and gossip with neighbours.

Each rank updates its own parameters by its own gradients. With gradients of the size of the whole
batch's, the mean over the ranks of what they become in one step is what all-reduce would make.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.base.wording import plural
from mpicoll.train.config import Config
from mpicoll.train.exchange import transfers
from mpicoll.train.exchange.transfers import MakeTransfer
from mpicoll.train.models.flat import Flat
from mpicoll.train.parallel.replicas import Independent
from mpicoll.train.ranks.workers import Workers
from mpicoll.train.strategies.allreduce import AllReduce
from mpicoll.train.strategies.holding import Holding
from mpicoll.train.strategies.meshed import Meshed, Stages, require_one_update
from mpicoll.train.strategies.mixing import Mixing, average
from mpicoll.train.strategies.protocol import Strategy
from mpicoll.train.strategies.stage_trainer import StageTrainer
from mpicoll.train.strategies.training import Setup


class PeriodicAverage(Mixing):
    """All parameters are averaged after every so many steps (local SGD; Stich 2019).

    The optimizer's arrays are averaged too.

    Args:
        workers: The ranks.
        every: Steps from one average to the next.
    """

    def __init__(self, workers: Workers, every: int) -> None:
        self._workers, self._every = workers, every

    def mix(self, step: int, weights: Array, state: Sequence[Array]) -> None:
        if step % self._every == 0:
            average(self._workers, [weights, *state])


class Gossip(Mixing):
    """Parameters are mixed with those of one or two neighbours after every step.

    The weights of the mixture are doubly stochastic, so that the mean over all ranks stays as it
    is: thirds with both neighbours on a ring, or halves with the rank 1, 2, 4, ... places before,
    another in each step (Assran et al. 2019). On 2^k ranks k such steps give every rank the mean.
    The optimizer's arrays stay each rank's own.

    Args:
        workers: The ranks.
        graph: `ring` or `exponential`.
    """

    def __init__(self, workers: Workers, graph: str) -> None:
        self._workers, self._graph = workers, graph

    def mix(self, step: int, weights: Array, state: Sequence[Array]) -> None:
        distances = self._distances(step)
        received = np.empty_like(weights)
        total = weights.copy()
        for distance in distances:
            self._workers.shift(weights, received, distance)
            total += received
        total /= 1 + len(distances)
        weights[...] = total

    def _distances(self, step: int) -> tuple[int, ...]:
        size = self._workers.size
        if size == 1:
            return ()
        if self._graph == "ring":
            return (1,) if size == 2 else (1, size - 1)
        return (1 << (step - 1) % (size - 1).bit_length(),)


class _OnMesh(Meshed):
    """Replicas of stages and of parts of layers that train apart for a while.

    Args:
        strategy: What they do with the parameters.
    """

    def __init__(self, strategy: _Apart) -> None:
        super().__init__(Independent)
        self._strategy = strategy

    def memory(self, config: Config, rank: int, ranks: int, holding: Holding) -> dict[str, int]:
        needed = super().memory(config, rank, ranks, holding)
        return {**needed, "mixtures": self._strategy.sums(config, rank, ranks, holding.weights)}

    def make(self, setup: Setup) -> StageTrainer:
        holding = setup.holding
        assert isinstance(holding, Stages)
        mixing = self._strategy.mixing(setup.config, holding.pipeline.replicas.workers)
        return StageTrainer(setup, holding.mesh, holding.pipeline, holding.tensor, mixing)


class _Apart(AllReduce):
    """What strategies have in common in which each rank updates parameters of its own."""

    takes = frozenset({"survive", "pipe", "tensor"})
    in_lockstep = False

    def along(self, config: Config) -> Strategy:
        return _OnMesh(self) if config.has_parts else self

    def check(self, config: Config) -> None:
        """Refuse what needs one set of parameters after each step."""
        require_one_update(config)
        for name, why in (
            ("clip", "no rank knows the gradient of the whole batch"),
            ("checkpoint_every", "ranks have the same parameters at the end of an epoch only"),
        ):
            if getattr(config, name) is not None:
                raise ValueError(
                    f"strategy {config.strategy} does not take {name}, because {why}: leave it out"
                )
        if config.survive and config.has_parts:
            raise ValueError(
                f"strategy {config.strategy} does not take survive on a mesh with pipe or tensor, "
                "because no other rank has a copy of the parameters of a replica: leave survive "
                "out, or give strategy allreduce"
            )

    def is_exact(self, config: Config) -> bool:
        return False  # ranks are apart for a while

    def _transfers(self, config: Config) -> MakeTransfer:
        return transfers.Stay


class LocalSGD(_Apart):
    """Parameters are averaged after every so many steps."""

    def describe(self, config: Config) -> str:
        return f"{config.strategy} averages every {plural(config.average_every, 'step')}"

    def mixing(self, config: Config, workers: Workers) -> Mixing:
        return PeriodicAverage(workers, config.average_every)


class Gossiping(_Apart):
    """Parameters are mixed with those of neighbours after every step."""

    def describe(self, config: Config) -> str:
        return f"{config.strategy} {config.graph} graph"

    def sums(self, config: Config, rank: int, ranks: int, weights: Flat) -> int:
        return 2 * weights.vector.nbytes  # own, and a neighbour's

    def mixing(self, config: Config, workers: Workers) -> Mixing:
        return Gossip(workers, config.graph)
