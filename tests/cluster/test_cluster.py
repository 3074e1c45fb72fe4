"""The emulated cluster is what it says, and a fit to a sweep on it finds what its links cost."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import launch
import numpy as np
import pytest
from cluster import hosts

pytestmark = [
    pytest.mark.skipif(bool(hosts.missing()), reason=hosts.missing()),
    pytest.mark.timeout(120),
]

HOSTS, DELAY, RATE = 3, 2e-3, 100e6
LIMIT = 100  # seconds
SIZES = (1, 8192, 32768)


def mpirun(cluster, *words):
    """What Python on one rank of each host prints."""
    command = [*launch.mpirun(), "-n", str(HOSTS), sys.executable, *map(str, words)]
    done = cluster.run(command, capture_output=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cluster():
    with hosts.Cluster(HOSTS, DELAY, RATE) as made:
        yield made


def least_times(cluster):
    """For each other host, the seconds of the quickest turn of each of SIZES."""
    times = json.loads(mpirun(cluster, hosts.HERE / "pingpong.py", 9, *SIZES))
    return np.array([[min(turns[str(size)]) for size in SIZES] for turns in times.values()])


def test_hosts_have_networks_and_names_of_their_own(cluster):
    """The machine's own network is not among them."""
    done = cluster.run(["sh", "-c", "hostname; ip -o -4 addr show"], "h2", capture_output=True)
    name, *addresses = done.stdout.splitlines()
    assert name == "h2"
    assert [line.split()[1:4:2] for line in addresses] == [
        ["lo", "127.0.0.1/8"],
        ["eth0", "10.77.0.2/24"],
    ]


def test_ranks_start_on_all_hosts(cluster):
    code = "from mpi4py import MPI; print(MPI.COMM_WORLD.gather(MPI.Get_processor_name()) or '')"
    assert mpirun(cluster, "-c", code).split("\n", 1)[0] in ("['h1', 'h2', 'h3']", "")


def test_frames_take_the_delay_and_the_rate_that_were_set(cluster):
    """A machine that is busy makes messages slower: the quickest of many tells the link."""
    least = np.full((HOSTS - 1, len(SIZES)), np.inf)
    for _ in range(8):
        least = np.minimum(least, least_times(cluster))
        per_byte = (least[:, 2] - least[:, 1]) / (SIZES[2] - SIZES[1])
        if (least[:, 0] < 1.5 * DELAY).all() and per_byte == pytest.approx(8 / RATE, rel=0.2):
            break
    else:
        pytest.fail(f"{least} s, {per_byte} s a byte")
    assert (least > DELAY).all()


def test_a_fit_finds_what_a_link_costs(cluster, tmp_path, command):
    """Of messages short enough for a single protocol; busy hosts may only add to what was set."""
    pytest.importorskip("scipy")
    runs, model = tmp_path / "runs.jsonl", tmp_path / "model.json"
    sweep = ["allgather", "-a", "ring,linear", "-s", "8K,16K,24K,48K"]
    often = ["--ranks", "2,3", "--start", "window", "-n", "7", "-w", "1", "-J", runs]
    mpirun(cluster, "-m", "mpicoll", "bench", *sweep, *often)
    assert command("fit", runs, "-o", model).status == 0
    costs = json.loads(model.read_text())["general"]
    link = next(p for p in costs["links"]["inter"] if (p["upto"] or SIZES[2]) >= SIZES[1])
    fitted = costs["step"] + link["alpha"] + SIZES[1] * link["beta"]
    assert 0.8 < fitted / (DELAY + SIZES[1] * 8 / RATE) < 5


def test_links_finds_the_rate_of_each_host():
    """The least of several times: a busy machine makes them longer, and never shorter."""
    pytest.importorskip("pydantic")
    from mpicoll.files import machine_files

    rates = [100e6, 25e6]
    with hosts.Cluster(2, DELAY, rates, [2, 1]) as made:
        words = ["-m", "mpicoll", "links", "-o", "/mnt/shared/m.toml"]
        job = [*launch.mpirun(), "-n", "3", sys.executable, *words]
        done = made.run(job, capture_output=True, timeout=LIMIT)
        assert done.returncode == 0, done.stderr
        network = machine_files.read(made.shared / "m.toml").network
    assert network.hosts == (0, 0, 1)
    for sender, receiver in ((0, 2), (2, 1)):
        route = network.route(sender, receiver)
        assert route.beta / 1e18 > 0.95 * 8 / rates[1]
        assert route.latency / 1e18 > 0.95 * DELAY
    inside = network.route(0, 1)
    assert not inside.links
    assert inside.beta < route.beta


def test_nothing_stays_of_a_cluster_whose_maker_is_killed():
    """Not even where it is killed in the middle of a job: the kernel ends it all."""
    job = ["--hosts", "2", "--", "sh", "-c", "echo; sleep 99"]
    maker = subprocess.Popen(
        [sys.executable, str(hosts.HERE / "hosts.py"), *job],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert maker.stdout.readline() == "\n"
        family = descendants(maker.pid)
        assert len(family) > 2  # unshare, the switch, the job
    finally:
        maker.kill()
        maker.communicate()
    end = time.monotonic() + 30
    while any(map(alive, family)):
        assert time.monotonic() < end
        time.sleep(0.02)
    mine = Path("/proc/self/mounts").read_text()
    assert "cluster" not in [line.split()[0] for line in mine.splitlines()]


def test_what_is_wrong_with_a_cluster_is_said():
    with pytest.raises(RuntimeError, match=r"(?s)did not come up: .*'fast'"):
        hosts.Cluster(2, "fast", RATE)


def descendants(pid):
    """The processes that a process has started, and those that these have."""
    children = []
    with contextlib.suppress(FileNotFoundError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [found for child in map(int, children) for found in (child, *descendants(child))]


def alive(pid):
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
