"""Collectives whose blocks differ in length, by every algorithm, against the MPI library's own."""

from itertools import product

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll import algorithms
from mpicoll.comm import Intracomm
from mpicoll.engine import planning
from mpicoll.registry import COMMUTATIVE, EQUAL_BLOCKS
from mpicoll.schedule.methods import ALL, METHODS, OWN

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
ROOTS = sorted({0, P - 1})

CASES = [
    (method, entry.name)
    for method, known in METHODS.items()
    for entry in algorithms.catalogue()
    if entry.collective == known.collective and entry.runs_on(P)
    if known.varies and (known.blocks is ALL or EQUAL_BLOCKS not in entry.needs)
]
REFUSED = [
    (method, entry.name)
    for method, known in METHODS.items()
    for entry in algorithms.catalogue()
    if entry.collective == known.collective
    if known.blocks is OWN and EQUAL_BLOCKS in entry.needs
]

#: Elements of each rank's block: unequal, with empty ones, empty but for one, equal, all empty.
COUNTS = [
    [(7 * rank + 3) % 11 for rank in range(P)],
    [rank % 3 * 40 for rank in range(P)],
    [97 if rank == P // 2 else 0 for rank in range(P)],
    [5] * P,
    [0] * P,
]


def displacements(counts, gap, backwards=False):
    """Blocks with gaps between them, in rank order or the other way round."""
    order = range(len(counts))
    found, at = [0] * len(counts), 1 if gap else 0
    for rank in reversed(order) if backwards else order:
        found[rank] = at
        at += counts[rank] + gap
    return found, at


LAYOUTS = [(0, False), (2, False), (3, True)]


@pytest.fixture(scope="module")
def ours():
    return Intracomm(WORLD)


def numbers(count, rank, start=0):
    return np.arange(start, start + count, dtype="f8") * 8 + rank


def blocked(counts, places, length, rank):
    """A vector with these blocks, and something recognisable in the gaps."""
    vector = np.full(length, -1.0)
    for block, (count, place) in enumerate(zip(counts, places, strict=True)):
        vector[place : place + count] = numbers(count, rank, 100 * block)
    return vector


def same(ours, method, arguments, algorithm):
    """Call the method on both communicators; arguments() makes them anew, last the array to see."""
    results = []
    for comm, how in ((WORLD, {}), (ours, {"algorithm": algorithm})):
        passed, seen = arguments()
        getattr(comm, method)(*passed, **how)
        results.append(seen)
    np.testing.assert_array_equal(results[1], results[0])


def of(method):
    return pytest.mark.parametrize("algorithm", [a for m, a in CASES if m == method])


@of("Allgatherv")
@pytest.mark.parametrize("in_place", [False, True])
def test_allgatherv(ours, algorithm, in_place):
    for counts, how in product(COUNTS, LAYOUTS):
        places, length = displacements(counts, *how)

        def arguments(counts=counts, places=places, length=length):
            recv = np.full(length, -1.0)
            send = numbers(counts[RANK], RANK)
            if in_place:
                recv[places[RANK] : places[RANK] + counts[RANK]] = send
            return (MPI.IN_PLACE if in_place else send, [recv, (counts, places)]), recv

        same(ours, "Allgatherv", arguments, algorithm)


@of("Gatherv")
@pytest.mark.parametrize("in_place", [False, True])
def test_gatherv(ours, algorithm, in_place):
    for counts, how, root in product(COUNTS, LAYOUTS, ROOTS):
        places, length = displacements(counts, *how)

        def arguments(counts=counts, places=places, length=length, root=root):
            send, recv = numbers(counts[RANK], RANK), np.full(length, -1.0)
            if RANK != root:
                return (send, None, root), recv
            if in_place:
                recv[places[RANK] : places[RANK] + counts[RANK]] = send
                send = MPI.IN_PLACE
            return (send, [recv, counts, places, MPI.DOUBLE], root), recv

        same(ours, "Gatherv", arguments, algorithm)


@of("Scatterv")
@pytest.mark.parametrize("in_place", [False, True])
def test_scatterv(ours, algorithm, in_place):
    for counts, how, root in product(COUNTS, LAYOUTS, ROOTS):
        places, length = displacements(counts, *how)

        def arguments(counts=counts, places=places, length=length, root=root):
            send, recv = blocked(counts, places, length, root), np.full(counts[RANK], -2.0)
            if RANK != root:
                return (None, recv, root), recv
            target = MPI.IN_PLACE if in_place else recv
            return ([send, (counts, places), "d"], target, root), send if in_place else recv

        same(ours, "Scatterv", arguments, algorithm)


def exchanged(kind):
    """Elements that rank i sends to rank j."""
    if kind == "empty":
        return np.zeros((P, P), int)
    i, j = np.indices((P, P))
    counts = (i * 5 + j * 3) % 7
    return counts + counts.T if kind == "symmetric" else counts


@of("Alltoallv")
@pytest.mark.parametrize("kind", ["any", "symmetric", "empty", "in_place"])
def test_alltoallv(ours, algorithm, kind):
    table = exchanged("symmetric" if kind == "in_place" else kind)
    sent, received = [int(n) for n in table[RANK]], [int(n) for n in table[:, RANK]]
    for how in LAYOUTS:
        places, length = displacements(sent, *how)
        targets, end = displacements(received, *how)

        def arguments(places=places, length=length, targets=targets, end=end):
            send = blocked(sent, places, length, RANK)
            if kind == "in_place":
                return (MPI.IN_PLACE, [send, (sent, places)]), send
            recv = np.full(end, -1.0)
            return ([send, (sent, places)], [recv, (np.array(received), targets)]), recv

        same(ours, "Alltoallv", arguments, algorithm)


@of("Alltoallw")
@pytest.mark.parametrize("in_place", [False, True])
def test_alltoallw(ours, algorithm, in_place):
    table = exchanged("symmetric")
    # What ranks i and j exchange is of the type number i + j.
    types = [(MPI.DOUBLE, MPI.INT, MPI.CHAR)[(RANK + other) % 3] for other in range(P)]
    counts = [int(n) for n in table[RANK]]
    sizes = [8] * P  # displacements in bytes: wide enough for each
    places, length = displacements([c * s for c, s in zip(counts, sizes, strict=True)], 8)

    def arguments():
        send = (np.arange(length) * 7 + RANK).astype("u1")
        if in_place:
            return (MPI.IN_PLACE, [send, (counts, places), types]), send
        recv = np.zeros(length, "u1")
        return ([send, counts, places, types], [recv, (counts, places), types]), recv

    same(ours, "Alltoallw", arguments, algorithm)


def concatenate(invec, inoutvec, datatype):
    """x -> a x + b after x -> c x + d, modulo 2^64: associative, not commutative."""
    left = np.frombuffer(invec, "u8").reshape(-1, 2)
    right = np.frombuffer(inoutvec, "u8").reshape(-1, 2)
    right[:, 1] += left[:, 1] * right[:, 0]
    right[:, 0] *= left[:, 0]


@of("Reduce_scatter")
@pytest.mark.parametrize("in_place", [False, True])
def test_reduce_scatter(ours, algorithm, in_place):
    for counts, op in product(COUNTS, (MPI.SUM, MPI.MAX)):

        def arguments(counts=counts, op=op):
            send, recv = numbers(sum(counts), RANK), np.full(counts[RANK], -1.0)
            if in_place:  # what follows the block is undefined
                return (MPI.IN_PLACE, send, counts, op), send[: counts[RANK]]
            return (send, recv, counts, op), recv

        same(ours, "Reduce_scatter", arguments, algorithm)


@of("Reduce_scatter")
def test_reduce_scatter_in_rank_order(ours, algorithm):
    op = MPI.Op.Create(concatenate, commute=False)
    pair = MPI.C_DOUBLE_COMPLEX  # as long as two numbers
    counts = COUNTS[0]

    def arguments():
        send = (np.arange(2 * sum(counts), dtype="u8") + 3 * RANK + 1) * 7
        recv = np.zeros(2 * counts[RANK], "u8")
        return ([send, pair], [recv, pair], counts, op), recv

    if COMMUTATIVE in algorithms.find("reduce_scatter", algorithm).needs:
        with pytest.raises(TypeError, match="needs a commutative operator"):
            ours.Reduce_scatter(*arguments()[0], algorithm=algorithm)
    else:
        same(ours, "Reduce_scatter", arguments, algorithm)
    op.Free()


def test_reduce_scatter_asks_for_the_counts_it_is_not_given(ours):
    counts = COUNTS[0]
    for algorithm in ("ring", "native"):
        recv = np.zeros(counts[RANK])
        ours.Reduce_scatter(np.ones(sum(counts)), recv, algorithm=algorithm)
        assert recv.tolist() == [P] * counts[RANK]


# --- pieces ---


@pytest.mark.parametrize("how", [{"piece": 8, "space": 8}, {"piece": 56, "space": 200}])
def test_messages_longer_than_a_piece(monkeypatch, how):
    """A small limit stands in for the largest count of MPI, 2^31 - 1."""
    build = planning.build
    monkeypatch.setattr(planning, "build", lambda shape, piece: build(shape, **how))
    ours = Intracomm(WORLD.Dup())
    counts = [rank * 5 % 17 + 9 for rank in range(P)]

    def gathered():
        recv = np.full(sum(counts), -1.0)
        return (numbers(counts[RANK], RANK), [recv, counts]), recv

    def reduced():
        recv = np.full(counts[RANK], -1.0)
        return (numbers(sum(counts), RANK), recv, counts), recv

    def exchanged():
        recv = np.full(P * counts[0], -1.0)
        return (numbers(P * counts[0], RANK), [recv, [counts[0]] * P]), recv

    for algorithm in algorithms.names("allgather"):
        if algorithms.find("allgather", algorithm).runs_on(P):
            same(ours, "Allgatherv", gathered, algorithm)
    for algorithm in algorithms.names("reduce_scatter"):
        same(ours, "Reduce_scatter", reduced, algorithm)
    for algorithm in ("linear", "pairwise"):
        same(ours, "Alltoallv", exchanged, algorithm)
    ours._state.plans.clear()  # they serve the next communicator, whose messages are whole
    ours.Free()


# --- forms ---


def test_forms_of_counts_and_displacements(ours):
    for algorithm in ("ring", "native"):
        for spec in (
            lambda a: a,
            lambda a: [a, MPI.DOUBLE],
            lambda a: [a, "d"],
            lambda a: [a, 2],
            lambda a: [a, [2] * P],
            lambda a: [a, (2, 2)],
            lambda a: [a, ([2] * P, None)],
            lambda a: (a, ([2] * P, np.arange(P) * 2), MPI.DOUBLE),
            lambda a: [a, np.full(P, 2), range(0, 2 * P, 2), MPI.DOUBLE],
        ):
            recv = np.zeros(2 * P)
            ours.Allgatherv(np.full(2, RANK + 1.0), spec(recv), algorithm=algorithm)
            assert recv.tolist() == np.repeat(np.arange(P) + 1.0, 2).tolist()


def test_without_counts_the_buffer_is_cut_as_evenly_as_possible(ours):
    length = 2 * P + P // 2
    mine = length // P + (RANK < length % P)
    for algorithm in ("ring", "native"):
        recv = np.zeros(length)
        ours.Allgatherv(np.full(mine, RANK + 1.0), recv, algorithm=algorithm)
        assert np.bincount(recv.astype(int))[RANK + 1] == mine


def test_types_that_mpi_lacks_are_moved(ours):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    counts = COUNTS[0]
    recv = np.zeros(sum(counts), ml_dtypes.bfloat16)
    send = np.full(counts[RANK], RANK, ml_dtypes.bfloat16)
    for how in ({}, {"algorithm": "ring"}):
        recv[:] = -1
        ours.Allgatherv(send, [recv, counts], **how)
        assert recv.astype(int).tolist() == np.repeat(np.arange(P), counts).tolist()


# --- refusals ---


@pytest.mark.parametrize(("method", "algorithm"), REFUSED)
def test_algorithms_that_pass_on_foreign_blocks_are_refused(ours, method, algorithm):
    buffer, one = [np.zeros(P), [1] * P], np.zeros(1)
    arguments = {"Gatherv": (one, buffer), "Scatterv": (buffer, one)}.get(method)
    if arguments is None:
        arguments = (buffer, [np.zeros(P), [1] * P])
    if method == "Alltoallw":
        arguments = tuple(
            [b[0], ([1] * P, range(0, 8 * P, 8)), [MPI.DOUBLE] * P] for b in arguments
        )
    with pytest.raises(ValueError, match=f"{algorithm} passes on blocks of other ranks"):
        getattr(ours, method)(*arguments, algorithm=algorithm)


def test_the_refused_are_known():
    assert {("Gatherv", "binomial"), ("Scatterv", "binomial"), ("Alltoallv", "bruck")} <= {*REFUSED}


def test_an_algorithm_of_the_environment_that_cannot_serve_is_a_fallback(monkeypatch):
    if RANK == 0:
        monkeypatch.setenv("MPICOLL_GATHER", "binomial")
        monkeypatch.setenv("MPICOLL_FALLBACK", "silent")
    ours = Intracomm(WORLD.Dup())
    monkeypatch.delenv("MPICOLL_GATHER", raising=False)
    plain = Intracomm(WORLD.Dup())
    recv = np.zeros(P)
    for comm in (ours, plain):
        comm.Gatherv(np.ones(1), recv)
    assert ours.stats().calls == plain.stats().calls
    plain.Free()
    ours.Gather(np.ones(1), recv)
    assert ours.stats().calls["gather", "binomial"] == 1
    ((_, reason),) = ours.stats().fallbacks
    assert "MPICOLL_GATHER: binomial passes on blocks" in reason
    ours.Free()


BAD = [
    ([3], ValueError, r"1 counts for \d ranks"),
    ([-1] * P, ValueError, "counts -1 must not be negative"),
    (["a"] * P, TypeError, "must be integers, one a rank"),
    ([100] * P, ValueError, "behind the end of a buffer"),
    (([1] * P, [10**6] * P), ValueError, "behind the end of a buffer"),
    ((1, 2, 3), ValueError, r"a tuple of 3 items in the place of \(counts, displacements\)"),
]


@pytest.mark.skipif(P == 1, reason="one count is right for one rank")
@pytest.mark.parametrize(("counts", "error", "text"), BAD)
def test_bad_counts(ours, counts, error, text):
    with pytest.raises(error, match=text):
        ours.Allgatherv(np.zeros(1), [np.zeros(P), counts])


@pytest.mark.skipif(P == 1, reason="needs two blocks")
def test_overlapping_blocks(ours):
    with pytest.raises(ValueError, match="blocks 0 and 1 overlap"):
        ours.Allgatherv(np.zeros(2), [np.zeros(2 * P), ([2] * P, range(P))])
    # A rank may send the same element to several others.
    send, recv = np.arange(1.0 * P), np.zeros(1)
    ours.Scatterv([send, ([1] * P, [0] * P)], recv, algorithm="linear")
    assert recv[0] == 0


def test_a_send_buffer_in_a_gap_of_the_receive_buffer(ours):
    both = np.full(P + 1, -1.0)
    both[0] = RANK
    ours.Allgatherv(both[:1], [both, ([1] * P, range(1, P + 1))], algorithm="ring")
    assert both.tolist() == [RANK, *range(P)]
    with pytest.raises(ValueError, match="overlap, which MPI forbids"):
        ours.Allgatherv(both[RANK + 1 : RANK + 2], [both, ([1] * P, range(1, P + 1))])


def test_what_a_rank_sends_to_itself_must_fit(ours):
    with pytest.raises(ValueError, match="sends 16 bytes to itself but receives 8"):
        ours.Allgatherv(np.zeros(2), [np.zeros(P), [1] * P])
    with pytest.raises(ValueError, match=r"send buffer of .* but receive buffer of"):
        ours.Allgatherv(np.zeros(2, "f4"), [np.zeros(P), [1] * P])
    with pytest.raises(ValueError, match=r"recvcounts=\[.*\] ask for"):
        ours.Reduce_scatter(np.zeros(P + 1), np.zeros(1), [1] * P)
    with pytest.raises(ValueError, match=r"MPI.IN_PLACE as receive buffer of Allgatherv"):
        ours.Allgatherv(np.zeros(2), MPI.IN_PLACE)
