"""JAX functions: trained by `mpicoll.train.run`::

    model = jax_model(loss, parameters)
    run(config, comm, dataset=data, model=model)

Nothing else of mpicoll imports JAX.  JAX computes in float32 where
float64 is asked for, unless its option `jax_enable_x64` is set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.data.batch import Batch
from mpicoll.train.models.flat import Parameters
from mpicoll.train.models.networks import Model

__all__ = ["jax_model"]


def jax_model(
    loss: Callable[..., Any],
    parameters: Any,
    outputs: Callable[..., Any] | None = None,
) -> Model:
    """A loss in JAX as a `mpicoll.train.Model`, for every data-parallel strategy.

    Both functions are pure, and compiled for each number of samples that a rank is given.

    Args:
        loss: Of parameters, inputs and targets: the loss of each sample, shape (samples,).
        parameters: To begin with: arrays in dictionaries, lists or what else JAX flattens; on rank
            0. Or a function that gives them for a key of `jax.random`.
        outputs: Of parameters and inputs, for measures, such as a score of each class, shape
            (samples, classes); None where nothing but the loss is to be measured.

    Raises:
        ValueError: Two parameters have one name, which is the path to them, with dots.
    """
    return _JaxModel(loss, parameters, outputs)


class _JaxModel(Model):
    def __init__(
        self, loss: Callable[..., Any], parameters: Any, outputs: Callable[..., Any] | None
    ) -> None:
        self._given = parameters
        shapes = jax.eval_shape(parameters, jax.random.key(0)) if callable(parameters) else None
        given = parameters if shapes is None else shapes
        flat: Any = jax.tree_util.tree_flatten_with_path(given)
        pairs, self._tree = flat
        self._names = [".".join(map(_word, path)) for path, _ in pairs]
        twice = {name for name in self._names if self._names.count(name) > 1}
        if twice:
            raise ValueError(f"several parameters are called {min(twice)}: give each its own name")

        def total(leaves: list[Any], inputs: Any, targets: Any, divisor: Any) -> Any:
            losses = loss(self._tree.unflatten(leaves), inputs, targets)
            # Sums of narrow losses, scaled, would overflow.
            wide = jax.numpy.promote_types(losses.dtype, np.float32)
            return losses.astype(wide).sum() / divisor

        self._gradients = jax.jit(jax.value_and_grad(total))
        self._losses = jax.jit(lambda leaves, *batch: loss(self._tree.unflatten(leaves), *batch))
        self._outputs = None
        if outputs is not None:
            apply = outputs
            self._outputs = jax.jit(lambda leaves, x: apply(self._tree.unflatten(leaves), x))

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        given = self._given(jax.random.key(seed)) if callable(self._given) else self._given
        return {
            name: np.array(leaf)
            for name, leaf in zip(self._names, jax.tree_util.tree_leaves(given), strict=True)
        }

    def loss_and_gradients(
        self, parameters: Parameters, batch: Batch
    ) -> tuple[float, dict[str, Array | None]]:
        if not len(batch.inputs):
            return 0.0, dict.fromkeys(self._names)
        loss, slopes = self._gradients(
            self._leaves(parameters), batch.inputs, batch.targets, float(batch.total)
        )
        return float(loss), dict(zip(self._names, map(np.asarray, slopes), strict=True))

    def losses_and_outputs(
        self, parameters: Parameters, inputs: Array, targets: Array
    ) -> tuple[Array, Array]:
        leaves = self._leaves(parameters)
        losses = np.asarray(self._losses(leaves, inputs, targets))
        if self._outputs is None:
            return losses, np.zeros((len(inputs), 1), losses.dtype)
        return losses, np.asarray(self._outputs(leaves, inputs))

    def _leaves(self, parameters: Parameters) -> list[Array]:
        return [parameters[name] for name in self._names]


def _word(key: Any) -> str:
    """A step on the way to a parameter, in words."""
    if isinstance(key, jax.tree_util.DictKey):
        return str(key.key)
    return str(getattr(key, "idx", getattr(key, "name", key)))
