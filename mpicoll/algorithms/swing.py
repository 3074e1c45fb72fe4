"""Swing: partners swing from one side to the other, at distance 1, 1, 3, 5, 11, ..."""

from __future__ import annotations

from collections.abc import Iterator

from mpicoll.algorithms.recursive import (
    place_of,
    power_of_two,
    rank_of,
    sits_out,
    sitting_out,
    stands_in,
)
from mpicoll.registry import COMMUTATIVE, SAME_BITS, register
from mpicoll.schedule import Recv, RecvReduce, Send
from mpicoll.schedule.steps import Rounds
from mpicoll.schedule.topology import floor_log2


def _partner(place: int, step: int, power: int) -> int:
    distance = (1 + (1 << (step + 1)) * (1 if step % 2 == 0 else -1)) // 3
    return (place + (-distance if place % 2 else distance)) % power


def _reached(place: int, step: int, power: int) -> Iterator[int]:
    """The places that a place passes data on to from a step on, itself included."""
    yield place
    for later in range(step, floor_log2(power)):
        yield from _reached(_partner(place, later, power), later + 1, power)


def allreduce_swing(rank: int, size: int) -> Rounds:
    """Recursive halving and doubling with near partners, for rings and tori of links.

    ::

        round 1   0 <-> 1   2 <-> 3   4 <-> 5   6 <-> 7     distance 1
        round 2   0 <-> 7   1 <-> 2   3 <-> 4   5 <-> 6     distance 1, the other way
        round 3   0 <-> 3   1 <-> 6   2 <-> 5   4 <-> 7     distance 3
        rounds 4 to 6: the same backwards, gathering

    2 log2(P) alpha + 2(P - 1)/P n beta + (P - 1)/P n gamma.  Ranks beyond 2^k pair up as in the
    recursive algorithms.
    """
    power = power_of_two(size)
    everything = range(power)
    if sits_out(rank, size):
        yield Send(rank + 1, everything)
        yield Recv(rank + 1, everything)
        return
    if stands_in(rank, size):
        yield RecvReduce(rank - 1, everything)
    place = place_of(rank, size)
    done = []
    for step in range(floor_log2(power)):
        partner = _partner(place, step, power)
        peer = rank_of(partner, size)
        mine = tuple(sorted(_reached(place, step + 1, power)))
        theirs = tuple(sorted(_reached(partner, step + 1, power)))
        yield Send(peer, theirs), RecvReduce(peer, mine)
        done.append((peer, mine, theirs))
    for peer, mine, theirs in reversed(done):
        yield Send(peer, mine), Recv(peer, theirs)
    if stands_in(rank, size):
        yield Send(rank - 1, everything)


register(
    "allreduce",
    "swing",
    allreduce_swing,
    rounds=lambda P: 2 * floor_log2(P) + 2 * (sitting_out(P) > 0),
    messages=lambda P: 2 * power_of_two(P) * floor_log2(P) + 2 * sitting_out(P),
    blocks_sent=lambda P: 2 * power_of_two(P) * (power_of_two(P) - 1 + sitting_out(P)),
    blocks_sent_max=lambda P: 2 * (power_of_two(P) - 1) + power_of_two(P) * (sitting_out(P) > 0),
    textbook=lambda P, n, a, b, g: 2 * floor_log2(P) * a + (P - 1) / P * n * (2 * b + g),
    blocks=power_of_two,
    needs=(COMMUTATIVE,),
    order=(SAME_BITS,),
    reference=(
        "D. De Sensi, T. Bonato, D. Saam, T. Hoefler, Swing: short-cutting rings for higher "
        "bandwidth allreduce, NSDI 2024"
    ),
)
