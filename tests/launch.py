"""Run the tests: the pure ones by pytest, those of tests/mpi by pytest under mpirun -n N.

    python tests/launch.py                                   everything
    python tests/launch.py -n 2,4 tests/mpi/test_comm.py     these, on 2 and on 4 ranks
    python tests/launch.py -n 3 tests/mpi -- -k ring -x      arguments of pytest after --

Every launch has a time limit and a temporary directory of its own. Before the next one starts,
whatever it started is ended and whatever it left there or in shared memory is removed. The last
line printed is a closing line as pytest's, with the counts of all launches added up. The exit
status is 0 only if every launch ran tests and none failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: One rank, the smallest groups, powers of two up to three rounds of doubling, and others.
RANKS = (1, 2, 3, 4, 5, 8)
#: The matrix of algorithms, which the long suite also runs on another number of ranks, ...
MATRIX, MORE_RANKS = "tests/mpi/test_matrix.py", (7,)
#: ... and with the smallest eager limit that a library accepts on shared memory: of Open MPI (it
#: names the least, and what is below 257 bytes stays eager), and of MPICH with and without single
#: copies.  Each library ignores the other's.
SMALLEST_EAGER = {
    "OMPI_MCA_btl_sm_eager_limit": "80",
    "MPIR_CVAR_CH4_IPC_CMA_P2P_THRESHOLD": "1",
    "MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_CELL_SIZE": "128",
    "MPICOLL_TEST_EAGER": "smallest",
}
#: Tests that start ranks on hosts of their own; where there can be none they are skipped.
HOSTS = ("tests/cluster", "tests/slurm")
#: Tests that start ranks of their own share the cores with them and with each other: what fails
#: runs once more. A test that passes then is listed under RERUN, and counted in the closing line.
AGAIN = ("--reruns", "1", "--rerun-show-tracebacks", "-raR")
#: Seconds that a launch may take, and that it may take to end after its closing line.
LIMIT, LONG_LIMIT, LINGER = 1800.0, 3600.0, 30.0
#: Order and names of pytest's closing line; only the first two are failures.
OUTCOMES = (
    *("failed", "error", "passed", "skipped", "deselected", "xfailed", "xpassed", "warning"),
    "rerun",
)
CLOSING = re.compile(r"^=+ (.+) in [\d.]+s(?: \([\d:]+\))? =+$")


@dataclass
class Launch:
    """One started command: what it printed, counted and how it ended."""

    title: str
    limit: float
    directory: Path
    counts: Counter[str] = field(default_factory=Counter)
    problem: str = ""
    seconds: float = 0.0
    closed: float | None = None  # when the closing line came, by time.monotonic
    shared_memory: set[str] = field(default_factory=set)  # files that its processes have mapped

    @property
    def passed(self) -> bool:
        """Whether nothing failed; a problem with the launch itself is counted as an error."""
        return not (self.counts["failed"] or self.counts["error"])

    def note_shared_memory(self) -> None:
        """Add the files in shared memory that are mapped now."""
        for pid in processes(self.directory):
            with contextlib.suppress(OSError):
                maps = Path(f"/proc/{pid}/maps").read_text()
                self.shared_memory.update(re.findall(r" (/dev/shm/\S+)$", maps, re.MULTILINE))


def main(argv: list[str] | None = None) -> int:
    """Run what the arguments ask for; return the exit status."""
    options, pytest_options = _parse(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # In the background of a script it is ignored, and so it would be in all that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    start = time.monotonic()
    launches = []
    try:
        for title, command, environment in _commands(options, pytest_options):
            launches.append(run(title, command, options.limit, environment))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    print(f"\n{options.suite}, {_library()}")
    for launch in launches:
        end = launch.problem or closing_words(launch.counts)
        print(f"  {launch.title:<22} {launch.seconds:7.1f}s  {end}")
    total = sum((launch.counts for launch in launches), Counter[str]())
    print(closing_line(total, time.monotonic() - start))
    return 0 if all(launch.passed for launch in launches) else 1


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    at = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("paths", nargs="*", help="tests to run under mpirun (default: the pure ones, tests/mpi)")
    add("-n", "--ranks", type=_numbers, default=RANKS, help="numbers of ranks, such as 1,2,4")
    limit = LONG_LIMIT if _long() else LIMIT
    add("--limit", type=float, default=limit, help="seconds that a launch may take")
    add("--suite", default="test", help="name printed with the result")
    return parser.parse_args(argv[:at]), argv[at + 1 :]


def _long() -> bool:
    """Whether the long suite is asked for."""
    return os.environ.get("MPICOLL_TEST_LONG", "") not in ("", "0")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _commands(
    options: argparse.Namespace, extra: list[str]
) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Title, command and further environment of each launch."""
    pytest = [sys.executable, "-m", "pytest", "--color=no", "--durations=12", *extra]

    def under_mpirun(ranks: int, *paths: str) -> tuple[str, list[str]]:
        # The cache of pytest is one file, written by every rank at once.
        mpi = [*mpirun(), "-n", str(ranks), *pytest, "--with-mpi", "-p", "no:cacheprovider"]
        return f"{ranks} rank{'s' if ranks > 1 else ''}", [*mpi, *paths]

    if not options.paths:
        away = [f"--ignore={ROOT / folder}" for folder in HOSTS]
        # Most of their time goes into one process, so several run side by side.
        side_by_side = ["-n", "auto", "--maxprocesses", "4", "--dist", "worksteal"]
        yield "no MPI", [*pytest, *AGAIN, *side_by_side, str(ROOT / "tests"), *away], {}
    for ranks in options.ranks:
        yield *under_mpirun(ranks, *(options.paths or [str(ROOT / "tests/mpi")])), {}
    if options.paths:
        return
    yield "emulated hosts", [*pytest, *AGAIN, *(str(ROOT / folder) for folder in HOSTS)], {}
    if not _long():
        return
    matrix = str(ROOT / MATRIX)
    for ranks in MORE_RANKS:
        title, command = under_mpirun(ranks, matrix)
        yield f"{title}, matrix", command, {}
    for ranks in sorted({*options.ranks, *MORE_RANKS} - {1}):
        title, command = under_mpirun(ranks, matrix)
        yield f"{title}, least eager", command, SMALLEST_EAGER


def mpirun() -> list[str]:
    """$MPIRUN, or the mpirun beside this Python, or the one on PATH."""
    if "MPIRUN" in os.environ:
        return shlex.split(os.environ["MPIRUN"])
    beside = Path(sys.executable).with_name("mpirun")
    return [str(beside) if beside.exists() else shutil.which("mpirun") or "mpiexec"]


def _library() -> str:
    code = (
        "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
        "print(MPI.Get_library_version().splitlines()[0].split(',')[0])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return answer.stdout.strip(" \n\0") or "no MPI library found"


# -- one launch ------------------------------------------------------------------------------------


def run(
    title: str, command: list[str], limit: float, environment: Mapping[str, str] | None = None
) -> Launch:
    """Run `command`, print and count what it prints, and leave nothing of it behind."""
    launch = Launch(title, limit, Path(tempfile.mkdtemp(prefix="mc")))
    print(f"\n----- {title}: {shlex.join(command)}", flush=True)
    start = time.monotonic()
    # mpirun puts every rank into a process group of its own; the session is common to all.
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**_environment(launch.directory, command), **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    echo = threading.Thread(target=_echo, args=(process, launch), daemon=True)
    echo.start()
    try:
        _wait(process, launch, start + limit)
    finally:
        launch.problem = launch.problem or _problem(process, echo, launch)
        if launch.problem:
            launch.counts["error"] += 1
            print(f"!!!!! {title}: {launch.problem}")
            for line in _last_words(launch.directory):
                print(line)
        launch.note_shared_memory()
        clean(process, launch)
        echo.join()
        launch.seconds = time.monotonic() - start
    return launch


def _environment(directory: Path, command: list[str]) -> dict[str, str]:
    environment = dict(os.environ, TMPDIR=str(directory))
    if "--with-mpi" in command:
        environment["MPICOLL_TEST_RANKS"] = command[command.index("-n") + 1]
        environment["MPICOLL_SHARE_CORES"] = "1"  # read by the mpirun that make setup writes
        # UCX's memory hooks lose memory with every thread; on one host nothing needs them.
        environment.setdefault("UCX_MEM_EVENTS", "n")
        for library in ("OMP", "OPENBLAS", "MKL"):
            # Eight ranks with a thread for each core each would mostly wait for one another.
            environment.setdefault(f"{library}_NUM_THREADS", "1")
    return environment


def _echo(process: subprocess.Popen[str], launch: Launch) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if found := CLOSING.match(line.strip()):
            launch.counts = counts(found[1])
            launch.closed = time.monotonic()


def _wait(process: subprocess.Popen[str], launch: Launch, end: float) -> None:
    """Wait for the end of the process; past a limit, have the ranks say where they are."""
    look = 0.0
    while process.poll() is None:
        now = time.monotonic()
        if now > look:  # a rank that is killed leaves its shared memory and no trace of its name
            launch.note_shared_memory()
            look = now + 0.25
        if now > end:
            launch.problem = f"killed at the limit of {launch.limit:g} s"
        elif launch.closed is not None and now > launch.closed + LINGER:
            launch.problem = f"still there {LINGER:g} s after its closing line, killed"
        if launch.problem:
            for _, diary in _diaries(launch.directory):
                _signal(diary[0]["pid"], signal.SIGUSR1)  # tests/mpi/conftest.py: dump the stacks
            time.sleep(0.5)
            return
        time.sleep(0.02)


def _problem(process: subprocess.Popen[str], echo: threading.Thread, launch: Launch) -> str:
    """What is wrong with a launch that has ended by itself; "" if nothing is."""
    echo.join(timeout=5.0)
    status = process.poll()
    if status is None:
        return "interrupted"
    if launch.closed is None:
        name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return f"ended without a report, {name}"
    if not launch.counts:
        return "no tests ran"
    if status and not (launch.counts["failed"] or launch.counts["error"]):
        return f"exit status {status} after {closing_words(launch.counts)}"
    return ""


# -- what a launch leaves behind -------------------------------------------------------------------


def _diaries(directory: Path) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """What tests/mpi/conftest.py wrote on each rank, where the ranks did not come to the end."""
    for path in sorted(directory.glob("ranks-*/rank*.jsonl")):
        complete = path.read_text().rpartition("\n")[0]
        if complete:
            yield path, [json.loads(line) for line in complete.splitlines()]


def _last_words(directory: Path) -> Iterator[str]:
    """Where each rank was when the launch ended without a report."""
    for path, diary in _diaries(directory):
        who = f"[{path.stem.replace('rank', 'rank ')}]"
        tests = [event["test"] for event in diary if "test" in event]
        ended = any("finished" in event for event in diary)
        yield f"{who} was {'after' if ended else 'in'} {tests[-1] if tests else 'collection'}"
        for event in diary:
            if "failed" in event:
                yield f"{who} failed: {event['failed']}"
                yield from (f"{who} {line}" for line in event["text"].splitlines())
        stacks = path.with_suffix(".stacks").read_text()
        yield from (f"{who} {line}" for line in stacks.splitlines())


def clean(process: subprocess.Popen[str], launch: Launch) -> None:
    """End every process of the launch; remove its shared-memory files and its directory."""
    # mpirun first: it ends the ranks and removes what they registered with it.
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=3)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for _ in range(20):  # a process may have started another while we looked
        left = processes(launch.directory)
        if not left:
            break
        for pid in left:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.05)
    process.wait()
    for file in launch.shared_memory:
        with contextlib.suppress(OSError):
            os.unlink(file)
    shutil.rmtree(launch.directory, ignore_errors=True)


def processes(directory: Path) -> list[int]:
    """The processes started with `directory`, or one inside it, as TMPDIR.

    Process groups do not tell: mpirun makes one for each rank, and tests make sessions. The
    environment stays with whatever they start. Empty where there is no /proc.
    """
    mark = re.compile(rb"(?:^|\0)TMPDIR=" + re.escape(os.fsencode(directory)) + rb"(?:[/\0]|$)")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.search((entry / "environ").read_bytes()):
                found.append(int(entry.name))
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


# -- closing lines ---------------------------------------------------------------------------------


def counts(words: str) -> Counter[str]:
    """Counts of the words of a closing line: "1 failed, 12 passed, 2 warnings"."""
    found: Counter[str] = Counter()
    for number, outcome in re.findall(r"(\d+) (\w+)", words):
        name = outcome.removesuffix("s") if outcome in ("errors", "warnings") else outcome
        if name in OUTCOMES:
            found[name] += int(number)
    return found


def closing_words(total: Counter[str]) -> str:
    """The inverse of `counts`, in the order that pytest uses."""
    plural = {"error", "warning"}
    words = (
        f"{total[name]} {name}{'s' if name in plural and total[name] > 1 else ''}"
        for name in OUTCOMES
        if total[name]
    )
    return ", ".join(words) or "no tests ran"


def closing_line(total: Counter[str], seconds: float) -> str:
    """A line like the one at the end of a pytest session."""
    minutes = f" ({int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02})"
    words = f" {closing_words(total)} in {seconds:.2f}s{minutes if seconds >= 60 else ''} "
    return words.center(100, "=")


if __name__ == "__main__":
    sys.exit(main())
