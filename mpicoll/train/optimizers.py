"""Optimizers: how a gradient changes the weights.

All work element by element, on arrays of any shape. So `zero1` and parameter servers can share the
work: the weights are the same whether a rank updates all arrays or a part of one vector. Contiguous
NumPy arrays of float32 and float64 are updated by compiled kernels in one pass, with the same bits
as by the statements here, which are for all other arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mpicoll import _kernels
from mpicoll.base.arrays import Array

State = Mapping[str, Array]
#: As `Optimizer.update`.
Update = Callable[[Array, Array, State, float, int], object]


class Optimizer(Protocol):
    """What the training loop asks of an optimizer."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of its arrays beside the weights, each of their shape and zero at first."""

    def update(self, weights: Array, gradient: Array, state: State, lr: float, step: int) -> None:
        """Change `weights` and `state` in place.

        Args:
            weights: Floating point, any shape.
            gradient: Same shape and type; may be overwritten.
            state: An array of the same shape for each slot.
            lr: Learning rate of this step.
            step: Number of the step, counted from 1.
        """


@dataclass(frozen=True)
class SGD(Optimizer):
    """w = w - lr (g + decay w). With momentum m: v = m v + g + decay w, w = w - lr v.

    Attributes:
        momentum: Share of the last update kept in the next, 0 for plain SGD.
        nesterov: Look ahead: w = w - lr (g + m v) with the new v (Sutskever et al. 2013).
        decay: Weight decay.
    """

    momentum: float = 0.0
    nesterov: bool = False
    decay: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        return ("velocity",) if self.momentum else ()

    def update(self, weights: Array, gradient: Array, state: State, lr: float, step: int) -> None:
        if _compiled(weights, gradient, *state.values()):
            velocity = _flat(state["velocity"]) if self.momentum else None
            rates = lr, self.momentum, self.decay
            _kernels.update_sgd(_flat(weights), _flat(gradient), velocity, *rates, self.nesterov)
            return
        if self.decay:
            gradient += self.decay * weights
        if self.momentum:
            velocity = state["velocity"]
            velocity *= self.momentum
            velocity += gradient
            if self.nesterov:
                gradient += self.momentum * velocity
            else:
                gradient[...] = velocity
        gradient *= lr
        weights -= gradient


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015), and AdamW (Loshchilov and Hutter 2019).

    Attributes:
        beta1, beta2: Decay of the means of gradients and of their squares.
        epsilon: Added to the root of the mean square.
        decay: Weight decay.
        decoupled: AdamW: decay acts on the weights, not through the means.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    decay: float = 0.0
    decoupled: bool = False

    slots = ("mean", "square")

    def update(self, weights: Array, gradient: Array, state: State, lr: float, step: int) -> None:
        mean, square = state["mean"], state["square"]
        correction, rate = 1 - self.beta2**step, lr / (1 - self.beta1**step)
        if _compiled(weights, gradient, mean, square):
            keep, decay = (1 - lr * self.decay, 0.0) if self.decoupled else (1.0, self.decay)
            rates = keep, decay, self.beta1, self.beta2, correction, self.epsilon, rate
            means = _flat(mean), _flat(square)
            _kernels.update_adam(_flat(weights), _flat(gradient), *means, *rates)
            return
        if self.decay and self.decoupled:
            weights *= 1 - lr * self.decay
        elif self.decay:
            gradient += self.decay * weights
        mean *= self.beta1
        mean += (1 - self.beta1) * gradient
        square *= self.beta2
        gradient *= gradient
        gradient *= 1 - self.beta2
        square += gradient
        np.divide(square, correction, out=gradient)
        np.sqrt(gradient, out=gradient)
        gradient += self.epsilon
        np.divide(mean, gradient, out=gradient)
        gradient *= rate
        weights -= gradient


@dataclass(frozen=True)
class Function(Optimizer):
    """An optimizer that is a function.

    Attributes:
        function: Called as `Optimizer.update`.
        slots: As of `Optimizer`.
    """

    function: Update
    slots: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What a report calls it."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def update(self, weights: Array, gradient: Array, state: State, lr: float, step: int) -> None:
        self.function(weights, gradient, state, lr, step)


def _compiled(*arrays: Array) -> bool:
    """Whether there are kernels for some arrays."""
    dtype = arrays[0].dtype
    return dtype in (np.float32, np.float64) and all(
        type(array) is np.ndarray and array.dtype == dtype and array.flags.carray
        for array in arrays
    )


def _flat(array: Array) -> Array:
    """All elements as one axis, a view."""
    return array.reshape(-1)


#: Names of the optimizers.
OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "adamw")


def make(name: str, momentum: float = 0.9, decay: float = 0.0) -> Optimizer:
    """The optimizer of a name in `OPTIMIZERS`.

    Args:
        name: Its name.
        momentum: For `momentum` and `nesterov`.
        decay: Weight decay, for all.
    """
    if name in ("adam", "adamw"):
        return Adam(decay=decay, decoupled=name == "adamw")
    return SGD(0.0 if name == "sgd" else momentum, name == "nesterov", decay)


def wrapped(given: Optimizer | Update) -> Optimizer:
    """An optimizer as it is; a function as one that keeps no arrays."""
    return Function(given) if callable(given) else given


def empty_state(optimizer: Optimizer, like: Array) -> dict[str, Array]:
    """The optimizer's arrays before the first step."""
    return {slot: np.zeros_like(like) for slot in optimizer.slots}
