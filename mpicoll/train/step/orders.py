"""Orders: in which order a rank computes.  Messages, and all else, follow from that.

Each is a generator of the tasks of one rank, from its number, the number of ranks (``stages``) and
the number of microbatches.  Microbatches come in ascending order, forward and backward: so sums of
gradients have the same bits in every order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from mpicoll.train.step.tasks import (
    Task,
    backward,
    backward_input,
    backward_weight,
    folded,
    forward,
    update,
)


def forward_only(rank: int, stages: int, microbatches: int) -> Iterator[Task]:
    """Forward passes alone, as in an evaluation."""
    yield from (forward(rank, m) for m in range(microbatches))


def naive(rank: int, stages: int, microbatches: int) -> Iterator[Task]:
    """Layer parallelism: one microbatch after the other, so that one rank computes at a time."""
    for m in range(microbatches):
        yield forward(rank, m)
        yield backward(rank, m)


def gpipe(rank: int, stages: int, microbatches: int) -> Iterator[Task]:
    """All forward passes, then all backward passes."""
    yield from (forward(rank, m) for m in range(microbatches))
    yield from (backward(rank, m) for m in range(microbatches))


def one_f_one_b(rank: int, stages: int, microbatches: int, ahead: int = 0) -> Iterator[Task]:
    """One forward, one backward: activations of few microbatches are held at a time.

    With ``ahead`` a rank begins with more forward passes, for each rank behind it so many; messages
    that take long then arrive in time.
    """
    early = min((stages - 1 - rank) * (1 + ahead), microbatches)
    yield from _alternating(
        [forward(rank, m) for m in range(microbatches)],
        [backward(rank, m) for m in range(microbatches)],
        early,
    )


def interleaved(rank: int, stages: int, microbatches: int, chunks: int = 2) -> Iterator[Task]:
    """One forward, one backward, with several chunks a rank: a pipeline that fills sooner.

    Chunks take turns, each with as many microbatches as there are ranks.
    """
    mine = [rank + stages * turn for turn in range(chunks)]
    groups = [
        range(first, min(first + stages, microbatches)) for first in range(0, microbatches, stages)
    ]
    forwards = [forward(chunk, m) for group in groups for chunk in mine for m in group]
    backwards = [backward(chunk, m) for group in groups for chunk in mine[::-1] for m in group]
    early = min(2 * (stages - 1 - rank) + (chunks - 1) * stages, len(forwards))
    yield from _alternating(forwards, backwards, early)


def _alternating(forwards: Sequence[Task], backwards: Sequence[Task], early: int) -> Iterator[Task]:
    """Some forward passes, then forward and backward in turn, then backward passes."""
    yield from forwards[:early]
    for ahead, behind in zip(forwards[early:], backwards, strict=False):
        yield ahead
        yield behind
    yield from backwards[len(forwards) - early :]


def zb_h1(rank: int, stages: int, microbatches: int) -> Iterator[Task]:
    """Zero bubble H1: gradients of weights fill the gaps, within the memory of 1F1B's first rank.

    A rank leaves as many of them for later as there are ranks before it.
    """
    yield from _zero_bubble(rank, stages - 1 - rank, rank, microbatches)


def zb_h2(rank: int, stages: int, microbatches: int) -> Iterator[Task]:
    """Zero bubble H2: no rank is idle between its first and its last task, for twice the memory."""
    yield from _zero_bubble(rank, 2 * (stages - 1 - rank), 2 * rank, microbatches)


def _zero_bubble(rank: int, early: int, late: int, microbatches: int) -> Iterator[Task]:
    """Some forward passes come early, and gradients of weights late by some microbatches."""
    yield from (forward(rank, m) for m in range(min(early, microbatches)))
    for m in range(microbatches):
        if early + m < microbatches:
            yield forward(rank, early + m)
        yield backward_input(rank, m)
        if m >= late:
            yield backward_weight(rank, m - late)
    yield from (backward_weight(rank, m) for m in range(max(microbatches - late, 0), microbatches))


def zb_v(rank: int, stages: int, microbatches: int) -> Iterator[Task]:
    """Zero bubble V: two chunks a rank, down the ranks and back up, within the memory of 1F1B.

    The order is found slot by slot, all tasks as long as one another: a rank computes the gradient
    of an input if it can, else a forward pass if memory is left, else the gradient of weights; each
    for its second chunk first.
    """
    yield from _slot_by_slot(stages, microbatches)[rank]


@cache
def _slot_by_slot(stages: int, microbatches: int) -> tuple[tuple[Task, ...], ...]:
    last = 2 * stages - 1
    orders: list[list[Task]] = [[] for _ in range(stages)]
    done: set[Task] = set()  # before this slot
    held = [0] * stages
    begun = dict.fromkeys(((kind, chunk) for kind in "FIW" for chunk in range(last + 1)), 0)

    def needs(task: Task) -> Iterator[Task]:
        kind, chunk, m, _ = task
        if kind == "F" and chunk > 0:
            yield forward(chunk - 1, m)
        elif kind == "I":
            yield forward(chunk, m)
            if chunk < last:
                yield backward_input(chunk + 1, m)
        elif kind == "W":
            yield backward_input(chunk, m)

    def possible(rank: int) -> Iterator[Task]:
        """The next task of each kind and chunk, best first, that memory allows."""
        first, second = rank, last - rank
        turns = zip("IIFFWW", (second, first) * 3, strict=True)
        for kind, chunk in turns:
            # What comes back always finds room: the first chunk leaves some for the second.
            full = kind == "F" and held[rank] >= 2 * stages - (chunk == first)
            if begun[kind, chunk] < microbatches and not full:
                yield Task(kind, chunk, begun[kind, chunk])

    while len(done) < 3 * microbatches * (last + 1):
        chosen = []
        for rank in range(stages):
            task = next((t for t in possible(rank) if done.issuperset(needs(t))), None)
            if task is not None:
                chosen.append(task)
        for task in chosen:
            rank = folded(task.chunk, stages)
            orders[rank].append(task)
            begun[task.kind, task.chunk] += 1
            held[rank] += (task.kind == "F") - (task.kind == "W")
        done.update(chosen)
    return tuple(map(tuple, orders))


def pipedream(rank: int, stages: int, microbatches: int, vertical: bool = False) -> Iterator[Task]:
    """PipeDream: 1F1B that updates after each backward pass, so the pipeline never drains.

    A microbatch comes back to the weights that it saw on its way forward.  With ``vertical`` it
    sees weights of the same age on all ranks.
    """
    for task in one_f_one_b(rank, stages, microbatches):
        yield task
        if task.kind == "B":
            yield update(*task[1:3])
