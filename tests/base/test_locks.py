"""One job at a time; the other is told who has it."""

import os
import subprocess
import sys
import threading

import pytest

from mpicoll.base.locks import Lock

HOLDER = """
import sys
from mpicoll.base.locks import Lock
lock = Lock(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_the_holder_is_named(tmp_path, kind):
    path = tmp_path if kind == "folder" else tmp_path / "a.jsonl"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "SLURM_JOB_ID": "4711"},
    )
    with holder:
        assert holder.stdout.readline() == b"held\n"
        said = rf"job 4711, process {holder.pid} on \S+ \(since .*\) writes to it.*elsewhere"
        with pytest.raises(OSError, match=said):
            Lock(path, patience=0.01)
        holder.kill()
    Lock(path, patience=5).release()  # a killed holder's is free
    assert os.listdir(tmp_path) == []


def test_who_waits_gets_it(tmp_path):
    first = Lock(tmp_path)
    timer = threading.Timer(0.1, first.release)
    timer.start()
    second = Lock(tmp_path)
    with pytest.raises(OSError, match="writes to it"):
        Lock(tmp_path, patience=0)
    second.release()
    second.release()


@pytest.mark.parametrize("path", ["/dev/null", "/proc/self", "/nowhere/at/all"])
def test_what_cannot_be_locked_is_not(path):
    Lock(path, patience=0).release()
