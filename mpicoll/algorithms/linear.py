"""Linear algorithms: one master talks to every other rank directly.

The simplest of all, and the yardstick: two rounds at most, but everything passes through the
master's one port, P - 1 messages at a time.
"""

from __future__ import annotations

from functools import partial

from mpicoll.registry import RANK_ORDER, SAME_BITS, register
from mpicoll.schedule import Recv, RecvReduce, Send
from mpicoll.schedule.steps import Rounds

_REFERENCE = (
    "E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn, Collective communication: theory, "
    "practice, and experience, Concurrency and Computation 19 (2007)"
)


def _others(rank: int, size: int) -> list[int]:
    """The other ranks, beginning behind ``rank``: not every rank begins with rank 0."""
    return [(rank + k) % size for k in range(1, size)]


def reduce_linear(rank: int, size: int, root: int) -> Rounds:
    """Every rank sends its vector to the root, which adds them in rank order.

    ::

        1 ---> 0 <--- 3
               ^
               2

    P - 1 messages of n bytes into one port: (P - 1)(alpha + n beta + n gamma).
    """
    if rank == root:
        yield tuple(RecvReduce(peer, 0) for peer in _others(rank, size))
    else:
        yield Send(root, 0)


def bcast_linear(rank: int, size: int, root: int) -> Rounds:
    """The root sends its vector to every rank.

    ::

        1 <--- 0 ---> 3
               |
               v
               2

    P - 1 messages of n bytes out of one port: (P - 1)(alpha + n beta).
    """
    if rank == root:
        yield tuple(Send(peer, 0) for peer in _others(rank, size))
    else:
        yield Recv(root, 0)


def gather_linear(rank: int, size: int, root: int) -> Rounds:
    """Every rank sends its block to the root.

    ::

        1 -[1]-> 0 <-[3]- 3
                 ^
                [2]
                 2

    P - 1 messages of n/P bytes into one port: (P - 1)(alpha + n/P beta).
    """
    if rank == root:
        yield tuple(Recv(peer, peer) for peer in _others(rank, size))
    else:
        yield Send(root, rank)


def scatter_linear(rank: int, size: int, root: int) -> Rounds:
    """The root sends each rank its block.

    ::

        1 <-[1]- 0 -[3]-> 3
                 |
                [2]
                 v
                 2

    P - 1 messages of n/P bytes out of one port: (P - 1)(alpha + n/P beta).
    """
    if rank == root:
        yield tuple(Send(peer, peer) for peer in _others(rank, size))
    else:
        yield Recv(root, rank)


def allreduce_linear(rank: int, size: int) -> Rounds:
    """A single master: everything is reduced to rank 0, which sends the result to every rank.

    ::

        1 ---> 0 <--- 3        1 <--- 0 ---> 3
               ^          ;           |
               2                      v
                                      2

    Two rounds, but 2(P - 1) messages of n bytes through one port:
    2(P - 1)(alpha + n beta) + (P - 1) n gamma.
    """
    yield from reduce_linear(rank, size, 0)
    yield from bcast_linear(rank, size, 0)


def reduce_scatter_linear(rank: int, size: int) -> Rounds:
    """A single master: rank 0 reduces everything and hands out the blocks.

    ::

        1 ---> 0 <--- 3        1 <-[1]- 0 -[3]-> 3
               ^          ;            [2]
               2                        2

    (P - 1)(2 alpha + (1 + 1/P) n beta + n gamma).
    """
    if rank == 0:
        yield tuple(RecvReduce(peer, range(size)) for peer in _others(rank, size))
    else:
        yield Send(0, range(size))
    yield from scatter_linear(rank, size, 0)


def allgather_linear(rank: int, size: int) -> Rounds:
    """A single master: rank 0 gathers the blocks and sends all of them to every rank.

    ::

        1 -[1]-> 0 <-[3]- 3        1 <--- 0 ---> 3
                [2]           ;           |
                 2                        v
                                          2

    (P - 1)(2 alpha + (1 + 1/P) n beta).
    """
    yield from gather_linear(rank, size, 0)
    if rank == 0:
        yield tuple(Send(peer, range(size)) for peer in _others(rank, size))
    else:
        yield Recv(0, range(size))


def barrier_linear(rank: int, size: int) -> Rounds:
    """Every rank tells rank 0 that it has arrived, which then tells every rank that all have.

    ::

        1 ---> 0 <--- 3      1 <--- 0 ---> 3
               ^                    |
               |                    v
               2                    2

    2 (P - 1) alpha through the port of rank 0; but two rounds for every P, which is what counts
    where ranks take turns on a processor.
    """
    if rank == 0:
        yield tuple(Recv(peer, ()) for peer in _others(rank, size))
        yield tuple(Send(peer, ()) for peer in _others(rank, size))
    else:
        yield Send(0, ())
        yield Recv(0, ())


_to_or_from_root = partial(
    register,
    rounds=lambda P: int(P > 1),
    depth=lambda P: P - 1,
    messages=lambda P: P - 1,
    reference=_REFERENCE,
)
_there_and_back = partial(
    register,
    rounds=lambda P: 2 * int(P > 1),
    depth=lambda P: 2 * (P - 1),
    messages=lambda P: 2 * (P - 1),
    fan_in=lambda P: P - 1,
    reference=_REFERENCE,
)
_to_or_from_root(
    "reduce",
    "linear",
    reduce_linear,
    blocks_sent_max=lambda P: int(P > 1),
    fan_in=lambda P: P - 1,
    textbook=lambda P, n, a, b, g: (P - 1) * (a + n * b + n * g),
    order=(RANK_ORDER,),
)
_to_or_from_root(
    "bcast",
    "linear",
    bcast_linear,
    blocks_sent_max=lambda P: P - 1,
    textbook=lambda P, n, a, b, g: (P - 1) * (a + n * b),
)
_to_or_from_root(
    "gather",
    "linear",
    gather_linear,
    blocks_sent_max=lambda P: int(P > 1),
    fan_in=lambda P: P - 1,
    textbook=lambda P, n, a, b, g: (P - 1) * (a + n / P * b),
)
_to_or_from_root(
    "scatter",
    "linear",
    scatter_linear,
    blocks_sent_max=lambda P: P - 1,
    textbook=lambda P, n, a, b, g: (P - 1) * (a + n / P * b),
)
_there_and_back(
    "allreduce",
    "linear",
    allreduce_linear,
    blocks_sent_max=lambda P: P - 1,
    textbook=lambda P, n, a, b, g: 2 * (P - 1) * (a + n * b) + (P - 1) * n * g,
    order=(RANK_ORDER, SAME_BITS),
)
_there_and_back(
    "reduce_scatter",
    "linear",
    reduce_scatter_linear,
    blocks_sent=lambda P: (P + 1) * (P - 1),
    blocks_sent_max=lambda P: P if P > 1 else 0,
    textbook=lambda P, n, a, b, g: (P - 1) * (2 * a + (1 + 1 / P) * n * b + n * g),
    order=(RANK_ORDER,),
)
_there_and_back(
    "allgather",
    "linear",
    allgather_linear,
    blocks_sent=lambda P: (P + 1) * (P - 1),
    blocks_sent_max=lambda P: P * (P - 1),
    textbook=lambda P, n, a, b, g: (P - 1) * (2 * a + (1 + 1 / P) * n * b),
)
_there_and_back(
    "barrier",
    "linear",
    barrier_linear,
    blocks_sent=lambda P: 0,
    blocks_sent_max=lambda P: 0,
    textbook=lambda P, n, a, b, g: 2 * (P - 1) * a,
    blocks=lambda P: 0,
)
