"""Swing: partners swing from one side to the other, at distance 1, 1, 3, 5, 11, ..."""

from __future__ import annotations

from collections.abc import Iterator

from mpicoll.algorithms.recursive import halving_doubling, reduce_and_gather, with_pairs
from mpicoll.registry import COMMUTATIVE, SAME_BITS
from mpicoll.schedule.steps import Rounds
from mpicoll.schedule.topology import floor_log2, place_of, power_of_two, rank_of


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
    place = place_of(rank, size)

    def exchanges() -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        for step in range(floor_log2(power)):
            partner = _partner(place, step, power)
            mine, theirs = (tuple(sorted(_reached(p, step + 1, power))) for p in (place, partner))
            yield rank_of(partner, size), mine, theirs

    yield from with_pairs(rank, size, range(power), reduce_and_gather(exchanges()))


halving_doubling(
    "allreduce",
    "swing",
    allreduce_swing,
    needs=(COMMUTATIVE,),
    order=(SAME_BITS,),
    reference=(
        "D. De Sensi, T. Bonato, D. Saam, T. Hoefler, Swing: short-cutting rings for higher "
        "bandwidth allreduce, NSDI 2024"
    ),
)
