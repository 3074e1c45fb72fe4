"""A rank that does not come to a step of a pipeline."""

SCRIPT = """
import time
import numpy as np
from mpi4py import MPI
import mpicoll
from mpicoll.train.models import Dense
from mpicoll.train.parallel import Mesh, Pipeline

comm = mpicoll.Intracomm(MPI.COMM_WORLD)
pipeline = Pipeline([Dense(3), Dense(3)], Mesh(comm, pipe=2), microbatches=2, inputs=(2,))
if comm.rank:
    time.sleep(60)
pipeline.step(np.ones((4, 2), np.float32), np.zeros(4, int))
"""


def test_the_others_wait_no_longer_than_the_limit(mpirun, tmp_path):
    (tmp_path / "hangs.py").write_text(SCRIPT)
    environment = {"MPICOLL_TIMEOUT": "2"}
    done = mpirun(2, "-m", "mpi4py", tmp_path / "hangs.py", environment=environment)
    assert done.status
    assert "TimeoutError: no message has come within MPICOLL_TIMEOUT=2 s: a rank hangs" in done.err
    assert "[rank 1]" not in done.err
