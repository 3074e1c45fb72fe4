"""What the rest of training asks of a strategy: nobody else knows which there are."""

from __future__ import annotations

from abc import ABC, abstractmethod

from mpicoll.train.config import Config
from mpicoll.train.models.flat import Flat
from mpicoll.train.registry import STRATEGIES
from mpicoll.train.strategies.training import Setup, Training


class Strategy(ABC):
    """A way to train on several ranks; in `mpicoll.train.registry.STRATEGIES` under its name.

    Attributes:
        takes: Options of `Config` that it goes together with, of those that others do not: `wire`
            (other than full), `invariant`, `deterministic`, `balance` and `survive`.
        in_lockstep: Whether all ranks compute each step together, so that a model may ask for sums
            over them in the middle of it.
        notices_deaths: Whether ranks that wait look who is alive, rather than being inside a
            collective.
    """

    takes: frozenset[str] = frozenset()
    in_lockstep = False
    notices_deaths = False

    def check(self, config: Config) -> None:  # noqa: B027 - most have nothing to refuse
        """Called when a configuration that names the strategy is made.

        Raises:
            ValueError: An option is not for this strategy; with the remedy.
        """

    def servers(self, config: Config) -> int:
        """How many ranks, the last before data servers, serve and compute no gradients."""
        return 0

    def is_exact(self, config: Config) -> bool:
        """Whether parameters equal those of one process, up to rounding."""
        return True

    @abstractmethod
    def memory(self, config: Config, rank: int, ranks: int, weights: Flat) -> dict[str, int]:
        """Bytes that a rank will need beside data, parameters and activations, by what for.

        `gradients` are among them.
        """

    @abstractmethod
    def describe(self, config: Config) -> str:
        """Its name in words, with what it depends on."""

    @abstractmethod
    def make(self, setup: Setup) -> Training:
        """Begin to train; collective."""


def strategy_of(config: Config) -> Strategy:
    """The strategy that a configuration names."""
    found: Strategy = STRATEGIES[config.strategy]
    return found
