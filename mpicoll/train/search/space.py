"""What to try: a TOML (or YAML) file that says what all runs have in common, and what differs.

[run]                                  # keys of `mpicoll train --config`
dataset = "mnist5k"
model = "mlp"
epochs = 9                             # of a whole run

[space]                                # one kind for each key
lr = {log = [1e-4, 10.0], points = 5}  # points: of a grid
momentum = {uniform = [0.0, 0.99], points = 3}
hidden = {choice = [[32], [64], [64, 32]]}
batch = {integer = [16, 128]}
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from mpicoll.train.config import Config
from mpicoll.train.driver import config_file

Values = dict[str, Any]

#: The largest whole number of a range: all below it are floating-point numbers, too.
_LARGEST = 2**53
#: Values of a key that a grid has, at most.
_POINTS = 1_000_000

#: Keys that the search itself sets, or whose runs would not end at the epoch they are to end at.
_OWN = (
    *("steps", "target_loss", "target_accuracy", "pause_after"),
    *("checkpoint", "checkpoint_every", "keep", "resume", "metrics", "tensorboard"),
    *("survive", "spares"),
)
#: Keys that say on which data all are judged, and for how long they train at most.
_COMMON = ("dataset", "data", "context", "epochs", "dtype", "device", "workers")


@dataclass(frozen=True)
class Dimension(ABC):
    """What one key may be.

    Attributes:
        points: How many of a grid; None where the file does not say.
    """

    points: int | None = None

    @abstractmethod
    def draw(self, generator: np.random.Generator) -> Any:
        """A value, drawn at random."""

    @abstractmethod
    def grid(self) -> list[Any]:
        """The values of a grid; none where `points` is needed and is None."""

    @abstractmethod
    def ends(self) -> list[Any]:
        """Values that show of which type all are."""

    def near(self, value: Any, factor: float) -> Any:
        """A value that differs by a factor; the same where there is no such."""
        return value


@dataclass(frozen=True)
class Between(Dimension):
    """Numbers from `low` to `high`."""

    low: float = 0.0
    high: float = 1.0

    def draw(self, generator: np.random.Generator) -> Any:
        return self._at(float(generator.random()))

    def grid(self) -> list[Any]:
        if self.points is None:
            return []
        return [self._at(share) for share in np.linspace(0, 1, self.points).tolist()]

    def ends(self) -> list[Any]:
        return [self.low, self.high]

    def near(self, value: Any, factor: float) -> Any:
        return min(max(value * factor, self.low), self.high)

    def _at(self, share: float) -> float:
        return self.low + (self.high - self.low) * share


class Uniform(Between):
    """All alike."""


class Log(Between):
    """Their logarithms all alike."""

    def _at(self, share: float) -> float:
        found = math.exp(math.log(self.low) + math.log(self.high / self.low) * share)
        return min(max(found, self.low), self.high)


class Integer(Between):
    """Whole ones, both ends included; without `points` a grid has all, unless they are millions."""

    def draw(self, generator: np.random.Generator) -> Any:
        return int(generator.integers(int(self.low), int(self.high) + 1))

    def grid(self) -> list[Any]:
        all_of_them = int(self.high - self.low) + 1
        points = min(self.points or all_of_them, all_of_them)
        if points > _POINTS:
            return []
        return [round(number) for number in np.linspace(self.low, self.high, points).tolist()]

    def near(self, value: Any, factor: float) -> Any:
        return round(super().near(value, factor))


@dataclass(frozen=True)
class Choice(Dimension):
    """One of some values."""

    values: tuple[Any, ...] = ()

    def draw(self, generator: np.random.Generator) -> Any:
        return self.values[int(generator.integers(len(self.values)))]

    def grid(self) -> list[Any]:
        return list(self.values)

    def ends(self) -> list[Any]:
        return list(self.values)


@dataclass(frozen=True)
class Space:
    """A search space.

    Attributes:
        run: Keys of `Config` that all trials have.
        dimensions: The values that may be tried, by key, in the order of the file.
        text: The content of the file.
    """

    run: Values
    dimensions: Mapping[str, Dimension]
    text: Mapping[str, Any]

    def drawn(self, seed: int, trial: int) -> Values:
        """The values of a trial; they depend only on seed and trial."""
        generator = np.random.default_rng((seed, trial))
        return {name: found.draw(generator) for name, found in self.dimensions.items()}

    def grid_size(self) -> int:
        """How many points the grid has.

        Raises:
            ValueError: A key does not say how many points it has.
        """
        for name, found in self.dimensions.items():
            if not found.grid():
                raise ValueError(
                    f"method grid needs points of {name}: write points = 5 beside its range, or "
                    "give a choice"
                )
        return prod(len(found.grid()) for found in self.dimensions.values())

    def grid_point(self, trial: int) -> Values:
        """The values of a point of the grid; the last key changes from point to point."""
        chosen: Values = {}
        for name, found in reversed([*self.dimensions.items()]):
            axis = found.grid()
            trial, place = divmod(trial, len(axis))
            chosen[name] = axis[place]
        return {name: chosen[name] for name in self.dimensions}

    def config(self, values: Values) -> Config:
        """The run of a trial.

        Raises:
            ValueError: A value is of the wrong type, or out of its range.
        """
        return Config(**config_file.checked("the space", {**self.run, **values}))

    @classmethod
    def read(cls, path: Path) -> Space:
        """Read the space from a file.

        Raises:
            ValueError: It is neither TOML nor YAML, or a search cannot do what it asks; with the
                remedy.
            OSError: It cannot be read.
        """
        found = config_file.parse(path)
        try:
            return cls.of(found)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Space:
        """The space from the tables of a file.

        Raises:
            ValueError: As of `read`.
        """
        for name in found:
            if name not in ("run", "space") or not isinstance(found[name], Mapping):
                raise ValueError(f"unknown key {name!r}: write two tables, [run] and [space]")
        run, space = dict(found.get("run", {})), dict(found.get("space", {}))
        if not space:
            raise ValueError(
                "there is nothing to search: write a table [space] with lines such as "
                "lr = {log = [0.001, 1.0]}"
            )
        for name in (*run, *space):
            _require_key(name)
        for name in space:
            if name in _COMMON:
                raise ValueError(f"{name} is the same of all trials: write it in [run]")
            if name in run:
                raise ValueError(f"{name} is in [run] and in [space]: leave one out")
        dimensions = {name: _dimension(name, given) for name, given in space.items()}
        made = cls(run, dimensions, {"run": run, "space": space})
        made.config({})
        for name, dimension in dimensions.items():
            for value in dimension.ends():
                config_file.checked("[space]", {name: value})
        return made


def in_words(value: Any) -> str:
    """A value as tables show it."""
    if isinstance(value, (list, tuple)):
        return "-".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _require_key(name: str) -> None:
    known = [key for key in config_file.KEYS if key not in _OWN]
    if name in _OWN:
        raise ValueError(f"{name} is what the search itself decides: leave it out")
    config_file.require_known(name, known)


def _dimension(name: str, given: Any) -> Dimension:
    """What the file says that a key may be."""
    kinds = [kind for kind in KINDS if isinstance(given, Mapping) and kind in given]
    if len(kinds) != 1:
        raise ValueError(
            f"{name} is {given!r}: write one of {', '.join(KINDS)}, as "
            f"{name} = {{uniform = [0.0, 1.0]}}"
        )
    kind = kinds[0]
    found, points = _checked(name, kind, given)
    if kind == "choice":
        if points is not None:
            raise ValueError(f"{name}: a grid has all choices: leave points out")
        for value in found:
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name}: {value} is among choice: give finite numbers")
        return Choice(values=found)
    low, high = found
    if not low < high or (kind == "log" and low <= 0):
        least = "two numbers above 0" if kind == "log" else "two numbers"
        raise ValueError(f"{name}: {kind} is [{low}, {high}]: give {least}, the lower one first")
    if kind == "integer" and max(-low, high) > _LARGEST:
        raise ValueError(
            f"{name}: integer is [{low}, {high}]: give whole numbers from -2**53 to 2**53"
        )
    if kind != "integer" and math.isinf(high / low if kind == "log" else high - low):
        raise ValueError(f"{name}: {kind} is [{low}, {high}]: give two numbers closer together")
    return KINDS[kind](points=points, low=low, high=high)


def _checked(name: str, kind: str, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], int | None]:
    """What stands under the kind, and the number of points, in the right types."""
    from pydantic import Field, FiniteFloat

    item: Any = {"choice": Any, "integer": int}.get(kind, FiniteFloat)
    least, most = (1, None) if kind == "choice" else (2, 2)
    types = {
        kind: (tuple[item, ...], Field(min_length=least, max_length=most)),
        "points": (int | None, Field(None, ge=2, le=_POINTS)),
    }
    made = config_file.typed(name, given, types)
    return made[kind], made["points"]


#: The kinds, by what a file calls them.
KINDS: dict[str, type[Any]] = {
    "uniform": Uniform,
    "log": Log,
    "integer": Integer,
    "choice": Choice,
}
