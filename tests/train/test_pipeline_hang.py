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
for attempt in range(2):
    try:
        pipeline.step(np.ones((4, 2), np.float32), np.zeros(4, int))
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        if attempt:
            raise
"""


def test_the_others_wait_no_longer_than_the_limit(mpirun, tmp_path):
    (tmp_path / "hangs.py").write_text(SCRIPT)
    environment = {"MPICOLL_TIMEOUT": "2"}
    done = mpirun(2, "-m", "mpi4py", tmp_path / "hangs.py", environment=environment)
    assert done.status
    first, second = done.out.splitlines()
    assert first.startswith("TimeoutError: no message has come within MPICOLL_TIMEOUT=2 s: a rank")
    # At once: the messages of the first step would be taken for those of the second.
    assert second.startswith(f"TrainingError: a step of this pipeline ended early, by {first}")
    assert second.endswith("make a new mesh and pipeline on all ranks")
    assert second in done.err and "[rank 1]" not in done.err
