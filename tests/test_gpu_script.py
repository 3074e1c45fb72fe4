"""What tools/gpu.sh starts, with stand-ins for Python and mpirun."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "tools" / "gpu.sh"
#: Writes its words down; fails where they are of $FAILS.
STAND_IN = """#!/bin/bash
[[ "$*" != *getDeviceCount* ]] || { echo $GPUS; exit; }
echo "${0##*/} $*" >>"$LOG"
[[ -z $FAILS || "$*" != *$FAILS* ]] || exit 3
"""


@pytest.fixture
def run(tmp_path):
    """Runs the script; its exit status, what it says, and what it has started."""
    for name in ("python3", "mpirun"):
        (tmp_path / name).write_text(STAND_IN)
        (tmp_path / name).chmod(0o755)

    def run(*words, gpus=2, fails="", **more):
        log = tmp_path / "log"
        log.write_text("")
        path = f"{tmp_path}:{os.environ['PATH']}"
        given = {"PATH": path, "LOG": str(log), "GPUS": str(gpus), "FAILS": fails, **more}
        done = subprocess.run([SCRIPT, *words], env=given, capture_output=True, text=True)
        return done.returncode, done.stdout, log.read_text().splitlines()

    return run


def kinds(started):
    """Number of ranks, and what runs on them."""
    parts = ("build_ext", "tests/gpu", "gpu_staged.py", "gpu.py")
    found = []
    for line in started:
        (kind,) = [part for part in parts if part in line][:1]
        words = line.split()
        found.append((int(words[words.index("-n") + 1]) if "-n" in words else 0, kind))
    return found


@pytest.mark.parametrize(
    ("gpus", "tested"), [(1, [1, 3, 5]), (2, [2, 3, 5]), (3, [3, 5]), (8, [8])]
)
def test_without_words_it_does_everything(run, tmp_path, gpus, tested):
    results = tmp_path / "out" / "of it"
    status, said, started = run(results, gpus=gpus, GPU_COMMIT="abc")
    assert status == 0, said
    tests = [*((n, "tests/gpu") for n in tested), (0, "tests/gpu")]
    measured = [(gpus, "gpu_staged.py"), (gpus, "gpu.py")]
    assert kinds(started) == [(0, "build_ext"), *tests, *measured]
    assert results.is_dir()
    assert started[-1].endswith(f"--json {results}/gpu-{gpus}.jsonl")
    assert all("--commit abc" in line for line in started[-2:])
    assert said.count(": exit status 0 after ") == len(started)


def test_what_fails_is_said_and_the_rest_runs(run, tmp_path):
    status, said, started = run(tmp_path / "out", fails="-n 3")
    assert status == 1
    assert "gpu.sh: tests 3 -k test_ipc: exit status 3 after " in said
    assert len(started) == 7


def test_nothing_begins_once_the_time_is_over(run, tmp_path):
    status, said, started = run(tmp_path / "out", GPU_TOTAL="4")
    assert (status, started) == (1, [])
    assert said.count("no time is left") == 7


def test_parts_by_themselves(run):
    status, _, (line,) = run("test", "5", "-k", "ring")
    assert status == 0 and kinds([line]) == [(5, "tests/gpu")] and line.endswith("-k ring")
    _, _, (line,) = run("bench", "4", "--ways", "persistent", GPU_SECONDS="100")
    assert kinds([line]) == [(4, "gpu.py")] and "--seconds 80 --ways persistent" in line
    assert run("staged", "2", fails="staged")[0] == 3
    assert "tests/gpu/test_jobs_on_gpus.py" in run("jobs")[2][0]
    assert kinds(run("build")[2]) == [(0, "build_ext")]
