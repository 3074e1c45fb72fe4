"""A step of a candidate: what it takes, on a clock, and what memory its ranks need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import fmean

import numpy as np

from mpicoll.simulate.machine import Machine
from mpicoll.train.parallel import units
from mpicoll.train.planner.cluster import PICO, Cluster
from mpicoll.train.planner.layers import Layers, Numbers
from mpicoll.train.planner.replicas import fully_sharded, reduced
from mpicoll.train.planner.space import Candidate
from mpicoll.train.step.tasks import Durations
from mpicoll.train.step.timing import simulate

#: The layers of a rank, by the ranks that share a layer and the samples of a microbatch; None where
#: layers cannot be shared by so many.
LayersOf = Callable[[int, int], "Layers | None"]


@dataclass(frozen=True)
class Outcome:
    """What a step of a candidate takes.

    Attributes:
        candidate: What is planned.
        cut: The first layer of each chunk.
        picoseconds: Of the step.
        computing, tensor, exchange: Of these, means over the ranks: in layers; in collectives of
            ranks that share layers; at the end, until gradients are summed over the replicas. In
            the rest ranks wait for other stages.
        memory: Bytes of each stage, by what for.
        sent: Bytes that a rank sends in a step, the most of all stages, along each axis.
    """

    candidate: Candidate
    cut: tuple[int, ...]
    picoseconds: int
    computing: float
    tensor: float
    exchange: float
    memory: tuple[dict[str, int], ...]
    sent: dict[str, int]

    @property
    def seconds(self) -> float:
        """Of the step."""
        return self.picoseconds / PICO

    @property
    def waiting(self) -> float:
        """Picoseconds, in the mean over the ranks, in which they wait for other stages."""
        return self.picoseconds - self.computing - self.tensor - self.exchange

    @property
    def idle(self) -> float:
        """The part of the step in which ranks do not compute."""
        return 1 - self.computing / self.picoseconds if self.picoseconds else 0.0

    @property
    def most_memory(self) -> int:
        """Bytes of the rank that needs most."""
        return max(sum(stage.values()) for stage in self.memory)


@dataclass(frozen=True)
class Problem:
    """What is to be trained, and on what.

    Attributes:
        ranks: How many; rank = (stage * data + replica) * tensor + its number in its group.
        batch: Samples of a step.
        cluster: What messages cost.
        layers_of: What layers cost.
        slots: Arrays that the optimizer keeps for each parameter.
        memory: Bytes that each rank has; None for as many as are needed.
    """

    ranks: int
    batch: int
    cluster: Cluster
    layers_of: LayersOf
    slots: int = 1
    memory: int | None = None

    def samples(self, candidate: Candidate) -> int:
        """Of a microbatch."""
        return -(-self.batch // (candidate.data * candidate.microbatches))

    def layers(self, candidate: Candidate) -> Layers | None:
        """A rank's layers, for a microbatch; None where so many ranks cannot share one."""
        return self.layers_of(candidate.tensor, self.samples(candidate))

    def exchange(self, candidate: Candidate, nbytes: Numbers) -> Numbers:
        """Picoseconds in which a stage's gradients are summed over the replicas."""
        return self.cluster.collective("allreduce", _replicas(candidate), nbytes)

    def machine(self, candidate: Candidate) -> Machine:
        """What messages between stages cost: of the replica with most of them between nodes."""
        stride = candidate.data * candidate.tensor
        pipes = [range(first, self.ranks, stride) for first in range(stride)]
        nodes = self.cluster.nodes

        def crossings(ranks: Sequence[int]) -> int:
            return sum(nodes[a] != nodes[b] for a, b in pairwise(ranks))

        return self.cluster.machine(max(pipes, key=crossings))

    # --- memory ---

    def stage_memory(
        self, candidate: Candidate, layers: Layers, rank: int, spans: Sequence[tuple[int, int]]
    ) -> dict[str, int]:
        """Bytes of a rank of the pipeline, by what for.

        Args:
            candidate: What is planned.
            layers: For a microbatch.
            rank: Of the pipeline.
            spans: First layer, and the one behind the last, of each of its chunks.
        """
        weights = sum(layers.total("weights", *span) for span in spans)
        kept = max(layers.total("kept", *span) for span in spans)
        working = max(int(layers.most_working[start, end - 1]) for start, end in spans)
        found = {"parameters": weights, "gradients": weights, "optimizer": self.slots * weights}
        if not candidate.order:
            part = -(-weights // candidate.data)
            if candidate.sharing.updates:
                found["optimizer"] = self.slots * part
            if candidate.sharing.parameters:
                found |= {"parameters": part, "gradients": part}
                found["gathered"] = units.memory(layers.weights.tolist(), (), 0, 1, False)
            return {**found, "activations": kept, "passes": working}
        count, again = self.held(candidate, rank)
        values = count * kept
        if again:
            values = again * kept + count * max(int(layers.edges[start]) for start, _ in spans)
        return {**found, "activations": values, "passes": working}

    def held(self, candidate: Candidate, rank: int) -> tuple[int, int]:
        """Microbatches whose activations a rank of a pipeline holds, and those computed again."""
        return candidate.schedule.held(rank)

    def fits(self, outcome: Outcome) -> bool:
        """Whether every rank has enough memory."""
        return self.memory is None or outcome.most_memory <= self.memory

    # --- time ---

    def outcome(self, candidate: Candidate, cut: Sequence[int]) -> Outcome:
        """A step, simulated.

        Args:
            candidate: What is planned; its layers can be shared by so many.
            cut: The first layer of each chunk.
        """
        layers = self.layers(candidate)
        assert layers is not None, "the candidate was not left out"
        spans = list(pairwise([*cut, len(layers)]))
        step = self._pipeline if candidate.order else self._replica
        picoseconds, computing, exchange = step(candidate, layers, spans)
        stages = [
            [spans[chunk] for chunk in chunks] for chunks in _chunks_of(candidate, len(spans))
        ]
        tensor = _passes(candidate, layers, "collectives", 0, len(layers)) / candidate.pipe
        return Outcome(
            candidate,
            tuple(cut),
            picoseconds,
            computing - tensor,
            tensor,
            exchange,
            tuple(
                self.stage_memory(candidate, layers, rank, own) for rank, own in enumerate(stages)
            ),
            self._sent(candidate, layers, stages),
        )

    def _replica(
        self, candidate: Candidate, layers: Layers, spans: Sequence[tuple[int, int]]
    ) -> tuple[int, float, float]:
        times = layers.forward.tolist(), layers.backward.tolist(), layers.weights.tolist()
        count = candidate.microbatches
        computing = count * (sum(times[0]) + sum(times[1]))
        if candidate.data == 1:
            return computing, computing, 0

        @cache
        def collective(name: str, nbytes: int) -> int:
            groups = _replicas(candidate)
            return int(self.cluster.collective(name, groups, np.array([nbytes]))[0])

        if candidate.tensor > 1:  # sums begin when all gradients are there
            whole = computing + collective("allreduce", sum(times[2]))
        elif candidate.sharing.parameters:
            whole = fully_sharded(*times, count, collective)
        else:
            whole = reduced(*times, count, collective, candidate.sharing.updates)
        return whole, computing, whole - computing

    def _pipeline(
        self, candidate: Candidate, layers: Layers, spans: Sequence[tuple[int, int]]
    ) -> tuple[int, float, float]:
        schedule = candidate.schedule
        durations = [
            Durations(*(layers.total(name, *span) for name in ("forward", "backward", "weight")))
            for span in spans
        ]
        edges = [int(layers.edges[start]) for start, _ in spans]
        timing = simulate(schedule, durations, self.machine(candidate), edges)
        weights = [
            sum(layers.total("weights", *spans[chunk]) for chunk in schedule.chunks_of(rank))
            for rank in range(candidate.pipe)
        ]
        exchange = self.exchange(candidate, np.array(weights)).tolist()
        ends = [events[-1].end + own for events, own in zip(timing.ranks, exchange, strict=True)]
        return max(ends), fmean(timing.busy), fmean(exchange)

    def _sent(
        self, candidate: Candidate, layers: Layers, stages: Sequence[Sequence[tuple[int, int]]]
    ) -> dict[str, int]:
        data, count = candidate.data, candidate.microbatches
        pipe = tensor = weights = 0
        for rank, spans in enumerate(stages):
            pipe = max(pipe, count * sum(_messages(candidate, layers, rank, spans)))
            tensor = max(tensor, sum(_passes(candidate, layers, "sent", *span) for span in spans))
            weights = max(weights, sum(layers.total("weights", *span) for span in spans))
        # All-gathers and reduce-scatters send (N - 1) / N of a vector, all-reduces twice as much.
        times = 3 * count if candidate.sharing.parameters else 2
        return {"data": times * (data - 1) * weights // data, "pipe": pipe, "tensor": tensor}


def _replicas(candidate: Candidate) -> list[range]:
    """The ranks of each group that has replicas of the same parameters."""
    stride = candidate.data * candidate.tensor
    return [
        range(stage * stride + number, (stage + 1) * stride, candidate.tensor)
        for stage in range(candidate.pipe)
        for number in range(candidate.tensor)
    ]


def tensor_groups(ranks: int, tensor: int) -> list[range]:
    """The ranks of each group that shares layers."""
    return [range(first, first + tensor) for first in range(0, ranks, tensor)]


def _chunks_of(candidate: Candidate, chunks: int) -> list[tuple[int, ...]]:
    if not candidate.order:
        return [tuple(range(chunks))]
    schedule = candidate.schedule
    return [schedule.chunks_of(rank) for rank in range(candidate.pipe)]


def _passes(candidate: Candidate, layers: Layers, what: str, start: int, end: int) -> int:
    """What collectives inside of some layers take in a step, or send."""
    forward = layers.total(f"forward_{what}", start, end) * (1 + candidate.recompute)
    return candidate.microbatches * (forward + layers.total(f"backward_{what}", start, end))


def _messages(
    candidate: Candidate, layers: Layers, rank: int, spans: Sequence[tuple[int, int]]
) -> Iterator[int]:
    """Bytes of each message of a rank for a microbatch, forward and backward."""
    if not candidate.order:
        return
    schedule = candidate.schedule
    for chunk, (start, end) in zip(schedule.chunks_of(rank), spans, strict=True):
        if chunk and schedule.place(chunk - 1) != rank:
            yield int(layers.edges[start])
        if chunk + 1 < schedule.chunks and schedule.place(chunk + 1) != rank:
            yield int(layers.edges[end])
