"""From the order of a rank to its program: each pass adds what follows, and needs no other rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mpicoll.train.step.tasks import Place, Task


def recomputed(tasks: Iterable[Task]) -> Iterator[Task]:
    """Run the forward pass again before the backward pass, so that F keeps its input alone."""
    for task in tasks:
        if task.kind in "BI":
            yield task._replace(kind="R")
        yield task


def versioned(tasks: Iterable[Task], lag: int | None = None) -> Iterator[Task]:
    """Say how many updates the weights have seen with which a microbatch is computed.

    Args:
        tasks: of a rank that updates between microbatches.
        lag: take weights of so many microbatches ago; if None, the newest on the way forward, and
            the same on the way back.
    """
    updates: dict[int, int] = {}
    seen: dict[tuple[int, int], int] = {}
    for task in tasks:
        place = task.chunk, task.microbatch
        if task.kind == "U":
            updates[task.chunk] = updates.get(task.chunk, 0) + 1
            yield task
            continue
        if task.kind == "F":
            newest = updates.get(task.chunk, 0)
            seen[place] = newest if lag is None else max(task.microbatch - lag, 0)
        yield task._replace(version=seen[place])


def with_messages(tasks: Iterable[Task], stages: int, chunks: int, place: Place) -> Iterator[Task]:
    """Receive before a task what it needs from another rank, and send after it what others need.

    Args:
        tasks: of one rank.
        stages: number of ranks.
        chunks: number of chunks of all ranks together.
        place: which rank has a chunk.
    """

    def message(kind: str, edge: int, microbatch: int) -> Iterator[Task]:
        if 0 < edge < chunks and place(edge - 1, stages) != place(edge, stages):
            yield Task(kind, edge, microbatch)

    for task in tasks:
        chunk, microbatch = task.chunk, task.microbatch
        if task.kind == "F":
            yield from message("RECV_F", chunk, microbatch)
            yield task
            yield from message("SEND_F", chunk + 1, microbatch)
        elif task.kind in "BI":
            yield from message("RECV_B", chunk + 1, microbatch)
            yield task
            yield from message("SEND_B", chunk, microbatch)
        else:
            yield task
