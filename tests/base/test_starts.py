"""A launch that dies within MPI_Init on an emulated host is started again once; nothing else is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from slurm import starts

TESTS = Path(__file__).parents[1]
DEATH = """
[h2:00071] *** Process received signal ***
[h2:00071] Signal: Segmentation fault (11)
[h2:00071] [ 0] /lib/x86_64-linux-gnu/libc.so.6(+0x3c050)[0x7f21]
[h2:00071] [ 1] {frame}[0x7f22]
[h2:00071] [ 2] python3(_PyEval_EvalFrameDefault+0x4c2)[0x55aa]
[h2:00071] *** End of error message ***
"""
START = DEATH.format(frame="/usr/lib/libmpi.so.40(ompi_mpi_init+0x5a3)")
OURS = DEATH.format(frame="/src/mpicoll/engine/_transport.so(+0x9f3)")
LATER = DEATH.format(frame="/usr/lib/libmpi.so.40(PMPI_Wait+0x33)")


@pytest.mark.parametrize(
    ("said", "crashed"),
    [
        (START, True),
        (f"epoch 1\n{START}{START}", True),
        ("It looks like MPI_INIT failed for some reason; your parallel process is", True),
        ("[h1:00013] *** An error occurred in MPI_Init_thread", True),
        ("Abort(1614479) on node 0: Fatal error in internal_Init_thread: Other MPI error", True),
        ("", False),
        ("a rank exited on signal 11 (Segmentation fault)", False),
        (OURS, False),
        (LATER, False),
        (START + OURS, False),
        (START + LATER, False),
        (START + "Traceback (most recent call last):\n", False),
        ("mpicoll: error: --root 3 is no rank of 2", False),
    ],
)
def test_what_is_a_crash_at_the_start(said, crashed):
    assert starts.crashed(said) is crashed


#: A folder of tests whose first launch says something, and fails.
PLUGIN = """
import pytest
from slurm import starts

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    return starts.run_test(item, nextitem)

def pytest_runtest_makereport(item, call):
    if call.excinfo:
        item.stash[starts.SAID] = item.module.SAID
        item.stash[starts.FILES] = [item.path.with_name("left")]
"""
TEST = """
import pytest
from pathlib import Path

COUNT = Path(__file__).with_name("count")

def launch():
    left = Path(__file__).with_name("left")
    assert not left.exists()
    left.mkdir()
    with COUNT.open("a") as file:
        file.write("x")
    assert COUNT.stat().st_size > FAILURES

@pytest.fixture(scope="module")
def attempt():
    if FIXTURE:
        launch()

def test_launch(attempt):
    if not FIXTURE:
        launch()
"""


@pytest.mark.parametrize(
    ("failures", "said", "fixture", "passed", "again"),
    [
        (1, START, False, True, 1),
        (1, START, True, True, 1),
        (2, START, False, False, 1),
        (1, OURS, False, False, 0),
    ],
)
def test_it_is_started_again_once_and_said(tmp_path, failures, said, fixture, passed, again):
    (tmp_path / "conftest.py").write_text(PLUGIN)
    names = f"FAILURES, SAID, FIXTURE = {failures}, {said!r}, {fixture}\n"
    (tmp_path / "test_it.py").write_text(names + TEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == (0 if passed else 1), done.stdout
    assert done.stdout.count("MPI_Init crashed on an emulated host; started again once") == again
    assert ("1 passed" if passed else "1 failed") in done.stdout
