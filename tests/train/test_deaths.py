"""Ranks that die where none stands in for them: the run ends on all ranks, and says who died."""

import json

import launch
import pytest

PROGRAM = """
import json, os, signal, sys
from mpicoll.train import threads
threads.limit_blas_threads()
from mpi4py import MPI
import mpicoll
from mpicoll.train import Config, data, main

tests, victim, where, times, changes = json.loads(sys.argv[1])
sys.path[:0] = [tests]
from clouds import clouds
from dying import before_call

comm = mpicoll.Intracomm(MPI.COMM_WORLD)
data.load_digits = clouds
data.DATASETS["digits"] = lambda: data.load_digits()
if comm.rank == victim:
    before_call(where, times, lambda: os.kill(os.getpid(), signal.SIGKILL))
config = Config(dataset="digits", epochs=50, batch=8, **changes)
sys.exit(main(config, comm, compare=False))
"""

SERVERS = {"strategy": "parameter_server", "servers": "2", "replicas": 1}


@pytest.mark.skipif(
    "Open MPI v5" not in launch._library(), reason="all ranks end with one, by this library"
)
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("changes", "victim", "where", "times", "who"),
    [
        ({"data_servers": 1}, 3, "driver.data_servers._DataServer._batch", 20, "a data server"),
        pytest.param(
            *({"data_servers": 2}, 2, "driver.data_servers._DataServer._batch", 20),
            "a data server",
            marks=pytest.mark.long,
        ),
        ({"data_servers": 1}, 3, "data.load_digits", 1, "a data server"),
        (
            {"data_servers": 1, "strategy": "parameter_server"},
            3,
            "driver.data_servers._DataServer._batch",
            20,
            "a data server",
        ),
        (
            {"data_servers": 1, "strategy": "parameter_server", "servers": "1"},
            3,
            "driver.data_servers._DataServer._batch",
            20,
            "a data server",
        ),
        (SERVERS, 3, "data.load_digits", 1, "a server"),
        (SERVERS, 2, "driver.checkpointing.Checkpointing.restore", 1, "a server"),
        pytest.param(
            *(SERVERS, 1, "ranks.stacks.Stacks._catch_signal", 1, "a worker"),
            marks=pytest.mark.long,
        ),
        ({}, 1, "strategies.lockstep.Trainer.step", 40, "a worker"),
        ({"algorithm": None}, 0, "strategies.lockstep.Trainer.step", 40, "a worker"),
        pytest.param(
            *({"data_servers": 1}, 1, "strategies.lockstep.Trainer.step", 40, "a worker"),
            marks=pytest.mark.long,
        ),
    ],
    ids=[
        "data",
        "one of two",
        "reading",
        "colocated",
        "servers of both kinds",
        "server reads",
        "server",
        "worker",
        "in lockstep",
        "in lockstep by the library",
        "in lockstep with data",
    ],
)
def test_a_death_that_nobody_makes_good_ends_the_run(
    mpirun, tmp_path, changes, victim, where, times, who
):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    job = json.dumps([str(launch.ROOT / "tests"), victim, where, times, changes])
    done = mpirun(4, program, job, options=("--with-ft", "ulfm"), limit=30)
    assert done.status != 0
    assert done.err.count(f"error: rank {victim}, {who}, has died, and nobody stands in") == 1
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"data_servers": 1}, "driver.data_servers._DataServer._batch"),
        ({"strategy": "parameter_server", "servers": "1"}, "servers.server.Server._give"),
    ],
    ids=["data server", "server"],
)
def test_a_server_that_answers_no_more_is_awaited_for_as_long_as_was_said(
    mpirun, tmp_path, changes, where
):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("SIGKILL", "SIGSTOP"))
    job = json.dumps([str(launch.ROOT / "tests"), 2, where, 20, changes])
    environment = {"MPICOLL_TIMEOUT": "1"}
    done = mpirun(3, "-m", "mpi4py", program, job, environment=environment, limit=20)
    assert done.status != 0
    assert "no message has come within MPICOLL_TIMEOUT=1 s: a rank hangs or is" in done.err
