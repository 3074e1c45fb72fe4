"""Chains: every rank has one neighbour on either side, and segments follow one another."""

from __future__ import annotations

from functools import partial

from mpicoll.registry import COMMUTATIVE, register
from mpicoll.schedule import Channels, Recv, RecvReduce, Send, pipelined
from mpicoll.schedule.steps import Rounds

_REFERENCE = (
    "J. Pjesivac-Grbovic, T. Angskun, G. Bosilca, G. E. Fagg, E. Gabriel, J. J. Dongarra, "
    "Performance analysis of MPI collective operations, Cluster Computing 10 (2007)"
)


def bcast_chain(rank: int, size: int, root: int, segments: int = 1, window: int = 8) -> Channels:
    """The vector goes from rank to rank, beginning at the root, in segments.

    ::

        root -> root + 1 -> root + 2 -> ... -> root - 1

    With k segments (P - 2 + k)(alpha + n/k beta): the best there is for long vectors on one port.
    """

    def one_segment() -> Rounds:
        if rank != root:
            yield Recv((rank - 1) % size, 0)
        if (rank + 1) % size != root:
            yield Send((rank + 1) % size, 0)

    return pipelined(one_segment(), segments, window)


def reduce_chain(rank: int, size: int, root: int, segments: int = 1, window: int = 8) -> Channels:
    """The sum goes from rank to rank towards the root, each adding its own, in segments.

    ::

        root - 1 -> ... -> root + 2 -> root + 1 -> root

    With k segments (P - 2 + k)(alpha + n/k (beta + gamma)).
    """

    def one_segment() -> Rounds:
        if (rank + 1) % size != root:
            yield RecvReduce((rank + 1) % size, 0)
        if rank != root:
            yield Send((rank - 1) % size, 0)

    return pipelined(one_segment(), segments, window)


def _steps(P: int, segments: int, window: int) -> int:
    # With a window of one, a rank in the middle receives and sends by turns.
    turns = 2 if window == 1 and P > 2 else 1
    return P - 1 + turns * (segments - 1) if P > 1 else 0


_chain = partial(
    register,
    rounds=lambda P, segments: segments * min(P - 1, 2),
    depth=_steps,
    messages=lambda P, segments: segments * (P - 1),
    blocks_sent_max=lambda P, segments: segments * int(P > 1),
    reference=_REFERENCE,
)
_chain(
    "bcast",
    "chain",
    bcast_chain,
    textbook=lambda P, n, a, b, g, segments, window: (
        _steps(P, segments, window) * (a + n / segments * b)
    ),
)
_chain(
    "reduce",
    "chain",
    reduce_chain,
    textbook=lambda P, n, a, b, g, segments, window: (
        _steps(P, segments, window) * (a + n / segments * (b + g))
    ),
    needs=(COMMUTATIVE,),
)
