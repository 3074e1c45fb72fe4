"""Recursive algorithms: partners at distance 1, 2, 4, ... or the other way round.

They are at home on 2^k ranks.  On others the first 2e ranks pair up (e is what exceeds 2^k): the
even one of a pair hands what it has to the odd one and sits out, and gets its result at the end.
The 2^k ranks that take part are numbered by *places*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from mpicoll.registry import COMMUTATIVE, RANK_ORDER, SAME_BITS, register
from mpicoll.schedule import Block, Recv, RecvReduce, Send
from mpicoll.schedule.steps import Rounds
from mpicoll.schedule.topology import (
    doubling,
    floor_log2,
    place_of,
    power_of_two,
    rank_of,
    sits_out,
    sitting_out,
    stands_in,
)

_REFERENCE = (
    "R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations "
    "in MPICH, International Journal of High Performance Computing Applications 19 (2005)"
)


def _blocks_of(lo: int, hi: int, size: int) -> range:
    """The blocks, one a rank, of the places ``lo .. hi - 1``: a pair's two belong to one place."""
    pairs = sitting_out(size)
    return range(lo + min(lo, pairs), hi + min(hi, pairs))


def with_pairs(rank: int, size: int, vector: Block, among_places: Rounds) -> Rounds:
    """An all-reduce of all ranks, from that of those which take part."""
    if sits_out(rank, size):
        yield Send(rank + 1, vector)
        yield Recv(rank + 1, vector)
        return
    if stands_in(rank, size):
        yield RecvReduce(rank - 1, vector)
    yield from among_places
    if stands_in(rank, size):
        yield Send(rank - 1, vector)


def reduce_and_gather(exchanges: Iterable[tuple[int, Block, Block]]) -> Rounds:
    """Reduce what is mine of each (peer, mine, theirs); then gather it back, the last one first."""
    done = []
    for peer, mine, theirs in exchanges:
        yield Send(peer, theirs), RecvReduce(peer, mine)
        done.append((peer, mine, theirs))
    for peer, mine, theirs in reversed(done):
        yield Send(peer, mine), Recv(peer, theirs)


def allreduce_recursive_doubling(rank: int, size: int) -> Rounds:
    """Partners at distance 1, 2, 4, ... exchange and add whole vectors.

    ::

        round 1   0 <-> 1   2 <-> 3   4 <-> 5   6 <-> 7
        round 2   0 <-> 2   1 <-> 3   4 <-> 6   5 <-> 7
        round 3   0 <-> 4   1 <-> 5   2 <-> 6   3 <-> 7

    log2(P)(alpha + n beta + n gamma): the fewest rounds, but whole vectors.  Where P is not a power
    of two, the first ranks pair up: the even one of a pair hands its vector to the odd one, sits
    out, and gets the result at the end; two more rounds.
    """
    peers = (
        rank_of(place_of(rank, size) ^ distance, size) for distance in doubling(power_of_two(size))
    )
    exchanges = ((Send(peer, 0), RecvReduce(peer, 0)) for peer in peers)
    yield from with_pairs(rank, size, 0, exchanges)


def allreduce_recursive_halving_doubling(rank: int, size: int) -> Rounds:
    """Halves are exchanged and reduced, then quarters, ...; then all of it is gathered back.

    ::

        round 1   0 <-> 1   2 <-> 3      exchange halves     0: [0-1]  1: [2-3]  2: [0-1]  3: [2-3]
        round 2   0 <-> 2   1 <-> 3      exchange quarters   0: [0]    1: [2]    2: [1]    3: [3]
        round 3   0 <-> 2   1 <-> 3      give quarters back
        round 4   0 <-> 1   2 <-> 3      give halves back

    2 log2(P) alpha + 2(P - 1)/P n beta + (P - 1)/P n gamma: the fewest bytes in few rounds.
    Partners double their distance while the vector halves, so that sums keep rank order.
    """
    place, everything = place_of(rank, size), range(power_of_two(size))

    def halves() -> Iterator[tuple[int, range, range]]:
        mine = everything
        for distance in doubling(len(everything)):
            middle = mine.start + len(mine) // 2
            parts = range(mine.start, middle), range(middle, mine.stop)
            mine, theirs = parts if not place & distance else parts[::-1]
            yield rank_of(place ^ distance, size), mine, theirs

    yield from with_pairs(rank, size, everything, reduce_and_gather(halves()))


def reduce_scatter_recursive_halving(rank: int, size: int) -> Rounds:
    """Partners at distance P/2, P/4, ... exchange and reduce what the other side will need.

    ::

        round 1   0 <-> 4   1 <-> 5   2 <-> 6   3 <-> 7      [4-7] this way, [0-3] that way
        round 2   0 <-> 2   1 <-> 3   4 <-> 6   5 <-> 7
        round 3   0 <-> 1   2 <-> 3   4 <-> 5   6 <-> 7

    log2(P) alpha + (P - 1)/P n (beta + gamma).
    """
    power = power_of_two(size)
    if sits_out(rank, size):
        yield Send(rank + 1, range(size))
        yield Recv(rank + 1, rank)
        return
    if stands_in(rank, size):
        yield RecvReduce(rank - 1, range(size))
    place, lo, hi = place_of(rank, size), 0, power
    for distance in reversed([*doubling(power)]):
        peer, middle = rank_of(place ^ distance, size), (lo + hi) // 2
        low, high = _blocks_of(lo, middle, size), _blocks_of(middle, hi, size)
        if place & distance:
            yield Send(peer, low), RecvReduce(peer, high)
            lo = middle
        else:
            yield Send(peer, high), RecvReduce(peer, low)
            hi = middle
    if stands_in(rank, size):
        yield Send(rank - 1, rank - 1)


def allgather_recursive_doubling(rank: int, size: int) -> Rounds:
    """Partners at distance 1, 2, 4, ... exchange all they have.

    ::

        round 1   0 <-> 1   2 <-> 3   4 <-> 5   6 <-> 7      1 block each way
        round 2   0 <-> 2   1 <-> 3   4 <-> 6   5 <-> 7      2 blocks
        round 3   0 <-> 4   1 <-> 5   2 <-> 6   3 <-> 7      4 blocks

    log2(P) alpha + (P - 1)/P n beta.
    """
    if sits_out(rank, size):
        yield Send(rank + 1, rank)
        yield Recv(rank + 1, range(size))
        return
    if stands_in(rank, size):
        yield Recv(rank - 1, rank - 1)
    place = place_of(rank, size)
    for distance in doubling(power_of_two(size)):
        mine, theirs = place & -distance, (place ^ distance) & -distance
        peer = rank_of(place ^ distance, size)
        yield (
            Send(peer, _blocks_of(mine, mine + distance, size)),
            Recv(peer, _blocks_of(theirs, theirs + distance, size)),
        )
    if stands_in(rank, size):
        yield Send(rank - 1, range(size))


def log_rounds(P: int) -> int:
    """Rounds of one pass, and of the pairs before and after it."""
    return floor_log2(P) + 2 * (sitting_out(P) > 0)


def log_messages(P: int) -> int:
    """Messages of all these rounds."""
    return power_of_two(P) * floor_log2(P) + 2 * sitting_out(P)


def log_blocks(P: int) -> int:
    """Blocks that they carry in a reduce-scatter or an all-gather."""
    return P * (power_of_two(P) - 1) + sitting_out(P) * (P + 1)


def _gathered_max(P: int) -> int:
    """Most blocks that a rank sends in the all-gather: each round all it has by then."""
    if sitting_out(P) > 0:
        # The last of the pairs' places has most pairs about it; it also sends everything on.
        return max(
            sum(len(_blocks_of(place & -d, (place & -d) + d, P)) for d in doubling(power_of_two(P)))
            + P * (place < sitting_out(P))
            for place in range(power_of_two(P))
        )
    return P - 1


_one_pass = partial(register, rounds=log_rounds, messages=log_messages, reference=_REFERENCE)
#: Registers an all-reduce in which partners halve what they exchange, then double it.
halving_doubling = partial(
    register,
    rounds=lambda P: 2 * floor_log2(P) + 2 * (sitting_out(P) > 0),
    messages=lambda P: 2 * power_of_two(P) * floor_log2(P) + 2 * sitting_out(P),
    blocks_sent=lambda P: 2 * power_of_two(P) * (power_of_two(P) - 1 + sitting_out(P)),
    blocks_sent_max=lambda P: 2 * (power_of_two(P) - 1) + power_of_two(P) * (sitting_out(P) > 0),
    textbook=lambda P, n, a, b, g: 2 * floor_log2(P) * a + (P - 1) / P * n * (2 * b + g),
    blocks=power_of_two,
)
_one_pass(
    "allreduce",
    "recursive_doubling",
    allreduce_recursive_doubling,
    blocks_sent_max=lambda P: floor_log2(P) + (sitting_out(P) > 0),
    textbook=lambda P, n, a, b, g: floor_log2(P) * (a + n * b + n * g),
    order=(RANK_ORDER, SAME_BITS),
)
halving_doubling(
    "allreduce",
    "recursive_halving_doubling",
    allreduce_recursive_halving_doubling,
    order=(RANK_ORDER, SAME_BITS),
    reference=_REFERENCE,
)
_one_pass(
    "reduce_scatter",
    "recursive_halving",
    reduce_scatter_recursive_halving,
    blocks_sent=log_blocks,
    blocks_sent_max=lambda P: P - (sitting_out(P) == 0),
    textbook=lambda P, n, a, b, g: floor_log2(P) * a + (P - 1) / P * n * (b + g),
    needs=(COMMUTATIVE,),
)
_one_pass(
    "allgather",
    "recursive_doubling",
    allgather_recursive_doubling,
    blocks_sent=log_blocks,
    blocks_sent_max=_gathered_max,
    textbook=lambda P, n, a, b, g: floor_log2(P) * a + (P - 1) / P * n * b,
)
