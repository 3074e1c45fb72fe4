"""Prefix reductions along the line of ranks, and by recursive doubling."""

from __future__ import annotations

from functools import partial

from mpicoll.registry import RANK_ORDER, register
from mpicoll.schedule import Recv, RecvReduce, Send, given, within
from mpicoll.schedule.steps import Rounds
from mpicoll.schedule.topology import ceil_log2, doubling, floor_log2

_REFERENCE = (
    "P. Sanders, J. L. Traff, Parallel prefix (scan) algorithms for MPI, EuroPVM/MPI 2006, "
    "Lecture Notes in Computer Science 4192"
)


def scan_linear(rank: int, size: int) -> Rounds:
    """The sum goes down the line of ranks, each adding its own.

    ::

        0 -> 1 -> 2 -> 3 -> ...

    (P - 1)(alpha + n beta + n gamma).
    """
    if rank > 0:
        yield RecvReduce(rank - 1, 0)
    if rank + 1 < size:
        yield Send(rank + 1, 0)


def scan_recursive_doubling(rank: int, size: int) -> Rounds:
    """In round k every rank passes what it has to the rank 2^k further on, which adds it.

    ::

        round 1   0 -> 1   1 -> 2   2 -> 3   3 -> 4   4 -> 5   ...
        round 2   0 -> 2   1 -> 3   2 -> 4   3 -> 5   ...
        round 3   0 -> 4   1 -> 5   ...

    log2(P)(alpha + n beta + n gamma), for every P.
    """
    for distance in doubling(size):
        sends = (Send(rank + distance, 0),) if rank + distance < size else ()
        receives = (RecvReduce(rank - distance, 0),) if rank >= distance else ()
        yield sends + receives


def _shifted(rank: int, size: int) -> Rounds:
    """Every rank gets its predecessor's vector."""
    sends = (Send(rank + 1, given(0)),) if rank + 1 < size else ()
    receives = (Recv(rank - 1, 0),) if rank else ()
    yield sends + receives


def exscan_linear(rank: int, size: int) -> Rounds:
    """Every rank gets its predecessor's vector; then ranks 1, 2, ... do a linear scan.

    ::

        0 -> 1   1 -> 2   2 -> 3   ...;   then 1 -> 2 -> 3 -> ...

    (P - 1)(alpha + n beta) + (P - 2) n gamma.
    """
    yield from _shifted(rank, size)
    if rank:
        yield from within(scan_linear(rank - 1, size - 1), range(1, size), [0])


def exscan_recursive_doubling(rank: int, size: int) -> Rounds:
    """Every rank gets its predecessor's vector; then ranks 1, 2, ... scan by recursive doubling.

    ::

        0 -> 1   1 -> 2   2 -> 3   ...;   then at distance 1, 2, 4, ... among 1, 2, 3, ...

    (1 + log2(P))(alpha + n beta) + log2(P) n gamma.
    """
    yield from _shifted(rank, size)
    if rank:
        yield from within(scan_recursive_doubling(rank - 1, size - 1), range(1, size), [0])


def _doubling_messages(P: int) -> int:
    return sum(P - distance for distance in doubling(P))


_in_rank_order = partial(register, order=(RANK_ORDER,), reference=_REFERENCE)
_in_rank_order(
    "scan",
    "linear",
    scan_linear,
    rounds=lambda P: min(P - 1, 2),
    depth=lambda P: P - 1,
    messages=lambda P: P - 1,
    blocks_sent_max=lambda P: int(P > 1),
    textbook=lambda P, n, a, b, g: (P - 1) * (a + n * b + n * g),
)
_in_rank_order(
    "scan",
    "recursive_doubling",
    scan_recursive_doubling,
    rounds=ceil_log2,
    messages=_doubling_messages,
    blocks_sent_max=ceil_log2,
    textbook=lambda P, n, a, b, g: floor_log2(P) * (a + n * b + n * g),
    reference=(
        "W. D. Hillis, G. L. Steele, Data parallel algorithms, Communications of the ACM 29 (1986)"
    ),
)
_in_rank_order(
    "exscan",
    "linear",
    exscan_linear,
    rounds=lambda P: min(P - 1, 3),
    depth=lambda P: P - 1,
    messages=lambda P: max(2 * P - 3, 0),
    blocks_sent_max=lambda P: min(P - 1, 2),
    textbook=lambda P, n, a, b, g: (P - 1) * (a + n * b) + max(P - 2, 0) * n * g,
)
_in_rank_order(
    "exscan",
    "recursive_doubling",
    exscan_recursive_doubling,
    rounds=lambda P: 1 + ceil_log2(P - 1) if P > 1 else 0,
    messages=lambda P: P - 1 + _doubling_messages(max(P - 1, 1)),
    blocks_sent_max=lambda P: 1 + ceil_log2(P - 1) if P > 1 else 0,
    textbook=lambda P, n, a, b, g: (
        (1 + ceil_log2(P - 1)) * (a + n * b) + ceil_log2(P - 1) * n * g if P > 1 else 0.0
    ),
)
