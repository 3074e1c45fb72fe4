"""What the rest of training asks of a strategy: nobody else knows which there are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from mpicoll.base import arrays
from mpicoll.train import optimizers
from mpicoll.train.config import DTYPES, Config
from mpicoll.train.models import Model, sums_of
from mpicoll.train.models.flat import Flat
from mpicoll.train.models.networks import is_chain
from mpicoll.train.ranks.workers import Workers, together
from mpicoll.train.registry import STRATEGIES
from mpicoll.train.strategies.holding import Holding
from mpicoll.train.strategies.training import Setup, Training

if TYPE_CHECKING:
    from mpi4py import MPI


class Strategy(ABC):
    """A way to train on several ranks; in `mpicoll.train.registry.STRATEGIES` under its name.

    Attributes:
        takes: Options of `Config` that it goes together with, of those that others do not: `wire`
            (other than full), `invariant`, `deterministic`, `balance` and `survive`; and axes of
            the mesh beside `data`.
        in_lockstep: Whether all ranks compute each step together, so that a model may ask for sums
            over them in the middle of it.
        has_whole: Whether every rank has all parameters, and gives them as the result of a run.
        notices_deaths: Whether ranks that wait look who is alive, rather than being inside a
            collective.
    """

    takes: frozenset[str] = frozenset()
    in_lockstep = False
    has_whole = True
    notices_deaths = False

    def check(self, config: Config) -> None:  # noqa: B027 - most have nothing to refuse
        """Called when a configuration that names the strategy is made.

        Raises:
            ValueError: An option is not for this strategy; with the remedy.
        """

    def along(self, config: Config) -> Strategy:
        """What does the same on the mesh that a configuration names: itself, unless it is said."""
        return self

    def servers(self, config: Config) -> int:
        """How many ranks, the last before data servers, serve and compute no gradients."""
        return 0

    def is_exact(self, config: Config) -> bool:
        """Whether parameters equal those of one process, up to rounding."""
        return True

    def hold(
        self, config: Config, workers: Workers, comm: MPI.Intracomm | None, model: Model
    ) -> Holding:
        """Make the parameters that this rank has: all of them, unless ranks share them; collective.

        On the run's device, in the type in which they are kept. What several ranks have need not be
        equal before `Holding.agree`.

        Raises:
            TrainingError: They cannot be made; on all ranks.
        """
        with together(workers, "making data and model ready"):
            first = model.initial_parameters(config.seed)
            moved = {name: arrays.on(config.device, array) for name, array in first.items()}
            weights = Flat(moved, "float32" if config.is_narrow else None)
        return Holding.whole(weights)

    @abstractmethod
    def memory(self, config: Config, rank: int, ranks: int, holding: Holding) -> dict[str, int]:
        """Bytes that a rank will need beside data, parameters and activations, by what for.

        `gradients` are among them.
        """

    def found(self, model: Model, holding: Holding) -> int:
        """Bytes of what the model has just found, before gradients are in their place.

        Of a chain of layers the gradients of one layer.
        """
        views = holding.weights.views
        every = [[name] for name in views]
        if is_chain(model):
            every = [[*model.names(n).values()] for n in range(len(model.layers))]
        nbytes = (sum(views[name].nbytes for name in own if name in views) for own in every)
        return max(nbytes, default=0)

    def passes(
        self, config: Config, rank: int, ranks: int, model: Model, holding: Holding
    ) -> dict[str, int]:
        """Bytes that forward and backward passes take on a rank, by what for.

        Activations, where the model has `activations(samples)`, of the largest part of a batch.
        """
        workers, count = config.worker_count(ranks), getattr(model, "activations", None)
        if count is None or rank >= workers:
            return {}
        samples = -(-config.global_batch(workers) // (config.invariant or workers))
        item, needed = DTYPES[config.dtype], {}
        if config.is_narrow and config.device == "cpu":  # there layers compute in float32
            item = 4
            needed["parameters to compute with"] = item * holding.weights.vector.size
        return {**needed, "activations": count(samples) * item}

    @abstractmethod
    def describe(self, config: Config) -> str:
        """Its name in words, with what it depends on."""

    @abstractmethod
    def make(self, setup: Setup) -> Training:
        """Begin to train; collective."""


def strategy_of(config: Config) -> Strategy:
    """The strategy that a configuration names."""
    found: Strategy = STRATEGIES[config.strategy]
    return found.along(config)


def sums_between_ranks(config: Config, model: Model) -> tuple[int, ...]:
    """Lengths of the sums over the ranks that a model makes in a batch.

    Raises:
        ValueError: It makes some, and in the run there can be none.
    """
    lengths = sums_of(model)
    if lengths and not strategy_of(config).in_lockstep:
        parts = "a mesh with pipe or tensor normalises each microbatch by itself"
        apart = f"strategy {config.strategy} has no step that all ranks compute together"
        raise ValueError(
            f"{parts if config.has_parts else apart}, and the model normalises over the batch of "
            "all: give norm local, or layers BatchNorm(local=True)"
        )
    return lengths


def slots(config: Config) -> int:
    """Arrays that the optimizer keeps beside the parameters."""
    return len(optimizers.make(config.optimizer, config.momentum, config.weight_decay).slots)
