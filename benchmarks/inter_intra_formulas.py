"""What the textbooks say of a step: bytes that all ranks send, and seconds, without a simulation.

Of n bytes over P ranks, rings send (P - 1) n in an all-gather or a reduce-scatter, and twice as
much in an all-reduce; a pipeline sends what its edges carry, forth and back, for each microbatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from mpicoll import algorithms
from mpicoll.train.parallel.sharded import Calls
from mpicoll.train.planner.layers import Layers
from mpicoll.train.planner.problem import Outcome
from mpicoll.train.planner.profile import Profile
from mpicoll.train.step import Durations

#: Bytes of a number by which ranks agree on how a step went.
_NUMBER = 8
_NANO = 1e9


class Link(NamedTuple):
    """What a message costs: seconds, and seconds of each byte."""

    alpha: float
    beta: float

    def message(self, nbytes: float) -> float:
        """Seconds of a message."""
        return self.alpha + self.beta * nbytes

    def ring(self, name: str, ranks: int, nbytes: int) -> float:
        """Seconds of a collective, by a ring."""
        ring = algorithms.find(name, "ring")
        found = ring.textbook_time(ranks, nbytes, self.alpha, self.beta, 0.0)
        assert found is not None, "rings have formulas"
        return found


class Call(NamedTuple):
    """A collective: of so many groups of so many ranks, with a vector of so many bytes each."""

    name: str
    groups: int
    ranks: int
    nbytes: int

    @property
    def sent(self) -> int:
        """Bytes that all ranks send."""
        rounds = 2 if self.name == "allreduce" else 1
        return rounds * self.groups * (self.ranks - 1) * self.nbytes


def stage_weights(outcome: Outcome, layers: Layers) -> list[int]:
    """Bytes of the parameters of each stage."""
    candidate, found = outcome.candidate, [0] * outcome.candidate.pipe
    for chunk, span in enumerate(pairwise([*outcome.cut, len(layers)])):
        rank = candidate.schedule.place(chunk) if candidate.order else 0
        found[rank] += layers.total("weights", *span)
    return found


def summed(outcome: Outcome, layers: Layers) -> Iterator[Call]:
    """The collectives of gradients and parameters, each of the ranks with one stage."""
    data, _, tensor = outcome.candidate[:3]
    for weights in stage_weights(outcome, layers):
        if outcome.candidate.sharing.parameters:
            yield from [Call("allgather", tensor, data, weights)] * 2
            yield Call("reduce_scatter", tensor, data, weights)
        elif data > 1:
            yield Call("allreduce", tensor, data, weights)


def agreements(outcome: Outcome) -> Iterator[Call]:
    """The collectives by which ranks hear of losses and failures."""
    data, pipe, tensor = outcome.candidate[:3]
    count, ranks = outcome.candidate.microbatches, data * pipe * tensor
    if data == ranks:
        numbers = 2 if outcome.candidate.sharing.parameters else 1
        yield Call("allreduce", 1, ranks, numbers * _NUMBER)
        return
    if tensor > 1:  # after each backward pass
        yield from [Call("allreduce", data, tensor, _NUMBER)] * (count * len(outcome.cut))
    # Losses; and again, whether sums over the replicas are finite.
    yield from [Call("allreduce", 1, ranks, (2 + data * count) * _NUMBER)] * (1 + (data > 1))


def sent(outcome: Outcome, layers: Layers, inside: Calls) -> dict[str, int]:
    """Messages between stages, their bytes, and those of collectives, of all ranks together.

    Args:
        outcome: The plan.
        layers: A rank's layers, for a microbatch.
        inside: Collectives of a microbatch inside layers, of both passes.
    """
    candidate, cut = outcome.candidate, outcome.cut
    each = 2 * candidate.microbatches * candidate.data * candidate.tensor  # forth and back
    there, back = inside
    # Once more where forward passes are run again.
    passes = there * (1 + candidate.recompute) + back
    calls = [Call(name, candidate.data, candidate.tensor, n) for name, n in passes]
    within = candidate.microbatches * sum(call.sent for call in calls)
    others = sum(call.sent for call in (*summed(outcome, layers), *agreements(outcome)))
    return {
        "messages": each * (len(cut) - 1),
        "message_bytes": each * sum(int(layers.edges[start]) for start in cut[1:]),
        "collective_bytes": within + others,
    }


def seconds(
    outcome: Outcome, samples: int, layers: Layers, inside: Calls, whole: Profile, link: Link
) -> float | None:
    """How long a step takes if all stages are alike, and computing hides no collective.

    Args:
        outcome, layers, inside: As of `sent`.
        samples: Of a microbatch.
        whole: How long the model's layers take.
        link: Between any two ranks.

    Returns:
        None where the order has no formula for these times.
    """
    candidate, count = outcome.candidate, outcome.candidate.microbatches
    _, pipe, tensor = candidate[:3]
    each = [
        sum(layer.at(samples)[index] for layer in whole.layers) / (pipe * tensor)
        for index in (1, 2, 3)
    ]
    there, back = (
        sum(link.ring(name, tensor, nbytes) for name, nbytes in calls) / pipe for calls in inside
    )
    forward, backward = each[0] + there, each[1] + each[2] + back
    sums = sum(link.ring(c.name, c.ranks, c.nbytes) for c in summed(outcome, layers)) / pipe
    if not candidate.order:
        return count * (forward + backward) + sums
    durations = Durations(*(round(_NANO * t) for t in (forward, backward, each[2])))
    makespan = candidate.schedule.makespan(durations)
    if makespan is None:
        return None
    message = link.message(max(int(layers.edges[start]) for start in outcome.cut[1:]))
    # 1F1B waits there and back for each microbatch; others, once, to the last chunk and back.
    late = 2 * (len(outcome.cut) - 1) * message
    if candidate.order == "1f1b" and not dict(candidate.parameters)["ahead"]:
        late = max(late, count * late / pipe)
    return makespan / _NANO + late + sums
