"""What a tuning file and a communicator's hints choose."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll import Intracomm

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank


def taken(comm, collective="allreduce", nbytes=8):
    """What would run."""
    return comm.explain(collective, nbytes).split(": ")[1].split(" (")[0]


def ran(comm):
    """What an all-reduce without ``algorithm=`` runs by."""
    before = comm.stats().calls
    comm.Allreduce(np.ones(2), np.zeros(2))
    return [key[1] for key, count in comm.stats().calls.items() if count > before.get(key, 0)]


@pytest.fixture
def ours():
    comm = Intracomm(WORLD.Dup())
    yield comm
    comm.Free()


@pytest.fixture
def file(monkeypatch):
    """Writes the rules of a tuning file that rank 0 names."""
    folder = Path(WORLD.bcast(tempfile.mkdtemp() if RANK == 0 else None))

    def write(rules):
        if RANK == 0:
            (folder / "tuning").write_text(json.dumps({"mpicoll": "tuning 1", "rules": rules}))
            monkeypatch.setenv("MPICOLL_TUNING", str(folder / "tuning"))
        WORLD.Barrier()

    yield write
    WORLD.Barrier()
    if RANK == 0:
        shutil.rmtree(folder)


def test_a_tuning_file_that_rank_0_names(file, monkeypatch):
    pytest.importorskip("pydantic")
    file({"allreduce": [{"algorithms": ["ring"]}, {"nbytes": 9, "algorithms": ["linear"]}]})
    comm = Intracomm(WORLD.Dup())
    assert "tuning file" in comm.explain("allreduce", 8)
    assert (taken(comm), taken(comm, nbytes=9)) == ("ring", "linear")
    assert ran(comm) == ["linear"]
    sub = comm.Split(RANK % 2)
    assert taken(sub) == "ring"
    sub.Free()
    comm.Free()
    if RANK == 0:
        monkeypatch.setenv("MPICOLL_ALLREDUCE", "swing")
    comm = Intracomm(WORLD.Dup())
    assert taken(comm) == "swing" or P == 1
    comm.Free()


def test_a_wrong_tuning_file_is_the_same_error_everywhere(file):
    pytest.importorskip("pydantic")
    file({"allreduce": [{"algorithms": ["rign"]}]})
    comm = WORLD.Dup()
    with pytest.raises(ValueError, match=r"MPICOLL_TUNING: tuning file .*unknown algorithm 'rign'"):
        Intracomm(comm)
    comm.Free()


def test_hints_choose_for_one_communicator(ours):
    other = Intracomm(WORLD.Dup())
    before = taken(other)
    ran(ours)
    ours.Set_info(MPI.Info.Create({"mpicoll_allreduce": "ring", "mpicoll_bcast": "chain"}))
    assert taken(ours) == "ring" and taken(ours, "bcast").startswith("chain ")
    assert ran(ours) == ran(ours) == ["ring"]
    assert ours.Get_info()["mpicoll_allreduce"] == "ring"
    assert taken(other) == before
    ours.Set_info(MPI.Info.Create({"mpicoll_allreduce": "linear", "other": "hint"}))
    assert ran(ours) == ["linear"] and taken(ours, "bcast").startswith("chain ")
    ours.Set_info(MPI.Info.Create({"mpicoll_allreduce": "default"}))
    assert ran(ours) == ran(other) and "mpicoll_allreduce" not in ours.Get_info()
    assert taken(ours, "bcast").startswith("chain ")
    other.Free()


def test_duplicates_have_the_hints_and_children_their_own(ours):
    ours.Set_info(MPI.Info.Create({"mpicoll_allreduce": "ring"}))
    plain = taken(Intracomm(MPI.COMM_SELF)) if P == 1 else None
    chain = MPI.Info.Create({"mpicoll_allreduce": "linear"})
    for made, expected in (
        (ours.Dup(), "ring"),
        (ours.Clone(), "ring"),
        (ours.Dup(chain), "linear"),
        (ours.Dup_with_info(chain), "linear"),
        (ours.Split_type(MPI.COMM_TYPE_SHARED, info=chain), "linear"),
        (ours.Split(0, RANK), plain),
    ):
        assert expected is None or taken(made) == expected
        made.Free()


def test_a_null_info_on_one_rank_is_an_error_everywhere(ours):
    before = taken(ours)
    ours.Set_errhandler(MPI.ERRORS_RETURN)
    with pytest.raises(MPI.Exception):
        ours.Set_info(MPI.Info.Create({"mpicoll_allreduce": "ring"}) if RANK else MPI.INFO_NULL)
    assert taken(ours) == before and ran(ours) == ran(ours)


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        ({"mpicoll_alreduce": "ring"}, "unknown hint 'mpicoll_alreduce': known are mpicoll_allred"),
        ({"mpicoll_allreduce": "rign"}, "mpicoll_allreduce='rign': unknown algorithm 'rign'"),
    ],
)
def test_wrong_hints_of_rank_0_are_an_error_everywhere(ours, hint, message):
    with pytest.raises(ValueError, match=message):
        ours.Set_info(MPI.Info.Create(hint if RANK == 0 else {"mpicoll_allreduce": "ring"}))
    assert taken(ours) != "rign"
