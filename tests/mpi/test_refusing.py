"""What cannot be staged refuses device memory by name, without a GPU (see fake_cuda)."""

import inspect

import numpy as np
import pytest
from fake_cuda import in_its_place
from mpi4py import MPI

import mpicoll
from mpicoll.comm import refusing
from mpicoll.comm.passed import NEIGHBOURHOOD
from mpicoll.schedule.methods import METHODS

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank

#: Methods that take device memory.
STAGED = {"Send", "Recv", "Sendrecv", "Isend", "Irecv", "Send_init", "Recv_init"}
for _method in METHODS:
    STAGED |= {_method, f"I{_method.lower()}", f"{_method}_init"}


@pytest.fixture
def fake():
    with in_its_place(seed=RANK) as made:
        yield made


def taking_buffers(kind, but=()):
    """Methods of a class of mpi4py's, by its own signatures, and which parameters are buffers."""
    for name, method in inspect.getmembers(kind, callable):
        if not name.startswith("_") and name not in but:
            parameters = inspect.signature(method).parameters.values()
            spots = [
                parameter.name
                for parameter in parameters
                if str(parameter.annotation).strip("'").startswith(("BufSpec", "Buffer"))
            ]
            if spots:
                yield name, spots, [p.name for p in parameters if p.default is p.empty][1:]


def refuses(fake, thing, name, spots, required, words):
    """One buffer at a time in device memory, given by position and by name."""
    for spot in spots:
        given = {other: np.zeros(2) if other in spots else 0 for other in required}
        given[spot] = fake.array(np.zeros(2))
        with pytest.raises(BufferError, match=f"^{words}{name}: a buffer in device memory"):
            getattr(thing, name)(**given)
        if spot in required:
            with pytest.raises(BufferError, match=f"^{words}{name}: a buffer in device memory"):
                getattr(thing, name)(*given.values())


@pytest.mark.parametrize("kind", [MPI.Win, MPI.File, MPI.Message])
def test_every_call_of_windows_files_and_messages(fake, kind):
    thing, found = getattr(mpicoll, kind.__name__)(), []
    for name, spots, required in taking_buffers(kind):
        needed = required if name != "Create" else ["memory"]  # of the class, which is bound
        refuses(fake, thing, name, spots, needed, f"{kind.__name__}.")
        found.append(name)
    assert len(found) == {"Win": 13, "File": 34, "Message": 2}[kind.__name__]


def test_every_other_call_of_a_communicator(fake):
    ring = mpicoll.Intracomm(WORLD).Create_cart([P], periods=[True])
    found = set()
    for name, spots, required in taking_buffers(MPI.Cartcomm, STAGED):
        refuses(fake, ring, name, spots, required, "")
        found.add(name)
    assert found >= {"Bsend", "Isendrecv", "Precv_init", "recv", "irecv", "sendrecv"}
    assert found >= {definition.method for definition in NEIGHBOURHOOD.values()}
    ring.Free()


def test_a_cuda_aware_library_gets_it_once_it_has_come(fake, monkeypatch):
    monkeypatch.setattr(refusing, "library_takes", lambda: True)
    comm, array = mpicoll.Intracomm(WORLD.Dup()), fake.array(np.zeros(2), stream=5)
    array.set(np.ones(2))
    comm.Ssend(array, MPI.PROC_NULL)
    assert not fake.streams[5]
    for name in ("Rput", "Accumulate", "Fetch_and_op"):
        with pytest.raises(BufferError, match=rf"^Win\.{name}: "):
            getattr(mpicoll.Win(), name)(array, array, 0)
    with pytest.raises(BufferError, match=r"^recv: "):
        comm.recv(array)
    comm.Free()


def test_windows_are_mpi4pys(fake):
    mine, got, other = np.full(3, RANK), np.zeros(3, int), (RANK + 1) % P
    window = mpicoll.Win.Create(mine, mine.itemsize, comm=mpicoll.Intracomm(WORLD))
    assert type(window) is mpicoll.Win and isinstance(window, MPI.Win)
    window.Fence()
    window.Get(got, other)
    window.Fence()
    window.Free()
    assert {*got} == {other}
    window = mpicoll.Win.Allocate(8, comm=WORLD)
    assert type(window) is mpicoll.Win
    window.Free()


def test_files_are_mpi4pys(fake, folder):
    file = mpicoll.File.Open(WORLD, str(folder / "data"), MPI.MODE_CREATE | MPI.MODE_RDWR)
    assert type(file) is mpicoll.File and isinstance(file, MPI.File)
    got = np.zeros(2)
    file.Write_at_all(16 * RANK, np.full(2, float(RANK)))
    file.Sync()
    file.Read_at(16 * RANK, got)
    file.Close()
    assert {*got} == {RANK}


def test_matched_messages_are_mpi4pys(fake):
    comm, got = mpicoll.Intracomm(WORLD), np.zeros(2)
    requests = [comm.Isend(np.full(2, float(RANK)), RANK, tag) for tag in (1, 2)]
    message = comm.Mprobe(RANK, 1)
    with pytest.raises(BufferError, match=r"^Message\.Recv: a buffer in device memory"):
        message.Recv(fake.array(got))
    message.Recv(got)
    assert {*got} == {RANK}
    while (message := comm.Improbe(RANK, 2)) is None:
        pass
    message.Irecv([got, MPI.DOUBLE]).Wait()
    assert comm.Improbe(RANK, 3) is None
    MPI.Request.Waitall(requests)
    assert comm.sendrecv("word", RANK, source=RANK) == "word"
