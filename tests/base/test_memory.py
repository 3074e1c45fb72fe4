"""How much memory is left: of the node, of control groups, of the process."""

import resource
import subprocess
import sys

import pytest

from mpicoll.base import memory


@pytest.fixture
def system(monkeypatch, tmp_path):
    """Files of a system that says nothing; a function writes one."""
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "groups")
    (tmp_path / "groups").mkdir()

    def write(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")

    return write


def test_what_linux_calls_available(system):
    assert memory.available() is None
    system("meminfo", "MemTotal: 9 kB\nMemAvailable:       5 kB\n")
    assert memory.available() == 5120


def test_limits_of_control_groups_count(system):
    system("meminfo", "MemAvailable: 5 kB\n")
    system("own", "0::/job/step\n")
    system("groups/job/step/memory.max", "max\n")
    system("groups/job/step/memory.current", "1000\n")
    assert memory.available() == 5120
    system("groups/job/memory.max", "4000\n")
    system("groups/job/memory.current", "1000\n")
    assert memory.available() == 3000
    # The kernel takes back what files have.
    system("groups/job/memory.stat", "anon 400\ninactive_file 600\n")
    assert memory.available() == 3600
    system("groups/memory.max", "2000\n")
    system("groups/memory.current", "2500\n")
    assert memory.available() == 0


def test_limits_of_the_first_version(system):
    system("own", "4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n")
    system("groups/memory/job/memory.limit_in_bytes", "4000\n")
    system("groups/memory/job/memory.usage_in_bytes", "1500\n")
    system("groups/memory/job/memory.stat", "total_inactive_file 500\n")
    assert memory.available() == 3000


def test_limits_of_the_process():
    code = "from mpicoll.base import memory; print(memory.left())"

    def limited(*limits):
        def set_limits():
            for limit, most in limits:
                resource.setrlimit(limit, (most, most))

        words = [sys.executable, "-c", code]
        done = subprocess.run(words, preexec_fn=set_limits, capture_output=True, timeout=30)
        return done.stdout.decode().strip()

    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        assert limited() == "None"
    assert 0 < int(limited((resource.RLIMIT_AS, 1 << 30))) < 1 << 30
    assert 0 < int(limited((resource.RLIMIT_DATA, 1 << 30))) < 1 << 30


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 bytes"), (1, "1 byte"), (4096, "4.1 kB"), (50_000, "0.1 MB"), (1 << 30, "1,073.7 MB")],
)
def test_few_bytes_are_not_said_in_megabytes(size, words):
    assert memory.megabytes(size) == words
