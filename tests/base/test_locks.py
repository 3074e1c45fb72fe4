"""One job at a time; the other is told who has it."""

import os
import subprocess
import sys
import threading

import pytest

from mpicoll.base.locks import Claim, Lock

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


def test_a_claim_sees_that_another_has_taken_the_place(tmp_path):
    first = Lock(tmp_path)
    claim, other = Claim(tmp_path), Claim(tmp_path)
    assert claim.is_current()
    # The holder is still there, as a process is that was stopped.
    second = Lock(tmp_path, after=other)
    assert not claim.is_current() and not other.is_current()
    assert Claim(tmp_path).is_current()
    first.release()  # it no longer has the place
    assert Claim(tmp_path).is_current()
    with pytest.raises(OSError, match="writes to it"):
        Lock(tmp_path, patience=0)
    second.release()
    Lock(tmp_path, patience=0).release()
    assert not list(tmp_path.glob(".lock*"))


def test_a_place_that_another_job_has_taken_is_not_taken_away(tmp_path):
    first = Lock(tmp_path)
    claim = Claim(tmp_path)
    first.release()
    another = Lock(tmp_path)
    assert not claim.is_current()
    with pytest.raises(OSError, match="writes to it"):
        Lock(tmp_path, patience=0, after=claim)
    another.release()
    claim.close()
    claim.close()
