"""Messages that go to the MPI library at once, and those that are left to mpi4py."""

import inspect
import os
import subprocess
import sys

import numpy as np
import pytest
from connected import on_fast_path
from mpi4py import MPI

from mpicoll.comm import Intracomm
from mpicoll.engine import transport

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(transport.Method is None, reason="the engine is not built"),
]

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.Get_size(), WORLD.Get_rank()


@pytest.fixture
def ours():
    yield from on_fast_path()


@pytest.mark.parametrize(
    "buffers",
    [
        lambda x: (x, x.copy()),
        lambda x: ([x, MPI.DOUBLE], (x.copy(), 2, MPI.DOUBLE)),
        lambda x: (bytearray(x.tobytes()), memoryview(x.copy())),
        lambda x: (MPI.buffer(x), MPI.buffer(x.copy())),
    ],
)
def test_messages(ours, buffers):
    right, left = (RANK + 1) % P, (RANK - 1) % P
    sent, received = buffers(np.array([RANK, 2.0]))
    ours.Sendrecv(sent, right, 3, received, left, 3)
    memory = received[0] if isinstance(received, (list, tuple)) else received
    assert np.frombuffer(memory).tolist() == [left, 2.0]
    status = MPI.Status()
    request = ours.Isend(sent, dest=right, tag=4)
    ours.Recv(received, source=left, tag=4, status=status)
    request.Wait()
    assert (status.source, status.tag) == (left, 4)


@pytest.mark.parametrize(
    ("given", "named", "usual"),
    [
        ((np.zeros(1), 0), {}, True),
        ((np.zeros(1),), {"dest": 0, "tag": 3, "status": MPI.Status()}, True),
        ((), {"buf": [np.zeros(1), MPI.DOUBLE], "dest": 0}, True),
        ((np.zeros(1),), {"status": None}, True),
        ((object(), 0), {}, False),
        (([object(), 1], 0), {}, False),
        ((np.zeros(1),), {"recvbuf": object()}, False),
    ],
)
def test_what_may_be_in_device_memory_is_left_to_the_function(given, named, usual):
    made = transport.Messages(lambda *given, **named: (True, given, named), (1,))
    method = transport.Method(lambda *given, **named: (False, given, named), made)
    assert method(None, *given, **named) == (usual, (None, *given), named)


def test_messages_of_nothing(ours):
    ours.Sendrecv(None, MPI.PROC_NULL, recvbuf=None, source=MPI.PROC_NULL)
    ours.Sendrecv([None, 0, MPI.BYTE], MPI.PROC_NULL, 0, [None, 0, MPI.BYTE], MPI.PROC_NULL)
    for message in ([], ()):
        ours.Send(message, MPI.PROC_NULL)  # mpi4py takes it, too


#: Buffers, counts and datatypes of messages that go to the library at once, and others.
SPELLED = {
    "array": lambda x: x,
    "[x, T]": lambda x: [x, MPI.Datatype.fromcode(x.dtype.char)],
    "[x, n, T]": lambda x: [x, x.size - 1, MPI.Datatype.fromcode(x.dtype.char)],
    "(x, n)": lambda x: (x, x.size - 1),
    "another datatype": lambda x: [x, x.nbytes, MPI.BYTE],
}


@pytest.mark.parametrize("spell", SPELLED.values(), ids=SPELLED)
@pytest.mark.parametrize("dtype", "?bBhHiIlLqQfdgFDG")
def test_messages_of_arrays_are_mpi4pys(ours, dtype, spell):
    """Whichever way they go: either side may be mpi4py's own."""
    native, right, left = MPI.Intracomm(ours), (RANK + 1) % P, (RANK - 1) % P
    given = np.arange(6).astype(dtype).reshape(2, 3)
    sent = np.asfortranarray(given + given) if dtype != "?" else given
    for sender, receiver in ((ours, native), (native, ours), (ours, ours)):
        got, status = np.zeros(6, dtype), MPI.Status()
        request = sender.Isend(spell(sent), right, 5)
        receiver.Recv(spell(got), left, 5, status)
        request.Wait()
        want = np.zeros(6, dtype)
        bound = ours.Irecv(spell(want), left, 6)
        sender.Send(spell(sent), dest=right, tag=6)
        bound.Wait()
        assert got.tobytes() == want.tobytes()
        assert (status.source, status.tag) == (left, 5)
        both = np.zeros(6, dtype)
        ours.Sendrecv(spell(sent), right, recvbuf=spell(both), source=left, status=status)
        assert both.tobytes() == got.tobytes()


class Told:
    """In the place of mpi4py's function: tells what it is asked for."""

    def __init__(self, native):
        self.native, self.asked = native, []

    def __call__(self, *given, **named):
        self.asked.append((given, named))
        return self.native(*given, **named)


def blocking(name):
    """A method that makes messages at once, and what it asks mpi4py for."""
    places = {"Send": ((1,), 1, 0), "Recv": ((1,), 0, 1), "Sendrecv": ((1, 4), 1, 4)}
    function = inspect.unwrap(getattr(Intracomm, name))
    code, told = function.__code__, Told(getattr(MPI.Intracomm, name))
    names = code.co_varnames[: code.co_argcount]
    buffers, *halves = places[name]
    return transport.Method(
        function, transport.BlockingMessages(told, buffers, names, *halves)
    ), told


NOBODY = MPI.PROC_NULL
READ_ONLY = np.frombuffer(bytes(8))


@pytest.mark.parametrize(
    ("name", "given", "named", "at_once"),
    [
        ("Send", (np.zeros(2), NOBODY), {}, True),
        ("Send", (np.zeros(()), NOBODY, 3), {}, True),
        ("Send", (np.zeros(0), NOBODY), {}, True),
        ("Send", (READ_ONLY, NOBODY), {}, True),
        ("Send", (np.zeros(2),), {"tag": 3, "dest": NOBODY}, True),
        ("Send", (), {"dest": NOBODY, "buf": np.zeros(2)}, True),
        ("Send", ([np.zeros(2), MPI.DOUBLE], NOBODY), {}, True),
        ("Send", ([np.zeros(2), 1, MPI.DOUBLE], NOBODY), {}, True),
        ("Send", ([np.zeros(2), np.int64(1), MPI.DOUBLE], NOBODY), {}, False),
        ("Send", ([np.zeros(2), (1, 1), MPI.DOUBLE], NOBODY), {}, False),
        ("Send", ([np.zeros(2), MPI.INT64_T], NOBODY), {}, False),
        ("Send", ([np.zeros(2), 1, 1, MPI.DOUBLE], NOBODY), {}, False),
        ("Send", ([None, 0, MPI.DOUBLE], NOBODY), {}, False),
        ("Send", (np.zeros((4, 4))[:, 1], NOBODY), {}, False),
        ("Send", (np.zeros(2, ">f8"), NOBODY), {}, False),
        ("Send", (np.zeros(2, "f2"), NOBODY), {}, False),
        ("Send", (np.zeros(2, "M8[s]"), NOBODY), {}, False),
        ("Send", (np.zeros(2), np.int64(NOBODY)), {}, False),
        ("Send", (np.zeros(2), NOBODY, True), {}, False),
        ("Send", (memoryview(np.zeros(2)), NOBODY), {}, False),
        ("Send", (np.zeros(17, "u1")[1:].view("f8"), NOBODY), {}, False),  # not aligned
        ("Recv", (np.zeros(2), NOBODY), {}, True),
        ("Recv", (np.zeros(2), NOBODY, 0, None), {}, True),
        ("Recv", (np.zeros(2), NOBODY), {"status": MPI.Status()}, True),
        ("Recv", (np.zeros(2),), {"source": NOBODY}, True),
        ("Recv", (READ_ONLY, NOBODY), {}, False),
    ],
)
def test_messages_that_go_to_the_library_at_once(name, given, named, at_once):
    method, told = blocking(name)
    method(WORLD, *given, **named)
    assert bool(told.asked) == (not at_once)


@pytest.mark.parametrize(
    ("name", "given", "named"),
    [
        ("Send", (np.zeros(2), P), {}),
        ("Send", (np.zeros(2), 0, -7), {}),
        ("Recv", (np.zeros(2), P), {}),
        ("Sendrecv", (np.zeros(2), NOBODY, 0, np.zeros(2), P), {}),
        ("Send", (np.zeros(2), 1 << 40), {}),
        ("Send", (np.zeros(2),), {}),
        ("Send", (np.zeros(2), 0, 0, 0), {}),
        ("Send", (np.zeros(2), 0), {"dest": 0}),
        ("Send", (np.zeros(2), "0"), {}),
        ("Send", (np.zeros(17, "u1")[1:].view("f8"), 0), {}),
        ("Send", ([np.zeros(2), -1, MPI.DOUBLE], 0), {}),
        ("Recv", (np.zeros(2), NOBODY), {"status": 3}),
        ("Recv", (np.zeros(2), NOBODY), {"recvtag": 3}),
    ],
)
def test_wrong_messages_fail_as_mpi4pys(ours, name, given, named):
    with pytest.raises((TypeError, ValueError, KeyError, OverflowError, MPI.Exception)) as wrong:
        getattr(WORLD, name)(*given, **named)
    with pytest.raises(type(wrong.value)) as found:
        getattr(ours, name)(*given, **named)
    if isinstance(wrong.value, MPI.Exception):
        assert found.value.error_class == wrong.value.error_class


def test_messages_from_anyone(ours):
    right, got, status = (RANK + 1) % P, np.zeros(3), MPI.Status()
    ours.Sendrecv(np.full(2, float(RANK)), right, 9, got, status=status)
    assert got.tolist() == [(RANK - 1) % P, (RANK - 1) % P, 0]
    assert (status.source, status.tag, status.Get_count(MPI.DOUBLE)) == ((RANK - 1) % P, 9, 2)


def test_a_library_without_a_type_of_numpys_keeps_the_engine():
    program = (
        "from mpi4py import MPI; MPI._typedict.pop('G'); from mpicoll.engine import transport; "
        "assert transport.BlockingMessages is not None, transport.engine_problem()"
    )
    if RANK == 0:
        alone = {name: value for name, value in os.environ.items() if "PMI" not in name}
        subprocess.run(
            [sys.executable, "-c", "import mpi4py; mpi4py.rc.initialize = False; " + program],
            check=True,
            env=alone,
        )
