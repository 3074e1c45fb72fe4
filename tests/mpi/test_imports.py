"""MPICOLL_IMPORT: all ranks import what rank 0 names, or none goes on."""

import numpy as np
import pytest
from mpi4py import MPI
from outside import MODULE

from mpicoll.base import extensions
from mpicoll.comm import Intracomm

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("nothing_from_outside")]

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank


def test_all_ranks_import_what_rank_0_names(monkeypatch, tmp_path):
    (tmp_path / "around_all.py").write_text(MODULE)
    path = WORLD.bcast(str(tmp_path / "around_all.py"))
    WORLD.Barrier()
    if RANK == 0:
        monkeypatch.setenv(extensions.VARIABLE, path)
        monkeypatch.setenv("MPICOLL_BCAST", "around")
    comm = Intracomm(WORLD.Dup())
    for how in ({}, {"algorithm": "around"}):
        data = np.full(3, RANK)
        comm.Barrier(algorithm="dissemination")
        comm.Bcast(data, P - 1, **how)
        assert data.tolist() == [P - 1] * 3
    assert comm.stats().calls["bcast", "around"] == 2
    comm.Free()


def test_one_rank_that_cannot_import_stops_all(monkeypatch, tmp_path):
    fails = (
        MODULE + f"\nfrom mpi4py import MPI\nassert MPI.COMM_WORLD.rank != {P - 1}, 'not here'\n"
    )
    (tmp_path / "around_some.py").write_text(fails)
    path = WORLD.bcast(str(tmp_path / "around_some.py"))
    WORLD.Barrier()
    if RANK == 0:
        monkeypatch.setenv(extensions.VARIABLE, path)
    comm = WORLD.Dup()
    with pytest.raises(ValueError, match=r"^MPICOLL_IMPORT.*AssertionError: not here") as caught:
        Intracomm(comm)
    assert len(set(WORLD.allgather(str(caught.value)))) == 1
    comm.Free()
