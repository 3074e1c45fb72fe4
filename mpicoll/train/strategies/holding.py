"""What a rank has of a model's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from mpicoll.train.models.flat import Flat
from mpicoll.train.ranks.workers import Workers


class Form(NamedTuple):
    """Of a whole parameter: its type, as it is kept, and its shape."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Holding:
    """The parameters that this rank trains, from the start of a run to its end.

    A strategy that shares parameters out makes one of its own, with what it shares them by.

    Attributes:
        weights: This rank's; changed in place.
        forms: Of all parameters of the model, by name, the same on all ranks.
    """

    weights: Flat
    forms: Mapping[str, Form]

    @classmethod
    def whole(cls, weights: Flat) -> Holding:
        """All parameters, on every rank."""
        forms = {name: Form(view.dtype, view.shape) for name, view in weights.views.items()}
        return cls(weights, forms)

    def on(self, workers: Workers) -> Holding:
        """The same on other ranks, where some have died; the values come later; collective.

        Parameters have new memory: messages of those that have died may still arrive in the old.
        """
        return replace(self, weights=Flat(self.weights.views))

    @property
    def words(self) -> str:
        """Which part of the model it is, and of which rank; "" for all of it."""
        return ""

    def agree(self, workers: Workers) -> None:
        """Let what several ranks have begin with the same values; collective."""
        workers.broadcast(self.weights.vector)

    def free(self) -> None:
        """Free what it has of MPI, where no training has begun; collective."""
