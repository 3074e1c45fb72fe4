"""What a step of a mesh sends along each axis, from the program and the layers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from mpicoll.schedule.layout import part
from mpicoll.train.models.networks import Sequential
from mpicoll.train.parallel.agreement import Group
from mpicoll.train.parallel.replicas import Replicas
from mpicoll.train.parallel.sharded import collectives
from mpicoll.train.parallel.stage import Stage
from mpicoll.train.parallel.traffic import TIMES, sent_together
from mpicoll.train.step.catalogue import Schedule
from mpicoll.train.step.tasks import SENDS

#: Names of what goes from one rank to another.
MESSAGE, TIED = "message", "shared gradient"


class Call(NamedTuple):
    """A collective of this rank, or a message that it sends.

    Attributes:
        axis: Along which.
        name: Of the collective, or one of `MESSAGE` and `TIED`.
        nbytes: Of the whole vector.
        ranks: How many take part.
    """

    axis: str
    name: str
    nbytes: int
    ranks: int = 2

    @property
    def sent(self) -> float:
        """Bytes that this rank sends: of a collective its share."""
        if self.name not in TIMES:
            return self.nbytes
        return sent_together(self.name, self.ranks, self.nbytes) / self.ranks


def of_step(
    model: Sequential,
    schedule: Schedule,
    starts: Sequence[int],
    stage: Stage,
    replicas: Replicas,
    group: Group,
    batch: int,
) -> list[Call]:
    """What a rank sends in a step: gradients, parameters, activations and their slopes.

    Beside it there are a few numbers by which ranks agree, and the statistics of batch norms.

    Args:
        model: The model, of layers that `shard` has made where ranks share them.
        schedule: Of a replica.
        starts: Number of the first layer of each chunk.
        stage, replicas: This rank's.
        group: The ranks.
        batch: Samples of the step, of all replicas together.
    """
    data, tensor = group.data.size, group.tensor.size
    lengths = [part(batch, group.count, index)[1] for index in group.parts]
    found, program = [], schedule.programs[stage.rank]
    if data > 1:
        found += [Call("data", *call, data) for call in replicas.collectives(program)]
    for task in program:
        if task.kind in SENDS:
            values = lengths[task.microbatch] * prod(model.shapes[starts[task.chunk]])
            found.append(Call("pipe", MESSAGE, values * model.dtype.itemsize))
    owned, wide = replicas.owned(), np.promote_types(model.dtype, np.float32).itemsize
    for name, holders in stage.ties.items():
        if stage.rank in holders:
            own = len(holders[stage.rank]) * owned[name][0].size * wide
            found += [Call("pipe", TIED, own)] * (len(holders) - 1)
    for chunk in stage.chunks.values() if tensor > 1 else ():
        for samples in filter(None, lengths):
            calls = collectives(chunk.layers, samples, chunk.numbers.start, 1 + schedule.recompute)
            found += [Call("tensor", name, values * wide, tensor) for name, values in calls]
    return found


class Total(NamedTuple):
    """Calls of all ranks together.

    Attributes:
        axis, name: As of `Call`.
        calls: A collective counts once for all that take part.
        sent: Bytes.
    """

    axis: str
    name: str
    calls: int
    sent: int


def totals(every: Sequence[Sequence[Call]]) -> list[Total]:
    """What all ranks send in a step, by axis and name.

    Args:
        every: Calls of each rank.
    """
    calls, found = [call for own in every for call in own], []
    for axis, name in dict.fromkeys((call.axis, call.name) for call in calls):
        some = [call for call in calls if (call.axis, call.name) == (axis, name)]
        number = sum(1 / call.ranks if name in TIMES else 1 for call in some)
        found.append(Total(axis, name, round(number), round(sum(call.sent for call in some))))
    return found
