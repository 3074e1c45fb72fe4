"""Derived datatypes: elements with holes go by value, on however many ranks they are used."""

import numpy as np
import pytest
from arguments import call, made
from mpi4py import MPI

from mpicoll import algorithms
from mpicoll.buffers import packing
from mpicoll.buffers.packing import Part
from mpicoll.comm import Intracomm
from mpicoll.schedule import collectives

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
MOVED = [
    (entry.collective, entry.name)
    for entry in algorithms.catalogue()
    if entry.runs_on(P) and entry.collective != "barrier" and not entry.definition.reduces
]
COUNT = 4


@pytest.fixture(scope="module")
def ours():
    return Intracomm(WORLD)


@pytest.fixture
def types():
    """Datatypes of one test: committed when they are made, freed at its end."""
    held = []

    def keep(datatype):
        held.append(datatype.Commit())
        return datatype

    yield keep
    for datatype in held:
        datatype.Free()


def every_second(count):
    """``count`` doubles, every second one of memory; the next such element follows."""
    return MPI.DOUBLE.Create_vector(count, 1, 2).Create_resized(0, 16 * count)


def spread(array):
    """The elements of an array with holes between them."""
    storage = np.full(2 * array.size, -1.0)
    storage[::2] = array
    return storage


# --- packing ---


def packed(memory, *parts):
    return packing.typed(memory.view("u1"), [Part(*part) for part in parts])


@pytest.mark.parametrize("limit", [1, 17, 24, 1 << 30])
def test_there_and_back(types, monkeypatch, limit):
    monkeypatch.setattr(packing, "LIMIT", limit)
    columns = types(MPI.DOUBLE.Create_vector(3, 1, 4).Create_resized(0, 8))
    matrix = np.arange(12.0)
    copy = packed(matrix, (8, 2, columns), (0, 0, MPI.INT), (88, 1, MPI.DOUBLE))
    copy.load()
    assert copy.memory.view("f8").tolist() == [1, 5, 9, 2, 6, 10, 11]
    copy.memory.view("f8")[:] *= -1
    copy.write_back()
    sign = np.where(np.isin(np.arange(12), [1, 5, 9, 2, 6, 10, 11]), -1, 1)
    assert matrix.tolist() == (sign * np.arange(12.0)).tolist()


def test_backwards_and_nothing(types):
    down = types(MPI.DOUBLE.Create_resized(0, -8))
    copy = packed(np.arange(3.0), (16, 3, down))
    copy.load()
    assert copy.memory.view("f8").tolist() == [2, 1, 0]
    nothing = packed(np.arange(3.0), (800, 0, down))
    nothing.load()
    nothing.write_back()
    assert nothing.memory.size == 0


@pytest.mark.parametrize(("offset", "count"), [(0, 4), (8, 3), (-8, 1)])
def test_beyond_the_memory(offset, count):
    text = packing.beyond([Part(0, 3, MPI.DOUBLE), Part(offset, count, MPI.DOUBLE)], 24)
    assert text.startswith(f"{count} element") and text.endswith("of a buffer of 24 bytes")
    assert not packing.beyond([Part(0, 3, MPI.DOUBLE), Part(99, 0, MPI.DOUBLE)], 24)


def test_what_needs_no_packing(types):
    assert packing.is_flat(MPI.DOUBLE) and packing.is_flat(MPI.BYTE)
    assert not packing.is_flat(MPI.DOUBLE_INT)
    assert not packing.is_flat(types(MPI.DOUBLE.Create_contiguous(2)))


# --- collectives ---


@pytest.mark.parametrize("mode", ["", "I", "_init"])
@pytest.mark.parametrize(("name", "algorithm"), MOVED)
def test_a_derived_datatype_on_one_rank(ours, types, name, algorithm, mode):
    datatype = types(every_second(COUNT))
    for in_place in (False, True):
        for who in {0, P - 1}:
            check_one(ours, datatype, name, algorithm, mode, in_place, who)


def check_one(ours, datatype, name, algorithm, mode, in_place, who):
    theirs = made(name, COUNT, "f8", 0, in_place)
    call(WORLD, name, *theirs)
    mine = made(name, COUNT, "f8", 0, in_place)
    storage = {id(a): spread(a) for a in mine if isinstance(a, np.ndarray)}

    def spec(argument):
        if RANK != who or not isinstance(argument, np.ndarray):
            return argument
        return [storage[id(argument)], 1, datatype]

    request = call(ours, name, *mine, spec=spec, mode=mode, algorithm=algorithm)
    if mode == "_init":
        request.Start()
    if mode:
        request.Wait()
    for wanted, got in zip(theirs, mine, strict=True):
        if isinstance(got, np.ndarray) and RANK == who:
            assert (storage[id(got)][1::2] == -1).all()
            got = storage[id(got)][::2]
        if isinstance(got, np.ndarray):
            np.testing.assert_array_equal(got, wanted)


def test_the_choice_depends_on_bytes_alone(types):
    """Nobody goes to the library because of a datatype: that rank would be alone there."""
    ours = Intracomm(WORLD.Dup())
    count = (1 << 20) // 8  # where the table goes from the library to a schedule
    datatype = types(every_second(count))
    every = np.zeros(count * P)
    own = np.full(count, float(RANK))
    ours.Allgather([spread(own), 1, datatype] if RANK == P - 1 else own, every)
    assert (every.reshape(P, count) == np.arange(P)[:, None]).all()
    chosen = ours.explain("allgather", every.nbytes).split(": ")[1].split(" ")[0]
    assert chosen != "native"
    assert ours.stats().calls == {("allgather", chosen): 1}
    assert ours.stats().fallbacks == {}
    ours.Free()


def test_a_persistent_operation_packs_at_each_start(ours, types):
    datatype = types(every_second(COUNT))
    storage = np.full(2 * COUNT, -1.0)
    plan = ours.Bcast_init([storage, 1, datatype], P - 1, algorithm="linear")
    for number in range(3):
        if RANK == P - 1:
            storage[::2] = number
        plan.Start()
        plan.Wait()
        assert storage.tolist() == [number, -1] * COUNT
    plan.Free()


def test_the_datatype_may_be_freed_while_it_is_in_use(ours):
    datatype = every_second(COUNT).Commit()
    storage = np.full(2 * COUNT, float(RANK))
    request = ours.Ibcast([storage, 1, datatype], 0, algorithm="linear")
    datatype.Free()
    request.Wait()
    assert storage.tolist() == [0, RANK] * COUNT


def test_the_librarys_own_gets_the_datatype_itself(ours, types):
    datatype = types(every_second(COUNT))
    for run in (ours.Bcast, lambda *a, **k: ours.Ibcast(*a, **k).Wait()):
        storage = np.full(2 * COUNT, float(RANK + 1))
        run([storage, 1, datatype], algorithm="native")
        assert storage.tolist() == [1, RANK + 1] * COUNT


@pytest.mark.parametrize("algorithm", ["linear", "native"])
def test_pairs_and_structures_match(ours, types, algorithm):
    """A predefined pair is a structure of its two types, whose padding nobody sends."""
    pairs = np.zeros(3, np.dtype([("value", "f8"), ("index", "i4")], align=True))
    if RANK == 0:
        pairs["value"], pairs["index"] = [1, 2, 3], [4, 5, 6]
    built = types(MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.INT]))
    ours.Bcast([pairs, 3, built if RANK else MPI.DOUBLE_INT], algorithm=algorithm)
    assert pairs["value"].tolist() == [1, 2, 3]
    assert pairs["index"].tolist() == [4, 5, 6]


def test_absolute_addresses(ours):
    first, second = np.full(2, float(RANK)), np.full(1, float(RANK))
    lengths, places = [2, 1], [MPI.Get_address(first), MPI.Get_address(second)]
    datatype = MPI.DOUBLE.Create_hindexed(lengths, places).Commit()
    plain = np.full(3, float(RANK))
    alone = RANK == P - 1
    ours.Bcast([MPI.BOTTOM, 1, datatype] if alone else plain, algorithm="linear")
    assert [*first, *second] == [0] * 3 if alone else plain.tolist() == [0] * 3
    with pytest.raises(ValueError, match=r"MPI\.BOTTOM with a datatype that names address 0"):
        ours.Bcast([MPI.BOTTOM, 1, MPI.DOUBLE], algorithm="linear")
    datatype.Free()


# --- blocks of different lengths ---


@pytest.mark.parametrize("who", sorted({0, P - 1}))
@pytest.mark.parametrize("algorithm", ["linear", "pairwise"])
def test_vectors(ours, types, algorithm, who):
    datatype = types(every_second(1))
    counts = [rank + 1 for rank in range(P)]
    total = sum(counts)
    here = RANK == who

    def given(array, *cut):
        return [spread(array), *cut, datatype] if here else [array, *cut, MPI.DOUBLE]

    def taken(message):
        return message[0][::2] if here else message[0]

    send = given(np.full(total, float(RANK)), counts)
    recv = given(np.zeros(P * (RANK + 1)), [RANK + 1] * P)
    ours.Alltoallv(send, recv, algorithm=algorithm)
    assert taken(recv).tolist() == np.repeat(np.arange(float(P)), RANK + 1).tolist()
    if algorithm == "linear":
        every = np.repeat(np.arange(float(P)), counts)
        own = np.full(RANK + 1, float(RANK))
        recv = given(np.zeros(total), counts)
        ours.Allgatherv(given(own), recv, algorithm=algorithm)
        assert taken(recv).tolist() == every.tolist()
        recv = given(np.zeros(total), counts)
        ours.Gatherv(given(own), recv, P - 1, algorithm=algorithm)
        assert RANK < P - 1 or taken(recv).tolist() == every.tolist()
        recv = given(np.zeros(RANK + 1))
        ours.Scatterv(given(every, counts), recv, P - 1, algorithm=algorithm)
        assert taken(recv).tolist() == own.tolist()


def test_datatypes_of_each_block(ours, types):
    """Rank 0 sends with holes, the others without; all receive without."""
    column = types(every_second(2))
    places = range(0, 32 * P, 32)
    data = np.arange(4.0 * P) + 100 * RANK
    which = [column if RANK == 0 else MPI.DOUBLE] * P
    counts = [1 if RANK == 0 else 2] * P
    got = np.zeros(2 * P)
    ours.Alltoallw(
        [data, (counts, places), which],
        [got, ([2] * P, range(0, 16 * P, 16)), [MPI.DOUBLE] * P],
        algorithm="pairwise",
    )
    for source in range(P):
        first = 100 * source + 4 * RANK
        step = 2 if source == 0 else 1
        assert got[2 * source : 2 * source + 2].tolist() == [first, first + step]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (lambda storage, t: [storage[:3], t], r"24 bytes are not a multiple of .* 32 bytes"),
    ],
)
def test_bad_counts(ours, types, message, text):
    with pytest.raises(ValueError, match=text):
        ours.Bcast(message(np.zeros(8), types(every_second(2))))


def test_counts_that_are_not_given(ours, types):
    datatype = types(every_second(2))
    for message in (lambda a: [a, datatype], lambda a: [a, (1, 1), datatype]):
        storage = np.full(8, float(RANK))
        ours.Bcast(message(storage), algorithm="linear")
        first = 0 if len(message(storage)) == 2 else 4
        assert storage[first::2].tolist() == [0] * ((8 - first) // 2)
        assert storage[1::2].tolist() == [RANK] * 4


def test_every_collective_that_moves_is_here():
    names = {name for name, _ in MOVED}
    moved = {d.name for d in collectives.COLLECTIVES.values() if not d.reduces}
    assert names == moved - {"barrier"}
