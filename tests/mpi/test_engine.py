"""The compiled engine and its transports: the same bits as the Python runner."""

import os
import time
import warnings
from collections import Counter

import numpy as np
import pytest
from connected import connected
from mpi4py import MPI

from mpicoll import algorithms, hooks, ops
from mpicoll.base import caller
from mpicoll.engine import planning, progress, transport
from mpicoll.errors import TransportWarning
from mpicoll.runtime.plans import Runnable
from mpicoll.schedule.collectives import COLLECTIVES

WORLD = MPI.COMM_WORLD
RANK, P = WORLD.Get_rank(), WORLD.Get_size()

pytestmark = pytest.mark.skipif(
    bool(transport.engine_problem()), reason=f"no engine: {transport.engine_problem()}"
)


@pytest.fixture(scope="module", params=transport.TRANSPORTS)
def ours(request):
    """A communicator of each transport; rank 0's environment decides."""
    before = os.environ.get("MPICOLL_TRANSPORT")
    os.environ["MPICOLL_TRANSPORT"] = request.param
    try:
        comm = connected(WORLD.Dup())
    finally:
        if before is None:
            del os.environ["MPICOLL_TRANSPORT"]
        else:
            os.environ["MPICOLL_TRANSPORT"] = before
    yield comm
    comm.Free()


@pytest.fixture(scope="module")
def python():
    """A communicator whose plans run in Python."""
    comm = connected(WORLD.Dup())
    comm._state.plans.device = comm._state.fast_path.path = None
    yield comm
    comm.Free()


ENTRIES = [
    (collective, name)
    for collective in COLLECTIVES
    for name in algorithms.names(collective)
    if algorithms.find(collective, name).runs_on(P)
]


def arguments(collective, count, root=0):
    """Buffers of one call, with floats whose sum depends on the order; and those that it writes."""
    random = np.random.default_rng(RANK)
    definition = COLLECTIVES[collective]

    def numbers(size):
        return (random.standard_normal(size) * 10.0 ** random.integers(-8, 8, size)).astype("f4")

    if collective == "barrier":
        return (), ()
    if collective == "bcast":
        buffer = numbers(count)
        return (buffer, root), (buffer,)
    whole = count * P if definition.block_per_rank else count
    send = numbers(count if definition.input_alone else whole)
    recv = np.zeros(count if definition.output_alone else whole, "f4")
    rooted = (root,) if definition.rooted else ()
    if collective == "reduce":
        return (send, recv, MPI.SUM, root), (recv,)
    return (send, recv, *rooted), (recv,)


@pytest.mark.parametrize(("collective", "name"), ENTRIES)
def test_the_same_bits_as_in_python(ours, python, collective, name):
    method = COLLECTIVES[collective].method
    # Empty, in the entry, behind it, in a slot, in several pieces.
    for count in (0, 1, P - 1, P + 1, 300, 40_001, 300_011):
        if count > 50_000 and (P > 4 or collective in ("scan", "exscan")):
            continue
        given, wanted = arguments(collective, count)
        getattr(python, method)(*given, algorithm=name)
        expected = [array.copy() for array in wanted]
        given, found = arguments(collective, count)
        getattr(ours, method)(*given, algorithm=name)
        for have, want in zip(found, expected, strict=True):
            assert have.tobytes() == want.tobytes(), count


@pytest.mark.parametrize("segments", [1, 2, 7])
def test_many_channels(ours, segments):
    parameters = {"algorithm": "double_binary_tree", "segments": segments, "window": 2}
    for count in (1, 1000, 300_001):
        data = np.arange(count) % 97 + RANK
        ours.Allreduce(MPI.IN_PLACE, data, **parameters)
        np.testing.assert_array_equal(data, P * (np.arange(count) % 97) + P * (P - 1) // 2)


def test_operators_in_python(ours):
    def first(a, b, _):
        x, y = np.frombuffer(a, "i8"), np.frombuffer(b, "i8")
        y[:] = 10 * x + y  # not commutative

    op = MPI.Op.Create(first, commute=False)
    data, result = np.full(5, RANK + 1), np.zeros(5, int)
    ours.Allreduce(data, result, op, algorithm="linear")
    want = 0
    for rank in range(P):
        want = 10 * want + rank + 1
    assert result.tolist() == [want] * 5
    op.Free()


def test_narrow_sums_in_parts():
    ours = connected(WORLD.Dup())
    data = np.full(3000, 0.1 * (RANK + 1), np.float16)
    result = np.empty_like(data)
    shape_of = ours._state.plans.build
    # Too little space for all ranks' pieces at once: partial sums stay in float32.
    ours._state.plans.build = lambda shape: runner_plan(shape)
    try:
        ours.Allreduce(data, result, algorithm="parameter_server")
    finally:
        ours._state.plans.build = shape_of
    want = np.empty_like(data)
    parts = [np.full(3000, 0.1 * (rank + 1), np.float16) for rank in range(P)]
    ops.reduction("sum", np.dtype(np.float16)).fold(want, parts)
    assert result.tobytes() == want.tobytes()
    ours.Free()


def runner_plan(shape):

    return Runnable(planning.build(shape, piece=512, space=1024), shape)


def test_python_keeps_the_temporary_space_of_a_plan_for_the_next_call(python):
    spaces = []
    for _ in range(3):
        result = np.zeros(67)
        python.Allreduce(np.ones(67), result, algorithm="parameter_server")
        kept = next(reversed(python._state.plans._kept.values()))
        spaces.append(kept.temporary)
        assert result.tolist() == [P] * 67
    assert spaces[0] is not None and all(space is spaces[0] for space in spaces)


def test_an_error_in_an_operator_ends_the_call_and_the_communicator():
    ours = connected(WORLD.Dup())
    calls = []

    class Broken(ops.Reduction):
        def fold(self, dst, operands):
            calls.append(dst.size)
            raise ArithmeticError("no sum today")

    if P == 1:
        pytest.skip("nothing is folded")
    plain = ops.reduction("sum", np.dtype(float))
    broken = Broken("user", plain.dtype, True, plain.wide, "", function=lambda a, b: None)
    state = ours._state
    send, recv = np.ones(64), np.zeros(64)
    call, choice = folded_everywhere(ours, send, recv)
    with pytest.raises(ArithmeticError, match="no sum today"):
        state.plans.run(call._replace(reduction=broken), choice)
    assert calls
    with pytest.raises(RuntimeError, match="cannot be used any more"):
        ours.Barrier()


def folded_everywhere(comm, send, recv):
    from mpicoll.runtime.arguments import parse, place_of
    from mpicoll.tuning import Choice, check

    # Every rank folds, so that none waits for one that has failed.
    name, definition = "parameter_server", COLLECTIVES["allreduce"]
    place = place_of(definition, comm.rank, comm.size, 0)
    call = parse(definition, place, send, recv, MPI.SUM)
    return call, Choice(name, check("allreduce", name, {}))


# --- the fast path ---


def test_a_repeated_call_goes_the_fast_path(ours):
    table = ours.explain("allreduce", 24)
    before = ours.stats().calls
    data = np.zeros(3)
    for turn in range(5):
        data[:] = RANK + turn
        ours.Allreduce(MPI.IN_PLACE, data)
        assert data.tolist() == [P * (P - 1) / 2 + P * turn] * 3
    after = ours.stats().calls
    ran = {key: n - before.get(key, 0) for key, n in after.items() if n != before.get(key, 0)}
    assert list(ran.values()) == [5]
    assert next(iter(ran))[1] in table
    assert sum(ours._fast_path.calls().values()) >= 4


def test_the_fast_path_is_for_the_same_call_alone():
    ours = connected(WORLD.Dup())
    total, least = P * (P + 1) // 2, 1
    data = np.full(4, RANK + 1)
    for _ in range(3):
        result = np.zeros(4, int)
        ours.Allreduce(data, result)
        assert result.tolist() == [total] * 4
        ours.Allreduce(data, result, MPI.MIN)
        assert result.tolist() == [least] * 4
        ours.Allreduce(data.astype(float), result.astype(float))
        ours.Allreduce(data[:2], result[:2])
        assert result.tolist() == [total] * 2 + [least] * 2
        for root in range(P):
            box = np.full(2, RANK)
            ours.Bcast(box, root)
            assert box.tolist() == [root] * 2
        with pytest.raises(ValueError, match=r"overlap|same memory"):
            ours.Allreduce(data, data)
        locked = np.zeros(4, int)
        locked.flags.writeable = False
        with pytest.raises(BufferError, match="read-only"):
            ours.Allreduce(data, locked)
    ours.Free()
    with pytest.raises((ValueError, MPI.Exception)):
        ours.Allreduce(data, result)


def test_an_algorithm_that_is_named_goes_the_fast_path_too():
    ours = connected(WORLD.Dup())
    data = np.full(5, RANK)
    want = [P * (P - 1) // 2] * 5
    for _ in range(3):
        for named in (
            {"algorithm": "ring"},
            {"algorithm": "native"},
            {"algorithm": "double_binary_tree"},
            {"algorithm": "double_binary_tree", "segments": 2},
            {},
        ):
            result = np.zeros(5, int)
            ours.Allreduce(data, result, **named)
            assert result.tolist() == want
    short = ours._fast_path.calls()
    assert {short[("allreduce", name)] for name in ("ring", "double_binary_tree")} == {2}
    ran = ours.stats().calls
    assert ran[("allreduce", "ring")] == 3
    assert ran[("allreduce", "double_binary_tree")] == 6
    with pytest.raises(ValueError, match="unknown algorithm 'rang'"):
        ours.Allreduce(data, result, algorithm="rang")
    ours.Free()


def test_what_is_forgotten_while_it_runs_is_counted_all_the_same():
    ours = connected(WORLD.Dup())
    data = np.zeros(3)
    for _ in range(2):
        ours.Allreduce(MPI.IN_PLACE, data)
    (name,) = ours.stats().calls
    fast_path = ours._fast_path

    class Forgetting:
        """Under way: it lets the cache of plans overflow in the middle of the call."""

        def advance(self):
            fast_path.forget()
            progress.remove(self)

    for _ in range(2):
        ours.Allreduce(MPI.IN_PLACE, data)  # known again, and served
        progress.add(Forgetting())
        ours.Allreduce(MPI.IN_PLACE, data)
        assert not progress.under_way
    assert ours.stats().calls == {name: 6}
    ours.Free()


@pytest.mark.parametrize("algorithm", [None, "linear"])
def test_strings_do_not_go_the_fast_path(algorithm):
    ours = connected(WORLD.Dup())
    for _ in range(3):
        letters = np.full(4, b"x" if RANK == 0 else b"-", "S1")
        ours.Bcast(letters, algorithm=algorithm)
        assert letters.tolist() == [b"x"] * 4
    with pytest.raises(TypeError, match="no MPI datatype for elements of dtype"):
        ours.Bcast(np.full(2, b"xx", "S2"), algorithm=algorithm)
    ours.Free()


def test_calls_of_unequal_blocks_go_the_fast_path():
    ours = connected(WORLD.Dup())
    counts, places = [rank + 1 for rank in range(P)], [2 * rank for rank in range(P)]
    total = sum(counts)
    want = [rank for rank in range(P) for _ in range(rank + 1)]
    mine = np.full(RANK + 1, RANK)
    for turn in range(4):
        both = np.full(total, -1), np.full(3 * P, -1)
        ours.Allgatherv(mine, [both[0], counts])
        ours.Allgatherv(mine[:1], [both[1], ([1] * P, places), MPI.INT64_T])
        assert both[0].tolist() == want
        assert both[1][: 2 * P : 2].tolist() == [*range(P)]
        ours.Gatherv(mine, [both[0], np.array(counts)] if RANK == 0 else None)
        taken = np.zeros(RANK + 1, int)
        ours.Scatterv([both[0] + turn, counts] if RANK == 0 else None, taken)
        assert taken.tolist() == [RANK + turn] * (RANK + 1)
        ours.Reduce_scatter(np.arange(total), taken, counts)
        assert taken.tolist() == [P * (sum(counts[:RANK]) + i) for i in range(RANK + 1)]
        ours.Reduce_scatter(np.arange(total), taken)  # the ranks tell one another the counts
        given = np.full(P, RANK + turn)
        ours.Alltoallv([given, [1] * P], [both[1], ([1] * P, places)])
        assert both[1][: 2 * P : 2].tolist() == [rank + turn for rank in range(P)]
        kinds = [MPI.INT64_T] * P
        ours.Alltoallw(
            [given, ([1] * P, [8 * rank for rank in range(P)]), kinds],
            [both[1], ([1] * P, [16 * rank for rank in reversed(range(P))]), kinds],
        )
        assert both[1][: 2 * P : 2].tolist() == [rank + turn for rank in reversed(range(P))]
    short = Counter()
    for (collective, _), calls in ours._fast_path.calls().items():
        short[collective] += calls
    assert short == {"allgather": 6, "gather": 3, "scatter": 3, "alltoall": 6, "reduce_scatter": 3}
    ours.Free()


def test_the_fast_path_of_unequal_blocks_is_for_the_same_call_alone():
    ours = connected(WORLD.Dup())
    mine, all_of_them = np.full(1, RANK), np.zeros(2 * P, int)
    for _ in range(3):
        ours.Allgatherv(mine, [all_of_them, [1] * P, [2 * rank for rank in range(P)], MPI.INT64_T])
        assert all_of_them[::2].tolist() == [*range(P)]
        ours.Allgatherv(mine, [all_of_them, [1] * P, [*range(P)], MPI.INT64_T])
        assert all_of_them[:P].tolist() == [*range(P)]
        with pytest.raises(TypeError, match="must be integers"):
            ours.Allgatherv(mine, [all_of_them, [1.0] * P, [*range(P)], MPI.INT64_T])
        with pytest.raises(ValueError, match="counts for"):
            ours.Allgatherv(mine, [all_of_them, [1] * (P + 1)])
        with pytest.raises(ValueError, match="behind the end"):
            ours.Allgatherv(mine, [all_of_them[: P - 1], [1] * P])
        if P > 1:
            with pytest.raises(ValueError, match="overlap"):
                ours.Allgatherv(mine, [all_of_them, [1] * P, [0] * P, MPI.INT64_T])
        every_other = MPI.INT64_T.Create_vector(2, 1, 2).Commit()
        ours.Alltoallw(
            [all_of_them[:2], ([0] * P, [0] * P), [every_other] * P],
            [np.zeros(2 * P), ([0] * P, [0] * P), [MPI.DOUBLE] * P],
        )
        every_other.Free()  # the next one may have its handle
    ours.Free()


def test_hooks_hear_of_what_went_the_fast_path_before():
    ours = connected(WORLD.Dup())
    data, heard = np.zeros(2), []
    for _ in range(3):
        ours.Allreduce(MPI.IN_PLACE, data)
    hooks.add(heard.append)
    try:
        ours.Allreduce(MPI.IN_PLACE, data)
    finally:
        hooks.remove(heard.append)
    assert [event.collective for event in heard] == ["allreduce"]
    ours.Free()


@pytest.fixture
def plans(monkeypatch):
    """Two persistent calls on one communicator that cannot go the slow path; and their results."""
    ours = connected(WORLD.Dup())
    results = [np.zeros(3), np.zeros(40_000)]
    made = [
        ours.Allreduce_init(np.full(out.size, RANK + 1.0), out, algorithm="ring") for out in results
    ]
    before = type(made[0])._activate
    monkeypatch.setattr(type(made[0]), "_activate", None)
    yield ours, made, results
    monkeypatch.setattr(type(made[0]), "_activate", before)
    for plan in made:
        plan.Free()
    ours.Free()


def test_a_persistent_call_goes_the_fast_path(plans):
    ours, (plan, _), (out, _) = plans
    for _ in range(5):
        out[:] = 0
        plan.Start()
        assert plan and plan.pending
        plan.Wait()
        assert not plan.pending and out.tolist() == [P * (P + 1) / 2] * 3
    assert ours.stats().calls == {("allreduce", "ring"): 5}
    assert not ours._state.under_way and not progress.under_way


def test_persistent_calls_on_the_fast_path_in_any_order(plans):
    ours, made, results = plans
    for turn in range(6):
        for out in results:
            out[:] = 0
        order = made if (RANK + turn) % 2 else made[::-1]
        for plan in order:
            plan.Start()
        if turn % 3 == 0:
            type(made[0]).Waitall(made)
        elif turn % 3 == 1:
            for plan in made:
                while not plan.Test():
                    pass
        else:
            ours.Barrier()  # which moves them on
            for plan in order[::-1]:
                plan.Wait()
        assert all((out == P * (P + 1) / 2).all() for out in results)
        assert not any(plan.pending for plan in made)
    assert ours.stats().calls["allreduce", "ring"] == 12


def test_hooks_hear_of_persistent_calls_that_went_the_fast_path_before(events):
    ours = connected(WORLD.Dup())
    plan = ours.Allreduce_init(MPI.IN_PLACE, np.zeros(2), algorithm="ring")
    del events[:]
    for _ in range(2):
        plan.Start()
        plan.Wait()
    assert [event.collective for event in events] == ["allreduce"] * 2
    plan.Free()
    ours.Free()


def test_a_persistent_call_that_fails_on_the_fast_path(plans):
    if P == 1:
        pytest.skip("nothing is folded")
    ours = connected(WORLD.Dup())

    def broken(a, b, datatype):
        raise ArithmeticError("no sum today")

    # Every rank folds, so that none waits for one that has failed.
    op = MPI.Op.Create(broken, commute=True)
    plan = ours.Allreduce_init(MPI.IN_PLACE, np.ones(P), op=op, algorithm="parameter_server")
    plan.Start()
    with pytest.raises(ArithmeticError, match="no sum today"):
        plan.Wait()
    with pytest.raises(RuntimeError, match="cannot be used any more"):
        plan.Start()


def test_a_persistent_call_is_started_once_and_not_when_freed(plans):
    _, (plan, _), (out, _) = plans
    plan.Start()
    with pytest.raises(RuntimeError, match="under way"):
        plan.Start()
    plan.Wait()
    other = plans[0].Allreduce_init(MPI.IN_PLACE, out, algorithm="ring")
    other.Free()
    with pytest.raises(ValueError, match="has been freed"):
        other.Start()


def test_messages_of_several_calls_do_not_wait_for_each_other(ours):
    for count in (3, 3000, 300_001):
        first, second = np.zeros(count, int), np.zeros(count)
        request = ours.Iallreduce(np.full(count, RANK), first, algorithm="ring")
        if RANK:
            request.Wait()
        ours.Allreduce(np.full(count, float(RANK)), second, algorithm="ring")
        request.Wait()
        assert set(first) == set(second) == {P * (P - 1) / 2}


def test_plans_that_are_under_way_are_not_run_by_others():
    ours = connected(WORLD.Dup())
    choice = ours.explain("allreduce", 24).split(": ")[1].split(" ")[0]
    if choice == "native":
        pytest.skip("the library's own")
    data = np.full(3, RANK)
    for _ in range(2):
        ours.Allreduce(data, np.zeros(3, int))
    first, second = np.zeros(3, int), np.zeros(3, int)
    request = ours.Iallreduce(data, first, algorithm=choice)
    ours.Allreduce(data, second)
    request.Wait()
    assert first.tolist() == second.tolist() == [P * (P - 1) // 2] * 3
    ours.Free()


@pytest.mark.skipif(P == 1, reason="nobody waits")
def test_who_waits_for_long_leaves_the_processor_to_others():
    ours, data = connected(WORLD.Dup()), np.zeros(3)
    ours.Allreduce(MPI.IN_PLACE, data, algorithm="ring")
    before = time.process_time()
    if RANK == 0:
        time.sleep(0.6)
    ours.Allreduce(MPI.IN_PLACE, data, algorithm="ring")
    assert time.process_time() - before < 0.4
    ours.Free()


# --- transports ---


def test_memory_is_shared_where_ranks_are_near():
    ours = connected(WORLD.Dup())
    everywhere = WORLD.allreduce(ours._state.plans.device.is_near(), MPI.LAND)
    assert everywhere == (P > 1)  # all ranks of the tests run on one node
    assert not any("mpicoll" in name for name in os.listdir("/dev/shm"))
    ours.Free()


@pytest.mark.skipif(P == 1, reason="nothing is shared")
def test_where_memory_cannot_be_shared_messages_serve(monkeypatch):
    def refused(*arguments):
        raise OSError(28, "No space left on device")

    caller._WARNED.clear()
    monkeypatch.setattr(transport.os, "memfd_create", refused)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = connected(WORLD.Dup())
    texts = [str(w.message) for w in caught if w.category is TransportWarning]
    assert len(texts) == (RANK == 0)
    assert all("No space left on device" in text for text in texts)
    assert not ours._state.plans.device.is_near()
    data = np.full(3, RANK)
    ours.Allreduce(MPI.IN_PLACE, data, algorithm="ring")
    assert data.tolist() == [P * (P - 1) // 2] * 3
    ours.Free()


@pytest.mark.skipif(P == 1, reason="nothing is shared")
def test_one_rank_without_engine_is_enough_for_python(monkeypatch):
    caller._WARNED.clear()
    if RANK == P - 1:
        monkeypatch.setattr(transport, "engine_problem", lambda: "of a test")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = connected(WORLD.Dup())
    assert ours._state.plans.device is None
    data = np.full(3, RANK)
    ours.Allreduce(MPI.IN_PLACE, data, algorithm="ring")
    assert data.tolist() == [P * (P - 1) // 2] * 3
    ours.Free()


@pytest.fixture
def together(monkeypatch):
    """A communicator whose ranks copy even short messages together."""
    monkeypatch.setattr(transport, "TOGETHER", 1)
    ours = connected(WORLD.Dup())
    if not (ours.shared_memory() or {"reads": False})["reads"]:
        ours.Free()
        pytest.skip("other processes' memory cannot be read")
    yield ours
    ours.Free()


LENGTHS = [32 << 10, (32 << 10) + 1, 100_001, 1 << 20, (3 << 20) + 17]


@pytest.mark.parametrize("root", sorted({0, P - 1}))
def test_messages_that_both_sides_copy(together, root):
    for length in LENGTHS:
        data = np.random.default_rng(length).integers(0, 255, length, np.uint8)
        mine = data.copy() if RANK == root else np.zeros(length, np.uint8)
        together.Bcast(mine, root, algorithm="linear")
        assert np.array_equal(mine, data)
        every = np.empty(P * length, np.uint8) if RANK == root else None
        together.Gather(np.roll(data, RANK), every, root, algorithm="linear")
        if every is not None:
            for rank in range(P):
                assert np.array_equal(every[rank * length :][:length], np.roll(data, rank))
        mine[:] = 0
        together.Scatter(every, mine, root, algorithm="linear")
        assert np.array_equal(mine, np.roll(data, RANK))


def _at(offset, length):
    """An array that begins so many bytes behind a page, with room at both ends."""
    memory = np.full(length + 3 * 4096, 7, np.uint8)
    start = (offset - memory.ctypes.data) % 4096 + 4096
    return memory, memory[start : start + length]


def _gather_at_distances(comm):
    """Copy and send between addresses at which long copies are slow by `rep movsb`, and others."""
    for length in (4095, 4096, (8 << 10) + 5, 70_001, 200_000):
        for distance in (-1, 0, 1, 8, 31, 32, 4095):
            _, mine = _at(64, length)
            mine[:] = np.random.default_rng([length, RANK]).integers(0, 255, length, np.uint8)
            whole, every = _at(64 + distance, P * length)
            comm.Allgather(mine, every, algorithm="linear")
            for rank in range(P):
                sent = np.random.default_rng([length, rank]).integers(0, 255, length, np.uint8)
                assert np.array_equal(every[rank * length :][:length], sent)
            start = every.ctypes.data - whole.ctypes.data
            assert (whole[:start] == 7).all()
            assert (whole[start + P * length :] == 7).all()


def test_buffers_at_all_distances(ours):
    _gather_at_distances(ours)


def test_buffers_at_all_distances_that_both_sides_copy(together):
    _gather_at_distances(together)


@pytest.mark.skipif(P == 1, reason="nothing is sent")
def test_a_sender_that_waits_copies_too(together):
    data, mine = np.full(P * (8 << 20), 1, np.uint8), np.zeros(8 << 20, np.uint8)
    for turn in range(200):
        data[:] = turn
        together.Scatter(data if RANK == 0 else None, mine, algorithm="linear")
        assert mine.min() == mine.max() == turn
        if WORLD.bcast(together._state.plans.device.helped > 0):
            return
    pytest.fail("it never did")


@pytest.mark.skipif(P == 1, reason="nothing is sent")
def test_a_sender_that_may_not_write_leaves_all_to_the_reader(monkeypatch):
    device = transport.Device

    def without_writing(locals, me, memory, geometry, processes, *others):
        # Rank 0 helps processes that do not exist.
        return device(
            locals, me, memory, geometry, [1 << 30] * P if RANK == 0 else processes, *others
        )

    monkeypatch.setattr(transport, "Device", without_writing)
    monkeypatch.setattr(transport, "TOGETHER", 1)
    ours = connected(WORLD.Dup())
    if not (ours.shared_memory() or {"reads": False})["reads"]:
        pytest.skip("other processes' memory cannot be read")
    data, mine = np.full(P * (8 << 20), 1, np.uint8), np.zeros(8 << 20, np.uint8)
    for turn in range(200):
        data[:] = turn
        ours.Scatter(data if RANK == 0 else None, mine, algorithm="linear")
        assert mine.min() == mine.max() == turn
        if not WORLD.bcast(ours._state.plans.device.helps):
            break
    assert WORLD.bcast(not ours._state.plans.device.helps and ours._state.plans.device.helped == 0)
    ours.Free()


@pytest.mark.skipif(P != 2, reason="what two ranks reduce is read")
@pytest.mark.parametrize("name", [name for c, name in ENTRIES if c == "allreduce"])
def test_what_is_folded_while_it_is_read(together, python, name):
    """Whole pieces, and pieces with an end, of short and of long elements."""
    random = np.random.default_rng(RANK)
    for count, kind, op in (
        (64 << 10, "f4", MPI.SUM),
        (100_003, "c16", MPI.PROD),
        (70_001, "f2", MPI.MAX),
        (300_011, "i8", MPI.BXOR),
    ):
        send = (random.standard_normal(count) * 9).astype(kind)
        want, have = np.zeros_like(send), np.zeros_like(send)
        python.Allreduce(send, want, op, algorithm=name)
        together.Allreduce(send, have, op, algorithm=name)
        assert have.tobytes() == want.tobytes(), kind


@pytest.mark.skipif(P != 2, reason="what two ranks reduce is read")
def test_what_is_to_be_folded_and_cannot_be_read(monkeypatch):
    device = transport.Device

    def of_nobody(locals, me, memory, geometry, processes, *others):
        return device(locals, me, memory, geometry, [1 << 30] * len(processes), *others)

    monkeypatch.setattr(transport, "Device", of_nobody)
    ours = connected(WORLD.Dup())
    if not (ours.shared_memory() or {"reads": False})["reads"]:
        pytest.skip("other processes' memory cannot be read")
    data = np.ones(1 << 20, "f4")
    with pytest.raises(RuntimeError, match="cannot be read any more"):
        ours.Allreduce(MPI.IN_PLACE, data)
    ours.Free()


@pytest.mark.skipif(P > 5, reason="3 to 5 ranks show it")
def test_what_one_reader_has_read_is_kept_for_those_that_the_message_has_not_reached(ours):
    """More messages than a pair of ranks has entries: a block waits for some of its readers, while
    others have read it already and other plans look for slots."""
    count, plans = P * 4096, 15
    data = np.zeros((plans, count), np.float32)
    requests = [
        ours.Allreduce_init(MPI.IN_PLACE, row, algorithm="parameter_server") for row in data
    ]
    random = np.random.default_rng(1)
    for _ in range(25):
        rows = random.integers(-1000, 1000, (P, plans, count)).astype(np.float32)
        data[:] = rows[RANK]
        for number, request in enumerate(requests):
            request.Start()
            for started in requests[: number + 1]:
                started.Test()
        for request in requests:
            request.Wait()
        assert np.array_equal(data, rows.sum(axis=0))
    for request in requests:
        request.Free()


def test_a_transport_that_is_not_known(monkeypatch):
    monkeypatch.setenv("MPICOLL_TRANSPORT", "pigeon")
    with pytest.raises(
        ValueError, match="MPICOLL_TRANSPORT='pigeon' must be one of auto, shm, mpi"
    ):
        connected(WORLD.Dup())


@pytest.mark.skipif(P != 2, reason="two ranks that disagree")
def test_counts_that_differ_are_an_error():
    ours = connected(WORLD.Dup())
    if not WORLD.allreduce(ours._state.plans.device.is_near(), MPI.LAND):
        pytest.skip("no shared memory")
    if RANK < 2:
        data = np.zeros(3 + RANK)
        with pytest.raises(RuntimeError, match="MPICOLL_CHECK=1 tells who differs"):
            ours.Allreduce(MPI.IN_PLACE, data, algorithm="recursive_doubling")
    WORLD.Barrier()
