"""The order classes that algorithms declare, on numbers that show the order of a fold."""

from itertools import product

import numpy as np
import pytest

from mpicoll import algorithms, local, ops
from mpicoll.ops import exact
from mpicoll.registry import COMMUTATIVE, RANK_ORDER, SAME_BITS, Algorithm
from mpicoll.schedule import RecvReduce, Send, given
from mpicoll.verify import tried

REDUCING = [a for a in algorithms.catalogue() if a.definition.reduces]
SIZES = (1, 2, 3, 4, 5, 7, 8, 13)
#: A prime: hashes are numbers below it.
PRIME = 1_000_003


def name(value):
    return f"{value.collective}-{value.name}" if isinstance(value, Algorithm) else None


def calls(algorithm):
    """Numbers of ranks, roots and parameters."""
    for size in filter(algorithm.runs_on, SIZES):
        roots = sorted({0, size // 2, size - 1}) if algorithm.definition.rooted else [0]
        yield from product([size], roots, tried(algorithm, size, [1, 3]))


def exposing(size, dtype):
    """Vectors whose sums depend on the order and the grouping, signed zeros, NaNs with payloads."""
    scale = {"f4": np.float32(2.0**30), "f8": np.float64(1e16)}[dtype]
    pool = np.array([scale, 1, -scale, 3, -1 / scale, -0.0, 0.0, 1 / 3], dtype)
    random = np.random.default_rng(size)
    sums = pool[random.integers(0, len(pool), (size, 8 * size))]
    zeros = np.where(random.integers(0, 2, (size, 4 * size)), pool[5], pool[6])
    bits = {"f4": np.uint32, "f8": np.uint64}[dtype]
    payloads = np.full((size, 4 * size), np.nan, dtype)
    payloads.view(bits)[...] += np.arange(1, size + 1, dtype=bits)[:, np.newaxis]
    nans = np.where(random.integers(0, 3, payloads.shape), pool[3], payloads)
    return [np.concatenate(parts) for parts in zip(sums, zeros, nans, strict=True)]


def pairs(first, second):
    array = np.empty((len(first), 2), np.int64)
    array[:, 0], array[:, 1] = first, second
    return array.view("c16")[:, 0]  # one element of 16 bytes, as far as MPI knows


def halves(array):
    numbers = array.view(np.int64).reshape(-1, 2)
    return numbers[:, 0], numbers[:, 1]


def grouped(left, right):
    """Neither associative nor commutative: expressions that differ have values that differ."""
    right[:] = (31 * left + 17 * right + 7) % PRIME


def joined(left, right):
    """Associative and not commutative: hash and weight of two words, one behind the other."""
    (a, m), (b, n) = halves(left), halves(right)
    right[:] = pairs((a * n + b) % PRIME, (m * n) % PRIME)


GROUPED = ops.user(grouped, np.int64, commutative=True)  # not so: to be given to all
JOINED = ops.user(joined, np.complex128, commutative=True)


def check_same_bits(algorithm):
    """All ranks evaluate the same expression."""
    for size, root, parameters in calls(algorithm):
        cases = [(op, exposing(size, dtype)) for op in ("sum", "max") for dtype in ("f4", "f8")]
        cases.append((GROUPED, [np.arange(9) + 100 * rank for rank in range(size)]))
        for op, vectors in cases:
            found = local.execute(algorithm, vectors, op, root, parameters)
            assert len({array.tobytes() for array in found}) == 1, (size, root, parameters, op)


def in_rank_order(algorithm):
    """Whether contributions stand in rank order in every call."""
    for size, root, parameters in calls(algorithm):
        random = np.random.default_rng(size)
        words = [
            pairs(random.integers(0, PRIME, 3 * size), np.full(3 * size, 1009)) for _ in range(size)
        ]
        cases = [(JOINED, words), ("max", exposing(size, "f8")), ("min", exposing(size, "f4"))]
        for op, vectors in cases:
            reduction = op if isinstance(op, ops.Reduction) else ops.reduction(op, vectors[0].dtype)
            found = local.execute(algorithm, vectors, reduction, root, parameters)
            for rank, array in enumerate(found):
                if array is not None and array.tobytes() != wanted(
                    algorithm, reduction, vectors, rank, size
                ):
                    return False
    return True


def wanted(algorithm, reduction, vectors, rank, size):
    """The bits that a rank must get, folded from left to right."""
    operands = {
        "scan": vectors[: rank + 1],
        "exscan": vectors[:rank],
    }.get(algorithm.collective, vectors)
    total = np.empty_like(vectors[0])
    reduction.fold(total, operands)
    if algorithm.collective == "reduce_scatter":
        total = np.array_split(total, size)[rank]
    return total.tobytes()


@pytest.mark.parametrize("algorithm", REDUCING, ids=name)
def test_the_same_bits_on_all_ranks_where_declared(algorithm):
    assert (SAME_BITS in algorithm.order) == (algorithm.collective == "allreduce")
    if SAME_BITS in algorithm.order:
        check_same_bits(algorithm)


@pytest.mark.parametrize("algorithm", REDUCING, ids=name)
def test_rank_order_where_declared_and_nowhere_else(algorithm):
    assert in_rank_order(algorithm) == (RANK_ORDER in algorithm.order)
    assert (COMMUTATIVE in algorithm.needs) == (RANK_ORDER not in algorithm.order)


# --- the checks can fail ---


def from_the_right_on(rank, size):
    """Every rank adds up the others in an order of its own."""
    for k in range(1, size):
        yield Send((rank - k) % size, given(0)), RecvReduce((rank + k) % size, 0)


def test_a_false_promise_of_the_same_bits_is_found():
    linear = algorithms.find("allreduce", "linear")
    false = linear._replace(schedule=from_the_right_on, blocks=lambda size: 1)
    integers = [np.arange(5) + rank for rank in range(4)]
    assert [a.tolist() for a in local.execute(false, integers)] == [[6, 10, 14, 18, 22]] * 4
    with pytest.raises(AssertionError):
        check_same_bits(false)
    floats = exposing(4, "f8")
    assert len({array.tobytes() for array in local.execute(false, floats)}) > 1


def test_a_false_promise_of_rank_order_is_found():
    ring = algorithms.find("allreduce", "ring")
    assert not in_rank_order(ring._replace(order=(RANK_ORDER, SAME_BITS), needs=()))
    binomial = algorithms.find("reduce", "binomial")
    assert not in_rank_order(binomial._replace(order=(RANK_ORDER,), needs=()))


def test_the_numbers_expose_order_and_grouping():
    vectors = exposing(5, "f8")

    def bits(op, order):
        total = np.empty_like(vectors[0])
        ops.reduction(op, np.float64).fold(total, [vectors[rank] for rank in order])
        return total.tobytes()

    for op in ("sum", "max", "min"):
        assert bits(op, (0, 1, 2, 3, 4)) != bits(op, (4, 3, 2, 1, 0))


# --- sums that depend on nothing ---


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("collective", exact.SCHEDULES)
def test_exact_sums_are_independent_of_order_and_number_of_ranks(collective, dtype):
    """The same contributions, in other orders, and among ranks that contribute zeros."""
    algorithm = algorithms.find(collective, exact.SCHEDULES[collective])
    vectors = [vector[:40] for vector in exposing(5, dtype)]  # without NaNs
    zero = np.zeros(40, dtype)
    random = np.random.default_rng(0)
    arrangements = [vectors]
    for zeros in (0, 0, 1, 3, 8):
        many = [*vectors, *[zero] * zeros]
        arrangements.append([many[k] for k in random.permutation(len(many))])

    def totals(reduction):
        return {
            np.concatenate(
                [a for a in local.execute(algorithm, given_, reduction) if a is not None]
            )[:40].tobytes()
            for given_ in arrangements
        }

    assert len(totals(exact.reduction(np.dtype(dtype)))) == 1
    assert len(totals(ops.reduction("sum", np.dtype(dtype)))) > 1
