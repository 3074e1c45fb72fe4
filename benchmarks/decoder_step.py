"""A step of the decoder by mpicoll's layers and by PyTorch, in turn, on one thread.

    python benchmarks/decoder_step.py

Two layers of width 128, 4 heads, 128 tokens of context, 8 samples, float32: forward, backward and
Adam.  Ratios are of CPU seconds of blocks of steps that alternate; the profile is of mpicoll's
step by layer.  Adds a line to results/training/decoder_step.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from typing import Any

from mpicoll.train import threads

threads.limit_blas_threads()

import numpy as np  # noqa: E402 - threads first
import torch  # noqa: E402
import training  # noqa: E402
from torch_decoder import Decoder, copy_parameters  # noqa: E402

from mpicoll.train import optimizers  # noqa: E402
from mpicoll.train.data import load  # noqa: E402
from mpicoll.train.models import (  # noqa: E402
    Attention,
    Batch,
    CrossEntropy,
    Dense,
    Embedding,
    Gelu,
    LayerNorm,
    Position,
    Unembedding,
    transformer,
)
from mpicoll.train.models.flat import Flat  # noqa: E402
from mpicoll.train.optimizers import Adam  # noqa: E402  # noqa: E402

SAMPLES, CONTEXT = 8, 128
KINDS = (Dense, Attention, Gelu, LayerNorm, Embedding, Unembedding, Position, CrossEntropy, Adam)


def main() -> None:
    """Alternate blocks of steps, then time mpicoll's layers one by one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--blocks", type=int, default=31)
    parser.add_argument("--steps", type=int, default=10, help="of a block")
    options = parser.parse_args()
    torch.set_num_threads(1)
    inputs, targets = (array[: 64 * SAMPLES] for array in load("text").parts["train"])
    ways = {"mpicoll": by_mpicoll(inputs, targets), "pytorch": by_torch(inputs, targets)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.blocks + 1):
        for name, step in ways.items():
            began = time.process_time()
            for number in range(options.steps):
                step(number % 64)
            seconds[name].append((time.process_time() - began) / options.steps)
    ratios = sorted(a / b for a, b in zip(*(s[1:] for s in seconds.values()), strict=True))
    low, high = len(ratios) // 4, -1 - len(ratios) // 4
    facts: dict[str, Any] = {
        "ratio": round(statistics.median(ratios), 3),
        "quartiles": [round(ratios[low], 3), round(ratios[high], 3)],
        **{f"{name}_ms": round(1e3 * min(s[1:]), 2) for name, s in seconds.items()},
        "profile_ms": profile(inputs, targets, 20),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    training.write("decoder_step", facts)


def batch_of(inputs: Any, targets: Any, number: int) -> Batch:
    rows = slice(SAMPLES * number, SAMPLES * (number + 1))
    return Batch(inputs[rows], targets[rows], SAMPLES)


def by_mpicoll(inputs: Any, targets: Any) -> Callable[[int], None]:
    """A step as a run makes it: gradients into one vector, Adam on the vector of parameters."""
    model, optimizer = transformer(256, CONTEXT), optimizers.make("adam")
    weights = Flat(model.initial_parameters(0))
    gradients = Flat(weights.views)
    state = optimizers.empty_state(optimizer, weights.vector)
    numbers = iter(range(1, 1 << 30))

    def step(number: int) -> None:
        batch = batch_of(inputs, targets, number)
        model.push_gradients(weights.views, batch, put)
        optimizer.update(weights.vector, gradients.vector, state, 1e-3, next(numbers))

    def put(name: str, array: Any) -> None:
        gradients.views[name][...] = array

    return step


def by_torch(inputs: Any, targets: Any) -> Callable[[int], None]:
    """The same of PyTorch, with its fused Adam."""
    net = Decoder(256, CONTEXT, 128, 2, 4)
    copy_parameters(net, transformer(256, CONTEXT).initial_parameters(0))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    tokens, wanted = (torch.from_numpy(array.astype(int)) for array in (inputs, targets))

    def step(number: int) -> None:
        rows = slice(SAMPLES * number, SAMPLES * (number + 1))
        optimizer.zero_grad()
        scores = net(tokens[rows]).flatten(0, 1)
        torch.nn.functional.cross_entropy(scores, wanted[rows].flatten()).backward()
        optimizer.step()

    return step


def profile(inputs: Any, targets: Any, steps: int) -> dict[str, float]:
    """Milliseconds of mpicoll's step by kind of layer; the methods of the kinds stay timed."""
    seconds: defaultdict[str, float] = defaultdict(float)

    def timed(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def called(*arguments: Any) -> Any:
            began = time.process_time()
            try:
                return function(*arguments)
            finally:
                seconds[kind] += time.process_time() - began

        return called

    for kind in KINDS:
        for method in ("forward", "backward_input", "backward_weight", "evaluate", "update"):
            if method in vars(kind):
                setattr(kind, method, timed(kind.__name__, getattr(kind, method)))
    step = by_mpicoll(inputs, targets)
    began = time.process_time()
    for number in range(steps):
        step(number % 64)
    whole = time.process_time() - began
    seconds["other"] = whole - sum(seconds.values())
    shares = sorted(seconds.items(), key=lambda item: -item[1])
    return {kind: round(1e3 * found / steps, 2) for kind, found in shares}


if __name__ == "__main__":
    main()
