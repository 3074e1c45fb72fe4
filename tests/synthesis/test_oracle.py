"""Short vectors: what the search finds against the optimum, which HiGHS proves.

Time is cut into units of a microsecond. A variable says that a rank begins to send a block to
another at a time; ports carry one message at a time, and a rank has a block before it sends it.
"""

from __future__ import annotations

import math
import random

import pytest

pytest.importorskip("pydantic")
pytest.importorskip("scipy")

import numpy as np
from machines import HEAD
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from mpicoll.files import machine_files
from mpicoll.synthesis.search import Wish, search

#: Bytes of a block, and attoseconds of a unit of time.
BLOCK, UNIT = 1000, 10**12


def machine(ranks, seed):
    """Links between all ranks, one port a rank; all times are whole microseconds for a block."""
    dice = random.Random(seed)
    text = HEAD.format(ranks, 1) + 'overhead = "0us"\n'
    for a in range(ranks):
        for b in range(a):
            latency, beta = dice.randint(1, 4), dice.randint(1, 3)
            text += f'[[link]]\nbetween = [{b}, {a}]\nlatency = "{latency}us"\nbeta = "{beta}ns"\n'
    return machine_files.parse(text)


def found(collective, machine, nbytes, evaluations):
    """Microseconds of the best schedule of one segment that the search finds."""
    wish = Wish(trees=(1,), segments=(1,), evaluations=evaluations)
    time = search(collective, machine, (nbytes,), wish=wish).made[nbytes][0].time
    assert time % UNIT == 0
    return time // UNIT


def optimum(machine, roots, end):
    """The least time in which the block of each root is with all ranks, none of them combined.

    Args:
        machine: With a network, one port a rank.
        roots: The rank that has each block.
        end: A time within which it can be done.
    """
    network = machine.network
    ranks = range(network.ranks)
    lasts, holds = ({}, {})
    for i in ranks:
        for j in ranks:
            if i != j:
                lasts[i, j] = network.message(i, j, BLOCK) // UNIT
                holds[i, j] = next(network.held(i, j, BLOCK))[0] // UNIT
    sends = [
        (b, i, j, t)
        for b, root in enumerate(roots)
        for i, j in lasts
        if j != root
        for t in range(end - lasts[i, j] + 1)
    ]
    number = {send: column for column, send in enumerate(sends)}
    last = len(sends)  # the variable that is to be small: when all is done
    rows, columns, values, lower, upper = [], [], [], [], []

    def constrain(terms, low, high):
        for column, value in terms:
            rows.append(len(lower))
            columns.append(column)
            values.append(value)
        lower.append(low)
        upper.append(high)

    for b, root in enumerate(roots):
        for j in ranks:
            if j == root:
                continue
            arrivals = [(s, number[s]) for s in sends if s[0] == b and s[2] == j]
            constrain([(column, 1) for _, column in arrivals], 1, 1)
            done = [(column, -(s[3] + lasts[s[1], j])) for s, column in arrivals]
            constrain([(last, 1), *done], 0, np.inf)
    for b, i, j, t in sends:
        if i != roots[b]:
            had = [
                (number[b, k, i, s], -1)
                for k in ranks
                if k != i
                for s in range(t - lasts[k, i] + 1)
            ]
            constrain([(number[b, i, j, t], 1), *had], -np.inf, 0)
    for rank in ranks:
        for way in (1, 2):  # what it sends, what it receives
            for t in range(end):
                busy = [
                    (column, 1)
                    for column, s in enumerate(sends)
                    if s[way] == rank and s[3] <= t < s[3] + holds[s[1], s[2]]
                ]
                if len(busy) > 1:
                    constrain(busy, 0, 1)
    matrix = coo_array((values, (rows, columns)), shape=(len(lower), last + 1)).tocsr()
    result = milp(
        np.eye(1, last + 1, last)[0],
        integrality=np.ones(last + 1),
        bounds=Bounds(0, np.append(np.ones(last), end)),
        constraints=LinearConstraint(matrix, lower, upper),
        options={"time_limit": 250},
    )
    assert result.status == 0, result.message  # proven
    return round(result.fun)


@pytest.mark.parametrize(
    ("ranks", "seed"),
    [(5, 0), *(pytest.param(8, seed, marks=pytest.mark.long) for seed in range(6))],
)
@pytest.mark.timeout(300)
def test_a_broadcast_is_as_fast_as_can_be(ranks, seed):
    one = machine(ranks, seed)
    time = found("bcast", one, BLOCK, 120 * ranks if ranks < 8 else 3000)
    assert time == optimum(one, [0], time)


@pytest.mark.parametrize(
    ("ranks", "seed"),
    [(4, 0), (5, 0), *(pytest.param(5, seed, marks=pytest.mark.long) for seed in range(1, 6))],
)
@pytest.mark.timeout(300)
def test_an_all_gather_is_near_the_optimum(ranks, seed):
    one, nbytes = machine(ranks, seed), ranks * BLOCK
    answer = search("allgather", one, (nbytes,), wish=Wish(trees=(1, 2), evaluations=300))
    time = min(answer.made[nbytes][0].time, answer.known[nbytes][0].time) / UNIT
    assert time <= 1.25 * optimum(one, list(range(ranks)), math.ceil(time))
