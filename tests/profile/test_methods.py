"""What recorded methods tell, compiled and as Python."""

import subprocess
import sys

import pytest

CALLS = """
import numpy as np
from mpi4py import MPI

if SOURCES:
    import importlib.machinery as machinery

    hook = machinery.FileFinder.path_hook((machinery.SourceFileLoader, [".py"]))
    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()
from mpicoll.profile import methods
from mpicoll.profile.classes import Classes
from mpicoll.profile.recorder import Recorder

assert methods.__file__.endswith(".py") or not SOURCES
recorder = Recorder()
comm = Classes(recorder).recorded(MPI.COMM_SELF.Dup(), "Dup")
methods.count_pickled(recorder)
x, y = np.ones(4), np.zeros(4)


def program():
    for _ in range(2):
        comm.Allreduce(x, y); comm.Allreduce(x[:2], y[:2])
        comm.Bcast([x, 3, MPI.DOUBLE], root=0)
        comm.Alltoallw([x, ([2], [0]), [MPI.DOUBLE]], [y, ([2], [0]), [MPI.DOUBLE]])
        comm.Iallreduce(x, y).Wait()
        request = comm.Iallreduce(sendbuf=x, recvbuf=y)
        while not request.Test():
            pass
    assert comm.allreduce(1) == 1
    plan = comm.Bcast_init(x)
    for _ in range(3):
        plan.Start()
        plan.Wait()
    comm.Sendrecv(x, 0, recvbuf=y, source=0)
    assert comm.sendrecv("a", 0, source=0) == "a"
    for wrong in (comm.Allreduce, comm.Send, type(comm).Bcast):
        try:
            wrong()
        except TypeError:
            pass


program()
first = program.__code__.co_firstlineno
assert comm._profile.count == 17  # messages, and calls without a communicator, are not among them
for row in recorder.rows:
    about = row.about
    place = about.get("line", first) - first, about.get("function"), about.get("size")
    print(about["method"], *place, row.calls, row.nbytes, row.seconds > 0)
"""

#: Method; line and function that calls, bytes; calls, bytes where they differ, and time.
TOLD = """
point-to-point 0 None None 3 64 True
Allreduce 2 program 32 2 0 True
Allreduce 2 program 16 2 0 True
Bcast 3 program 24 2 0 True
Alltoallw 4 program -1 2 32 True
Iallreduce 5 program 32 2 0 True
Iallreduce 6 program 32 2 0 True
allreduce 9 program -1 1 20 True
Bcast_init 10 program 32 3 0 True
Allreduce 18 program 0 1 0 True
"""


@pytest.mark.parametrize("sources", [False, True])
def test_calls_are_told_by_place_and_bytes(sources):
    code = f"import sys\nSOURCES = {sources}\n{CALLS}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == TOLD.strip()


def test_deaths_are_heard_of_in_recorded_methods_of_objects():
    """A recorded method calls the one that was there; that must not be mpi4py's own."""
    program = """
from mpi4py import MPI
from mpicoll.comm import Intracomm, objects
from mpicoll.profile.classes import Classes
from mpicoll.profile.recorder import Recorder

Classes(Recorder()).install(MPI.COMM_WORLD)
asked = []
objects._survives = asked.append
assert Intracomm(MPI.COMM_SELF).bcast(7) == 7
assert len(asked) == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True)
