"""Layers of sequences: of token numbers (samples, tokens), and vectors (samples, tokens, width)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import numpy as np

from mpicoll.base.arrays import Array, library_of
from mpicoll.train.data.batch import Batch
from mpicoll.train.models.flat import Parameters
from mpicoll.train.models.layers import Layer, Outputs, Shape, normal, rows_of


@dataclass(frozen=True)
class Embedding(Layer):
    """A vector for each token.

    Attributes:
        tokens: Size of the vocabulary: inputs are whole numbers from 0 to below it.
        width: Of a vector.
        name: Of its parameter `NAME.weight`, which an `Unembedding` may share.
    """

    tokens: int
    width: int
    name: str | None = None

    def output_shape(self, shape: Shape) -> Shape:
        return (*shape, self.width)

    def working(self, shape: Shape) -> int:
        return 2 * prod(self.output_shape(shape))

    def initial(self, shape: Shape, generator: np.random.Generator) -> dict[str, Array]:
        return normal((self.tokens, self.width), 1 / self.width, generator, bias=False)

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        return parameters["weight"][inputs], inputs

    def backward_input(
        self, parameters: Parameters, memory: Array, error: Array, first: bool
    ) -> tuple[None, Array]:
        return None, error

    def backward_weight(
        self, parameters: Parameters, memory: Array, kept: Array
    ) -> dict[str, Array]:
        # Sums of sorted rows: far quicker than adding row by row.
        library, tokens = library_of(kept), memory.reshape(-1)
        gradient = library.zeros(parameters["weight"].shape, kept.dtype)
        order = tokens.argsort(kind="stable")
        ordered = tokens[order]
        starts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
        if len(ordered):
            starts = library.concatenate([library.zeros(1, starts.dtype), starts])
            gradient[ordered[starts]] = np.add.reduceat(rows_of(kept)[order], starts, axis=0)
        return {"weight": gradient}


@dataclass(frozen=True)
class Unembedding(Layer):
    """A score of each token: the inner product of its vector and the input.

    Attributes:
        tokens: Size of the vocabulary.
        name: Of its parameter `NAME.weight`; that of an `Embedding` with the same name is the same.
    """

    tokens: int
    name: str | None = None

    def output_shape(self, shape: Shape) -> Shape:
        return (*shape[:-1], self.tokens)

    def initial(self, shape: Shape, generator: np.random.Generator) -> dict[str, Array]:
        return normal((self.tokens, shape[-1]), 1 / shape[-1], generator, bias=False)

    def working(self, shape: Shape) -> int:
        return prod(self.output_shape(shape)) + prod(shape)

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        scores = rows_of(inputs) @ parameters["weight"].T
        return scores.reshape(*inputs.shape[:-1], self.tokens), inputs

    def backward_input(
        self, parameters: Parameters, memory: Array, error: Array, first: bool
    ) -> tuple[Array, Array]:
        rows = rows_of(error)
        return (rows @ parameters["weight"]).reshape(memory.shape), rows

    def backward_weight(
        self, parameters: Parameters, memory: Array, kept: Array
    ) -> dict[str, Array]:
        return {"weight": kept.T @ rows_of(memory)}


@dataclass(frozen=True)
class Position(Layer):
    """Adds a vector to each place of a sequence."""

    keeps_inputs = False

    def initial(self, shape: Shape, generator: np.random.Generator) -> dict[str, Array]:
        if len(shape) != 2:
            raise ValueError(
                f"positions are of inputs of shape {shape}: give sequences of (tokens, width)"
            )
        return normal((shape[0], shape[1]), 0.01 / shape[1], generator, bias=False)

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        # Sequences to go on from may be shorter than those of the training.
        return inputs + parameters["weight"][: inputs.shape[1]], None

    def backward_input(
        self, parameters: Parameters, memory: Any, error: Array, first: bool
    ) -> tuple[Array, Array]:
        return error, error

    def backward_weight(self, parameters: Parameters, memory: Any, kept: Array) -> dict[str, Array]:
        return {"weight": kept.sum(axis=0)}


@dataclass(frozen=True)
class LayerNorm(Layer):
    """Gives the last axis mean 0 and variance 1, then a weight and a bias (Ba et al. 2016).

    Attributes:
        epsilon: Added to the variance.
    """

    keeps_inputs = False
    epsilon: float = 1e-5

    def initial(self, shape: Shape, generator: np.random.Generator) -> dict[str, Array]:
        return {"weight": np.ones(shape[-1]), "bias": np.zeros(shape[-1])}

    def kept(self, shape: Shape) -> int:
        return prod(shape) + prod(shape[:-1])

    def working(self, shape: Shape) -> int:
        return 4 * prod(shape)

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        wide = inputs.astype(np.promote_types(inputs.dtype, np.float32), copy=False)
        normed = wide - wide.mean(axis=-1, keepdims=True)
        scale = np.square(normed).mean(axis=-1, keepdims=True)
        scale += self.epsilon
        scale **= -0.5
        normed *= scale
        outputs = normed * parameters["weight"]
        outputs += parameters["bias"]
        return outputs.astype(inputs.dtype, copy=False), (normed, scale)

    def backward_input(
        self, parameters: Parameters, memory: tuple[Array, Array], error: Array, first: bool
    ) -> tuple[Array, Array]:
        normed, scale = memory
        slopes = error * parameters["weight"]
        along = (slopes * normed).mean(axis=-1, keepdims=True)
        slopes = slopes - slopes.mean(axis=-1, keepdims=True) - normed * along
        slopes *= scale
        return slopes.astype(error.dtype, copy=False), error

    def backward_weight(
        self, parameters: Parameters, memory: tuple[Array, Array], kept: Array
    ) -> dict[str, Array]:
        normed, _ = memory
        return {
            "weight": rows_of(kept * normed).sum(axis=0),
            "bias": rows_of(kept).sum(axis=0),
        }


@dataclass(frozen=True)
class Attention(Layer):
    """Every place of a sequence gathers from the others what its query asks for.

    A. Vaswani et al., "Attention is all you need", 2017, section 3.2.  Keys have no bias: it would
    add the same to all scores of a query, and change nothing.

    Attributes:
        heads: The width is cut into so many parts, each with scores of its own.
        causal: Whether a place looks at itself and at earlier ones alone.
        gain: Variance of the initial weights of the outputs times their number.
    """

    heads: int
    causal: bool = True
    gain: float = 1.0

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 2:
            raise ValueError(
                f"attention has inputs of shape {shape}: give sequences of (tokens, width)"
            )
        if shape[1] % self.heads:
            raise ValueError(
                f"a width of {shape[1]} cannot be cut into {self.heads} heads: give a width that "
                f"is a multiple of {self.heads}"
            )
        return shape

    def initial(self, shape: Shape, generator: np.random.Generator) -> dict[str, Array]:
        width = shape[1]
        joint = normal((width, 3 * width), 1 / width, generator)["weight"]
        out = normal((width, width), self.gain / width, generator)
        return {
            "weight": joint,
            "query_bias": np.zeros(width),
            "value_bias": np.zeros(width),
            "out_weight": out["weight"],
            "out_bias": out["bias"],
        }

    def kept(self, shape: Shape) -> int:
        tokens, width = shape
        return 4 * tokens * width + self.heads * tokens**2

    def waiting(self, shape: Shape) -> int:
        return 4 * prod(shape)

    def working(self, shape: Shape) -> int:
        tokens, width = shape
        return 6 * tokens * width + 2 * self.heads * tokens**2

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        samples, tokens, _ = inputs.shape
        width = parameters["weight"].shape[1] // 3  # of all heads that are here
        joint = (rows_of(inputs) @ parameters["weight"]).reshape(samples, tokens, 3, width)
        joint[:, :, 0] += parameters["query_bias"]
        joint[:, :, 2] += parameters["value_bias"]
        queries, keys, values = self._by_head(joint)
        scores = queries @ keys.swapaxes(-1, -2)
        shares = _softmax(scores, 1 / sqrt(width // self.heads), self.causal)
        mixed = (shares @ values).swapaxes(1, 2).reshape(-1, width)
        outputs = mixed @ parameters["out_weight"]
        outputs += parameters["out_bias"]
        return outputs.reshape(inputs.shape), (inputs, joint, shares, mixed)

    def backward_input(
        self, parameters: Parameters, memory: Any, error: Array, first: bool
    ) -> tuple[Array | None, tuple[Array, Array]]:
        inputs, joint, shares, _ = memory
        samples, tokens, _, width = joint.shape
        rows = rows_of(error)
        by_mixed = rows @ parameters["out_weight"].T
        # The slopes of queries, keys and values lie as their values do.
        slopes = library_of(error).empty(joint.shape, joint.dtype)
        queries, keys, values = self._by_head(joint)
        by_query, by_key, by_value = self._by_head(slopes)
        of_heads = by_mixed.reshape(samples, tokens, self.heads, width // self.heads).swapaxes(1, 2)
        by_value[...] = shares.swapaxes(-1, -2) @ of_heads
        by_score = of_heads @ values.swapaxes(-1, -2)
        by_score -= (by_score * shares).sum(axis=-1, keepdims=True)
        by_score *= shares
        by_score *= 1 / sqrt(width // self.heads)
        by_query[...] = by_score @ keys
        by_key[...] = by_score.swapaxes(-1, -2) @ queries
        flat = slopes.reshape(-1, 3 * width)
        by_input = None if first else (flat @ parameters["weight"].T).reshape(inputs.shape)
        return by_input, (rows, flat)

    def backward_weight(
        self, parameters: Parameters, memory: Any, kept: tuple[Array, Array]
    ) -> dict[str, Array]:
        inputs, _, _, mixed = memory
        (rows, flat), width = kept, mixed.shape[-1]
        return {
            "weight": rows_of(inputs).T @ flat,
            "query_bias": flat[:, :width].sum(axis=0),
            "value_bias": flat[:, 2 * width :].sum(axis=0),
            "out_weight": mixed.T @ rows,
            "out_bias": rows.sum(axis=0),
        }

    def _by_head(self, joint: Array) -> Array:
        """Queries, keys and values, each of shape (samples, heads, tokens, width of a head)."""
        samples, tokens, _, width = joint.shape
        parts = joint.reshape(samples, tokens, 3, self.heads, width // self.heads)
        return parts.transpose(2, 0, 3, 1, 4)


def _softmax(scores: Array, scale: float, causal: bool) -> Array:
    """Shares along the last axis that add up to 1, in place."""
    scores *= scale
    if causal:
        library, tokens = library_of(scores), scores.shape[-1]
        scores[..., library.triu(library.ones((tokens, tokens), bool), 1)] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores
