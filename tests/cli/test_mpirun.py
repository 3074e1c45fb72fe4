"""The command under mpirun: one voice, one exit status, and no rank left behind."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings

import pytest

from mpicoll.bench import records, resume

#: Arguments of `bench` for a sweep of a moment.
BRIEF = ("bench", "allreduce", "-a", "ring,native", "-s", "8,8K", "-n", "3", "-w", "1")


def own(err):
    """Lines of standard error that are ours; launchers add their own."""
    return [line for line in err.splitlines() if "mpicoll: " in line or line.startswith("[rank")]


@pytest.mark.parametrize("words", [("list",), ("verify", "-P", "1-3"), ("show", "bcast", "linear")])
def test_commands_without_mpi_are_said_once(mpirun, words):
    alone = subprocess.run(
        [sys.executable, "-m", "mpicoll", *words], capture_output=True, text=True, timeout=50
    )
    done = mpirun(3, "-m", "mpicoll", *words)
    assert (done.status, done.out) == (0, alone.stdout)


def test_usage_errors_are_said_once(mpirun):
    done = mpirun(3, "-m", "mpicoll", "bench", "allreduce", "--root", "3")
    assert done.status == 2
    assert done.out == ""
    assert own(done.err) == ["mpicoll: error: --root 3 is no rank of 3; give 0 to 2"]


#: A program that runs the command, on one rank later than on the others.
LATE = """
import os, sys, time
from mpicoll.base.launcher import launch
from mpicoll.cli import main

if launch().rank == int(sys.argv[1]):
    time.sleep(1.5)
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("bench allreduce -f 2 -i 8", "--stepfactor and --stepbytes exclude each other; drop one"),
        (
            "bench allreduce --frobnicate",
            "no such option: --frobnicate",
        ),
        ("bench allreduce --root 3", "--root 3 is no rank of 2; give 0 to 1"),
        ("train cats", "unknown dataset 'cats'"),
    ],
)
def test_usage_errors_are_said_once_whoever_is_late(mpirun, tmp_path, words, said, late):
    """A launcher ends all ranks when the first leaves with an error."""
    (tmp_path / "late.py").write_text(LATE)
    done = mpirun(2, tmp_path / "late.py", late, *words.split())
    assert done.status == 2
    assert (done.out, done.err.count(said)) == ("", 1)
    (line,) = own(done.err)
    assert line.startswith(f"mpicoll: error: {said}")


def test_a_usage_error_of_one_rank_ends_all(mpirun, tmp_path):
    """As where a node has another file."""
    (tmp_path / "a.toml").write_text('collectives = ["allreduce"]\n')
    (tmp_path / "own.py").write_text(
        "import sys\nfrom mpicoll.base.launcher import launch\nfrom mpicoll.cli import main\n"
        f"name = 'none' if launch().rank == 1 else 'a'\n"
        f"sys.exit(main(['bench', '--config', {str(tmp_path)!r} + f'/{{name}}.toml', '-n', '1']))\n"
    )
    done = mpirun(3, tmp_path / "own.py")
    assert (done.status, done.out) == (2, "")
    (line,) = own(done.err)
    where = f"--config {tmp_path}/none.toml: No such file or directory"
    assert line == f"mpicoll: error: rank 1: {where}"


def test_bench_from_end_to_end(mpirun, tmp_path):
    files = ("-J", tmp_path / "a.jsonl", "--html", tmp_path / "a.html")
    wide = {"COLUMNS": "200"}
    done = mpirun(2, "-m", "mpicoll", *BRIEF, *files, "--seed", "7", environment=wide)
    assert done.status == 0
    rows = [line.split() for line in done.out.splitlines() if re.match(r"\s*\d+K? ", line)]
    assert [row[0] for row in rows] == ["8", "8", "8K", "8K"]
    assert [{row[5] for row in rows[at : at + 2]} for at in (0, 2)] == [{"ring", "native"}] * 2
    assert {row[-4] for row in rows} == {"0"}
    assert "time [us]" in done.out
    *_, best, gain, noise = done.out.splitlines()
    assert best.startswith("best algorithm: ") and gain.startswith("gain over native: ")
    assert noise.startswith("noise: ")
    assert "seed 7" in done.out
    assert done.err.count("left]") == 4
    (run,) = records.read(tmp_path / "a.jsonl")
    assert len(run.points) == 4
    assert run.facts["settings"]["seed"] == 7
    assert run.facts["hosts"]
    assert "Plotly" in (tmp_path / "a.html").read_text()


@pytest.mark.parametrize("style", ["json", "csv", "osu"])
def test_bench_formats_are_for_machines(mpirun, style):
    done = mpirun(2, "-m", "mpicoll", *BRIEF, "--format", style)
    if style == "json":
        points = json.loads(done.out)["points"]
        assert [p["n"] for p in points] == [3] * 4
    elif style == "osu":
        assert [line.split()[0] for line in done.out.splitlines() if line[:1].isdigit()] == [
            "8", "8192", "8", "8192",
        ]  # fmt: skip
    else:
        head, *lines = done.out.splitlines()
        assert head.startswith("collective,size_bytes,")
        assert len(lines) == 4


def test_bench_files_that_cannot_be_written_are_found_before_measuring(mpirun, tmp_path):
    done = mpirun(2, "-m", "mpicoll", *BRIEF, "-J", tmp_path / "no" / "a.jsonl")
    assert done.status == 2
    assert own(done.err) == [f"mpicoll: error: {tmp_path}/no/a.jsonl: No such file or directory"]
    assert done.out == ""


def test_a_sweep_that_cannot_fit_is_refused_before_it_begins(mpirun, tmp_path):
    words = ("bench", "allreduce", "-b", "8", "-e", "8T", "-n", "1", "-J", tmp_path / "a.jsonl")
    done = mpirun(2, "-m", "mpicoll", *words)
    assert done.status == 2
    (line,) = own(done.err)
    assert re.match(
        r"mpicoll: error: the 2 rank\(s\) of this node need [\d,.]+ MB more \(allreduce of 8T "
        r"[\d,.]+ MB\), [\d,.]+ MB are available: measure smaller sizes by -e",
        line,
    )
    assert not (tmp_path / "a.jsonl").exists()


#: A program that runs the command with so many bytes more than MPI has taken.
LIMITED = """
import os, resource, sys
from mpi4py import MPI
from mpicoll.bench import room
from mpicoll.cli import main

if sys.argv[1] == "unseen":  # as where a rank takes more than its buffers
    room.left = lambda: None
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
most = used + (200 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("limit", ["seen", "unseen"])
def test_a_limit_of_memory_is_told_in_a_line(mpirun, tmp_path, limit):
    (tmp_path / "limited.py").write_text(LIMITED)
    words = ("bench", "allreduce", "-b", "1G", "-e", "1G", "-a", "native", "-n", "1")
    done = mpirun(2, tmp_path / "limited.py", limit, *words)
    assert done.status != 0
    assert "Traceback" not in done.err
    if limit == "seen":
        assert done.status == 2
        (line,) = own(done.err)
        assert "this process (see ulimit -v, -d) need 4,295.0 MB more (allreduce of 1G" in line
    else:
        first, *_ = own(done.err)
        assert re.match(r"mpicoll: error: \[rank \d\] out of memory: Unable to allocate", first)


# A program that runs the command on a communicator with a fault.
FAULT = """
import os, signal, sys, time
import mpicoll
from mpi4py import MPI
from mpicoll.cli import main

class Faulty(mpicoll.Intracomm):
    calls = 0
    def Allreduce(self, send, recv, *rest, **choice):
        self.calls += 1
        {fault}
        super().Allreduce(send, recv, *rest, **choice)
        {after}

mpicoll.Intracomm = Faulty
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def faulty(tmp_path):
    def program(fault="pass", after="pass"):
        path = tmp_path / "faulty.py"
        path.write_text(FAULT.format(fault=fault, after=after))
        return path

    return program


@pytest.mark.parametrize("ranks", [1, 2])
def test_one_rank_is_told_to_start_more(mpirun, ranks):
    done = mpirun(ranks, "-m", "mpicoll", *BRIEF)
    assert done.status == 0
    assert ("one rank sends no messages; start several" in done.err) == (ranks == 1)


def test_wrong_results_are_named_and_fail(mpirun, faulty):
    done = mpirun(2, faulty(after="recv[1] += self.Get_rank()"), *BRIEF)
    assert done.status == 1
    assert "wrong elements, the first at rank 1, index 1: want " in done.err
    assert "wrong elements; see the column" in done.out


def test_an_exception_on_one_rank_ends_all(mpirun, faulty):
    fault = "if self.Get_rank() == 1 and self.calls == 3: raise KeyError('lost')"
    done = mpirun(3, faulty(fault), *BRIEF, limit=30)
    assert done.status not in (0, 2)
    assert "[rank 1] KeyError: 'lost'" in done.err
    assert "[rank 1] Traceback (most recent call last):" in done.err


def test_a_rank_that_does_not_arrive_is_named(mpirun, faulty):
    fault = "if self.Get_rank() == 1 and self.calls == 3: time.sleep(600)"
    done = mpirun(3, faulty(fault), *BRIEF, "-T", "2", limit=40)
    assert done.status not in (0, 2)
    (line,) = own(done.err)
    assert "no progress for 2 s in " in line
    assert "raise --timeout" in line


def test_a_stopped_rank_is_named(mpirun, faulty):
    fault = "if self.Get_rank() == 1 and self.calls == 3: os.kill(os.getpid(), signal.SIGSTOP)"
    done = mpirun(3, faulty(fault), *BRIEF, "-T", "2", limit=40)
    assert done.status not in (0, 2)
    assert "ranks that did not arrive: 1; " in done.err


# A program in which the last rank is stopped while the others measure.
STOPPED = """
import os, signal, sys, threading
import mpicoll
from mpicoll.cli import main

class Stopped(mpicoll.Intracomm):
    def Split(self, color=0, key=0):
        if self.Get_rank() == self.Get_size() - 1:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGSTOP)).start()
        return super().Split(color, key)

mpicoll.Intracomm = Stopped
sys.exit(main(sys.argv[1:]))
"""


def test_a_rank_stopped_while_others_measure_is_named(mpirun, tmp_path):
    program = tmp_path / "stopped.py"
    program.write_text(STOPPED)
    words = ("bench", "allreduce", "-a", "native", "-s", "8K,16K", "--ranks", "2", "-T", "1")
    done = mpirun(4, program, *words, "--precision", "1e-9", "--point-time", "0.6", limit=40)
    assert done.status not in (0, 2)
    (line,) = own(done.err)
    assert "no progress for 1 s in waiting for all after allreduce at P = 2; " in line
    assert "ranks that did not arrive: 3; " in line


def test_a_full_disk_keeps_earlier_points(mpirun, faulty, tmp_path):
    path = tmp_path / "a.jsonl"
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (6000, -1))"
    fault = f"if self.calls == 1 and self.Get_rank() == 0: {limit}"
    words = ("bench", "allreduce", "-a", "ring,native", "-s", "8K,16K,32K,64K", "-n", "80")
    done = mpirun(2, faulty(fault), *words, "-J", path)
    assert done.status not in (0, 2)
    (line,) = own(done.err)
    assert "results cannot be written: File too large; the points finished before are kept" in line
    with pytest.warns(UserWarning, match="dropped: not complete JSON"):
        (run,) = records.read(path)
    kept = len(run.points)
    assert 0 < kept < 8
    again = mpirun(2, "-m", "mpicoll", *words, "-J", path, "--resume")
    assert again.status == 0
    assert f"{kept} points in {path} already, {8 - kept} left" in again.err
    with pytest.warns(UserWarning, match="not complete JSON"):
        points = [resume.key(point) for run in records.read(path) for point in run.points]
    assert len(points) == len(set(points)) == 8


def lines(path):
    """Lines of a file that may not be there yet."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.long
@pytest.mark.timeout(180)  # a dozen launches
def test_a_sweep_killed_again_and_again_has_every_point_once(mpirun, tmp_path):
    """By SIGKILL, of the launcher alone or of the ranks too, at instants that are drawn."""
    path, draw = tmp_path / "a.jsonl", random.Random(5)
    words = ("-m", "mpicoll", "bench", "allreduce,bcast", "-a", "binomial,linear,native")
    words += ("-b", "8", "-e", "8K", "-f", "8", "--ranks", "1,2", "--launch-id", "7", "-n", "40")
    words += ("--point-time", "0.05", "-J", path, "--resume")
    for turn in range(10):
        process, before = mpirun.start(2, *words), lines(path)
        if turn < 3:
            time.sleep(draw.uniform(0.1, 1.0))  # perhaps before the first line of the file
        else:
            wanted = before + draw.randint(1, 10)
            while lines(path) < wanted and process.poll() is None:
                time.sleep(draw.uniform(0, 0.01))
        mpirun.kill(process, alone=turn % 2 == 1)
    assert lines(path) > 8
    done = mpirun(2, *words)
    assert done.status == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torn lines
        runs = records.read(path)
    points = [resume.key(point) for run in runs for point in run.points]
    assert len(points) == len(set(points)) == 2 * 4 * 3 * 2
    assert {point.launch for run in runs for point in run.points} == {7}
    # All are in the table of the last part.
    row = re.compile(r"^ +\d+K? +\d+ +float32", re.MULTILINE)
    assert len(row.findall(done.out)) == len(points)
    before, again = lines(path), mpirun(2, *words)
    assert (again.status, len(row.findall(again.out))) == (0, len(points))
    assert lines(path) == before
    other = mpirun(2, *words, "--cold", "-n", "39")
    assert other.status == 2
    assert "with other settings: iterations was 40, is 39; cold was False, is True; " in other.err


def test_ctrl_c_leaves_nobody_behind(mpirun, tmp_path):
    path = tmp_path / "a.jsonl"
    words = ("-m", "mpicoll", "bench", "allreduce", "-a", "native", "--point-time", "60")
    process = mpirun.start(2, *words, "--precision", "1e-9", "-b", "64K", "-J", path)
    deadline = time.monotonic() + 30
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    done = mpirun.finish(process, limit=20)
    assert done.status != 0
    assert "Traceback" not in done.err


def test_doctor(mpirun):
    facts = json.loads(mpirun(3, "-m", "mpicoll", "doctor", "--json").out)
    assert facts["ok"] is True
    assert facts["problems"] == []
    assert facts["mpi"]["ranks"] == facts["launcher"]["processes"] == 3
    assert facts["mpi"]["tag_limit"] >= 32767
    assert facts["mpi"]["thread_level"] in ("single", "funneled", "serialized", "multiple")
    assert facts["mpi"]["cuda_aware"] in (True, False, None)
    (host,) = facts["hosts"]
    assert host["ranks"] == 3
    assert bool(facts["warnings"]) >= (host["cores"] < 3)
    if not facts["engine"]["problem"]:
        assert facts["engine"]["shared"]["bytes"] > 3 * 4096
    said = mpirun(2, "-m", "mpicoll", "doctor").out
    assert "ranks seen" in said
    assert "all is well" in said


def alone(*words):
    """Python as ranks 0 and 1 of a launch that MPI does not understand, as srun without a common
    PMI."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI", "PRTE"))}
    lone = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
    return [
        subprocess.run(
            [sys.executable, *words],
            env={**clean, **lone, "SLURM_PROCID": str(rank)},
            capture_output=True,
            text=True,
            timeout=50,
        )
        for rank in (0, 1)
    ]


def test_a_program_of_lone_ranks_is_warned_once():
    """Whatever it does is its own business; so it goes on."""
    build = "comm = mpicoll.Intracomm(MPI.COMM_WORLD); comm.Dup(); mpicoll.Intracomm(comm)"
    first, other = alone("-c", f"from mpi4py import MPI; import mpicoll; {build}")
    assert first.returncode == other.returncode == 0
    assert first.stderr.count("LaunchWarning: srun started 4 processes, but each of them") == 1
    assert "LaunchWarning" not in other.stderr


@pytest.mark.parametrize("words", [("doctor", "--json"), BRIEF])
def test_lone_ranks_are_explained(words):
    done = alone("-m", "mpicoll", *words)
    # A launcher that ends all when one fails must not end the first before it has said why.
    assert [d.returncode for d in done] == ([1, 0] if words[0] == "doctor" else [2, 0])
    assert "srun started 4 processes, but each of them is rank 0 of 1" in (
        done[0].stdout + done[0].stderr
    )
    assert (done[0].stdout + done[0].stderr).count("each of them is rank 0 of 1") == 1
    assert done[1].stdout == ""
    assert not own(done[1].stderr)
