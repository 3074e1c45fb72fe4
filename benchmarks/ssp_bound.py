"""Regret of stale synchronous SGD on a convex problem, beside its bound 4 F L sqrt(2 (s+1) P / T).

    python benchmarks/ssp_bound.py

Softmax regression on the digits of scikit-learn, one sample a step, parameters kept in a ball by an
update of this script's own that the shard calls. P workers with times drawn at random go as far
ahead of each other as the shard lets them. The bound is of Ho et al. 2013, theorem 1: mean regret
over T steps with rates sigma / sqrt(t), sigma = F / (L sqrt(2 (s+1) P)), where F^2 bounds half the
squared distance of two points and L the gradients. Adds lines to results/training/ssp_bound.jsonl;
no MPI.
"""

from __future__ import annotations

import argparse
import heapq
import math
from typing import Any

import numpy as np
import training
from numpy.typing import NDArray

from mpicoll.train import data
from mpicoll.train.servers import consistency
from mpicoll.train.servers.shard import Push, Shard

RADIUS = 5.0
F = math.sqrt(2) * RADIUS  # two points of the ball are 2 RADIUS apart: (2 RADIUS)^2 / 2 = F^2

Array = NDArray[Any]


class Projected:
    """Plain SGD in a ball."""

    slots = ()

    def update(self, weights: Array, gradient: Array, state: Any, lr: float, step: int) -> None:
        """See `mpicoll.train.optimizers.Optimizer.update`."""
        weights -= lr * gradient
        norm = float(np.linalg.norm(weights))
        if norm > RADIUS:
            weights *= RADIUS / norm


def losses_and_slopes(weights: Array, inputs: Array, labels: Array) -> tuple[Array, Array]:
    """Of samples: the loss of each, and the slope of their mean."""
    scores = inputs @ weights.reshape(inputs.shape[1], -1)
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(axis=1, keepdims=True)
    every = np.arange(len(labels))
    losses = -np.log(chances[every, labels])
    chances[every, labels] -= 1
    return losses, (inputs.T @ chances).ravel() / len(labels)


def best(inputs: Array, labels: Array, classes: int) -> Array:
    """The point of the ball with the least mean loss, by accelerated projected descent."""
    point = previous = np.zeros(inputs.shape[1] * classes)
    rate = 2 / (inputs**2).sum(axis=1).max()
    for step in range(1, 20001):
        ahead = point + (step - 1) / (step + 2) * (point - previous)
        previous, point = point, ahead
        _, slope = losses_and_slopes(ahead, inputs, labels)
        point = ahead - rate * slope
        point *= min(1.0, RADIUS / float(np.linalg.norm(point)))
    return point


def regret(
    inputs: Array, labels: Array, point: Array, workers: int, bound: int, steps: int
) -> tuple[list[int], list[float], float]:
    """Mean regret against a point after some numbers of steps, and the bound's L."""
    generator = np.random.default_rng((workers, bound))
    largest = math.sqrt(2) * float(np.linalg.norm(inputs, axis=1).max())
    sigma = F / (largest * math.sqrt(2 * (bound + 1) * workers))
    shard = Shard(
        np.zeros_like(point),
        Projected(),
        workers,
        consistency.parse(f"ssp:{bound}"),
        lambda clock: sigma / math.sqrt(workers * clock),
        "full",
    )
    shard.begin(0)
    chosen = generator.integers(0, len(labels), steps)
    lost = np.zeros(steps)
    clocks, given = [0] * workers, [shard.weights.copy() for _ in range(workers)]
    busy = [(generator.exponential(), worker) for worker in range(workers)]
    heapq.heapify(busy)
    for step, sample in enumerate(chosen):
        now, worker = heapq.heappop(busy)
        own = slice(sample, sample + 1)
        loss, slope = losses_and_slopes(given[worker], inputs[own], labels[own])
        lost[step] = loss[0]
        shard.push(worker, Push(clocks[worker], 1, 1, True, 0.0, 0.0, shard.updates), slope)
        clocks[worker] += 1
        shard.pull(worker)
        for answered in shard.answers():
            given[answered] = shard.weights.copy()
            heapq.heappush(busy, (now + generator.exponential(), answered))
    least, _ = losses_and_slopes(point, inputs[chosen], labels[chosen])
    marks = [steps >> k for k in range(7, -1, -1)]
    return marks, [float((lost - least)[:mark].mean()) for mark in marks], largest


def main() -> None:
    """Every number of workers with every bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1 << 15)
    options = parser.parse_args()
    digits = data.load("digits")
    whole: Array = digits.train_inputs[:].reshape(-1, digits.features)
    inputs = np.hstack([whole, np.ones((len(whole), 1))])
    labels: Array = digits.train_targets[:]
    # The theorem holds for any fixed point; this is the best one for the data.
    point = best(inputs, labels, 10)
    for workers in (1, 4, 8):
        for bound in (0, 3, 7):
            marks, found, largest = regret(inputs, labels, point, workers, bound, options.steps)
            limits = [4 * F * largest * math.sqrt(2 * (bound + 1) * workers / t) for t in marks]
            facts = {"workers": workers, "bound": bound, "F": F, "L": largest, "steps": marks}
            training.write("ssp_bound", {**facts, "regret": found, "limit": limits})
            assert all(r <= limit for r, limit in zip(found, limits, strict=True))


if __name__ == "__main__":
    main()
