"""The one place where tasks meet messages: the programs of all ranks, run together.

The check, the clock and the pictures are made of what :func:`run` yields.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from mpicoll.base.wording import plural
from mpicoll.train.step.tasks import OTHER_END, SENDS, Task

#: Ranks that a message names.
_NAMED = 8


class Event(NamedTuple):
    """What a rank has done: a message takes from its begin at the sender until it has arrived."""

    rank: int
    task: Task
    begin: int
    end: int


class DeadlockError(RuntimeError):
    """Ranks wait for each other forever.

    Attributes:
        waiting: the message that each of them waits for.
    """

    def __init__(self, waiting: dict[int, Task]) -> None:
        self.waiting = waiting
        words = [f"rank {rank} at {task}" for rank, task in sorted(waiting.items())]
        if len(words) > _NAMED:
            words[_NAMED:] = [f"and {plural(len(words) - _NAMED, 'more rank')}"]
        super().__init__(f"deadlock: {'; '.join(words)}")


class _Channel(NamedTuple):
    """One direction of an edge: microbatches sent and when they arrive, and when they are taken."""

    sent: list[tuple[int, int]]
    taken: list[int]


def _no_time(task: Task) -> int:
    return 0


def _at_once(task: Task) -> tuple[int, int]:
    return 0, 0


def run(
    programs: Sequence[Sequence[Task]],
    *,
    duration: Callable[[Task], int] = _no_time,
    message: Callable[[Task], tuple[int, int]] = _at_once,
    slots: int | None = None,
) -> Iterator[Event]:
    """Run programs, each rank as far as it can; events come after all that they depend on.

    Args:
        programs: of all ranks.
        duration: how long a computing task takes.
        message: how long a message takes that is sent, and how much of that its sender cannot send
            another one.
        slots: with a number, so many messages of a direction of an edge wait for a receiver at
            most, and a sender waits until its message is in such a slot; with None, messages wait
            without limit, and senders for nothing.

    Raises:
        DeadlockError: after the last event that can be.
    """
    position, clock, port = ([0] * len(programs) for _ in range(3))
    channels: defaultdict[tuple[str, int], _Channel] = defaultdict(lambda: _Channel([], []))
    waiting: dict[tuple[str, int], int] = {}
    ready = deque(range(len(programs)))

    def send(rank: int, task: Task, channel: _Channel) -> tuple[int, int] | None:
        begin = max(clock[rank], port[rank])
        if slots is not None and len(channel.sent) >= slots:
            before = len(channel.sent) - slots
            if before >= len(channel.taken):
                return None
            begin = max(begin, channel.taken[before])
        takes, occupies = message(task)
        port[rank] = begin + occupies
        channel.sent.append((task.microbatch, begin + takes))
        if slots is not None:
            clock[rank] = begin + takes
        return begin, begin + takes

    def receive(rank: int, task: Task, channel: _Channel) -> tuple[int, int] | None:
        number = len(channel.taken)
        if number == len(channel.sent) or channel.sent[number][0] != task.microbatch:
            return None
        begin = clock[rank]
        clock[rank] = max(begin, channel.sent[number][1])
        channel.taken.append(clock[rank])
        return begin, clock[rank]

    while ready:
        rank = ready.popleft()
        program = programs[rank]
        while position[rank] < len(program):
            task = program[position[rank]]
            if task.is_message:
                act = send if task.kind in SENDS else receive
                times = act(rank, task, channels[task.kind[-1], task.chunk])
                if times is None:
                    waiting[task.kind, task.chunk] = rank
                    break
                woken = waiting.pop((OTHER_END[task.kind], task.chunk), None)
                if woken is not None:
                    ready.append(woken)
            else:
                times = clock[rank], clock[rank] + duration(task)
                clock[rank] = times[1]
            position[rank] += 1
            yield Event(rank, task, *times)
    stuck = {
        rank: program[position[rank]]
        for rank, program in enumerate(programs)
        if position[rank] < len(program)
    }
    if stuck:
        raise DeadlockError(stuck)
