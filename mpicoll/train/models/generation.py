"""Sequences from a model that gives a score of each next token: a text, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.models.flat import Parameters
from mpicoll.train.models.networks import Model, Sequential
from mpicoll.train.models.sequences import Embedding


def vocabulary(model: Model) -> int:
    """Number of tokens that a model knows.

    Raises:
        ValueError: It gives no score of each next token.
    """
    if isinstance(model, Sequential) and isinstance(model.layers[0], Embedding):
        tokens = model.layers[0].tokens
        if model.shapes[-1] == (*model.shapes[0], tokens):
            return tokens
    raise ValueError(
        "the model gives no score of each next token, so that it cannot generate any: take one of "
        "sequences, such as a transformer"
    )


def generate(
    model: Model,
    parameters: Parameters,
    prompt: Sequence[int],
    tokens: int,
    temperature: float = 1.0,
    seed: int = 0,
) -> Iterator[int]:
    """Continue a sequence, token by token.

    Each token is drawn by the softmax of its scores. The model computes them from the tokens before
    it, at most as many as it was trained on.

    Args:
        model: As `mpicoll.train.models.transformer`.
        parameters: Its parameters by name.
        prompt: Tokens to continue; for a model of bytes, an encoded text.
        tokens: Number of tokens to generate.
        temperature: Scores are divided by it: below 1, likely tokens become more likely. 0 takes
            the likeliest token and draws nothing.
        seed: Random seed.

    Raises:
        ValueError: The model gives no such scores, or they are not finite; the prompt is empty or
            has a token that the model does not know; a number is out of range.
    """
    known = vocabulary(model)
    wrong = [token for token in prompt if not 0 <= token < known]
    if wrong or not len(prompt):
        reason = f"has token {wrong[0]}" if wrong else "is empty"
        raise ValueError(f"the prompt {reason}: give at least one token, each in 0 .. {known - 1}")
    if not 0 <= temperature < np.inf:
        raise ValueError(f"temperature is {temperature}: give 0 or a number above, such as 0.8")
    if tokens < 0:
        raise ValueError(f"{tokens} tokens are to be generated: give at least 0")
    return _generated(model, parameters, list(prompt), tokens, temperature, seed)


def _generated(
    model: Model,
    parameters: Parameters,
    sequence: list[int],
    tokens: int,
    temperature: float,
    seed: int,
) -> Iterator[int]:
    assert isinstance(model, Sequential)
    context, generator = model.shapes[0][0], np.random.default_rng(seed)
    for _ in range(tokens):
        window = np.array([sequence[-context:]])
        scores = model.losses_and_outputs(parameters, window, window)[1][0, -1]
        if not np.isfinite(scores).all():
            raise ValueError("a score is not finite: the training has diverged, take another model")
        sequence.append(_drawn(scores.astype(np.float64), temperature, generator))
        yield sequence[-1]


def _drawn(scores: Array, temperature: float, generator: np.random.Generator) -> int:
    """A token, by its scores."""
    if temperature == 0:
        return int(scores.argmax())
    ends = np.exp((scores - scores.max()) / temperature).cumsum()
    place = np.searchsorted(ends, generator.random() * ends[-1], side="right")
    return min(int(place), len(ends) - 1)
