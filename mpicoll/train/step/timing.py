"""How long a step takes: the programs of a schedule on a clock of whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

from mpicoll.train.step.catalogue import Schedule
from mpicoll.train.step.core import Event, run
from mpicoll.train.step.tasks import SENDS, Durations, Task

if TYPE_CHECKING:
    from mpicoll.simulate.machine import Machine

#: Whole slots: F, I and W of a chunk take one, B two.
SLOTS = Durations(forward=1, backward=2, weight=1)


@dataclass(frozen=True)
class Timing:
    """The simulated times of a step.

    Attributes:
        ranks: the computing tasks of each rank, in order.
        messages: all messages, as their senders see them.
    """

    ranks: tuple[tuple[Event, ...], ...]
    messages: tuple[Event, ...]

    @cached_property
    def makespan(self) -> int:
        """How long the step takes."""
        return max((events[-1].end for events in self.ranks if events), default=0)

    @cached_property
    def busy(self) -> tuple[int, ...]:
        """How long each rank computes."""
        return tuple(sum(event.end - event.begin for event in events) for events in self.ranks)

    @property
    def idle(self) -> float:
        """The share of all ranks' time in which they do not compute."""
        whole = self.makespan * len(self.ranks)
        return 1 - sum(self.busy) / whole if whole else 0.0

    def gaps(self, rank: int) -> int:
        """The time in which a rank does not compute between its first and its last task."""
        events = self.ranks[rank]
        return events[-1].end - events[0].begin - self.busy[rank] if events else 0


def simulate(
    schedule: Schedule,
    durations: Durations | Sequence[Durations],
    machine: Machine | None = None,
    nbytes: int | Sequence[int] = 0,
) -> Timing:
    """Simulate a schedule.

    A message of n bytes takes alpha + beta n, by the machine's model, while its sender computes.
    The messages of a rank leave one after the other, beta n apart.

    Args:
        schedule: the schedule.
        durations: times of the tasks of a chunk; a sequence has those of each chunk.
        machine: costs of messages, in the unit of ``durations``; None: messages take no time.
        nbytes: length of a message; a sequence has that for each edge, by its number.

    Raises:
        ValueError: durations for another number of chunks, or lengths for fewer edges.
        DeadlockError: the programs wait for each other.
    """
    if isinstance(durations, Durations):
        durations = [durations] * schedule.chunks
    if len(durations) != schedule.chunks:
        raise ValueError(
            f"durations of {len(durations)} chunks: {schedule.words} has {schedule.chunks}"
        )
    lengths = [nbytes] * schedule.chunks if isinstance(nbytes, int) else nbytes
    if len(lengths) < schedule.chunks:
        raise ValueError(
            f"lengths of {len(lengths)} edges: {schedule.words} has {schedule.chunks}, and edge 0 "
            "has no message"
        )
    costs = durations

    @cache
    def taken(source: int, destination: int, length: int) -> tuple[int, int]:
        assert machine is not None
        ends = schedule.place(source), schedule.place(destination)
        whole = machine.message(*ends, length)
        return whole, max(whole - machine.message(*ends, 0), 0)

    def message(task: Task) -> tuple[int, int]:
        if machine is None:
            return 0, 0
        return taken(task.source, task.destination, lengths[task.chunk])

    ranks: list[list[Event]] = [[] for _ in range(schedule.stages)]
    messages = []
    for event in run(
        schedule.programs,
        duration=lambda task: costs[task.chunk].of(task.kind),
        message=message,
    ):
        if not event.task.is_message:
            ranks[event.rank].append(event)
        elif event.task.kind in SENDS:
            messages.append(event)
    return Timing(tuple(map(tuple, ranks)), tuple(messages))
