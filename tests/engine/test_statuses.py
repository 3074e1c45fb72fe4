"""A message that has failed is found by its status, also where MPI reports no error of the call."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SOURCE = Path(__file__).with_name("failing_status.c")
PROGRAM = """
import os, sys
if "LD_PRELOAD" not in os.environ:
    os.environ["LD_PRELOAD"] = sys.argv[1]
    os.execv(sys.executable, [sys.executable, *sys.argv])
import numpy as np
from mpi4py import MPI
import mpicoll

comm = mpicoll.Intracomm(MPI.COMM_WORLD)
values = np.ones(1000)
try:
    comm.Allreduce(MPI.IN_PLACE, values, algorithm="ring")
    found = "passed"
except MPI.Exception as error:
    found = "raised" if error.Get_error_class() == MPI.ERR_OTHER else str(error)
print(found, flush=True)
MPI.COMM_WORLD.Barrier()  # what is under way is lost
os._exit(0)
"""


def test_the_engine_looks_at_statuses(mpirun, tmp_path):
    beside = Path(sys.executable).with_name("mpicc")
    compiler = os.environ.get("MPICC") or (beside if beside.exists() else shutil.which("mpicc"))
    if compiler is None:
        pytest.skip("no mpicc")
    library, program = tmp_path / "failing.so", tmp_path / "program.py"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    program.write_text(PROGRAM)
    done = mpirun(2, program, library, environment={"MPICOLL_TRANSPORT": "mpi"})
    assert done.out.split() == ["raised", "raised"], done.err


def test_the_runner_looks_at_statuses(monkeypatch):
    from mpi4py import MPI

    from mpicoll.engine import runner

    def testsome(codes, error=None):
        def call(requests, statuses):
            for code in codes:
                status = MPI.Status()
                status.Set_error(code)
                statuses.append(status)
            if error is not None:
                raise MPI.Exception(error)
            return [*range(len(codes))]

        fake = SimpleNamespace(Testsome=call)
        monkeypatch.setattr(runner, "MPI", SimpleNamespace(**{**vars(MPI), "Request": fake}))
        return runner.completed([])

    assert testsome([MPI.SUCCESS] * 2) == [0, 1]
    for error in (None, MPI.ERR_IN_STATUS):
        with pytest.raises(MPI.Exception) as caught:
            testsome([MPI.SUCCESS, MPI.ERR_PENDING, MPI.ERR_OTHER], error)
        assert caught.value.Get_error_class() == MPI.ERR_OTHER
    with pytest.raises(MPI.Exception) as caught:
        testsome([], MPI.ERR_COMM)
    assert caught.value.Get_error_class() == MPI.ERR_COMM
