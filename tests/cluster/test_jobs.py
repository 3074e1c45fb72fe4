"""Collectives and trainings of ranks on several hosts, which have unequal numbers of them and share
nothing but the network; and what becomes of them when a link is cut."""

import json
import os
import subprocess
import sys
import time

import launch
import numpy as np
import pytest
from cluster import hosts

pytestmark = [
    pytest.mark.skipif(bool(hosts.missing()), reason=hosts.missing()),
    pytest.mark.timeout(400),
]

RANKS = (2, 1, 2, 1)
NODES = (0, 0, 1, 2, 2, 3)
DELAY, RATE = 50e-6, 2e9  # nothing is measured
LONG = os.environ.get("MPICOLL_TEST_LONG", "") not in ("", "0")
LIMIT = 3.0  # seconds that a call may wait, where a link is cut


@pytest.fixture(scope="module")
def cluster():
    with hosts.Cluster(len(RANKS), DELAY, RATE, RANKS, apart=True) as made:
        random = np.random.default_rng(0)
        labels = random.integers(0, 4, 300)
        inputs = random.standard_normal((300, 16)) + labels[:, None]
        np.savez(
            made.shared / "data.npz",
            train_inputs=inputs[:240],
            train_labels=labels[:240],
            test_inputs=inputs[240:],
            test_labels=labels[240:],
        )
        yield made


def python(cluster, *words, limit=300, **environment):
    """Python on all ranks: what it prints, exit status."""
    command = [*launch.mpirun(), "-n", str(sum(RANKS)), sys.executable, *map(str, words)]
    done = cluster.run(
        command, environment=environment, capture_output=True, timeout=limit, errors="replace"
    )
    return done


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
    quick = {} if LONG else {"MPICOLL_TEST_COUNTS": "101"}
    words = ["-m", "pytest", "--with-mpi", "-p", "no:cacheprovider", "--color=no"]
    paths = ["tests/mpi/test_matrix.py", *(["tests/mpi/test_hierarchical.py"] if LONG else [])]
    done = python(cluster, *words, *paths, **quick)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    counts = launch.counts(done.stdout.splitlines()[-1])
    assert counts["passed"] > 50 and not counts["failed"]


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
    data = ["/mnt/shared/data.npz", "--model=mlp", "--hidden=8", "--epochs=3", "--batch=32"]
    done = python(cluster, "-m", "mpicoll", "train", *data, *words, "--json", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["ranks"] == len(NODES) and facts["test_accuracy"] > 0.5
    verdict = facts["difference_from_one_process"]
    assert verdict is None if "--wire=bf16" in words else verdict["ok"]


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical"])
def test_a_link_that_is_cut_ends_the_call_on_every_rank(algorithm):
    """Also on the host that is cut off; it is a common folder that tells."""
    with hosts.Cluster(len(RANKS), DELAY, RATE, RANKS, apart=True) as cluster:
        folder = cluster.shared
        script = [str(hosts.HERE / "cut.py"), "/mnt/shared", algorithm]
        command = [*launch.mpirun(), "-n", str(len(NODES)), sys.executable, *script]
        job = subprocess.Popen(
            cluster.command(command),
            env={**os.environ, **cluster.environment(), "MPICOLL_TIMEOUT": str(LIMIT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for(folder, "alive", 60)
            assert cluster.run(["ip", "link", "set", "eth0", "down"], "h3").returncode == 0
            wait_for(folder, "error", LIMIT + 20)
        finally:
            job.kill()
            job.wait()
        for rank, host in enumerate(NODES):
            error = json.loads((folder / f"error-{rank}").read_text())
            words = error["words"]
            assert error["type"] == "TimeoutError", words
            assert f"Allreduce by {algorithm}" in words
            assert f"has not ended within MPICOLL_TIMEOUT={LIMIT:g} s" in words
            assert LIMIT <= error["seconds"] < LIMIT + 5
            assert "have not answered" in words if host == 2 else "not" in words


def wait_for(folder, what, limit):
    """Wait for the file of each rank."""
    end = time.monotonic() + limit
    while missing := [r for r in range(len(NODES)) if not (folder / f"{what}-{r}").exists()]:
        assert time.monotonic() < end, f"{what}: ranks {missing} are missing"
        time.sleep(0.05)
