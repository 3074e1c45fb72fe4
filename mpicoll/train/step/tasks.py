"""What a rank does in a training step: computing tasks, and messages between chunks.

A *chunk* is a run of consecutive layers on one rank; a rank has one chunk, or several.  *Edge* c
goes from chunk c - 1 to chunk c: forward it carries activations, backward their gradients.  The
*order* of a rank is what it computes; its *program* is the order with the messages that follow.

A task is a kind, a chunk, and a microbatch:

====== ============================================================================================
kind   meaning
====== ============================================================================================
F      the forward pass of a chunk
B      its backward pass, or in two parts:
I      the gradient of its input, and
W      the gradient of its weights
R      the forward pass once more, from the chunk's input, where activations are not kept
U      an update of its weights
====== ============================================================================================

``SEND_F``, ``RECV_F``, ``SEND_B`` and ``RECV_B`` are the two ends of messages forward and backward;
their chunk is the edge's number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

#: Which rank has a chunk: ``place(chunk, stages)``.
Place = Callable[[int, int], int]

SENDS = ("SEND_F", "SEND_B")
RECEIVES = ("RECV_F", "RECV_B")
#: Of each end of a message the kind of the other one.
OTHER_END = dict(zip(SENDS + RECEIVES, RECEIVES + SENDS, strict=True))


class Task(NamedTuple):
    """A task of a rank.

    Attributes:
        kind: its kind; see the table of this module.
        chunk: number of the chunk; of a message, number of the edge.
        microbatch: number of the microbatch.
        version: for F, B and R, the number of updates that the weights have seen, in a step that
            updates them between microbatches.
    """

    kind: str
    chunk: int
    microbatch: int
    version: int = 0

    def __str__(self) -> str:
        place = "edge" if self.is_message else "chunk"
        return f"{self.kind} of {place} {self.chunk}, microbatch {self.microbatch}"

    @property
    def is_message(self) -> bool:
        """Whether it is one end of a message."""
        return len(self.kind) > 1

    @property
    def other_end(self) -> Task:
        """The task at the other end of a message."""
        return self._replace(kind=OTHER_END[self.kind])

    @property
    def source(self) -> int:
        """The chunk that a message comes from."""
        return self.chunk - self.kind.endswith("F")

    @property
    def destination(self) -> int:
        """The chunk that a message goes to."""
        return self.chunk - self.kind.endswith("B")


def forward(chunk: int, microbatch: int) -> Task:
    """The forward pass of a chunk."""
    return Task("F", chunk, microbatch)


def backward(chunk: int, microbatch: int) -> Task:
    """The backward pass of a chunk, whole."""
    return Task("B", chunk, microbatch)


def backward_input(chunk: int, microbatch: int) -> Task:
    """The part of a backward pass that the chunk before waits for."""
    return Task("I", chunk, microbatch)


def backward_weight(chunk: int, microbatch: int) -> Task:
    """The part of a backward pass that nobody waits for."""
    return Task("W", chunk, microbatch)


def update(chunk: int, microbatch: int) -> Task:
    """An update of a chunk's weights by the gradient of one microbatch."""
    return Task("U", chunk, microbatch)


class Durations(NamedTuple):
    """Times of the tasks of a chunk, or of all chunks of a rank together: whole numbers.

    Attributes:
        forward: time of F and R.
        backward: time of B.
        weight: time of W, which is a part of B; the other part is I.
        update: time of U.
    """

    forward: int
    backward: int
    weight: int = 0
    update: int = 0

    @property
    def input(self) -> int:
        """The time of I."""
        return self.backward - self.weight

    def of(self, kind: str) -> int:
        """The time of a computing task."""
        match kind:
            case "F" | "R":
                return self.forward
            case "B":
                return self.backward
            case "I":
                return self.input
            case "W":
                return self.weight
        return self.update

    def divided(self, chunks: int) -> Durations:
        """The times of one of this number of equal chunks."""
        return Durations(*(duration // chunks for duration in self))

    def times(self, factor: int) -> Durations:
        """The times of a rank that is slower by this factor."""
        return Durations(*(duration * factor for duration in self))


def looped(chunk: int, stages: int) -> int:
    """Chunks go round and round the ranks: 0, 1, 2, 0, 1, 2."""
    return chunk % stages


def folded(chunk: int, stages: int) -> int:
    """Chunks go to the last rank and come back: 0, 1, 2, 2, 1, 0."""
    return min(chunk, 2 * stages - 1 - chunk)
