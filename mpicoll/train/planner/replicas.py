"""How long a step takes without a pipeline: layers one after the other, collectives beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpicoll.train.exchange.buckets import default_bucket

#: Picoseconds of a collective by its name and the bytes of its whole vector.
Collective = Callable[[str, int], int]


def reduced(
    forward: Sequence[int],
    backward: Sequence[int],
    weights: Sequence[int],
    batches: int,
    collective: Collective,
    sharded: bool,
) -> int:
    """Picoseconds of a step whose gradients are summed in buckets during the last backward pass.

    Args:
        forward, backward: Picoseconds of each layer for a batch.
        weights: Bytes of each layer's parameters.
        batches: Whose gradients are added up before they are summed over the ranks.
        collective: Of the replicas.
        sharded: Whether each rank updates a part (zero1): a reduce-scatter of gradients, and then
            an all-gather of parameters; else an all-reduce.
    """
    name = "reduce_scatter" if sharded else "allreduce"
    bucket = default_bucket(sum(weights))
    now = batches * sum(forward) + (batches - 1) * sum(backward)
    wire, waiting = 0, 0
    for number in reversed(range(len(weights))):
        now += backward[number]
        waiting += weights[number]
        while waiting >= bucket or (waiting and not number):
            length = min(waiting, bucket)
            wire = max(wire, now) + collective(name, length)
            waiting -= length
    end = max(now, wire)
    return end + collective("allgather", sum(weights)) if sharded else end


def fully_sharded(
    forward: Sequence[int],
    backward: Sequence[int],
    weights: Sequence[int],
    batches: int,
    collective: Collective,
) -> int:
    """Picoseconds of a step whose parameters are gathered one layer ahead of their use (fsdp).

    Args:
        forward, backward, weights, batches, collective: As of `reduced`.
    """
    passes = [(n, time, False) for n, time in enumerate(forward)]
    passes += [(n, backward[n], True) for n in reversed(range(len(backward)))]
    uses = passes * batches
    lengths = [weights[number] for number, _, _ in uses if weights[number]]
    now = wire = gathered = 0
    if lengths:
        wire = gathered = collective("allgather", lengths[0])
    used = 0
    for number, time, is_backward in uses:
        if weights[number]:
            now = max(now, gathered)
            used += 1
            if used < len(lengths):
                wire = gathered = max(wire, now) + collective("allgather", lengths[used])
        now += time
        if is_backward and weights[number]:
            wire = max(wire, now) + collective("reduce_scatter", weights[number])
    return max(now, wire)
