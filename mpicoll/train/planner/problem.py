"""A step of a candidate: what it takes, on a clock, and what memory its ranks need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from statistics import fmean

import numpy as np

from mpicoll.schedule.layout import part
from mpicoll.simulate.machine import Machine
from mpicoll.train.parallel import memory, traffic, units
from mpicoll.train.planner import space
from mpicoll.train.planner.cluster import PICO, Cluster
from mpicoll.train.planner.layers import LONGEST, Layers, Numbers
from mpicoll.train.planner.replicas import fully_sharded, reduced
from mpicoll.train.planner.space import Candidate
from mpicoll.train.step.tasks import Durations
from mpicoll.train.step.timing import simulate

#: The layers of a rank, by the ranks that share a layer, the samples of a microbatch, and whether
#: sequences are divided; None where layers cannot be shared by so many.
LayersOf = Callable[[int, int, bool], "Layers | None"]
#: Bytes of a number that ranks add up to agree.
_NUMBER = 8


class TooLongError(ValueError):
    """Times that do not fit into 64 bits.

    Attributes:
        seconds: Of passes over all layers.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"passes over all layers take {seconds:.3g} s")


def require_short(seconds: float) -> None:
    """Check that a step is not longer than `LONGEST`.

    Raises:
        ValueError: It is, or as long.
    """
    if PICO * seconds >= LONGEST:
        raise ValueError(
            f"a step takes {seconds:.3g} s or more, and plans are of less than "
            f"{LONGEST // PICO:,} s: give shorter times by --profile, --rate, --costs or links "
            "between nodes, or a smaller batch"
        )


@dataclass(frozen=True)
class Outcome:
    """What a step of a candidate takes.

    Attributes:
        candidate: What is planned.
        cut: The first layer of each chunk.
        picoseconds: Of the step.
        computing, tensor, exchange: Of these, means over the ranks: in layers; in collectives of
            ranks that share layers; at the end, until gradients are summed over the replicas, and
            over stages with the same parameters, and all have heard how the step went. In the rest
            ranks wait for other stages.
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
        ranks: How many.
        batch: Samples of a step.
        cluster: What messages cost.
        layers_of: What layers cost.
        slots: Arrays that the optimizer keeps for each parameter.
        memory: Bytes that each rank has; None for as many as are needed.
        narrow: Whether the model computes in a type of two bytes; parameters are kept in float32.
        helpers: Ranks that are started, too, and compute no gradients.
        sequences: Whether samples are sequences of tokens.
        takes: Whether the run takes a candidate for a step of so many samples.
    """

    ranks: int
    batch: int
    cluster: Cluster
    layers_of: LayersOf
    slots: int = 1
    memory: int | None = None
    narrow: bool = False
    helpers: int = 0
    sequences: bool = False
    takes: Callable[[Candidate, int], bool] = lambda candidate, batch: True

    def candidates(self, layers: int, halves: bool) -> list[Candidate]:
        """Those that the run takes, and whose steps are not longer than `LONGEST`.

        Args:
            layers, halves: As of `space.candidates`.
        """
        return [c for c in self._taken(layers, halves) if PICO * self.serial(c) < LONGEST]

    def _taken(self, layers: int, halves: bool) -> Iterator[Candidate]:
        every = space.candidates(self.ranks, self.batch, layers, halves, self.sequences)
        return (candidate for candidate in every if self.takes(candidate, self.batch))

    def serial(self, candidate: Candidate) -> float:
        """Seconds of all passes and messages of a replica's step, one after the other."""
        try:
            layers = self.layers(candidate)
        except TooLongError as error:
            return candidate.microbatches * error.seconds
        if layers is None:
            return 0.0
        picoseconds = candidate.microbatches * layers.passes
        if candidate.order:
            message = self._longest_message(int(layers.edges.max()))
            picoseconds += 2 * candidate.microbatches * candidate.chunks * message
        return picoseconds / PICO

    @cached_property
    def _longest_message(self) -> Callable[[int], int]:
        return cache(self.cluster.longest_message)

    def require_short(self, layers: int, halves: bool) -> None:
        """Check that some candidate that the run takes has a step that is not too long.

        Raises:
            ValueError: There are candidates, and all take too long.
        """
        every = map(self.serial, self._taken(layers, halves))
        require_short(min(filter(None, every), default=0.0))  # 0: so many cannot share layers

    def samples(self, candidate: Candidate) -> int:
        """Of a microbatch."""
        return -(-self.batch // (candidate.data * candidate.microbatches))

    def layers(self, candidate: Candidate) -> Layers | None:
        """A rank's layers, for a microbatch; None where so many ranks cannot share one."""
        return self.layers_of(candidate.tensor, self.samples(candidate), candidate.sequence)

    def exchange(self, candidate: Candidate, nbytes: Numbers) -> Numbers:
        """Picoseconds in which a stage's gradients are summed over the replicas."""
        return self.cluster.collective("allreduce", candidate.groups("data"), nbytes)

    def machine(self, candidate: Candidate) -> Machine:
        """What messages between stages cost: of the replica with most of them between nodes."""
        nodes, pipes = self.cluster.nodes, candidate.groups("pipe")

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
        weights = layers.parameters(spans)
        if candidate.sharing.parameters:
            return self._sharded(candidate, layers)
        # Where a layer has just found its gradients, before they are in their place.
        longest = max(int(layers.most("weights")[start, end - 1]) for start, end in spans)
        if candidate.pipe == candidate.tensor == 1:
            own = memory.replica(weights, self.slots, candidate.data, candidate.sharing.updates)
            own["gradients"] += longest
            if self.narrow:
                own["narrow parameters"] = weights // 2
                own["parameters to compute with"] = weights
            return {"parameters": weights, **own, "activations": layers.activations}
        # A parameter that several layers share has a gradient for each of them.
        sums = sum(layers.total("weights", *span) for span in spans)
        chunks = memory.Chunks(
            max(layers.kept_by(*span) for span in spans),
            max(int(layers.edges[start]) for start, _ in spans),
            max(int(layers.most("working")[start, end - 1]) for start, end in spans),
            max(layers.total("waiting", *span) for span in spans),
        )
        updates = candidate.sharing.updates
        own = memory.replica(weights, self.slots, candidate.data, updates, sums)
        own["gradients"] += longest
        found = {"parameters": weights, **own}
        if self.narrow:
            found["parameters to compute with"] = weights
        return found | memory.passes(candidate.schedule, rank, chunks, weights)

    def _sharded(self, candidate: Candidate, layers: Layers) -> dict[str, int]:
        """Bytes of a rank that has a part of each unit, the largest one."""
        every, item = layers.weights[np.unique(layers.first)].tolist(), layers.item
        lengths = [nbytes // item for nbytes in every if nbytes]
        own = item * sum(part(length, candidate.data, 0)[1] for length in lengths)
        longest = item * max(lengths, default=0)
        gathered = item * units.buffered(lengths, 1, False) if lengths else 0
        found = {"parameters": own, "gradients": own, "optimizer": self.slots * own}
        found["gathered parameters"] = gathered // (1 + self.narrow)
        if self.narrow:
            found["parameters to compute with"] = longest
        return {**found, "gradients of a layer": 2 * longest, "activations": layers.activations}

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
        inside = candidate.microbatches * len(spans) * self.settling(candidate)
        inside += _passes(candidate, layers, "collectives", 0, len(layers))
        tensor = inside / candidate.pipe
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

    def _collective(self, name: str, groups: Sequence[Sequence[int]], nbytes: int) -> int:
        """Picoseconds of a collective."""
        return int(self.cluster.collective(name, groups, np.array([nbytes]))[0])

    def agreement(self, candidate: Candidate, ties: bool = False) -> int:
        """Picoseconds in which all ranks hear at the end of a step whether it has failed.

        On a mesh of several axes they hear the losses of all microbatches; once more where sums
        over the replicas, or over stages with `ties`, may not be finite.
        """
        numbers, times = 1, 1
        if candidate.pipe * candidate.tensor > 1:
            numbers = 2 + candidate.data * candidate.microbatches
            times = 1 + (candidate.data > 1 or ties)
        return times * self._collective("allreduce", [range(self.ranks)], _NUMBER * numbers)

    def settling(self, candidate: Candidate) -> int:
        """Picoseconds in which ranks that share layers hear whether a backward pass has failed."""
        return self._collective("allreduce", candidate.groups("tensor"), _NUMBER)

    def _replica(
        self, candidate: Candidate, layers: Layers, spans: Sequence[tuple[int, int]]
    ) -> tuple[int, float, float]:
        times = layers.forward.tolist(), layers.backward.tolist(), layers.weights.tolist()
        count = candidate.microbatches
        computing = count * (sum(times[0]) + sum(times[1]) + self.settling(candidate))
        end = self.agreement(candidate)
        if candidate.data == 1:
            return computing + end, computing, end

        @cache
        def collective(name: str, nbytes: int) -> int:
            return self._collective(name, candidate.groups("data"), nbytes)

        if candidate.tensor > 1:  # sums begin when all gradients are there
            whole = computing + collective("allreduce", sum(times[2]))
        elif candidate.sharing.parameters:
            whole = fully_sharded(*times, count, collective)
        else:
            whole = reduced(*times, count, collective, candidate.sharing.updates)
        return whole + end, computing, whole + end - computing

    def _pipeline(
        self, candidate: Candidate, layers: Layers, spans: Sequence[tuple[int, int]]
    ) -> tuple[int, float, float]:
        schedule = candidate.schedule
        settling = self.settling(candidate)
        durations = [
            Durations(
                layers.total("forward", *span),
                layers.total("backward", *span) + settling,
                layers.total("weight", *span) + settling,
            )
            for span in spans
        ]
        edges = [int(layers.edges[start]) for start, _ in spans]
        machine = self.machine(candidate)
        timing = simulate(schedule, durations, machine, edges)
        stages = [[spans[chunk] for chunk in own] for own in _chunks_of(candidate, len(spans))]
        weights = [sum(layers.total("weights", *span) for span in own) for own in stages]
        exchange = self.exchange(candidate, np.array(weights)).tolist()
        ends = [events[-1].end + own for events, own in zip(timing.ranks, exchange, strict=True)]
        ties = list(layers.ties(stages))
        for holders in ties:  # each sends its gradients to all others, one after the other
            begin = max(ends[rank] for rank in holders)
            for rank, nbytes in holders.items():
                sums = [machine.message(rank, other, nbytes) for other in holders if other != rank]
                exchange[rank] += sum(sums)
                ends[rank] = begin + sum(sums)
        end = self.agreement(candidate, bool(ties))
        return max(ends) + end, fmean(timing.busy), fmean(exchange) + end

    def _sent(
        self, candidate: Candidate, layers: Layers, stages: Sequence[Sequence[tuple[int, int]]]
    ) -> dict[str, int]:
        data, count = candidate.data, candidate.microbatches
        pipe = tensor = weights = 0
        ties = list(layers.ties(stages))
        for rank, spans in enumerate(stages):
            shared = sum(own[rank] * (len(own) - 1) for own in ties if rank in own)
            pipe = max(pipe, count * sum(_messages(candidate, layers, rank, spans)) + shared)
            tensor = max(tensor, sum(_passes(candidate, layers, "sent", *span) for span in spans))
            weights = max(weights, sum(layers.total("weights", *span) for span in spans))
        names = ("allgather", "allgather", "reduce_scatter") * count
        names = names if candidate.sharing.parameters else ("allreduce",)
        together = sum(traffic.sent_together(name, data, weights) for name in names)
        return {"data": together // data, "pipe": pipe, "tensor": tensor}


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
