"""One report for all the ranks of an MPI launch: rank 0 speaks, every rank is heard.

``mpirun -n N python -m pytest --with-mpi tests/mpi`` starts N complete pytest sessions over the
same tests. Left alone they print N reports, and a rank that fails leaves the others waiting in the
next collective call for ever. Here

* ranks other than 0 print nothing: each writes what happens to a file, one JSON object a line, and
  rank 0 reads these files and merges the outcomes into its own report;
* the first failure on any rank is reported with its rank and traceback and ends the launch;
* a test that is still running on some rank when its time limit is over (pytest-timeout's option,
  ini value or marker) fails with the Python stacks of the stuck ranks, and ends the launch.

Files, not messages, because the report must not depend on the library under test, nor disturb it,
and because ``tests/launch.py`` can still read them when all ranks are dead. All ranks must share a
file system.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import shutil
import signal
import tempfile
import threading
import time
import zlib
from pathlib import Path

import pytest

#: Seconds given to the other ranks, once one has failed, to say what happened to them.
GRACE = 1.0
#: Seconds given to stuck ranks to write their stacks.
DUMP = 0.5
#: Seconds given to mpirun to forward the report; what it still holds when a rank fails is lost.
FORWARD = 0.5
#: What is made of collectives, and what calls take, refuse, count and own: on more than three ranks
#: it asks nothing of the algorithms that their own tests do not, so that only the long suite runs
#: it there.
AS_ON_FEW = (
    *("test_bench*.py", "test_torch*.py", "test_train*.py"),
    *("test_as_mpi4py.py", "test_packing.py", "test_views.py", "test_*on_device.py"),
    *("test_bad_input.py", "test_passed.py", "test_refusing.py", "test_tuning.py"),
    *("test_handles.py", "test_lifetime.py", "test_new_shapes.py", "test_requests.py"),
    *("test_hooks.py", "test_imports.py", "test_model.py", "test_short_way.py"),
)
MOST = 3
#: Of those, what needs four: meshes of two axes.
OF_FOUR = ("test_train_mesh*.py",)


@pytest.fixture(scope="module")
def comm():
    """mpicoll's communicator of all ranks."""
    from mpi4py import MPI

    import mpicoll

    return mpicoll.Intracomm(MPI.COMM_WORLD)


@pytest.fixture(scope="session")
def world():
    """PyTorch's group of all ranks, on the backend "mpicoll"."""
    from datetime import timedelta

    from torch import distributed

    import mpicoll.torch  # noqa: F401 - makes it known

    limit = timedelta(seconds=50)
    distributed.init_process_group("mpicoll", init_method="mpi://", timeout=limit)
    yield distributed.group.WORLD
    distributed.destroy_process_group()


@pytest.fixture
def folder(comm, tmp_path):
    """One folder for all ranks."""
    return comm.bcast(tmp_path)


@pytest.fixture
def events():
    """What the hooks of mpicoll are told during a test."""
    from mpicoll import hooks

    seen = []
    hooks.add(seen.append)
    yield seen
    hooks.remove(seen.append)


@pytest.hookimpl(tryfirst=True)  # before what is long is skipped
def pytest_collection_modifyitems(items):
    from mpi4py import MPI

    size = MPI.COMM_WORLD.size
    for item in items:
        item.add_marker(pytest.mark.mpi)
        needs_it = size == 4 and any(map(item.path.match, OF_FOUR))
        if size > MOST and not needs_it and any(map(item.path.match, AS_ON_FEW)):
            item.add_marker(pytest.mark.long)


@pytest.hookimpl(trylast=True)  # after the terminal reporter exists
def pytest_configure(config):
    if not config.getoption("--with-mpi"):
        return
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    directory = _agree_on_directory(world)
    # Ranks that share a temporary root race when they clean up each other's tmp_path.
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(directory / f"tmp{world.rank}")
    os.mkdir(os.environ["PYTEST_DEBUG_TEMPROOT"])
    # pytest-timeout ends the process it runs in, on every rank and without a word about the others.
    config.pluginmanager.unregister(name="timeout")
    # The page that pytest-mpi prints about the library at the end of each session: see the header.
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "MPIPlugin":
            plugin._is_testing_mpi = False
    role = Reporter if world.rank == 0 else Peer
    config.pluginmanager.register(role(config, world.rank, world.size, directory), "mpicoll-ranks")


def pytest_report_header(config):
    if config.getoption("--with-mpi"):
        from mpi4py import MPI

        library = MPI.Get_library_version().splitlines()[0].split(",")[0].rstrip("\0")
        return f"mpi: {library}, {MPI.COMM_WORLD.size} rank(s)"


def _agree_on_directory(world):
    """Make the directory of the launch on rank 0 and tell its path to all ranks."""
    path = bytearray(4096)
    if world.rank == 0:
        name = tempfile.mkdtemp(prefix="ranks-").encode()
        path[: len(name)] = name
    world.Bcast(path, root=0)
    return Path(bytes(path).rstrip(b"\0").decode())


class Member:
    """What every rank does: write down where it is, dump its stacks when asked to."""

    def __init__(self, config, rank, size, directory):
        self.config, self.rank, self.size, self.directory = config, rank, size, directory
        self.index = -1
        self.failed = False
        self._log = open(directory / f"rank{rank}.jsonl", "a")  # noqa: SIM115 - open until the end
        self._stacks = open(directory / f"rank{rank}.stacks", "a")  # noqa: SIM115
        # Dumps in the signal handler itself, so also in a blocking MPI call and without the GIL.
        faulthandler.register(signal.SIGUSR1, file=self._stacks, all_threads=True)
        self.note(pid=os.getpid())

    def note(self, **event):
        self._log.write(json.dumps(event) + "\n")
        self._log.flush()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session):
        ids = "\n".join(item.nodeid for item in session.items)
        self.note(collected=len(session.items), digest=zlib.crc32(ids.encode()))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        self.index += 1
        self.note(at=self.index, test=item.nodeid)
        return (yield)

    def hears_failure(self, report):
        self.failed = True
        self.note(failed=report.nodeid or "collection", index=self.index, text=_text(report))


class Peer(Member):
    """A rank other than 0: silent."""

    def __init__(self, config, rank, size, directory):
        super().__init__(config, rank, size, directory)
        silent = pytest.TerminalReporter(config, open(os.devnull, "w"))  # noqa: SIM115
        config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(silent, "terminalreporter")

    def pytest_collectreport(self, report):
        if report.failed:
            self.hears_failure(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if report.failed:
            self.hears_failure(report)
            item.session.shouldfail = "a rank failed"
        elif report.when == "call" or report.skipped:
            self.note(done=self.index)
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        self.note(finished=True)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self):
        if self.failed:
            # Leaving now would make mpirun kill rank 0 before it has printed the report. Rank 0
            # ends the launch within GRACE; the limit is for the case that it cannot.
            time.sleep(10 * GRACE)
            os._exit(1)


class Reporter(Member):
    """Rank 0: merges, prints, watches the clock."""

    def __init__(self, config, rank, size, directory):
        super().__init__(config, rank, size, directory)
        self.peers = {r: _Diary(directory / f"rank{r}.jsonl") for r in range(1, size)}
        self.item = None
        self.deadline = None  # of the current wait, in seconds of time.monotonic
        self.failed_since = None
        self.told = False  # the failure is in a report of ours
        self.closing = self.over = False
        self._lock = threading.RLock()
        self._limit = float(config.getoption("--timeout") or config.getini("timeout") or 60)
        threading.Thread(target=self._watch, daemon=True).start()

    # -- the main thread ---------------------------------------------------------------------------

    def pytest_collection_finish(self, session):
        super().pytest_collection_finish(session)
        self._wait_for(lambda diary: diary.collected is not None)
        own = self._own().collected
        odd = [r for r, diary in self.peers.items() if diary.collected not in (None, own)]
        if odd and not self._failures():
            pytest.exit(f"ranks {_ranges(odd)} collected other tests than rank 0", returncode=1)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        marker = item.get_closest_marker("timeout")
        self.index += 1
        self.note(at=self.index, test=item.nodeid)
        self.item = item
        self.deadline = time.monotonic() + (marker.args[0] if marker else self._limit)
        result = yield
        self.item = self.deadline = None
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if report.failed:
            self.hears_failure(report)
        if report.when == "call" or not report.passed:
            self.note(done=self.index)
            self._wait_for(lambda diary: diary.done >= self.index)
            if report.failed or self._failures():
                self._merge(report)
                item.session.shouldfail = "a rank failed: the launch ends here"
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session):
        self._wait_for(lambda diary: diary.finished)
        if self._failures() and not self.told:
            self._blame(self._outside(), self._tell())
            session.exitstatus = 1
        self.failed = session.exitstatus != 0
        self.closing = True
        self.deadline = time.monotonic() + self._limit  # for what other plugins do at the end

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config):
        self.over = True
        shutil.rmtree(self.directory, ignore_errors=True)
        if self.failed:
            self._exit()  # not through MPI_Finalize, where the other ranks may never come

    def _wait_for(self, state):
        """Wait until `state` holds for all peers, or a rank has failed and its grace is over.

        A wait without end is ended by the watching thread.
        """
        if self.deadline is None:
            self.deadline = time.monotonic() + self._limit
        while not all(state(diary) or diary.failures for diary in self._read()):
            if self._failing_for() > GRACE:
                break
            time.sleep(0.0005)
        if self.item is None:
            self.deadline = None

    def _merge(self, report):
        with self._lock:
            if self.told:
                return
            if report.failed:
                report.sections += [(f"rank {who}", text) for who, text in self._grouped()]
                report.sections.insert(0, ("the traceback above", "is rank 0's"))
            else:
                report.outcome, report.longrepr = "failed", self._tell()
            self.told = True

    # -- the files of the peers --------------------------------------------------------------------

    def _read(self):
        with self._lock:
            return [diary.read() for diary in self.peers.values()]

    def _own(self):
        return _Diary(self.directory / "rank0.jsonl").read()

    def _failures(self):
        """(rank, text) of failures up to this test; a peer may have failed in one still to come."""
        return [
            (rank, text)
            for rank, diary in self.peers.items()
            for index, text in diary.failures
            if index <= self.index
        ]

    def _failing_for(self):
        """Seconds since a failure was first seen; 0 if there is none."""
        if not (self.failed or self._failures()):
            return 0.0
        if self.failed_since is None:
            self.failed_since = time.monotonic()
        return time.monotonic() - self.failed_since

    def _grouped(self):
        """(ranks, text) for each different failure text, each line behind its ranks.

        Texts that differ in addresses alone are one.
        """
        alike = {}
        for rank, text in self._failures():
            ranks, _ = alike.setdefault(re.sub("0x[0-9a-f]+", "0x", text), ([], text))
            ranks.append(rank)
        for ranks, text in alike.values():
            who = _ranges(ranks)
            yield who, "\n".join(f"[rank {who}] {line}" for line in text.splitlines())

    def _tell(self):
        self.told = True
        return "\n\n".join(text for _, text in self._grouped())

    # -- the watching thread -----------------------------------------------------------------------

    def _watch(self):
        while not self.over:
            time.sleep(0.05)
            self._read()
            deadline = self.deadline
            if self._failing_for() > 2 * GRACE and not self.closing:
                # Rank 0 is stuck in the test, or in its teardown, because another rank has left it.
                self._end("rank 0 was still in this test" if self.told else self._tell())
            elif deadline is not None and time.monotonic() > deadline:
                self._end(self._tell_stuck())

    def _tell_stuck(self):
        diaries = {0: self._own(), **self.peers}
        if self.item is not None:
            stuck = [r for r, diary in diaries.items() if diary.done < self.index]
        elif self.index < 0:
            stuck = [r for r, diary in diaries.items() if diary.collected is None]
        else:
            stuck = [r for r, diary in diaries.items() if not diary.finished]
            if not self.closing:
                stuck.remove(0)  # it waits for the others
        for rank in stuck:
            if pid := diaries[rank].pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)
        time.sleep(DUMP)
        lines = [f"time limit reached: rank {_ranges(stuck)} of {self.size} stuck"]
        for rank in stuck:
            if self.item is not None and diaries[rank].test != self.item.nodeid:
                lines.append(f"[rank {rank}] is in {diaries[rank].test or 'collection'}")
            stacks = (self.directory / f"rank{rank}.stacks").read_text()
            lines += [f"[rank {rank}] {line}" for line in stacks.splitlines()]
        return "\n".join([*lines, *(text for _, text in self._grouped())])

    def _outside(self):
        return "before the first test" if self.index < 0 else "after the last test"

    def _blame(self, where, text):
        """Report a failure that no report of rank 0's own can carry."""
        if self.item is not None:
            nodeid, location = self.item.nodeid, self.item.location
        else:
            nodeid, location = where, (where, None, where)
        report = pytest.TestReport(nodeid, location, {}, "failed", text, "call")
        self.config.hook.pytest_runtest_logreport(report=report)

    def _end(self, text):
        """Print the report from the watching thread, whatever the main thread does, and leave."""
        with self._lock:
            capture = self.config.pluginmanager.getplugin("capturemanager")
            capture.suspend_global_capture(in_=False)
            terminal = self.config.pluginmanager.getplugin("terminalreporter")
            self._blame(self._outside(), text)
            terminal.ensure_newline()
            # Not the session's end as a whole: that would tear down fixtures in this thread.
            terminal.summary_failures()
            terminal.short_test_summary()
            terminal.summary_stats()
            shutil.rmtree(self.directory, ignore_errors=True)
            self._exit()

    def _exit(self):
        self.config.pluginmanager.getplugin("terminalreporter").flush()
        time.sleep(FORWARD)
        os._exit(1)  # mpirun ends the other ranks when one exits with an error


class _Diary:
    """What a rank has written so far; `read` takes in the lines that are new and complete."""

    def __init__(self, path):
        self.path, self._offset = path, 0
        self.pid = self.test = self.collected = None
        self.done, self.finished, self.failures = -1, False, []

    def read(self):
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return self
        complete = new[: new.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.splitlines():
            self._take(json.loads(line))
        return self

    def _take(self, event):
        self.pid = event.get("pid", self.pid)
        self.test = event.get("test", self.test)
        self.done = event.get("done", self.done)
        self.finished = event.get("finished", self.finished)
        if "collected" in event:
            self.collected = event["collected"], event["digest"]
        if "failed" in event:
            self.failures.append((event["index"], f"{event['failed']}\n{event['text']}"))


def _text(report):
    """The traceback of a failed report and what the test printed."""
    captured = [f"--- {name} ---\n{content}" for name, content in report.sections]
    return "\n".join([report.longreprtext, *captured])


def _ranges(ranks):
    """[0, 1, 2, 5] as "0-2,5"."""
    runs = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
