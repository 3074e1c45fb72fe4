"""What changes or hands on the handle of a communicator: the same as mpi4py's."""

import ctypes
import re

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll.comm import Cartcomm, Intercomm, Intracomm
from mpicoll.comm.handle import CHANGING
from mpicoll.runtime.state import find

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank


@pytest.fixture
def ours():
    comm = Intracomm(WORLD.Dup())
    comm.Barrier(algorithm="dissemination")
    yield comm
    comm.Free()


# --- what changes its state ---


def test_the_list_is_complete():
    """By the names that MPI gives to what changes an object."""
    names = re.compile(
        r"(Set_|Delete_|Attach_|Detach_|I?[Ff]lush_|Ack_)\w+|Revoke|[Ff]ree|Disconnect"
    )
    known = {name for kind in (MPI.Intracomm, MPI.Cartcomm) for name in dir(kind)}
    assert {name for name in known if names.fullmatch(name)} == set(CHANGING)


def test_what_reaches_the_private_communicator_is_mpicolls_own():
    for name, what in CHANGING.items():
        for kind in (Intracomm, Cartcomm):
            ours = getattr(kind, name) is not getattr(MPI.Intracomm, name)
            assert ours or what.startswith("nothing"), name


def error_of(call, *arguments, **more):
    with pytest.raises(MPI.Exception) as caught:
        call(*arguments, **more)
    return caught.value.Get_error_class()


@pytest.mark.parametrize("transport", ["auto", "mpi"])
def test_revoke_reaches_collectives(monkeypatch, transport):
    monkeypatch.setenv("MPICOLL_TRANSPORT", transport)
    ours = Intracomm(WORLD.Dup())
    send, recv = np.ones(4), np.zeros(4)
    for _ in range(2):  # the second one goes the fast path
        ours.Allreduce(send, recv, algorithm="linear")
    plan = ours.Allreduce_init(send, recv, algorithm="linear")
    ours.Barrier()
    try:
        ours.Revoke()
    except NotImplementedError:
        pytest.skip("this MPI library cannot revoke communicators")
    assert ours.Is_revoked()
    for call in (ours.Allreduce, ours.Iallreduce, ours.Allreduce_init):
        assert error_of(call, send, recv, algorithm="linear") == MPI.ERR_REVOKED
        assert error_of(call, send, recv) == MPI.ERR_REVOKED
    assert error_of(ours.Barrier) == error_of(plan.Start) == MPI.ERR_REVOKED
    assert error_of(Intracomm(ours).Barrier) == MPI.ERR_REVOKED  # of the same handle
    plan.Free()
    ours.Free()


def test_revoke_asks_the_error_handler(ours):
    asked = []
    handler = MPI.Comm.Create_errhandler(lambda comm, code: asked.append(code))
    dup = ours.Dup()
    dup.Barrier(algorithm="dissemination")
    dup.Set_errhandler(handler)
    try:
        dup.Revoke()
    except NotImplementedError:
        pytest.skip("this MPI library cannot revoke communicators")
    assert error_of(dup.Barrier) == MPI.ERR_REVOKED
    assert [MPI.Get_error_class(code) for code in asked] == [MPI.ERR_REVOKED]
    dup.Free()
    handler.Free()


def test_names_and_attributes_are_the_handles(ours):
    key = MPI.Intracomm.Create_keyval()
    ours.Set_name("ours")
    ours.Set_attr(key, 7)
    same = MPI.Intracomm(ours)
    assert (same.Get_name(), same.Get_attr(key)) == ("ours", 7)
    private = find(ours).private
    assert (private.Get_name() == "ours", private.Get_attr(key)) == (False, None)
    ours.Delete_attr(key)
    MPI.Intracomm.Free_keyval(key)


# --- what hands it on ---


def works(comm):
    out = np.zeros(2)
    comm.Allreduce(np.ones(2), out, algorithm="linear")
    return out.tolist() == [P] * 2


def test_handles_make_communicators_of_this_class(ours):
    for made in (
        Intracomm.fromhandle(ours.handle),
        type(ours).fromint(ours.toint()),
        type(ours).f2py(ours.py2f()),
    ):
        assert type(made) is Intracomm and made == ours
        assert works(made)
    cart = ours.Create_cart([P])
    for kind in (Intracomm, Cartcomm):
        assert type(kind.fromhandle(cart.handle)) is Cartcomm
    cart.Free()
    assert not Intracomm.fromhandle(MPI.COMM_NULL.handle)
    if P > 1:
        half = ours.Split(RANK % 2)
        between = half.Create_intercomm(0, WORLD, 1 - RANK % 2)
        assert type(Intracomm.fromhandle(between.handle)) is Intercomm
        assert type(Intercomm.fromhandle(between.handle)) is Intercomm
        between.Free()
        half.Free()


def test_a_class_without_arguments_is_the_null_communicator(ours):
    null = type(ours)()
    assert not null and null == MPI.COMM_NULL and type(null) is Intracomm
    assert error_of(null.Barrier) == MPI.ERR_COMM


def test_a_handle_written_to_an_address(ours):
    """The way of ctypes that mpi4py documents."""
    made = type(ours)()
    kind = ctypes.c_int if MPI._sizeof(ours) == 4 else ctypes.c_void_p
    kind.from_address(MPI._addressof(made)).value = kind.from_address(MPI._addressof(ours)).value
    assert made == ours and works(made)
