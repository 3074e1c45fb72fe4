"""What a communicator owns, and when it is gone."""

import contextlib
import copy

import numpy as np
import pytest
from connected import connected
from mpi4py import MPI

from mpicoll.comm import Intracomm
from mpicoll.engine import planning
from mpicoll.runtime import plans
from mpicoll.runtime import state as module

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
MANY = 200


def works(comm):
    out = np.zeros(5)
    comm.Allreduce(np.ones(5), out, algorithm="ring")
    assert out.tolist() == [comm.size] * 5


@pytest.fixture(scope="module")
def ours():
    return Intracomm(WORLD)


@pytest.fixture(autouse=True)
def _nothing_stays_open():
    before = len(module._OPEN)
    yield
    assert len(module._OPEN) - before in (0, 1)  # the module's fixture may have come in between


# --- one state for each handle ---


def test_two_objects_on_one_handle_share_everything(ours):
    works(ours)
    open_before = len(module._OPEN)
    again = Intracomm(WORLD)
    assert len(module._OPEN) == open_before
    works(again)
    assert again.stats() == ours.stats()
    nested = Intracomm(again)
    assert nested == WORLD
    works(nested)
    assert len(module._OPEN) == open_before


def test_the_constructor_keeps_the_users_handle():
    base = WORLD.Dup()
    ours = Intracomm(base)
    assert ours.handle == base.handle
    base.Free()  # frees what mpicoll keeps there too
    with pytest.raises(ValueError, match="this communicator has been freed"):
        works(ours)
    with pytest.raises(ValueError, match="this communicator has been freed"):
        ours.stats()


def test_the_users_attributes_hints_and_callbacks_are_left_alone():
    copied = []
    keyval = MPI.Comm.Create_keyval(copy_fn=lambda c, k, value: copied.append(value) or value)
    base = WORLD.Dup()
    base.Set_attr(keyval, "the user's")
    ours = Intracomm(base)
    works(ours)
    assert copied == []
    dup = ours.Dup()
    assert copied == ["the user's"]
    assert dup.Get_attr(keyval) == "the user's"
    for comm in (dup, base):
        comm.Free()
    MPI.Comm.Free_keyval(keyval)


# --- what creates communicators ---


def group_of_all(comm):
    group = comm.Get_group()
    try:
        yield group
    finally:
        group.Free()


CREATORS = {
    "Dup": lambda c: c.Dup(),
    "Dup(info)": lambda c: c.Dup(MPI.INFO_NULL),
    "Clone": lambda c: c.Clone(),
    "Split": lambda c: c.Split(c.rank % 2, -c.rank),
    "Split_type": lambda c: c.Split_type(MPI.COMM_TYPE_SHARED),
    "Create": lambda c: next(c.Create(group) for group in group_of_all(c)),
    "Create_group": lambda c: next(c.Create_group(group) for group in group_of_all(c)),
}


def with_info(make):
    info = MPI.Info.Create()
    try:
        return make(info)
    finally:
        info.Free()


CREATORS["Dup_with_info"] = lambda c: with_info(c.Dup_with_info)


@pytest.mark.parametrize("name", CREATORS)
def test_creators_return_this_class_ready_for_use(ours, name):
    made = CREATORS[name](ours)
    assert type(made) is Intracomm
    assert made.stats().calls == {}  # set up already
    works(made)
    grandchild = CREATORS[name](made)
    works(grandchild)
    grandchild.Free()
    works(made)
    made.Free()
    assert made == MPI.COMM_NULL


def test_duplicates_are_of_the_users_subclass(ours):
    class Mine(Intracomm):
        pass

    mine = Mine(WORLD)
    for make in (Mine.Dup, Mine.Clone):
        dup = make(mine)
        assert type(dup) is Mine
        works(dup)
        dup.Free()


def test_ranks_left_out_get_a_null_communicator(ours):
    chosen = RANK == 0
    part = ours.Split(0 if chosen else MPI.UNDEFINED)
    assert type(part) is Intracomm
    group = ours.Get_group()
    first = group.Incl([0])
    created = ours.Create(first)
    assert type(created) is Intracomm
    if chosen:
        for comm in (part, created):
            works(comm)
            comm.Free()
        alone = ours.Create_group(first)
        works(alone)
        alone.Free()
    else:
        for comm in (part, created):
            assert comm == MPI.COMM_NULL
            with pytest.raises(MPI.Exception):
                works(comm)
    group.Free()
    first.Free()


def test_idup_is_set_up_by_the_first_collective_call(ours):
    made, request = ours.Idup()
    request.Wait()
    assert type(made) is Intracomm
    with pytest.raises(ValueError, match="no collective has been called"):
        made.stats()
    works(made)
    assert made.stats().calls == {("allreduce", "ring"): 1}
    made.Free()


def test_a_handle_alone_is_set_up_by_the_first_collective_call():
    given = WORLD.Dup()
    made = Intracomm.fromhandle(given.handle)
    if made.Get_rank() == 0:  # the others need not take part
        with pytest.raises(ValueError, match="no collective has been called"):
            made.stats()
    works(made)
    assert made.stats().calls == {("allreduce", "ring"): 1}
    made.Free()


def test_copies_share_the_handle(ours):
    works(copy.copy(ours))
    dup = ours.Dup()
    with pytest.raises(ValueError, match="cannot serialize"):
        copy.copy(dup)
    dup.Free()


# --- freeing ---


def test_freeing_frees_the_private_communicator(ours):
    made = connected(ours.Dup())
    shared = made._state
    private = shared.private
    works(made)
    made.Free()
    assert private == MPI.COMM_NULL
    assert shared.guard.closed
    assert shared.connection is None
    with pytest.raises(MPI.Exception) as caught:
        made.Free()
    assert caught.value.Get_error_class() == MPI.ERR_COMM
    with pytest.raises(ValueError, match="has been freed"):
        works(made)


def test_safe_free_and_disconnect(ours):
    made = ours.Dup()
    made.free()
    made.free()
    made = connected(ours.Dup())
    shared = made._state
    made.Disconnect()
    assert shared.guard.closed


def test_predefined_communicators_cannot_be_freed():
    mine = Intracomm(MPI.COMM_SELF)
    shared = mine._state
    with pytest.raises(MPI.Exception):
        mine.Free()
    assert not shared.guard.closed
    works(mine)
    module._OPEN.pop(shared)  # let the check for leaks pass: this one stays until the end
    module._OPEN[shared] = None


@pytest.fixture
def scarce():
    """Leave few communicators, where the library has few: a loss shows at once."""
    held = []
    if MPI.get_vendor()[0] == "MPICH":
        with contextlib.suppress(MPI.Exception):
            while True:
                held.append(WORLD.Dup())
        for _ in range(20):
            held.pop().Free()
    yield
    for comm in held:
        comm.Free()


@pytest.mark.usefixtures("scarce")
@pytest.mark.parametrize("name", ["Dup", "Split", "Create_group"])
def test_no_communicator_is_lost(ours, name):
    for number in range(MANY):
        made = CREATORS[name](ours)
        if number % 50 == 0:
            works(made)
        made.Free()


def test_objects_that_are_dropped_keep_nothing_but_the_handle(ours):
    base = WORLD.Dup()
    for _ in range(MANY):
        Intracomm(base)
    works(Intracomm(base))
    base.Free()


# --- plans ---


def test_plans_are_kept_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(plans, "PLANS", 4)
    built = []
    build = planning.build
    monkeypatch.setattr(
        planning, "build", lambda shape, piece: built.append(shape) or build(shape, piece)
    )
    ours = connected(WORLD.Dup())

    def call(count):
        # With parameters that are not the defaults no call goes the fast path.
        ours.Allreduce(np.ones(count), np.zeros(count), algorithm="double_binary_tree", segments=2)

    for count in (1, 2, 3, 4, 1, 2, 3, 4):
        call(count)
    assert len(built) == 4
    call(1)
    call(5)  # puts out 2, used least recently
    call(1)
    assert len(built) == 5
    call(2)
    assert len(built) == 6
    assert len(ours._state.plans._kept) == 4
    # Whatever has the same size is the same plan.
    named = {"algorithm": "double_binary_tree", "segments": 2}
    ours.Allreduce(np.ones(2, "i8"), np.zeros(2, "i8"), MPI.MAX, **named)
    assert len(built) == 6
    ours.Free()


def test_plans_are_kept_up_to_a_limit_of_space(monkeypatch):
    ours = connected(WORLD.Dup())
    state = ours._state
    state.fast_path.path = None  # the slow path, every time

    def call(count):
        ours.Allreduce(np.ones(count), np.zeros(count), algorithm="parameter_server")

    for count in (1, 1000, 2000):
        call(count)
    space = [kept.space for kept in state.plans._kept.values()]
    assert state.plans._space == sum(space)
    monkeypatch.setattr(plans, "SPACE", space[-1])
    call(1000)
    assert len(state.plans._kept) == (3 if P == 1 else 1)
    call(100_000)  # the last one is kept, however large
    assert len(state.plans._kept) == (4 if P == 1 else 1)
    ours.Free()


def test_a_plan_that_runs_is_not_started_again(monkeypatch):
    ours = connected(WORLD.Dup())
    shared = ours._state
    shared.fast_path.path = None  # the slow path, every time
    seen = []
    execute = shared.plans.execute

    def spy(planned, *arguments):
        seen.append(planned in shared.plans._kept.values())
        return execute(planned, *arguments)

    monkeypatch.setattr(shared.plans, "execute", spy)
    works(ours)
    works(ours)
    assert seen == [False, False]
    assert len(shared.plans._kept) == 1
    ours.Free()


# --- failures ---


class Broken(Exception):
    pass


def failing(error):
    def run(*arguments):
        raise error

    return run


def test_a_failure_poisons_the_communicator(monkeypatch):
    base = WORLD.Dup()
    ours = connected(base)
    shared = ours._state
    with monkeypatch.context() as patch:
        patch.setattr(plans.Plans, "execute", failing(Broken("first")))
        with pytest.raises(Broken, match="first"):
            works(ours)
    for call in (works, lambda c: c.Barrier(), lambda c: c.stats(), works):
        with pytest.raises(RuntimeError, match=r"cannot be used any more.*Broken: first") as caught:
            call(ours)
        assert isinstance(caught.value.__cause__, Broken)
    assert shared.guard.failure is not None
    base.Free()
    assert shared.guard.closed
    assert shared.private != MPI.COMM_NULL  # messages may be under way there
    shared.private.Free()


def test_mistakes_do_not_poison(ours):
    with pytest.raises(ValueError, match="unknown algorithm"):
        ours.Barrier(algorithm="nonsense")
    works(ours)


def test_mpi_errors_go_through_the_users_error_handler(monkeypatch):
    heard = []
    base = WORLD.Dup()
    handler = MPI.Comm.Create_errhandler(lambda comm, code: heard.append(code))
    base.Set_errhandler(handler)
    ours = connected(base)
    # What goes wrong on the private communicator comes back as an error code ...
    assert ours._state.private.Get_errhandler() == MPI.ERRORS_RETURN
    with monkeypatch.context() as patch:
        patch.setattr(plans.Plans, "execute", failing(MPI.Exception(MPI.ERR_TRUNCATE)))
        with pytest.raises(MPI.Exception) as caught:
            works(ours)
    # ... which the user's handler hears, and then the caller.
    assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    assert heard == [MPI.ERR_TRUNCATE]
    ours._state.guard.failure = None  # nothing was under way
    base.Free()
    handler.Free()
