"""Hierarchical algorithms over MPI, on the nodes where the ranks are and on others."""

import numpy as np
import pytest
from arguments import P, call, fill, made
from connected import connected
from mpi4py import MPI

from mpicoll import algorithms, local
from mpicoll.comm import Intracomm
from mpicoll.runtime import places
from mpicoll.schedule.parameters import LABELS

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK = WORLD.rank

COLLECTIVES = [a.collective for a in algorithms.catalogue() if LABELS in a.kinds.values()]


@pytest.fixture
def ours():
    comm = connected(WORLD.Dup())
    yield comm
    comm.Free()


@pytest.fixture
def in_turn(monkeypatch):
    """A communicator that takes its ranks for those of two nodes, in turn."""
    monkeypatch.setattr(places, "_world", {rank: rank % 2 for rank in range(P)})
    comm = connected(WORLD.Dup())
    yield comm
    comm.Free()


def check_bits(comm, collective, expected, mode="", **parameters):
    """A call has the bits of the in-process runner with the expected parameters."""
    entry = algorithms.find(collective, "hierarchical")
    send, recv = made(collective, 17, "f4", P - 1, in_place=False)
    given = recv if collective == "bcast" else send
    given[:] = np.float32(10.0) ** np.random.default_rng(RANK).integers(-8, 8, given.size)
    whole = WORLD.allgather(given)
    if collective == "bcast":
        whole = [vector if rank == P - 1 else None for rank, vector in enumerate(whole)]
    request = call(
        comm, collective, send, recv, root=P - 1, mode=mode, algorithm="hierarchical", **parameters
    )
    if mode == "_init":
        request.Start()
    if mode:
        request.Wait()
    want = local.execute(entry, whole, "sum", P - 1 if collective == "bcast" else 0, expected)
    assert recv.tobytes() == want[RANK].tobytes()


def test_ranks_on_several_nodes_choose_it_for_long_vectors(monkeypatch, request):
    monkeypatch.setenv("MPICOLL_TRANSPORT", "mpi")  # as between nodes
    comm = request.getfixturevalue("in_turn")
    data = np.full(1 << 15, RANK, np.float32)
    comm.Allreduce(MPI.IN_PLACE, data)
    assert (data == P * (P - 1) / 2).all()
    assert comm.stats().calls.get(("allreduce", "hierarchical"), 0) == (1 if P > 2 else 0)
    comm.Allreduce(MPI.IN_PLACE, data[:1])
    assert sum(comm.stats().calls.values()) == 2
    assert comm.stats().calls.get(("allreduce", "hierarchical"), 0) == (1 if P > 2 else 0)


def test_the_nodes_are_those_of_shared_memory(ours):
    nodes = ours._state.nodes
    assert WORLD.allgather(nodes) == [nodes] * P
    node = WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    together = node.allgather(RANK)
    node.Free()
    assert [rank for rank in range(P) if nodes[rank] == nodes[RANK]] == sorted(together)
    assert list(dict.fromkeys(nodes)) == list(range(len(set(nodes))))


@pytest.mark.parametrize("mode", ["", "I", "_init"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_without_nodes_those_of_the_ranks_serve(ours, in_turn, collective, mode):
    check_bits(ours, collective, {"nodes": ours._state.nodes}, mode)
    check_bits(in_turn, collective, {"nodes": [r % 2 for r in range(P)]}, mode)
    # Also where they are named as open.
    check_bits(in_turn, collective, {"nodes": [r % 2 for r in range(P)]}, mode, nodes=())


@pytest.mark.parametrize("mode", ["I", "_init"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_nodes_of_the_callers(ours, collective, mode):
    for nodes in ([0] * P, range(P), [int(r > 0) for r in range(P)], np.arange(P)[::-1] // 2):
        parameters = {"nodes": nodes, "segments": 3, "window": 2}
        check_bits(ours, collective, parameters, mode, **parameters)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_calls_that_follow_take_the_fast_path(in_turn, collective):
    if in_turn._state.fast_path.path is None:
        pytest.skip("there is no fast path here")
    for _ in range(3):
        check_bits(in_turn, collective, {"nodes": [r % 2 for r in range(P)]})
    # Other nodes go the slow path, and are not taken for these.
    check_bits(in_turn, collective, {"nodes": [0] * P}, nodes=[0] * P)
    check_bits(in_turn, collective, {"nodes": [r % 2 for r in range(P)]})
    short = in_turn._state.fast_path.path.calls()
    assert 1 <= short[collective, "hierarchical"] <= 4
    assert in_turn.stats().calls == {(collective, "hierarchical"): 5}


def test_a_part_of_the_ranks_has_nodes_of_its_own(ours):
    part = ours.Split(RANK % 2, -RANK)
    nodes = part._ready().nodes
    assert len(nodes) == part.size and set(part.allgather(nodes)) == {nodes}
    recv = np.zeros(5)
    part.Allreduce(np.ones(5), recv, algorithm="hierarchical")
    assert recv.tolist() == [part.size] * 5
    part.Free()


def test_the_environment_and_explain_name_them(monkeypatch, in_turn):
    monkeypatch.setenv("MPICOLL_ALLREDUCE", "hierarchical segments=2")
    ours = Intracomm(WORLD.Dup())
    nodes = ",".join(str(r % 2) for r in range(P)) + "," * (P == 1)
    words = f"hierarchical nodes={nodes} segments=2 window=8 (MPICOLL_ALLREDUCE)"
    assert words in ours.explain("allreduce")
    recv = np.zeros(3)
    ours.Allreduce(np.ones(3), recv)
    assert recv.tolist() == [P] * 3
    assert ours.stats().calls == {("allreduce", "hierarchical"): 1}
    ours.Free()


def test_wrong_nodes_are_refused_on_all_ranks(ours):
    send, recv = fill("f8", 8, RANK), np.zeros(8)
    many = tuple(range(P + 2))
    with pytest.raises(ValueError, match=rf"Allreduce by .*nodes=\(0, 1, .*is for {P + 2} ranks"):
        ours.Allreduce(send, recv, algorithm="hierarchical", nodes=many)
    with pytest.raises(ValueError, match=r"nodes=\[-1\].* must be .*integer of at least 0"):
        ours.Allreduce(send, recv, algorithm="hierarchical", nodes=[-1])
    with pytest.raises(ValueError, match="ring has no parameter 'nodes': known are order"):
        ours.Allreduce(send, recv, algorithm="ring", nodes=[0] * P)


def test_a_disagreement_on_nodes_is_found(monkeypatch):
    monkeypatch.setenv("MPICOLL_CHECK", "1")
    ours = Intracomm(WORLD.Dup())
    recv = np.zeros(3)
    nodes = [0] * P if RANK else [1] * (P - 1) + [0]
    if P == 1:
        ours.Allreduce(np.ones(3), recv, algorithm="hierarchical", nodes=nodes)
    else:
        with pytest.raises(RuntimeError, match=r"algorithm: hierarchical nodes=1,.* on rank 0"):
            ours.Allreduce(np.ones(3), recv, algorithm="hierarchical", nodes=nodes)
    ours.Free()


def test_vectors_with_lengths(in_turn):
    counts = [r % 3 for r in range(P)]
    recv = np.zeros(sum(counts))
    mine = np.full(counts[RANK], RANK + 1.0)
    in_turn.Allgatherv(mine, [recv, counts], algorithm="hierarchical")
    assert recv.tolist() == [r + 1.0 for r in range(P) for _ in range(counts[r])]
    whole, got = np.arange(float(sum(counts))), np.zeros(counts[RANK])
    in_turn.Reduce_scatter(whole, got, counts, algorithm="hierarchical")
    first = sum(counts[:RANK])
    assert got.tolist() == (P * whole[first : first + counts[RANK]]).tolist()
