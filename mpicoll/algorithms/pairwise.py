"""Direct exchange: every rank meets every other rank itself."""

from __future__ import annotations

from functools import partial

from mpicoll.registry import COMMUTATIVE, register
from mpicoll.schedule import Copy, Recv, RecvReduce, Send, given
from mpicoll.schedule.steps import Rounds

_REFERENCE = (
    "R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations "
    "in MPICH, International Journal of High Performance Computing Applications 19 (2005)"
)


def reduce_scatter_pairwise(rank: int, size: int) -> Rounds:
    """In round k every rank sends the block of the rank k further on, unreduced, to that rank.

    ::

        round 1   0 -[1]-> 1   1 -[2]-> 2   2 -[3]-> 3   3 -[0]-> 0
        round 2   0 -[2]-> 2   1 -[3]-> 3   2 -[0]-> 0   3 -[1]-> 1
        round 3   0 -[3]-> 3   1 -[0]-> 0   2 -[1]-> 1   3 -[2]-> 2

    (P - 1)(alpha + n/P (beta + gamma)).
    """
    for k in range(1, size):
        yield Send((rank + k) % size, rank + k), RecvReduce((rank - k) % size, rank)


def alltoall_pairwise(rank: int, size: int) -> Rounds:
    """In round k every rank sends to the rank k further on and receives from the rank k before.

    ::

        round 1   0 -> 1   1 -> 2   2 -> 3   3 -> 0
        round 2   0 -> 2   1 -> 3   2 -> 0   3 -> 1
        round 3   0 -> 3   1 -> 0   2 -> 1   3 -> 2

    (P - 1)(alpha + n/P beta), n bytes a rank.
    """
    yield Copy(given(rank), rank)
    for k in range(1, size):
        yield Send((rank + k) % size, given(rank + k)), Recv((rank - k) % size, rank - k)


def alltoall_linear(rank: int, size: int) -> Rounds:
    """All messages at once.

    ::

        0 -> 1   0 -> 2   1 -> 2   1 -> 0   2 -> 0   2 -> 1

    One round of P - 1 messages into and out of every rank: (P - 1)(alpha + n/P beta).
    """
    away = range(1, size)
    yield (
        Copy(given(rank), rank),
        *(Send((rank + k) % size, given(rank + k)) for k in away),
        *(Recv((rank - k) % size, rank - k) for k in away),
    )


_one_by_one = partial(
    register,
    rounds=lambda P: P - 1,
    messages=lambda P: P * (P - 1),
    blocks_sent_max=lambda P: P - 1,
    symmetric=True,
    reference=_REFERENCE,
)
#: Registers a schedule in which every rank exchanges a block with every other one at once.
all_at_once = partial(
    _one_by_one,
    rounds=lambda P: int(P > 1),
    depth=lambda P: P - 1,
    fan_in=lambda P: P - 1,
)
_one_by_one(
    "reduce_scatter",
    "pairwise",
    reduce_scatter_pairwise,
    textbook=lambda P, n, a, b, g: (P - 1) * (a + n / P * (b + g)),
    needs=(COMMUTATIVE,),
)
_one_by_one(
    "alltoall",
    "pairwise",
    alltoall_pairwise,
    textbook=lambda P, n, a, b, g: (P - 1) * (a + n / P * b),
)
all_at_once(
    "alltoall",
    "linear",
    alltoall_linear,
    textbook=lambda P, n, a, b, g: (P - 1) * (a + n / P * b),
)
