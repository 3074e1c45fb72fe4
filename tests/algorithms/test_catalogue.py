"""Every registered algorithm: verified, costed, and compared with NumPy on arrays."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll import algorithms, local, ops
from mpicoll.registry import COMMUTATIVE, RANK_ORDER, Algorithm, register
from mpicoll.schedule import Send
from mpicoll.schedule.collectives import COLLECTIVES
from mpicoll.schedule.parameters import PERMUTATION, in_words, read_value
from mpicoll.simulate import Machine, simulate
from mpicoll.verify import tried, verify

CATALOGUE = algorithms.catalogue()
SIZES = range(1, 34)


def name(value):
    return f"{value.collective}-{value.name}" if isinstance(value, Algorithm) else None


def roots(algorithm, size):
    return sorted({0, 1 % size, size - 1}) if algorithm.definition.rooted else [0]


WINDOWS = {1: 8, 5: 2, 16: 16}


def settings(algorithm, size):
    """Parameters: values of each, not all combinations."""
    settings = tried(algorithm, size, list(WINDOWS))
    return [{**t, "window": WINDOWS[t["segments"]]} if "segments" in t else t for t in settings]


def even_settings(algorithm, size):
    """The same, on nodes of equal numbers of ranks."""
    pieces = [{"segments": s, "window": w} for s, w in WINDOWS.items()]
    pieces = pieces if "segments" in algorithm.parameters else [{}]
    if "nodes" not in algorithm.parameters:
        return pieces
    ranks = range(size)
    placements = [(), (0,) * size, [r * 2 // size for r in ranks], [r % 4 for r in ranks]]
    return [{**piece, "nodes": nodes} for piece in pieces for nodes in placements]


every_algorithm = pytest.mark.parametrize("algorithm", CATALOGUE, ids=name)


@every_algorithm
def test_verified(algorithm):
    for size in filter(algorithm.runs_on, SIZES):
        for root in roots(algorithm, size):
            for parameters in settings(algorithm, size):
                case = verify(algorithm, size, root, parameters)
                assert case.ok, (size, root, parameters, case.problems)


@every_algorithm
def test_simulated_time_is_the_textbook_formula(algorithm):
    model = Machine(alpha=1_000_000, beta=700, gamma=300)
    costs = (model.alpha, model.beta, model.gamma)
    sizes = (1, 2, 4, 8, 16, 32)
    for size, parameters in ((s, p) for s in sizes for p in even_settings(algorithm, s)):
        nbytes = 160 * size
        found = simulate(algorithm, size, nbytes, model, 0, parameters).makespan
        formula = algorithm.textbook_time(size, nbytes, *costs, parameters)
        assert found >= algorithm.definition.bound(size, nbytes, *costs) * (1 - 1e-12)
        if len(algorithm.channels(0, size, 0, parameters)) == 1:
            assert found == pytest.approx(formula, rel=1e-12)
        else:
            assert found <= formula


# --- values ---


def inputs(algorithm, size, count, dtype, root=0, seed=0):
    """One input a rank, and the vectors they come from."""
    random = np.random.default_rng([seed, size, count])
    blockwise = algorithm.definition.block_per_rank
    length = count * size if blockwise else count
    values = random.integers(-4, 5, (size, length))
    vectors = [row.astype(dtype) for row in values]
    if algorithm.collective in ("allgather", "gather"):
        return [vector[:count] for vector in vectors], vectors
    if algorithm.collective in ("bcast", "scatter"):
        return [v if rank == root else None for rank, v in enumerate(vectors)], vectors
    return vectors, vectors


def expected(algorithm, size, count, vectors, root, combine):
    """What each rank must get, by NumPy."""
    if algorithm.definition.reduces:
        total = combine(vectors)
    gathered = np.concatenate([vector[:count] for vector in vectors])
    scans = "scan" in algorithm.collective
    prefix = [combine(vectors[:k]) if scans and k else None for k in range(size + 1)]
    blocks = [slice(rank * count, (rank + 1) * count) for rank in range(size)]
    return {
        "allreduce": lambda rank: total,
        "reduce": lambda rank: total if rank == root else None,
        "reduce_scatter": lambda rank: total[blocks[rank]],
        "bcast": lambda rank: vectors[root],
        "allgather": lambda rank: gathered,
        "gather": lambda rank: gathered if rank == root else None,
        "scatter": lambda rank: vectors[root][blocks[rank]],
        "alltoall": lambda rank: np.concatenate([vector[blocks[rank]] for vector in vectors]),
        "scan": lambda rank: prefix[rank + 1],
        "exscan": lambda rank: prefix[rank],
    }[algorithm.collective]


def counts(size):
    return sorted({0, 1, size - 1, size, size + 1, 37})


MOVING = [a for a in CATALOGUE if a.definition.wanted and a.collective != "barrier"]


@pytest.mark.parametrize("algorithm", MOVING, ids=name)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 33])
def test_values_equal_numpys(algorithm, size):
    if not algorithm.runs_on(size):
        with pytest.raises(ValueError, match=f"even number of ranks, not {size}"):
            algorithm.channels(0, size)
        return
    for count in counts(size):
        for root in roots(algorithm, size):
            for parameters in settings(algorithm, size):
                given_, vectors = inputs(algorithm, size, count, np.int32, root)
                found = local.execute(algorithm, given_, "sum", root, parameters)
                want = expected(
                    algorithm, size, count, vectors, root, lambda v: np.sum(v, axis=0, dtype="i4")
                )
                for rank in range(size):
                    assert (found[rank] is None) == (want(rank) is None)
                    if found[rank] is not None:
                        np.testing.assert_array_equal(found[rank], want(rank))


REDUCING = [a for a in CATALOGUE if a.definition.reduces]
DTYPES = ["i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16", "?"]
UFUNCS = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


@pytest.mark.parametrize("algorithm", REDUCING, ids=name)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", UFUNCS)
def test_every_operator_and_type(algorithm, dtype, op):
    try:
        ops.reduction(op, np.dtype(dtype))
    except TypeError:
        # Combinations without meaning are refused alike by every algorithm.
        with pytest.raises(TypeError, match=op):
            local.execute(algorithm, [np.zeros(3, dtype)] * 2, op)
        return
    size, count = 5, 3
    size += algorithm.runs_on(size) - 1  # 5, or 4 where the number must be even
    given_, vectors = inputs(algorithm, size, count, dtype)
    found = local.execute(algorithm, given_, op)

    def combine(arrays):
        total = arrays[0]
        with np.errstate(all="ignore"):
            for array in arrays[1:]:
                total = UFUNCS[op](total, array)
        return total.astype(dtype)

    want = expected(algorithm, size, count, vectors, 0, combine)
    for rank in range(size):
        if want(rank) is not None:
            np.testing.assert_array_equal(found[rank], want(rank))


@pytest.mark.parametrize("algorithm", REDUCING, ids=name)
@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_a_non_commutative_operator_keeps_rank_order_or_is_refused(algorithm, size):
    """Function composition x -> a x + b, as (a, b) packed in one complex number."""

    def compose(left, right):  # right = left then right
        right[:] = left.real * right.real + 1j * (left.imag * right.real + right.imag)

    reduction = ops.user(compose, np.complex128, commutative=False)
    length = 2 * size if algorithm.definition.block_per_rank else 2
    vectors = [np.full(length, (rank % 3) + 1 + (rank + 1) * 1j) for rank in range(size)]
    if COMMUTATIVE in algorithm.needs:
        with pytest.raises(TypeError, match="commutative"):
            local.execute(algorithm, vectors, reduction)
        return
    assert RANK_ORDER in algorithm.order

    def combine(arrays):
        total = arrays[0]
        for array in arrays[1:]:
            right = array.copy()
            compose(total, right)
            total = right
        return total

    want = expected(algorithm, size, 2, vectors, 0, combine)
    found = local.execute(algorithm, vectors, reduction)
    for rank, result in enumerate(found):
        assert (result is None) == (want(rank) is None)
        if result is not None:
            np.testing.assert_array_equal(result, want(rank))


ALLREDUCE = [a for a in CATALOGUE if a.collective == "allreduce"]


@pytest.mark.parametrize("algorithm", ALLREDUCE, ids=name)
@given(size=st.integers(1, 12), count=st.integers(0, 30), seed=st.integers(0, 99))
def test_all_ranks_get_the_same_bits_from_an_allreduce(algorithm, size, count, seed):
    parameters = settings(algorithm, size)[seed % len(settings(algorithm, size))]
    random = np.random.default_rng(seed)
    vectors = [np.float32(10.0) ** random.integers(-8, 8, count) for _ in range(size)]
    vectors = [v.astype("f4") * random.standard_normal(count).astype("f4") for v in vectors]
    found = local.execute(algorithm, vectors, "sum", 0, parameters)
    for a, b in pairwise(found):
        assert a.tobytes() == b.tobytes()


def test_local_refuses_what_does_not_fit():
    ring = algorithms.find("allreduce", "ring")
    with pytest.raises(ValueError, match="equal length"):
        local.execute(ring, [np.zeros(3), np.zeros(4)])
    scatter = algorithms.find("scatter", "linear")
    with pytest.raises(ValueError, match="root=5"):
        local.execute(scatter, [np.zeros(3)] * 3, root=5)
    with pytest.raises(ValueError, match="counts"):
        local.execute(scatter, [np.zeros(4), None], counts=[3, 3])
    uneven = local.execute(scatter, [np.arange(4.0), None], counts=[3, 1])
    assert [array.tolist() for array in uneven] == [[0, 1, 2], [3]]


# --- the catalogue itself ---


def test_lookups_name_what_is_known():
    with pytest.raises(ValueError, match=r"unknown algorithm 'rong'.*linear.*ring"):
        algorithms.find("allreduce", "rong")
    with pytest.raises(ValueError, match=r"unknown collective 'all'.*allreduce"):
        algorithms.names("all")
    with pytest.raises(ValueError, match=r"no parameter 'window'.*none"):
        algorithms.find("allreduce", "linear").complete({"window": 2})
    with pytest.raises(ValueError, match="segments=0"):
        algorithms.find("allreduce", "double_binary_tree").complete({"segments": 0})


ORDERED = [a for a in CATALOGUE if PERMUTATION in a.kinds.values()]


def test_every_ring_takes_an_order():
    assert {a.collective for a in ORDERED} == {"allreduce", "reduce_scatter", "allgather"}
    assert all(a.parameters["order"] == () for a in ORDERED)


@pytest.mark.parametrize("algorithm", ORDERED, ids=name)
@given(order=st.integers(1, 9).flatmap(lambda size: st.permutations(range(size))))
def test_a_ring_visits_the_ranks_in_the_order_given(algorithm, order):
    size, parameters = len(order), {"order": order}
    case = verify(algorithm, size, 0, parameters)
    assert case.ok, case.problems
    given_, vectors = inputs(algorithm, size, 2, np.int32)
    found = local.execute(algorithm, given_, "sum", 0, parameters)
    want = expected(algorithm, size, 2, vectors, 0, lambda v: np.sum(v, axis=0, dtype="i4"))
    for rank in range(size):
        np.testing.assert_array_equal(found[rank], want(rank))
    onward = {(order[i - 1], order[i]) for i in range(size) if size > 1}
    sent = {
        (rank, step.peer)
        for rank in range(size)
        for channel in algorithm.channels(rank, size, 0, parameters)
        for steps in channel.rounds
        for step in steps
        if isinstance(step, Send)
    }
    assert sent == onward


@pytest.mark.parametrize("algorithm", ORDERED, ids=name)
def test_the_natural_order_needs_no_parameter(algorithm):
    for size in (1, 2, 5):
        for rank in range(size):
            rounds = [
                [tuple(channel.rounds) for channel in algorithm.channels(rank, size, 0, parameters)]
                for parameters in ({}, {"order": ()}, {"order": range(size)})
            ]
            assert rounds[0] == rounds[1] == rounds[2]


@pytest.mark.parametrize("order", [(1, 1), (0, 2), (-1, 0), 3, "10", (True, False), (0.0, 1.0)])
def test_what_is_no_permutation_is_refused(order):
    ring = algorithms.find("allreduce", "ring")
    with pytest.raises(
        ValueError, match=r"order=.* must be a sequence with each .*such as 2,0,1,3"
    ):
        ring.channels(0, 2, 0, {"order": order})


def test_a_permutation_of_other_ranks_is_refused():
    ring = algorithms.find("allreduce", "ring")
    with pytest.raises(ValueError, match=r"order=\(1, 0\) is for 2 ranks, not for 3: give"):
        ring.channels(0, 3, 0, {"order": (1, 0)})
    with pytest.raises(ValueError, match=r"order=\(1, 0\) is for 2 ranks"):
        verify(ring, 3, 0, {"order": (1, 0)})


def test_values_are_written_and_read():
    for value in (4, (2, 0, 1, 3), (1, 0), (0,)):
        text = in_words({"x": value}).removeprefix("x=")
        assert read_value(text) == value
    assert read_value("0,") == (0,)
    assert in_words({"segments": 3, "order": ()}) == "segments=3"
    for text in ("", "a", "1,,2", ","):
        with pytest.raises(ValueError, match="invalid literal"):
            read_value(text)


def test_a_name_is_registered_once():
    ring = algorithms.find("allreduce", "ring")
    line = {
        key: getattr(ring, key)
        for key in ("rounds", "depth", "messages", "blocks_sent", "blocks_sent_max", "fan_in")
    }
    with pytest.raises(ValueError, match="registered already"):
        register("allreduce", "ring", ring.schedule, textbook=ring.textbook, reference="x", **line)


@every_algorithm
def test_everything_is_documented(algorithm):
    assert algorithm.summary.endswith(".")
    assert algorithm.picture and algorithm.reference
    assert algorithm.collective in COLLECTIVES
