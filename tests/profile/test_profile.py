"""Programs that know nothing of it, recorded under mpirun; and their files, however they ended."""

import json
import time

import pytest

pytest.importorskip("rich")

APP = """
import sys, time
import numpy as np
from mpi4py import MPI
from mpi4py.MPI import COMM_WORLD as world

rank, size = world.Get_rank(), world.Get_size()
x, y = np.ones(128), np.zeros(128)
for step in range(20):
    if rank == size - 1 and step == 10:
        time.sleep(0.5)
    world.Allreduce(x, y)  # all wait for one
assert y[0] == size and MPI.COMM_WORLD == world
part = world.Split(0 if rank < 2 else 1)
for _ in range(5):
    part.Bcast([x, MPI.DOUBLE], root=0)
assert world.allgather("a" * rank) == ["a" * each for each in range(size)]
if rank == 0:
    time.sleep(0.5)
request = world.Iallreduce(x, y)
assert isinstance(request, MPI.Request) and not isinstance(x, MPI.Request)
MPI.Request.Waitall([request])
plan = world.Bcast_init(x)
for _ in range(3):
    plan.Start()
    plan.Wait()
world.Sendrecv(x, (rank + 1) % size, recvbuf=y, source=(rank - 1) % size)
right = world.isend({"rank": rank}, (rank + 1) % size)
assert world.recv(source=(rank - 1) % size) == {"rank": (rank - 1) % size}
right.wait()
grid = world.Create_cart([size], periods=[True])
assert type(grid).__name__ == "Cartcomm" and grid.Get_dim() == 1
grid.Neighbor_allgather(x[:1], np.zeros(2))
part.Free()
MPI.COMM_SELF.Barrier()
if rank == 0:
    print("arguments", sys.argv[1:])
"""


@pytest.fixture
def shown(command):
    """A profile as plain values."""

    def show(folder):
        done = command("profile", folder, "--json")
        assert done.status == 0, done.err
        return json.loads(done.out)

    return show


@pytest.fixture
def record(mpirun, tmp_path):
    """Run a program under the recorder; its folder, and what it and the recorder said."""

    def run(ranks, text, *words, arguments=(), **more):
        (tmp_path / "app.py").write_text(text)
        folder = tmp_path / "profile"
        options = ("-m", "mpicoll.profile", "-o", folder, *words, tmp_path / "app.py")
        return folder, mpirun(ranks, *options, *arguments, **more)

    return run


def by_method(facts):
    return {line["method"]: line for line in facts["lines"]}


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.long), 3])
def test_a_program_is_recorded_as_it_is(record, shown, ranks):
    folder, done = record(ranks, APP, arguments=("--steps", "5"), environment={"COLUMNS": "80"})
    assert done.status == 0, done.err
    assert "arguments ['--steps', '5']" in done.out
    table = done.out[done.out.index("# app.py: ") :].splitlines()
    assert max(map(len, table)) <= 80
    assert any(line.startswith("Allreduce ") and "app.py:" in line for line in table)
    assert any(line.startswith("# recording took ") for line in table)
    facts = shown(folder)
    assert facts["ranks"] == ranks and facts["ended"] == [*range(ranks)]
    lines = by_method(facts)
    allreduce = lines["Allreduce"]
    place = APP.splitlines().index("    world.Allreduce(x, y)  # all wait for one") + 1
    assert (allreduce["calls"], allreduce["size"], allreduce["line"]) == (20, 1024, place)
    assert allreduce["communicator"] == "world" and allreduce["function"] == "<module>"
    assert allreduce["matched"] == 20 and allreduce["algorithm"] == "native"
    assert lines["Bcast"]["communicator"].startswith("Split of ") and lines["Bcast"]["calls"] == 5
    assert lines["Bcast_init"]["calls"] == 3 and lines["Iallreduce"]["calls"] == 1
    assert lines["Barrier"]["communicator"] == "self"
    assert lines["Neighbor_allgather"]["communicator"] == f"Create_cart of {ranks}"
    assert facts["messages"]["0"]["calls"] == 3
    if ranks > 1:
        first = allreduce["ranks_parts"]["0"]
        assert 0.1 < first["waiting"] <= first["seconds"]  # half a second, padded
        assert lines["Iallreduce"]["ranks_parts"]["1"]["seconds"] > 0.1  # in Waitall
        assert lines["allgather"]["nbytes"] > 0


OWN = """
import numpy as np
from mpi4py import MPI
import mpicoll

comm = mpicoll.Intracomm(MPI.COMM_WORLD)
x, y = np.ones(64), np.zeros(64)
for _ in range(10):
    comm.Allreduce(x, y, algorithm="ring")
for _ in range(10):
    comm.Allreduce(x, y, algorithm="recursive_doubling")
comm.Iallreduce(x, y, algorithm="ring").Wait()
comm.Split(0).Barrier()
"""


def test_the_algorithms_of_mpicoll_are_told(record, shown):
    folder, done = record(3, OWN)
    assert done.status == 0, done.err
    ran = {(line["method"], line["algorithm"], line["calls"]) for line in shown(folder)["lines"]}
    assert {("Allreduce", "ring", 10), ("Allreduce", "recursive_doubling", 10)} <= ran
    assert ("Barrier", "native", 1) in ran


PLAIN = """
import numpy as np
from mpi4py import MPI

x, y = np.ones(64), np.zeros(64)
for _ in range(12):
    MPI.COMM_WORLD.Allreduce(x, y)
"""


def test_a_plain_program_goes_through_mpicoll(record, shown):
    environment = {"MPICOLL_ALLREDUCE": "ring"}
    folder, done = record(2, PLAIN, "--through-mpicoll", environment=environment)
    assert done.status == 0, done.err
    calls = {line["algorithm"]: line["calls"] for line in shown(folder)["lines"]}
    assert sum(calls.values()) == 12 and calls["ring"] >= 9


def test_what_it_would_take_is_measured_and_kept(record, shown, command, tmp_path):
    pytest.importorskip("plotly")
    page = tmp_path / "page.html"
    folder, done = record(2, PLAIN.replace("64", "8192"), "--replay", "--html", page)
    assert done.status == 0, done.err
    assert "What it would take:" in done.out
    facts = shown(folder)
    (answer,) = facts["answers"]
    assert answer["now"] == "native" and answer["best"] and " us)" in answer["verdict"]
    if answer["gain"]:
        assert facts["write"] == [f"MPICOLL_ALLREDUCE={answer['best']}"]
        assert json.loads((folder / "tuning.json").read_text())["mpicoll"] == "tuning 1"
    else:
        assert facts["write"] == [] and not (folder / "tuning.json").exists()
    text = page.read_text()
    assert "What it would take" in text and "app.py:" in text
    again = command("profile", folder)
    assert "1. Allreduce, 64K bytes, 2 ranks, app.py:" in again.out


HUNG = """
import time
import numpy as np
from mpi4py import MPI

rank = MPI.COMM_WORLD.Get_rank()
for _ in range(50):
    MPI.COMM_WORLD.Allreduce(np.ones(4), np.zeros(4))
print("hangs", flush=True)
if rank:
    MPI.COMM_WORLD.Barrier()
time.sleep(60)
"""


def test_what_was_recorded_survives_the_run(mpirun, shown, tmp_path):
    (tmp_path / "app.py").write_text(HUNG)
    folder = tmp_path / "profile"
    process = mpirun.start(2, "-m", "mpicoll.profile", "-o", folder, tmp_path / "app.py")
    limit = time.monotonic() + 40
    while sum(text.count('"calls":50') for text in _texts(folder)) < 2:
        assert time.monotonic() < limit, _texts(folder)
        time.sleep(0.1)
    mpirun.kill(process)
    with open(folder / "calls-1.jsonl", "ab") as file:
        file.write(b'{"record": "row", "numb')  # as a write that was cut off
    facts = shown(folder)
    assert facts["ended"] == [] and by_method(facts)["Allreduce"]["calls"] == 50


def _texts(folder):
    return [path.read_text() for path in folder.glob("calls-*")]


FAILS = """
from mpi4py import MPI

MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.Get_rank() == 1:
    raise RuntimeError("on purpose")
MPI.COMM_WORLD.Barrier()
"""


def test_an_exception_ends_the_job_and_is_said(record, shown):
    folder, done = record(2, FAILS)
    assert done.status != 0 and "RuntimeError: on purpose" in done.err
    assert by_method(shown(folder))["Barrier"]["calls"] >= 1


ENDS = """
from mpi4py import MPI

MPI.COMM_WORLD.Barrier()
MPI.Finalize()
"""


def test_a_program_may_end_mpi_by_itself_and_its_profile_is_kept(record, shown):
    folder, done = record(2, ENDS)
    assert done.status == 0, done.err
    assert "Barrier" in done.out and shown(folder)["ended"] == [0, 1]
    _, done = record(2, ENDS)
    assert done.status == 2
    assert done.err.count("has a profile already; name another folder by -o") == 1


def test_a_folder_without_a_profile_is_named(command, tmp_path):
    done = command("profile", tmp_path)
    assert done.status == 2 and "has no calls-0.jsonl; name the folder that" in done.err


def test_without_a_program_it_says_how(mpirun):
    done = mpirun(2, "-m", "mpicoll.profile")
    assert done.status == 2 and done.out.count("mpirun -n 4 python -m mpicoll.profile") == 1
