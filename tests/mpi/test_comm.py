"""Every algorithm of every collective against the MPI library's own, over MPI."""

import os
import pickle
import re
import warnings
from collections import Counter

import numpy as np
import pytest
from arguments import call, made
from mpi4py import MPI
from mpi4py.util.dtlib import to_numpy_dtype

from mpicoll import algorithms, ops
from mpicoll.base import caller
from mpicoll.comm import Intracomm
from mpicoll.errors import FallbackWarning
from mpicoll.registry import COMMUTATIVE
from mpicoll.schedule import collectives

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
SERVED = [*collectives.COLLECTIVES.values()]
CASES = [(entry.collective, entry.name) for entry in algorithms.catalogue() if entry.runs_on(P)]
REDUCTIONS = [(c, a) for c, a in CASES if collectives.collective(c).reduces]
COUNTS = sorted({0, 1, max(P - 1, 0), P, P + 1, 97})
OPERATORS = {name: getattr(MPI, name.upper()) for name in ops.OPERATORS}
CODES = "?bhilqBHILQefdgFDG"


@pytest.fixture(scope="module")
def ours():
    return Intracomm(WORLD)


def same_as_the_librarys(
    ours, name, count, dtype, op=MPI.SUM, root=0, in_place=False, spec=lambda buffer: buffer, **how
):
    results = []
    for on, keywords in ((WORLD, {}), (ours, how)):
        send, recv = made(name, count, dtype, root, in_place)
        given = None if not isinstance(send, np.ndarray) else send.copy()
        call(on, name, send, recv, op, root, spec, **keywords)
        if given is not None:
            np.testing.assert_array_equal(given, send, "the send buffer was written")
        results.append(recv)
    theirs, mine = results
    if isinstance(mine, np.ndarray):
        if in_place and name == "reduce_scatter":  # what follows the block is undefined
            mine, theirs = mine[:count], theirs[:count]
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("name", "algorithm"), CASES)
def test_counts_and_roots(ours, name, algorithm, in_place):
    definition = collectives.collective(name)
    for count in COUNTS:
        for root in {0, P - 1} if definition.rooted else {0}:
            same_as_the_librarys(
                ours, name, count, "f8", root=root, in_place=in_place, algorithm=algorithm
            )


def serves(operator, code):
    try:
        ops.reduction(operator, code)
    except TypeError:
        return False
    return True


def library_type(dtype):
    """What mpi4py is passed, so that the library has the operator: bytes are no numbers to it."""

    def spec(buffer):
        return [buffer, MPI.UINT8_T] if isinstance(buffer, np.ndarray) else buffer

    return spec if np.dtype(dtype) == np.uint8 else lambda buffer: buffer


@pytest.mark.parametrize(("name", "algorithm"), REDUCTIONS)
def test_operators_and_dtypes(ours, name, algorithm):
    pairs = [(code, operator) for code in CODES for operator in OPERATORS if serves(operator, code)]
    assert len(pairs) > 100
    if P > 2:  # what depends on the type has been seen
        pairs = [("f8", "sum"), ("i4", "max"), ("B", "bxor"), ("?", "lor"), ("F", "prod")]
    for code, operator in pairs:
        op, spec = OPERATORS[operator], library_type(code)
        same_as_the_librarys(ours, name, 7, code, op, spec=spec, algorithm=algorithm)


@pytest.mark.parametrize(("name", "algorithm"), REDUCTIONS)
@pytest.mark.parametrize("operator", ["minloc", "maxloc"])
def test_value_and_index(ours, name, algorithm, operator):
    for pair in (MPI.DOUBLE_INT, MPI.FLOAT_INT, MPI.LONG_INT, MPI.SHORT_INT, MPI.TWOINT):

        def spec(buffer, pair=pair):
            return [buffer, pair] if isinstance(buffer, np.ndarray) else buffer

        same_as_the_librarys(
            ours,
            name,
            5,
            np.dtype(to_numpy_dtype(pair)),
            OPERATORS[operator],
            spec=spec,
            algorithm=algorithm,
        )


@pytest.mark.parametrize(("name", "algorithm"), [c for c in CASES if c not in REDUCTIONS])
def test_whatever_is_moved(ours, name, algorithm):
    for dtype in (*CODES, "S1"):
        same_as_the_librarys(ours, name, 5, dtype, algorithm=algorithm)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("definition", SERVED, ids=lambda definition: definition.name)
def test_the_built_in_choice(ours, definition, in_place):
    large = (1 << 17) // (P if definition.block_per_rank else 1) + 1  # just over 1 MiB in all
    for count in (3, large):
        same_as_the_librarys(ours, definition.name, count, "f8", in_place=in_place)
        same_as_the_librarys(
            ours, definition.name, count, "f8", in_place=in_place, algorithm="native"
        )


def test_parameters_change_the_plan_and_not_the_result(ours):
    for segments, window in ((1, 1), (5, 2), (4, 9)):
        same_as_the_librarys(
            ours,
            "allreduce",
            97,
            "f8",
            algorithm="double_binary_tree",
            segments=segments,
            window=window,
        )


def test_forms_of_buffers(ours):
    want = np.empty(6)
    WORLD.Allreduce(np.arange(6.0) + RANK, want)
    base, out = np.arange(8.0) + RANK - 1, np.zeros(8)
    for algorithm in ("ring", "native"):
        for send, recv in (
            ([base, (6, 1)], [out, (6, 1)]),
            ((base, 6, 1, "d"), [out, (6, 1), MPI.DOUBLE]),
            (base[1:7].reshape(2, 3, order="F"), out[1:7].reshape(2, 3, order="F")),
            (memoryview(base)[1:7], memoryview(out)[1:7]),
            ([bytearray(base[1:7]), MPI.DOUBLE], [memoryview(out)[1:7].cast("B"), MPI.DOUBLE]),
        ):
            out[:] = -1
            ours.Allreduce(send, recv, algorithm=algorithm)
            assert out.tolist() == [-1, *want, -1]


def test_bytes_are_numbers_to_reductions_whatever_the_algorithm(ours):
    for algorithm in ("native", "ring"):
        out = bytearray(3)
        ours.Allreduce([b"\1\2\3", MPI.BYTE], [out, MPI.BYTE], algorithm=algorithm)
        assert out == bytes((P % 256, 2 * P % 256, 3 * P % 256))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_types_that_mpi_lacks(ours, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(getattr(ml_dtypes, name))
    out = np.zeros(5, dtype)
    if name != "bfloat16":
        with pytest.raises(TypeError, match=r"no MPI datatype.*\[array, MPI\.BYTE\]"):
            ours.Allreduce(np.ones(5, dtype), out)
        return
    # The library cannot, so the table goes on to what can.
    ours.Allreduce(np.ones(5, dtype), out)
    assert out.astype(float).tolist() == [float(P)] * 5
    every = np.zeros(5 * P, dtype)
    ours.Allgather(np.full(5, RANK, dtype), every)
    assert every.astype(float).tolist() == np.repeat(np.arange(float(P)), 5).tolist()


# --- user-defined operators ---

#: Any type as long as two numbers, so that no algorithm cuts between them.
PAIR = MPI.C_DOUBLE_COMPLEX


def compose(invec, inoutvec, datatype):
    """x -> a x + b after x -> c x + d, modulo 2^64: associative, not commutative."""
    left = np.frombuffer(invec, "u8").reshape(-1, 2)
    right = np.frombuffer(inoutvec, "u8").reshape(-1, 2)
    right[:, 1] += left[:, 1] * right[:, 0]
    right[:, 0] *= left[:, 0]


@pytest.fixture(params=[False, True], ids=["in_rank_order", "commutative"])
def user_op(request):
    commutes = request.param

    def add(invec, inoutvec, datatype):
        np.frombuffer(inoutvec, "u8")[:] += np.frombuffer(invec, "u8")

    op = MPI.Op.Create(add if commutes else compose, commute=commutes)
    yield op
    op.Free()


@pytest.mark.parametrize(("name", "algorithm"), REDUCTIONS)
def test_user_defined_operators(ours, name, algorithm, user_op):
    definition = collectives.collective(name)
    blocks = P if definition.block_per_rank else 1
    count = 5

    def run(on, **how):
        send = (np.arange(2 * count * blocks, dtype="u8") + 3 * RANK + 1) * 7
        recv = np.zeros(2 * count, "u8")
        call(on, name, [send, PAIR], [recv, PAIR], user_op, **how)
        return recv

    needs = algorithms.find(name, algorithm).needs
    if COMMUTATIVE in needs and not user_op.Is_commutative():
        with pytest.raises(TypeError, match=f"algorithm='{algorithm}': .*commutative operator"):
            run(ours, algorithm=algorithm)
    else:
        np.testing.assert_array_equal(run(ours, algorithm=algorithm), run(WORLD))


def test_the_choice_avoids_what_an_operator_forbids(ours):
    op = MPI.Op.Create(compose, commute=False)
    send = np.full(1 << 18, 3, "u8") + np.uint64(RANK)
    recv, want = np.zeros_like(send), np.zeros_like(send)
    WORLD.Allreduce([send, PAIR], [want, PAIR], op)
    before = ours.stats().calls.get(("allreduce", "ring"), 0)
    ours.Allreduce([send, PAIR], [recv, PAIR], op)
    assert ours.stats().calls.get(("allreduce", "ring"), 0) == before
    np.testing.assert_array_equal(recv, want)
    op.Free()


# --- what ran ---


def test_stats_and_explain():
    ours = Intracomm(WORLD.Dup())
    chosen = [
        ours.explain(*what).split(": ")[1].split(" ")[0]
        for what in (("allreduce", 8), ("allreduce", 1 << 20), ("barrier",))
    ]
    ours.Allreduce(np.zeros(1), np.zeros(1))
    ours.Allreduce(np.zeros(1), np.zeros(1), algorithm="ring")
    ours.Allreduce(np.zeros(1 << 17), np.zeros(1 << 17))
    ours.Barrier()
    names = [("allreduce", chosen[0]), ("allreduce", chosen[1]), ("barrier", chosen[2])]
    assert ours.stats().calls == Counter([*names, ("allreduce", "ring")])
    assert ours.stats().fallbacks == {}
    text, ranks = ours.explain("allreduce", 1 << 20), "1 rank" if P == 1 else f"{P} ranks"
    assert text.startswith(f"allreduce of 1048576 bytes on {ranks}: {chosen[1]} (built-in table")
    assert ours.explain("bcast", 1).startswith(f"bcast of 1 byte on {ranks}: ")
    with pytest.raises(ValueError, match="unknown collective 'allreduced'"):
        ours.explain("allreduced")
    with pytest.raises(ValueError, match="nbytes=-1"):
        ours.explain("bcast", -1)
    ours.Free()


def settings(monkeypatch, **variables):
    """A communicator built with these variables set on rank 0 alone: only that one reads them."""
    for name, value in variables.items():
        if RANK == 0:
            monkeypatch.setenv(name, value)
    return Intracomm(WORLD.Dup())


def test_the_environment_of_rank_0_decides(monkeypatch):
    ours = settings(monkeypatch, MPICOLL_ALLREDUCE="double_binary_tree segments=2")
    ours.Allreduce(np.zeros(5), np.zeros(5))
    ours.Allreduce(np.zeros(5), np.zeros(5), algorithm="linear")
    child = ours.Split(0, RANK)
    child.Allreduce(np.zeros(5), np.zeros(5))
    assert ours.stats().calls == {
        ("allreduce", "double_binary_tree"): 1,
        ("allreduce", "linear"): 1,
    }
    assert child.stats().calls == {("allreduce", "double_binary_tree"): 1}
    assert "double_binary_tree segments=2 window=8 (MPICOLL_ALLREDUCE)" in ours.explain("allreduce")
    child.Free()
    ours.Free()


@pytest.mark.parametrize(
    ("variable", "value"), [("MPICOLL_BCAST", "rign"), ("MPICOLL_FALLBACK", "never")]
)
def test_a_bad_setting_raises_on_all_ranks(monkeypatch, variable, value):
    base = WORLD.Dup()
    if RANK == 0:
        monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=f"{variable}='{value}'"):
        Intracomm(base)
    base.Free()
    assert os.environ.get(variable) == (value if RANK == 0 else None)


# --- what the library serves instead ---


@pytest.fixture
def derived():
    """A datatype and an operator on it: of reductions of it the library knows more."""
    datatype = MPI.UINT64_T.Create_contiguous(2).Commit()
    op = MPI.Op.Create(compose, commute=False)
    yield datatype, op
    datatype.Free()
    op.Free()


def test_reductions_of_derived_datatypes_go_to_the_library_visibly(monkeypatch, derived):
    ours = settings(monkeypatch)
    monkeypatch.setattr(caller, "_WARNED", set())
    datatype, op = derived
    send, recv, want = np.array([3, RANK], "u8"), np.zeros(2, "u8"), np.zeros(2, "u8")
    WORLD.Allreduce([send, 1, datatype], [want, 1, datatype], op)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours.Allreduce([send, 1, datatype], [recv, 1, datatype], op)
    assert len(caught) == (RANK == 0)
    if RANK == 0:
        assert caught[0].category is FallbackWarning
        assert caught[0].filename == __file__
        assert re.search(
            "^Allreduce: send buffer has a derived datatype .*, so native serves",
            str(caught[0].message),
        )
    assert recv.tolist() == want.tolist()
    arguments = [send, 1, datatype], [recv, 1, datatype], op
    ours.Allreduce(*arguments)  # said once
    stats = ours.stats()
    assert stats.calls == {("allreduce", "native"): 2}
    assert sum(stats.fallbacks.values()) == 2
    ours.Allreduce(*arguments, algorithm="native")  # asked for: no fallback
    assert sum(ours.stats().fallbacks.values()) == 2
    with pytest.raises(TypeError, match=r"Allreduce by algorithm='linear': .*derived.*'native'"):
        ours.Allreduce(*arguments, algorithm="linear")
    ours.Free()


def test_fallback_policies(monkeypatch, derived):
    monkeypatch.setattr(caller, "_WARNED", set())
    datatype, op = derived
    arguments = [np.ones(2, "u8"), 1, datatype], [np.ones(2, "u8"), 1, datatype], op
    silent = settings(monkeypatch, MPICOLL_FALLBACK="silent")
    silent.Allreduce(*arguments)
    assert sum(silent.stats().fallbacks.values()) == 1
    silent.Free()
    strict = settings(monkeypatch, MPICOLL_FALLBACK="error")
    with pytest.raises(TypeError, match="MPICOLL_FALLBACK=error forbids"):
        strict.Allreduce(*arguments)
    strict.Free()


def test_what_the_environment_names_and_cannot_serve_is_a_fallback(monkeypatch):
    monkeypatch.setattr(caller, "_WARNED", set())
    ours = settings(monkeypatch, MPICOLL_ALLREDUCE="ring", MPICOLL_FALLBACK="silent")
    monkeypatch.delenv("MPICOLL_ALLREDUCE", raising=False)
    op = MPI.Op.Create(compose, commute=False)
    recv = np.zeros(2, "u8")
    plain = Intracomm(WORLD.Dup())
    for comm in (ours, plain):
        comm.Allreduce(np.ones(2, "u8"), recv, op)
    assert ours.stats().calls == plain.stats().calls
    plain.Free()
    ((collective, reason),) = ours.stats().fallbacks
    assert collective == "allreduce"
    assert "MPICOLL_ALLREDUCE: ring needs a commutative operator" in reason
    op.Free()
    ours.Free()


# --- an mpi4py communicator all the same ---


def test_messages_meet_those_of_the_users_communicator(ours):
    right, left = (RANK + 1) % P, (RANK - 1) % P
    got = np.zeros(1)
    request = WORLD.Irecv(got, left, 5)
    ours.Send(np.array([float(RANK)]), right, 5)
    request.Wait()
    assert got[0] == left
    assert ours.sendrecv({"rank": RANK}, right, source=left) == {"rank": left}
    assert ours.allreduce(1) == P


def test_collectives_do_not_catch_the_users_messages(ours):
    right, left = (RANK + 1) % P, (RANK - 1) % P
    got = np.zeros(1)
    request = ours.Irecv(got, MPI.ANY_SOURCE, MPI.ANY_TAG)
    same_as_the_librarys(ours, "allreduce", 9, "f8", algorithm="ring")
    ours.Send(np.array([float(RANK)]), right)
    request.Wait()
    assert got[0] == left


def test_equality_and_pickling_are_mpi4pys(ours):
    assert ours == WORLD
    assert ours.handle == WORLD.handle
    assert Intracomm(MPI.COMM_SELF) != WORLD
    again = pickle.loads(pickle.dumps(ours))
    assert type(again) is Intracomm
    assert again == WORLD
    same_as_the_librarys(again, "allreduce", 9, "f8", algorithm="ring")
    assert again.stats() == ours.stats()  # one handle, one state
    dup = ours.Dup()
    with pytest.raises(ValueError, match="cannot serialize"):
        pickle.dumps(dup)
    dup.Free()
