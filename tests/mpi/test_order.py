"""Rings over MPI that visit the ranks in an order of the caller's."""

import numpy as np
import pytest
from arguments import P, call, fill, made
from connected import connected
from mpi4py import MPI

from mpicoll import algorithms, local
from mpicoll.base import caller
from mpicoll.bench import sweep
from mpicoll.bench.settings import SweepSettings
from mpicoll.comm import Intracomm
from mpicoll.errors import FallbackWarning
from mpicoll.schedule.parameters import PERMUTATION

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK = WORLD.rank

CASES = [(a.collective, a.name) for a in algorithms.catalogue() if PERMUTATION in a.kinds.values()]


def orders():
    """The natural one, it backwards, and a mixture."""
    ranks = list(range(P))
    mixed = [int(rank) for rank in np.random.default_rng(P).permutation(P)]
    return [(), ranks, ranks[::-1], np.array(mixed)]


@pytest.fixture
def ours():
    comm = connected(WORLD.Dup())
    yield comm
    comm.Free()


@pytest.mark.parametrize("mode", ["", "I", "_init"])
@pytest.mark.parametrize(("collective", "algorithm"), CASES)
def test_the_bits_are_those_of_the_same_ring_in_process(ours, collective, algorithm, mode):
    entry = algorithms.find(collective, algorithm)
    for count, order in ((c, o) for c in (0, 1, P + 1, 17) for o in orders()):
        send, recv = made(collective, count, "f4", 0, in_place=False)
        if entry.definition.reduces:
            send[:] = np.float32(10.0) ** np.random.default_rng(RANK).integers(-8, 8, send.size)
        request = call(ours, collective, send, recv, mode=mode, algorithm=algorithm, order=order)
        if mode == "_init":
            request.Start()
        if mode:
            request.Wait()
        given = WORLD.allgather(send)
        want = local.execute(entry, given, "sum", 0, {"order": order})[RANK]
        assert recv.tobytes() == want.tobytes()
    assert set(ours.stats().calls) == {(collective, algorithm)}


def test_a_wrong_order_is_refused_on_all_ranks(ours):
    send, recv = fill("f8", 8, RANK), np.zeros(8)
    with pytest.raises(ValueError, match=r"Allreduce by .*order=\(1, 0, .*is for .* ranks"):
        ours.Allreduce(send, recv, algorithm="ring", order=(1, 0, *range(2, P + 2)))
    with pytest.raises(ValueError, match=r"order=\(0, 0\) must be a sequence with each"):
        ours.Allreduce(send, recv, algorithm="ring", order=(0, 0))
    with pytest.raises(ValueError, match="linear has no parameter 'order'"):
        ours.Allreduce(send, recv, algorithm="linear", order=range(P))


@pytest.mark.mpi(min_size=3)
def test_the_environment_names_an_order_for_communicators_of_its_size(monkeypatch):
    order = [*range(1, P), 0]
    monkeypatch.setenv("MPICOLL_ALLREDUCE", f"ring order={','.join(map(str, order))}")
    monkeypatch.setattr(caller, "_WARNED", set())
    ours = Intracomm(WORLD.Dup())
    words = f"ring order={','.join(map(str, order))} (MPICOLL_ALLREDUCE)"
    assert words in ours.explain("allreduce")
    recv = np.zeros(3)
    ours.Allreduce(np.ones(3), recv)
    assert ours.stats().calls == {("allreduce", "ring"): 1}
    part = ours.Split(RANK == 0, RANK)
    assert words not in part.explain("allreduce")
    if part.rank == 0:
        with pytest.warns(FallbackWarning, match=r"order=.* so \w+ serves"):
            part.Allreduce(np.ones(3), recv)
    else:
        part.Allreduce(np.ones(3), recv)
    assert recv.tolist() == [part.size] * 3
    assert sum(part.stats().fallbacks.values()) == 1
    part.Free()
    ours.Free()


def test_bench_measures_an_order():
    reversed_ = ",".join(map(str, reversed(range(P)))) + "," * (P == 1)
    settings = SweepSettings(
        algorithms={"allreduce": (f"ring order={reversed_}", "native")},
        sizes=(64,),
        dtypes=(np.dtype("f4"),),
        warmup=1,
        iterations=2,
        timeout=50.0,
    )
    ours = Intracomm(WORLD)
    points = []
    sweep.sweep(ours, settings, points.append)
    points = ours.bcast(points)
    assert {p.choice for p in points} == {"native", f"ring order={reversed_}"}
    assert all(p.wrong == 0 for p in points)
