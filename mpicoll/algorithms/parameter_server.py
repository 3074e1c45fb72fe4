"""Parameter-server style: every rank is the server of one block."""

from __future__ import annotations

from functools import partial

from mpicoll.algorithms.linear import gather_linear
from mpicoll.algorithms.pairwise import all_at_once
from mpicoll.registry import RANK_ORDER, SAME_BITS, per_rank, register
from mpicoll.schedule import Recv, RecvReduce, Send
from mpicoll.schedule.steps import Rounds


def allreduce_parameter_server(rank: int, size: int) -> Rounds:
    """Every rank serves one block: it reduces all contributions to it and sends out the result.

    ::

        push:  0 -[1]-> 1   0 -[2]-> 2      pull:  1 -[1]-> 0   2 -[2]-> 0
               1 -[0]-> 0   1 -[2]-> 2             0 -[0]-> 1   2 -[2]-> 1
               2 -[0]-> 0   2 -[1]-> 1             0 -[0]-> 2   1 -[1]-> 2

    Two rounds, 2(P - 1)/P n bytes sent and received per rank, but P - 1 messages into every rank
    at once.  Peers are visited from one's own rank on, so that no server meets all at once.
    """
    yield from reduce_scatter_parameter_server(rank, size)
    yield from allgather_parameter_server(rank, size)


def allgather_parameter_server(rank: int, size: int) -> Rounds:
    """Every rank sends its block to all others, at once.

    ::

        1 -[1]-> 0   2 -[2]-> 0   0 -[0]-> 1   2 -[2]-> 1   0 -[0]-> 2   1 -[1]-> 2

    One round, (P - 1)/P n bytes sent and received per rank.
    """
    away = range(1, size)
    yield tuple(Send((rank + k) % size, rank) for k in away) + tuple(
        Recv((rank - k) % size, rank - k) for k in away
    )


def reduce_scatter_parameter_server(rank: int, size: int) -> Rounds:
    """Every rank is sent all contributions to its block, at once, and reduces them.

    ::

        0 -[1]-> 1   0 -[2]-> 2   1 -[2]-> 2   1 -[0]-> 0   2 -[0]-> 0   2 -[1]-> 1

    One round, (P - 1)/P n bytes sent and received per rank; all contributions to a block meet in
    one fold, in rank order.
    """
    away = range(1, size)
    yield tuple(Send((rank + k) % size, rank + k) for k in away) + tuple(
        RecvReduce((rank - k) % size, rank) for k in away
    )


def reduce_parameter_server(rank: int, size: int, root: int) -> Rounds:
    """Every rank serves one block: it reduces all contributions to it, and the root pulls it.

    ::

        push:  0 -[1]-> 1   0 -[2]-> 2      pull:  1 -[1]-> 0
               1 -[0]-> 0   1 -[2]-> 2             2 -[2]-> 0
               2 -[0]-> 0   2 -[1]-> 1

    Two rounds, the work of reduction shared by all ranks: 2(P - 1)(alpha + n/P beta) at the root.
    """
    yield from reduce_scatter_parameter_server(rank, size)
    yield from gather_linear(rank, size, root)


_REFERENCE = (
    "M. Li et al., Scaling distributed machine learning with the parameter server, OSDI 2014; "
    "with every rank a server it is the direct-exchange reduce-scatter and all-gather"
)

_push_and_pull = partial(
    register,
    rounds=lambda P: 2 * int(P > 1),
    depth=lambda P: 2 * (P - 1),
    fan_in=lambda P: P - 1,
    textbook=lambda P, n, a, b, g: 2 * (P - 1) * (a + n / P * b) + (P - 1) * n / P * g,
    blocks=per_rank,
    reference=_REFERENCE,
)
_push_and_pull(
    "allreduce",
    "parameter_server",
    allreduce_parameter_server,
    messages=lambda P: 2 * P * (P - 1),
    blocks_sent_max=lambda P: 2 * (P - 1),
    order=(RANK_ORDER, SAME_BITS),
    symmetric=True,
)
_push_and_pull(
    "reduce",
    "parameter_server",
    reduce_parameter_server,
    parts=(reduce_scatter_parameter_server, gather_linear),
    messages=lambda P: (P + 1) * (P - 1),
    blocks_sent_max=lambda P: P * int(P > 1),
    order=(RANK_ORDER,),
)
all_at_once(
    "allgather",
    "parameter_server",
    allgather_parameter_server,
    textbook=lambda P, n, a, b, g: (P - 1) * (a + n / P * b),
    reference=_REFERENCE,
)
all_at_once(
    "reduce_scatter",
    "parameter_server",
    reduce_scatter_parameter_server,
    textbook=lambda P, n, a, b, g: (P - 1) * (a + n / P * (b + g)),
    order=(RANK_ORDER,),
    reference=_REFERENCE,
)
