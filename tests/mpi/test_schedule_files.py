"""Schedule files on real ranks: right results, read by rank 0 alone, refused on all alike."""

import json
import os
import random
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

pytest.importorskip("pydantic")

from mpicoll import Intracomm
from mpicoll.errors import Disagreement
from mpicoll.files import schedule_files
from mpicoll.synthesis import forest
from mpicoll.synthesis.pack import Forest, Part

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "bcast", "reduce")


def tree(root, dice):
    """Any tree among all ranks."""
    parent, reached = [root] * P, [root]
    for rank in dice.sample([r for r in range(P) if r != root], P - 1):
        parent[rank] = dice.choice(reached)
        reached.append(rank)
    return tuple(parent)


def content(collective, strands, seed=0, root=None, **more):
    """Any trees, of so many strands."""
    dice = random.Random(seed)
    count = P if collective in ("allgather", "reduce_scatter") else 1
    up = collective in ("allreduce", "reduce_scatter", "reduce")
    down = collective in ("allreduce", "allgather", "bcast")

    def part(block):
        top = block if count > 1 else dice.randrange(P) if root is None else root
        return Part(block, top, tree(top, dice) if up else None, tree(top, dice) if down else None)

    parts = tuple(tuple(part(block) for block in range(count)) for _ in range(strands))
    needs, order = forest.promises(collective)
    programs = forest.programs(Forest(collective, parts, 0.0, ()), P)
    rendered = schedule_files.Content(
        collective, programs, root, count, needs=needs, order=order, **more
    )
    return schedule_files.render(rendered)


@pytest.fixture
def folder():
    """A folder whose name all ranks know, and that rank 0 alone writes into."""
    path = Path(WORLD.bcast(tempfile.mkdtemp() if RANK == 0 else None))
    yield path
    WORLD.Barrier()
    if RANK == 0:
        shutil.rmtree(path)


@pytest.fixture
def ours():
    comm = Intracomm(WORLD.Dup())
    yield comm
    comm.Free()


def put(folder, written, name="a.json"):
    if RANK == 0:
        (folder / name).write_bytes(written)
    WORLD.Barrier()
    return str(folder / name)


def vector(count, dtype, rank=RANK):
    return (np.arange(count) % 7 + rank).astype(dtype)


def check(comm, collective, count, dtype, root, start=None, **choice):
    """Run a collective of ``count`` elements a block, and compare with NumPy."""
    every = [vector(count * P, dtype, rank) for rank in range(P)]
    own = slice(RANK * count, (RANK + 1) * count)
    total = np.sum(every, axis=0).astype(dtype)
    if collective == "allreduce":
        out = np.zeros(count * P, dtype)
        comm.Allreduce(every[RANK], out, **choice)
        assert np.array_equal(out, total)
        comm.Allreduce(MPI.IN_PLACE, every[RANK], **choice)
        assert np.array_equal(every[RANK], total)
    elif collective == "reduce_scatter":
        out = np.zeros(count, dtype)
        comm.Reduce_scatter_block(every[RANK], out, **choice)
        assert np.array_equal(out, total[own])
    elif collective == "allgather":
        out = np.zeros(count * P, dtype)
        comm.Allgather(every[RANK][own], out, **choice)
        assert np.array_equal(
            out, np.concatenate([e[r * count :][:count] for r, e in enumerate(every)])
        )
    elif collective == "bcast":
        comm.Bcast(every[RANK], root=root, **choice)
        assert np.array_equal(every[RANK], vector(count * P, dtype, root))
    else:
        out = np.zeros(count * P, dtype) if RANK == root else None
        comm.Reduce(every[RANK], out, root=root, **choice)
        assert RANK != root or np.array_equal(out, total)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("strands", [1, 2, 3])
def test_results(ours, folder, collective, strands):
    root = P - 1 if collective in ("bcast", "reduce") else None
    path = put(folder, content(collective, strands, strands, root))
    for segments in (1, 3):
        for count in (0, 1, 2, 17, 1000):
            for dtype in ("i4", "f4", "f8"):
                choice = {"algorithm": f"file:{path}", "segments": segments, "window": 2}
                check(ours, collective, count, dtype, root or 0, **choice)
    ran = [name for of, name in ours.stats().calls if of == collective]
    assert len(ran) == 1
    assert ran[0].startswith(f"file:{path}#")


def test_all_ranks_get_the_same_bits(ours, folder):
    path = put(folder, content("allreduce", 3, 5))
    given = np.random.default_rng(RANK).standard_normal(999)
    out = np.zeros(999)
    ours.Allreduce(given, out, algorithm=f"file:{path}", segments=2)
    assert len(set(WORLD.allgather(out.tobytes()))) == 1


def test_rank_0_alone_has_the_file(ours, folder):
    """The others are told what is in it: here they have another one."""
    path = put(folder, content("allreduce", 2, 1))
    if RANK:
        os.chdir(tempfile.gettempdir())
    own = os.path.relpath(path) if RANK == 0 else None
    relative = WORLD.bcast(own)
    check(ours, "allreduce", 3, "i4", 0, algorithm=f"file:{relative}")


def test_non_blocking_and_persistent_calls_after_load(ours, folder):
    path = put(folder, content("allreduce", 2, 1))
    given, out = vector(9, "f8"), np.zeros(9)
    total = np.sum([vector(9, "f8", rank) for rank in range(P)], axis=0)
    for method in (ours.Iallreduce, ours.Allreduce_init):
        with pytest.raises(ValueError, match=r"has not been loaded.*call comm.load\('.*a.json'\)"):
            method(given, out, algorithm=f"file:{path}")
    ours.load(path)
    ours.Iallreduce(given, out, algorithm=f"file:{path}").Wait()
    assert np.array_equal(out, total)
    request = ours.Allreduce_init(given, out, algorithm=f"file:{path}", segments=2)
    for _ in range(2):
        out[:] = 0
        request.Start()
        request.Wait()
        assert np.array_equal(out, total)
    request.Free()


def test_a_file_that_changes_is_read_again_by_load_alone(ours, folder):
    path = put(folder, content("allreduce", 1, 1))
    check(ours, "allreduce", 3, "i4", 0, algorithm=f"file:{path}")
    put(folder, content("allreduce", 2, 2))
    check(ours, "allreduce", 3, "i4", 0, algorithm=f"file:{path}")
    assert len(ours.stats().calls) == 1
    ours.load(path)
    check(ours, "allreduce", 3, "i4", 0, algorithm=f"file:{path}")
    assert len(ours.stats().calls) == 2


@pytest.mark.parametrize("kind", ["missing", "damaged", "other ranks", "wrong", "other collective"])
def test_what_is_refused_is_refused_on_all_ranks_alike(ours, folder, kind):
    plain = json.loads(content("allreduce", 1))
    programs = plain["programs"]
    written = {
        "missing": b"",
        "damaged": b"{",
        "other ranks": {**plain, "ranks": P + 1, "programs": [*programs, programs[0]]},
        "wrong": {**plain, "programs": [[[[]]]] * P},
        "other collective": json.loads(content("bcast", 1, root=0)),
    }[kind]
    path = put(folder, written if isinstance(written, bytes) else json.dumps(written).encode())
    if kind == "missing":
        path += ".not"
    if P == 1 and kind == "wrong":
        return  # nothing to do is right
    with pytest.raises(ValueError, match=r"a\.json") as raised:
        ours.Allreduce(np.ones(2), np.zeros(2), algorithm=f"file:{path}")
    assert len(set(WORLD.allgather(str(raised.value)))) == 1
    check(ours, "allreduce", 2, "i4", 0)  # nothing is broken


def test_another_root_is_refused(ours, folder):
    path = put(folder, content("bcast", 1, root=0))
    if P == 1:
        return
    with pytest.raises(ValueError, match="made for root 0, not for 1"):
        ours.Bcast(np.ones(2), root=1, algorithm=f"file:{path}")


def test_ranks_that_name_different_files(ours, folder):
    for name in "ab":
        put(folder, content("allreduce", 1), f"{name}.json")
    path = folder / ("a.json" if RANK == 0 else "b.json")
    if P == 1:
        return
    with pytest.raises(ValueError, match="the ranks name different schedule files"):
        ours.load(str(path))


def test_ranks_that_run_different_files_are_told_apart_where_that_is_checked(folder, monkeypatch):
    if RANK == 0:
        monkeypatch.setenv("MPICOLL_CHECK", "1")
    comm = Intracomm(WORLD.Dup())
    names = [put(folder, content("allreduce", 1, n), f"{n}.json") for n in range(2)]
    for name in names:
        comm.load(name)
    if P > 1:
        with pytest.raises(Disagreement, match="algorithm: file:"):
            comm.Allreduce(np.ones(2), np.zeros(2), algorithm=f"file:{names[min(RANK, 1)]}")
    comm.Free()


# --- the environment, rules, hints ----------------------------------------------------------------


def ran(comm):
    before = comm.stats().calls
    comm.Allreduce(np.ones(2), np.zeros(2))
    now = comm.stats().calls.items()
    return next(key[1] for key, count in now if count > before.get(key, 0))


def test_the_environment_of_rank_0(folder, monkeypatch):
    path = put(folder, content("allreduce", 2))
    if RANK == 0:
        monkeypatch.setenv("MPICOLL_ALLREDUCE", f"file:{path} segments=2")
    comm = Intracomm(WORLD.Dup())
    assert ran(comm).startswith(f"file:{path}#")
    assert "segments=2" in comm.explain("allreduce", 8)
    again = comm.Dup()
    assert ran(again) == ran(comm)
    again.Free()
    comm.Free()


def test_a_wrong_file_in_the_environment(folder, monkeypatch):
    path = put(folder, b"{")
    if RANK == 0:
        monkeypatch.setenv("MPICOLL_ALLREDUCE", f"file:{path}")
    with pytest.raises(ValueError, match=r"MPICOLL_ALLREDUCE=.*a.json"):
        Intracomm(WORLD.Dup()).Barrier()


def test_hints(ours, folder):
    path = put(folder, content("allreduce", 1))
    info = MPI.Info.Create()
    info.Set("mpicoll_allreduce", f"file:{path}")
    ours.Set_info(info)
    info.Free()
    assert ran(ours).startswith(f"file:{path}#")


@pytest.mark.parametrize("hosts", ["none", "these", "others"])
def test_rules_skip_a_schedule_for_other_hosts(folder, monkeypatch, hosts):
    """All ranks are on one host here."""
    labels = {"none": (), "these": (3,) * P, "others": (0,) + (1,) * (P - 1)}[hosts]
    path = put(folder, content("allreduce", 1, hosts=labels))
    rules = {"allreduce": [{"algorithms": [f"file:{path}", "linear"]}]}
    file = put(folder, json.dumps({"mpicoll": "tuning 1", "rules": rules}).encode(), "rules.json")
    if RANK == 0:
        monkeypatch.setenv("MPICOLL_TUNING", file)
    comm = Intracomm(WORLD.Dup())
    assert ran(comm).startswith("linear" if hosts == "others" and P > 1 else "file:")
    comm.Free()


def test_a_schedule_for_other_hosts_that_is_named_is_warned_of(ours, folder, recwarn):
    if P == 1:
        return
    path = put(folder, content("allreduce", 1, hosts=(0,) + (1,) * (P - 1)))
    check(ours, "allreduce", 2, "i4", 0, algorithm=f"file:{path}")
    told = [w for w in recwarn.list if "made for ranks on other hosts" in str(w.message)]
    assert len(told) == (RANK == 0)


def test_finalists_are_measured_by_turns(ours, folder):
    from mpicoll.bench.finalists import measure

    path = put(folder, content("allreduce", 2))
    ours.load(path)
    seconds = measure(ours, "allreduce", 1000, ["native", "ring", f"file:{path} segments=2"])
    assert len(seconds) == 3
    assert min(seconds) > 0
