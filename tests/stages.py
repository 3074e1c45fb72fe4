"""Pipelines in tests: models, what one process makes of them, and stages that are threads."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from types import SimpleNamespace

import numpy as np

from mpicoll.schedule.layout import part
from mpicoll.train import step
from mpicoll.train.models import (
    Batch,
    Dense,
    Dropout,
    Gelu,
    Layer,
    LayerNorm,
    ReLU,
    Residual,
    Sequential,
)
from mpicoll.train.parallel.executor import Executor
from mpicoll.train.parallel.program import Plan
from mpicoll.train.parallel.stage import Stage
from mpicoll.train.parallel.sums import Sums
from mpicoll.train.parallel.weights import Weights


def layers():
    """Twenty, of several kinds; some have no parameters."""
    block = (LayerNorm(), Dense(7), Gelu())
    found = []
    for stream in range(4):
        found += [Dense(7), ReLU(), Residual(block), Dropout(0.2, stream), LayerNorm()]
    return [*found[:-1], Dense(3, gain=1.0)]


def problem(dtype, samples):
    generator = np.random.default_rng(samples)
    inputs = generator.standard_normal((samples, 6)).astype(dtype)
    return Sequential(layers(), (6,), dtype), inputs, generator.integers(0, 3, samples)


def uneven(count, chunks, seed=0):
    """An ascending cut of any lengths."""
    generator = np.random.default_rng((seed, chunks))
    return (0, *sorted(generator.choice(np.arange(1, count), chunks - 1, replace=False).tolist()))


class Breaks(Layer):
    """Passes everything on, and fails when it has made so many passes of a kind."""

    def __init__(self, kind, after):
        self._left = {"forward": -1, "backward": -1, "weight": -1}
        self._left[kind] = after

    def _count(self, kind):
        self._left[kind] -= 1
        if self._left[kind] == -1:
            raise OSError(f"the {kind} pass is on fire")

    def initial(self, shape, generator):
        return {"weight": np.ones(1)}

    def forward(self, parameters, inputs, batch):
        self._count("forward")
        return inputs, None

    def backward_input(self, parameters, memory, error, first):
        self._count("backward")
        return error, error

    def backward_weight(self, parameters, memory, kept):
        self._count("weight")
        return {"weight": np.zeros(1)}


# --- one process ---


def alone(model, given):
    """Losses and gradients of one process that adds up the same microbatches."""
    parameters = {**model.initial_parameters(0), **model.initial_buffers()}
    losses, total = [], {}
    for batch in given:
        if not len(batch.samples):
            losses.append(0.0)
            continue
        loss, gradients = model.loss_and_gradients(parameters, batch)
        losses.append(loss)
        for name, gradient in gradients.items():
            total[name] = total[name] + gradient if name in total else gradient
    return losses, total, parameters


def updated(parameters, gradients):
    for name, gradient in gradients.items():
        parameters[name] -= 0.05 * gradient


def pipedream_alone(model, given, stages, starts, vertical):
    """PipeDream in one process: each stage takes the weights of as many updates ago as it is late.

    Microbatch m comes to stage r when the stage has made m - (S - 1 - r) updates, or 0; with
    vertical synchronisation it sees those of the first stage everywhere.
    """
    ends = [*starts[1:], len(model.layers)]
    chunks = [model.chunk(start, end) for start, end in zip(starts, ends, strict=True)]
    names = [
        [n for n, layers in model.holders.items() if set(layers) & set(chunk.numbers)]
        for chunk in chunks
    ]
    drawn = model.initial_parameters(0)
    history = [[{name: drawn[name] for name in own}] for own in names]
    losses = []
    for m, batch in enumerate(given):
        seen = [
            history[r][max(m - (stages - 1 if vertical else stages - 1 - r), 0)]
            for r in range(stages)
        ]
        values, memories = batch.inputs, []
        for chunk, weights in zip(chunks, seen, strict=True):
            values, memory = chunk.forward(weights, values, batch, lambda a: a)
            memories.append(memory)
        each, error = model.loss.evaluate(values, batch.targets)
        error /= batch.total
        losses.append(float(each.sum(dtype=np.float64)) / batch.total)
        for r in reversed(range(stages)):
            gradients = {}
            for slopes in chunks[r].backward(seen[r], memories[r], error, lambda a: a):
                gradients.update(slopes.gradients)
                error = slopes.error
            newest = {name: array.copy() for name, array in history[r][-1].items()}
            updated(newest, gradients)
            history[r].append(newest)
    return losses, {name: array for own in history for name, array in own[-1].items()}


# --- threads ---

#: Seconds after which a stage gives up to wait.
PATIENCE = 20


class Post:
    """The queues between so many ranks."""

    def __init__(self):
        self._queues = defaultdict(Queue)
        self._lock = threading.Lock()

    def queue(self, source, target, tag):
        with self._lock:
            return self._queues[source, target, tag]


class Wires:
    """What an executor asks of its messages."""

    def __init__(self, post, rank):
        self._post, self._rank = post, rank
        self._coming = defaultdict(list)
        self.sent, self.sent_bytes = Counter(), 0

    def expect(self, parcels):
        for wire, parcel in parcels:
            self._coming[wire].append(parcel)

    def put(self, wire, array, parcel):
        if array is not None:
            assert (array.shape, array.dtype) == parcel
            array = array.copy()
            self.sent_bytes += array.nbytes
        self.sent[wire] += 1
        self._post.queue(self._rank, wire.peer, wire.tag).put(array)

    def take(self, wire):
        array = self._post.queue(wire.peer, self._rank, wire.tag).get(timeout=PATIENCE)
        parcel = self._coming[wire].pop(0)
        assert array is None or (array.shape, array.dtype) == parcel
        return array

    def poll(self):
        return False

    def finish(self):
        assert not any(self._coming.values())

    def swap(self, array, targets, arrivals, tag):
        for target in targets:
            self._post.queue(self._rank, target, tag).put(array.copy())
        for source, buffer in arrivals.items():
            buffer[...] = self._post.queue(source, self._rank, tag).get(timeout=PATIENCE)


def batches(inputs, targets, microbatches, alone=False):
    found = []
    for m in range(microbatches):
        start, length = part(len(inputs), microbatches, m)
        rows = slice(start, start + length)
        total = length if alone else len(inputs)
        found.append(Batch(inputs[rows], targets[rows], total, np.arange(len(inputs))[rows]))
    return found


def run(model, schedule, starts, given, update=None, steps=1):
    """Run steps on all ranks, each a thread: what each rank has at the end of the last one."""
    post = Post()

    def work(rank):
        with np.errstate(all="ignore"):  # of this thread
            return step_on(rank)

    def step_on(rank):
        wires = Wires(post, rank)
        stage = Stage(model, schedule, starts, rank)
        stage.begin(0, None, wires)
        sums = Sums(
            stage.uses,
            np.promote_types(model.dtype, np.float32),
            range(schedule.microbatches),
            None,
        )
        edges = {edge: model.shapes[start] for edge, start in enumerate(starts) if edge}
        plan = Plan(
            schedule.program(rank),
            stage.chunks,
            schedule.chunks - 1,
            model.loss,
            schedule.place,
            edges,
            model.dtype,
            schedule.recompute,
        )
        for _ in range(steps):
            weights = Weights(
                stage.parameters, stage.buffers, stage.names, model.dtype, plan.program
            )
            executor = Executor(plan, wires, weights, stage.buffer_names, sums, given, update, [])
            executor.run()
        gradients = sums.totals()
        if not executor.is_lost:
            stage.tied(gradients, sums.uses, wires)
        return SimpleNamespace(
            executor=executor, gradients=gradients, stage=stage, weights=weights, wires=wires
        )

    with ThreadPoolExecutor(schedule.stages) as pool:
        return [*pool.map(work, range(schedule.stages))]


def find(name, stages, microbatches, **options):
    return step.schedule(name, stages, microbatches, **options)
