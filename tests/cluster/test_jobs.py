"""Collectives and trainings of ranks on several hosts, which have unequal numbers of them and share
nothing but the network; and what becomes of them when a link is cut."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import launch
import pytest
from clouds import write_samples
from cluster import hosts

from mpicoll import algorithms

pytestmark = [
    pytest.mark.skipif(bool(hosts.missing()), reason=hosts.missing()),
    pytest.mark.timeout(400),
]

RANKS = (2, 1, 2, 1)
NODES = (0, 0, 1, 2, 2, 3)
DELAY, RATE = 50e-6, 2e9  # nothing is measured
LIMIT = 3.0  # seconds that a call may wait, where a link is cut


@pytest.fixture(scope="module")
def cluster():
    with hosts.Cluster(len(RANKS), DELAY, RATE, RANKS, apart=True) as made:
        write_samples(made.shared / "data.npz")
        yield made


def python(cluster, *words, limit=300, **environment):
    """Python on all ranks: what it prints, exit status."""
    command = [*launch.mpirun(), "-n", str(sum(RANKS)), sys.executable, *map(str, words)]
    return cluster.run(
        command, environment=environment, capture_output=True, timeout=limit, errors="replace"
    )


def test_ranks_know_which_host_they_are_on(cluster):
    """The shared memory of a host is its own, and what is hierarchical follows the hosts."""
    code = (
        "from mpi4py import MPI; import mpicoll; comm = mpicoll.Intracomm(MPI.COMM_WORLD); "
        "print(comm._state.nodes, comm.allgather(MPI.Get_processor_name()))"
    )
    done = python(cluster, "-c", code)
    names = [f"h{node + 1}" for node in NODES]
    assert done.stdout.splitlines() == [f"{NODES} {names}"] * len(NODES), done.stderr


def test_every_algorithm_of_the_catalogue(cluster):
    """The same tests as on one host."""
    # What ranks of a test share, they find on a common folder.
    environment = {"TMPDIR": "/mnt/tmp"}
    words = ["-m", "pytest", "--with-mpi", "-p", "no:cacheprovider", "--color=no"]
    paths = ["tests/mpi/test_matrix.py", "tests/mpi/test_hierarchical.py"]
    done = python(cluster, *words, *paths, **environment)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    counts = launch.counts(done.stdout.splitlines()[-1])
    served = [entry for entry in algorithms.catalogue() if entry.runs_on(len(NODES))]
    assert counts["passed"] >= len(served) > 40 and not counts["failed"]


@pytest.mark.parametrize(
    "words",
    [
        ("--algorithm=hierarchical",),
        ("--strategy=zero1", "--optimizer=adam", "--lr=0.001"),
        pytest.param(("--strategy=parameter_server", "--servers=2"), marks=pytest.mark.long),
        pytest.param(("--algorithm=auto", "--wire=bf16"), marks=pytest.mark.long),
    ],
    ids=lambda words: words[0].partition("=")[2],
)
def test_training_is_that_of_one_process(cluster, words):
    run = ["/mnt/shared/data.npz", "--model=mlp", "--hidden=8", "--epochs=3", "--batch=32"]
    run += ["--dtype=float64", "--compare", *words, "--json"]
    done = python(cluster, "-m", "mpicoll", "train", *run, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["ranks"] == len(NODES) and facts["steps"] == 3 * 8
    verdict = facts["difference_from_one_process"]
    assert verdict is None if "--wire=bf16" in words else verdict["ok"]


@pytest.mark.long
@pytest.mark.skipif("Open MPI v5" not in launch._library(), reason="all ranks end with one")
def test_an_exit_is_heard_of_on_all_hosts(cluster):
    """The launcher does not tell of it: the other rank of its host does."""
    program = """
import os
import numpy as np
from mpi4py import MPI
import mpicoll
from mpicoll.base import peers

peers.host = MPI.Get_processor_name  # these hosts share the processes of one kernel
comm = mpicoll.Intracomm(MPI.COMM_WORLD, survive=True)
total = np.zeros(3)
try:
    for number in range(1_000_000):
        if comm.rank == 1 and number == 5:
            os._exit(3)
        comm.Allreduce(np.ones(3), total, algorithm="ring")
except mpicoll.RankLost as lost:
    comm = comm.survivors()
    comm.Allreduce(np.ones(3), total, algorithm="ring")
    print(lost.ranks, total, flush=True)
comm.leave()
"""
    words = ["--with-ft", "ulfm", "--rtos", "error-nonzero-status=0", "-n", str(len(NODES))]
    command = [*launch.mpirun(), *words, sys.executable, "-c", program]
    done = cluster.run(command, capture_output=True, timeout=100, errors="replace")
    assert done.stdout.splitlines() == ["(1,) [5. 5. 5.]"] * 5, done.stderr


@contextmanager
def started(*words):
    """A cluster of its own, on all ranks of which some words run, with a limit for each call."""
    with hosts.Cluster(len(RANKS), DELAY, RATE, RANKS, apart=True) as cluster:
        job = subprocess.Popen(
            cluster.command([*launch.mpirun(), "-n", str(len(NODES)), *words]),
            env={**os.environ, **cluster.environment(), "MPICOLL_TIMEOUT": str(LIMIT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield cluster
        finally:
            job.kill()  # launchers wait for ever for a host that is cut off
            job.wait()


def cut(cluster, host="h3"):
    assert cluster.run(["ip", "link", "set", "eth0", "down"], host).returncode == 0


def wait_for(what, limit, until):
    end = time.monotonic() + limit
    while not until():
        assert time.monotonic() < end, what
        time.sleep(0.05)


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical"])
def test_a_link_that_is_cut_ends_the_call_on_every_rank(algorithm):
    """Also on the host that is cut off; it is a common folder that tells."""
    script = [str(hosts.HERE / "cut.py"), "/mnt/shared", algorithm]
    with started(sys.executable, *script) as cluster:
        folder = cluster.shared
        wait_for("the first call", 60, lambda: len(list(folder.glob("alive-*"))) == len(NODES))
        cut(cluster)
        wait_for("errors", LIMIT + 20, lambda: len(list(folder.glob("error-*"))) == len(NODES))
        for rank, host in enumerate(NODES):
            error = json.loads((folder / f"error-{rank}").read_text())
            assert error["type"] == "TimeoutError", error
            assert f"Allreduce by {algorithm}" in error["words"]
            assert f"has not ended within MPICOLL_TIMEOUT={LIMIT:g} s" in error["words"]
            away = "ranks 0-2, 5" if host == 2 else "ranks 3-4"
            if algorithm == "ring":
                assert f"{away} have not answered" in error["words"]
            assert LIMIT <= error["seconds"] < LIMIT + 10


def test_a_link_that_is_cut_ends_a_training(cluster):
    """All ranks end, those that are cut off, too, and what they say is the reason."""
    train = "-m mpicoll train /mnt/shared/data.npz --epochs=1000000 --no-compare"
    rank = "${OMPI_COMM_WORLD_RANK-$PMI_RANK}"
    line = f"exec {sys.executable} {train} --metrics=/mnt/shared/m 2>/mnt/shared/said-{rank}"
    with started("sh", "-c", line) as alone:
        shutil.copy(cluster.shared / "data.npz", alone.shared)
        metrics = alone.shared / "m" / "rank-0.jsonl"
        wait_for("steps", 60, lambda: metrics.exists() and metrics.read_text().count('"step"') > 20)
        cut(alone)
        wait_for("the end", LIMIT + 20, lambda: not trainings(alone))
        said = [(alone.shared / f"said-{rank}").read_text() for rank in range(len(NODES))]
    words = f"has not ended within MPICOLL_TIMEOUT={LIMIT:g} s: rank"
    for rank, text in enumerate(said):  # one that ends first may end the others on its side
        errors = [line for line in text.splitlines() if line.startswith("mpicoll: error: ")]
        assert "Traceback" not in text
        assert all(f"[rank {rank}] " in line and words in line for line in errors), text
    assert any(words in said[rank] for rank in (0, 1, 2, 5))
    assert any(words in said[rank] for rank in (3, 4))


def trainings(cluster):
    """Processes of ranks that train."""
    found = []
    for entry in (cluster.root / "proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            found += [entry] * (b"\0mpicoll\0train\0" in (entry / "cmdline").read_bytes())
    return found
