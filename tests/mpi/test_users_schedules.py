"""Schedules that are not of the catalogue: verified before they run, on all ranks or on none."""

from functools import partial

import numpy as np
import pytest
from mpi4py import MPI
from outside import registering

from mpicoll.comm import Intracomm
from mpicoll.engine import planning
from mpicoll.errors import Disagreement
from mpicoll.schedule import Copy, Recv, Send, layout, scratch
from mpicoll.schedule.memory import ScheduleError

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank


@pytest.fixture(params=["auto", "mpi"])
def ours(request, monkeypatch):
    monkeypatch.setenv("MPICOLL_TRANSPORT", request.param)
    comm = Intracomm(WORLD.Dup())
    comm.Barrier(algorithm="dissemination")
    yield comm
    out = np.zeros(1)
    comm.Allreduce(np.ones(1), out, algorithm="linear")
    assert out[0] == P  # nothing is under way, and nobody is left behind
    comm.Free()


@pytest.fixture
def registered():
    """Registers a broadcast under the name ``mine`` for one test."""

    with registering("mine") as add:
        yield partial(
            add,
            "bcast",
            rounds=lambda P: int(P > 1),
            messages=lambda P: P - 1,
            blocks_sent_max=lambda P: P - 1,
            textbook=lambda P, n, a, b, g: 0.0,
            reference="a test",
        )


def sends_to(peer):
    """A broadcast whose rank 0 also sends to a peer."""

    def schedule(rank, size, root):
        if rank == root:
            yield *(Send(other, 0) for other in range(size) if other != root), Send(peer, 0)
        else:
            yield Recv(root, 0)

    return schedule


def linear(rank, size, root):
    if rank == root:
        yield tuple(Send(other, 0) for other in range(size) if other != root)
    else:
        yield Recv(root, 0)


def unmatched(rank, size, root):
    yield from linear(rank, size, root)
    if rank == root:
        yield Recv((root + 1) % size, scratch(0))


def more_blocks(rank, size, root):
    yield Send((rank + 1) % size, (0, 0)) if rank == root else Recv(root, 0)


def copies_two(rank, size, root):
    yield from linear(rank, size, root)
    yield Copy((0, 0), scratch(0))


def no_block(rank, size, root):
    yield from linear(rank, size, root)
    yield Copy(0, "block")


def fails(rank, size, root):
    yield from linear(rank, size, root)
    raise IndexError("no such thing")


MORE = pytest.mark.skipif(P == 1, reason="needs a peer")
FAULTS = {
    "behind the last": (sends_to(P), {}, rf"Send\(peer={P}, block=0\) of rank 0 has no such peer"),
    "far behind": (sends_to(10**9), {}, r"Send\(peer=1000000000, block=0\) of rank 0 has no such"),
    "before the first": (sends_to(-1), {}, r"Send\(peer=-1, block=0\) of rank 0 has no such peer"),
    "itself": (sends_to(0), {}, rf"Send\(peer=0, block=0\) of rank 0 has no such peer among {P}"),
    "copies": (copies_two, {"scratch": lambda P: 1}, "copies to another number of blocks"),
    "no block": (no_block, {}, "a block is an int, a range or a tuple"),
    "an exception": (fails, {}, "IndexError: no such thing"),
    "unmatched": (
        unmatched,
        {"scratch": lambda P: 1},
        "of rank 0 has no such peer" if P == 1 else "never completes",
    ),
    "lengths": (
        more_blocks,
        {},
        "has no such peer" if P == 1 else "sends 2 blocks to rank 1|never completes",
    ),
}
WAYS = {
    "blocking": lambda comm, *given, **how: comm.Bcast(*given, **how),
    "non-blocking": lambda comm, *given, **how: comm.Ibcast(*given, **how).Wait(),
    "persistent": lambda comm, *given, **how: comm.Bcast_init(*given, **how),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_the_same_error_on_all_ranks(ours, registered, name, way):
    schedule, more, text = FAULTS[name]
    registered(schedule, **more)
    for _ in range(2):
        with pytest.raises(
            ScheduleError, match=rf"^bcast mine on {P} ranks?: .*({text})"
        ) as caught:
            WAYS[way](ours, np.zeros(4), algorithm="mine")
    assert len(set(WORLD.allgather(str(caught.value)))) == 1


def test_what_is_right_runs_in_every_way(ours, registered):
    registered(linear)
    for root in {0, P - 1}:
        for way in WAYS.values():
            data = np.full(5, RANK)
            plan = way(ours, data, root, algorithm="mine")
            if way is WAYS["persistent"]:
                plan.Start()
                plan.Wait()
                plan.Free()
            assert data.tolist() == [root] * 5
    assert ours.stats().calls["bcast", "mine"] == 3 * len({0, P - 1})


def through_another_block(rank, size, root):
    """Right as long as both blocks are equally long."""
    if rank == root:
        yield tuple(Send(other, (0, 1)) for other in range(size) if other != root)
    else:
        yield Recv(root, (scratch(1), 1))
        yield Copy(scratch(1), 0)


@MORE
@pytest.mark.parametrize("way", WAYS)
def test_blocks_that_may_differ_in_length(ours, registered, way):
    """Whether they do depends on the call; a block of another length would be overrun."""
    registered(through_another_block, blocks=lambda P: 2, scratch=lambda P: 2)
    with pytest.raises(ScheduleError, match="in scratch block 1: lengths may differ") as caught:
        WAYS[way](ours, np.zeros(6, np.uint8), algorithm="mine")
    assert len(set(WORLD.allgather(str(caught.value)))) == 1


@MORE
def test_a_fault_that_one_rank_alone_has(ours, registered):
    """Where the ranks do not run the same program, those without a fault hear of it."""
    registered(sends_to(P) if RANK == P - 1 else linear)
    with pytest.raises(ScheduleError, match=rf"Send\(peer={P}, block=0\) of rank 0") as caught:
        ours.Bcast(np.zeros(4), algorithm="mine")
    assert len(set(WORLD.allgather(str(caught.value)))) == 1


@MORE
def test_schedules_that_differ(ours, registered):
    def one_by_one(rank, size, root):
        for other in range(size):
            if root not in (rank, other) and rank == other:
                yield Recv(root, 0)
            elif rank == root != other:
                yield Send(other, 0)

    def one_by_one_backwards(rank, size, root):
        rounds = [*one_by_one(rank, size, root)]
        yield from [(), *rounds[::-1], *([Copy(0, scratch(0))] if rank == root else [])]

    registered(one_by_one_backwards if RANK else one_by_one, scratch=lambda P: 1)
    with pytest.raises(Disagreement, match=r"schedule of bcast mine: .* on rank 0, .* on rank"):
        ours.Bcast(np.zeros(4), algorithm="mine")


# --- the plan of one rank ---


@pytest.mark.parametrize("peer", [P, -1, 0, 10**12])
def test_no_plan_has_an_impossible_peer(registered, peer):
    """Whoever builds it: verified or not."""
    registered(sends_to(peer))
    cut = layout.even(4, 1)
    shape = planning.Shape("bcast", "mine", (), 0, P, 0, True, 1, 1, cut, cut)
    with pytest.raises(ScheduleError, match=rf"Send\(peer={peer}, block=0\) of rank 0 has no such"):
        planning.build(shape)


def test_no_plan_copies_to_another_length(registered):
    def schedule(rank, size, root):
        yield Copy(0, scratch(1))

    registered(schedule, blocks=lambda P: 2, scratch=lambda P: 2)
    for count, fits in ((4, True), (5, False)):
        cut = layout.even(count, 2)
        shape = planning.Shape("bcast", "mine", (), 0, P, 0, True, 1, 1, cut, cut)
        if fits:
            assert planning.build(shape)
            continue
        with pytest.raises(ScheduleError, match="copies to a block of another length"):
            planning.build(shape)
