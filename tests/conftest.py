"""Settings of all tests, and jobs under mpirun started by tests of their own."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import launch
import pytest

# The same examples in every run and on every rank: ranks that draw different examples would call
# different collectives. No deadline: no test depends on how busy the machine is.
hypothesis.settings.register_profile("mpicoll", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("mpicoll")

# Tables are as wide as in a pipe, whatever terminal the tests, or workers of pytest-xdist, hear of.
for variable in ("COLUMNS", "LINES"):
    os.environ.pop(variable, None)


def pytest_ignore_collect(collection_path, config):
    """Leave out tests/mpi when not under mpirun: importing those tests initialises MPI."""
    mpi = Path(__file__).parent / "mpi"
    if not config.getoption("--with-mpi") and collection_path == mpi:
        return True
    return None


def pytest_collection_modifyitems(items):
    """Skip the tests that are marked as long where they are not asked for."""
    if os.environ.get("MPICOLL_TEST_LONG", "") in ("", "0"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="long: MPICOLL_TEST_LONG=1 runs it"))


class Jobs:
    """Jobs under mpirun; nothing of them may be left afterwards."""

    def __init__(self, directory):
        self.directory = directory
        self.running = []

    def start(self, ranks, *words, environment=None, options=()):
        """Start Python with some words on some ranks, with options of the launcher."""
        directory = self.directory / str(len(self.running))
        directory.mkdir()
        process = subprocess.Popen(
            [*launch.mpirun(), *options, "-n", str(ranks), sys.executable, *map(str, words)],
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith("MPICOLL_")},
                "TMPDIR": str(directory),
                "MPICOLL_SHARE_CORES": "1",
                **(environment or {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.running.append((process, launch.Launch("job", 0, directory)))
        return process

    def _started(self, process):
        (started,) = (found for running, found in self.running if running is process)
        return started

    def kill(self, process, alone=False):
        """End the launcher by SIGKILL, alone or with its ranks, and wait for what is left."""
        started = self._started(process)
        everyone = [process.pid, *launch.processes(started.directory)]
        for number in (signal.SIGSTOP, signal.SIGKILL, signal.SIGCONT):
            for pid in everyone[:1] if alone and number == signal.SIGKILL else everyone:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            # Whoever is killed cannot remove what it shares.
            started.note_shared_memory()
        self.finish(process)

    def finish(self, process, limit=50):
        """Wait for a job: its status, what it said (out, err)."""
        started = self._started(process)
        end = time.monotonic() + limit
        while True:
            # Ranks that are killed cannot remove what they share; see it while they live.
            started.note_shared_memory()
            try:
                out, err = process.communicate(timeout=0.05)
            except subprocess.TimeoutExpired:
                assert time.monotonic() < end, f"still there after {limit} s"
            else:
                return SimpleNamespace(
                    status=process.returncode, out=out.replace("\r", ""), err=err
                )

    def __call__(self, ranks, *words, environment=None, limit=50, options=()):
        """Start a job and wait for it."""
        started = self.start(ranks, *words, environment=environment, options=options)
        return self.finish(started, limit)

    def check_tidy(self):
        """Nothing that the last job has shared or written for itself is left."""
        _, started = self.running[-1]
        left = [path for path in started.directory.rglob("*") if not path.is_dir()]
        left += [name for name in started.shared_memory if os.path.exists(name)]
        assert not left

    def check_empty(self):
        """Some launchers return a moment before the ranks that they have killed are gone."""
        end = time.monotonic() + 10
        while left := launch.processes(self.directory):
            assert time.monotonic() < end, left
            time.sleep(0.05)

    def clean(self):
        for process, started in self.running:
            launch.clean(process, started)


@pytest.fixture
def mpirun(tmp_path_factory):
    """Run Python on some ranks, see :class:`Jobs`."""
    jobs = Jobs(tmp_path_factory.mktemp("j"))
    try:
        yield jobs
        jobs.check_empty()
    finally:
        jobs.clean()


#: What the scripts of :func:`job` begin with.
PREAMBLE = """
import sys
import numpy as np
from mpi4py import MPI
from mpicoll.comm import Intracomm, abort_on_exception
world = MPI.COMM_WORLD
comm = Intracomm(world)
"""


@pytest.fixture
def job(mpirun, tmp_path):
    """Run a script on some ranks: exit status, standard output, standard error."""

    def run(ranks, script, *python, **environment):
        path = tmp_path / "script.py"
        path.write_text(PREAMBLE + textwrap.dedent(script))
        done = mpirun(ranks, *python, path, environment=environment)
        return done.status, done.out, done.err

    return run


@pytest.fixture
def no_launcher(monkeypatch):
    """As where no launcher has started this process."""
    from mpicoll.base import launcher

    names = {name for entry in launcher._LAUNCHERS for name in entry[1:]}
    for name in names | {"SLURM_STEP_ID"}:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def command(capsys):
    """Run the command in this process: exit status, standard output, standard error."""

    from mpicoll.cli import main

    def run(*words):
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        return SimpleNamespace(status=status, out=captured.out, err=captured.err)

    return run


@pytest.fixture
def old(monkeypatch):
    """The MPI library has no persistent collectives; Open MPI 4 is such a library."""
    from mpicoll.comm import Intracomm

    native = Intracomm._native

    def lacks(self, asked, method, *more):
        if method.endswith("_init"):
            raise NotImplementedError  # as mpi4py does
        return native(self, asked, method, *more)

    monkeypatch.setattr(Intracomm, "_native", lacks)


@pytest.fixture
def nothing_from_outside(monkeypatch):
    """No algorithm from outside mpicoll is known at first, and none of the test's afterwards."""
    from outside import forgotten

    from mpicoll.base import extensions

    monkeypatch.delenv(extensions.VARIABLE, raising=False)
    with forgotten():
        yield
