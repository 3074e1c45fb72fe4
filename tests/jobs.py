"""Jobs that a test starts itself: scripts under mpirun that may fail, or hang."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import launch

SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
LIMIT = 60
PREAMBLE = """
import sys
import numpy as np
from mpi4py import MPI
from mpicoll.comm import Intracomm, abort_on_exception
world = MPI.COMM_WORLD
comm = Intracomm(world)
"""


def run(directory, ranks, script, *python, **variables):
    """Run a script on some ranks: exit status, standard output, standard error.

    Args:
        directory: an empty one, removed afterwards.
        ranks: how many.
        script: what each rank runs, behind `PREAMBLE`.
        python: options of Python.
        variables: environment variables of the ranks.
    """
    path = directory / "script.py"
    path.write_text(PREAMBLE + textwrap.dedent(script))
    package = Path(__file__).resolve().parent.parent
    environment = {
        **SETTINGS,
        **os.environ,
        **variables,
        "TMPDIR": str(directory),
        "PYTHONPATH": os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")]),
    }
    process = subprocess.Popen(
        [*launch._mpirun(), "-n", str(ranks), sys.executable, *python, str(path)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    started = launch.Launch("job", LIMIT, directory)
    end = time.monotonic() + LIMIT
    try:
        while True:
            # Ranks that are killed cannot remove what they share; see it while they live.
            started.note_shared_memory()
            try:
                out, err = process.communicate(timeout=0.05)
            except subprocess.TimeoutExpired:
                assert time.monotonic() < end, f"still there after {LIMIT} s"
            else:
                return process.returncode, out, err
    finally:
        launch._clean(process, started)
