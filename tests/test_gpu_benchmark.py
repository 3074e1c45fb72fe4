"""What benchmarks/gpu.py takes for right and wrong, with NumPy's arrays in the place of CuPy's."""

import importlib
import sys
import types
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def gpu_cases(monkeypatch):
    """The module, of some rank of several."""
    cupy = types.ModuleType("cupy")
    cupy.__getattr__ = lambda name: getattr(np, name)
    cupy.random = types.SimpleNamespace(Generator=np.random.Generator, XORWOW=np.random.PCG64)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("gpu_cases")
    yield module
    del sys.modules["gpu_cases"]


@pytest.fixture
def case_of(gpu_cases, monkeypatch):
    """Makes the case of a rank; all ranks draw the same inputs."""

    def make(size, rank, collective, dtype="float32", nbytes=600, way="plain"):
        monkeypatch.setattr(gpu_cases, "SIZE", size)
        monkeypatch.setattr(gpu_cases, "RANK", rank)
        return gpu_cases.Case(gpu_cases.Point.near(collective, dtype, nbytes, way), seed=3)

    return make


def outputs(gpu_cases, case_of, size, collective, dtype):
    """Every rank's case, and what it must receive, put together here by other means."""
    sent = []
    for rank in range(size):
        case = case_of(size, rank, collective, dtype)
        sent.append(case.send.copy())
    values = [gpu_cases.widened(bits, dtype) for bits in sent]
    count = case.point.count
    block = count // size
    for rank in range(size):
        mine = slice(rank * block, (rank + 1) * block)
        total = values[0]
        for other in values[1:]:
            total = total + other
        expected = {
            "allreduce": lambda t=total: gpu_cases.narrowed(t, dtype),
            "reduce_scatter": lambda t=total, m=mine: gpu_cases.narrowed(t, dtype)[m],
            "bcast": lambda: sent[0],
            "allgather": lambda: np.concatenate(sent),
            "alltoall": lambda m=mine: np.concatenate([bits[m] for bits in sent]),
        }[collective]()
        yield case_of(size, rank, collective, dtype), expected


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize(
    "collective", ["allreduce", "allgather", "reduce_scatter", "bcast", "alltoall"]
)
def test_the_right_result_is_right_and_any_other_is_wrong(
    gpu_cases, case_of, collective, size, dtype
):
    for case, expected in outputs(gpu_cases, case_of, size, collective, dtype):
        if case.recv is not case.send:
            assert case.wrong(1, exact=True) == expected.size
        case.recv[...] = expected
        assert case.wrong(1, exact=True) == case.wrong(1, exact=False) == 0
        case.recv[[0, -1]] ^= np.array(1, case.recv.dtype)  # the last bits
        assert case.wrong(1, exact=True) == 2
        case.recv[...] = expected
        case.recv[-1] = 0x7FC0 if case.recv.itemsize == 2 else 0x7FC00000
        assert case.wrong(1, exact=False) == 1
        assert case.first_wrong(1).startswith(
            f"rank {gpu_cases.RANK}: element {expected.size - 1} is nan"
        )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sums_in_another_order_are_not_wrong_for_those_who_may(gpu_cases, case_of, dtype):
    """As a ring has it: rounded to the type after each addition, from the last rank on."""
    parts = [case_of(5, rank, "allreduce", dtype, 40_000).send.copy() for rank in range(5)]
    total = parts[-1]
    for bits in parts[-2::-1]:
        sums = gpu_cases.widened(total, dtype) + gpu_cases.widened(bits, dtype)
        total = gpu_cases.narrowed(sums, dtype)
    case = case_of(5, 0, "allreduce", dtype, 40_000)
    case.recv[...] = total
    assert case.wrong(1, exact=False) == 0 < case.wrong(1, exact=True)
    assert case.wrong(20, exact=False) is None
    total = gpu_cases.narrowed(gpu_cases.widened(total, dtype) + np.float32(1), dtype)
    case.recv[...] = total
    assert case.wrong(1, exact=False) > 0.9 * total.size


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [2, 3])
def test_an_output_in_place_is_the_input_of_the_next_call(gpu_cases, case_of, size, dtype):
    cases = [case_of(size, rank, "allreduce", dtype) for rank in range(size)]
    for _ in range(6):
        total = gpu_cases.widened(cases[0].recv, dtype)
        for case in cases[1:]:
            total = total + gpu_cases.widened(case.recv, dtype)
        for case in cases:
            case.recv[...] = gpu_cases.narrowed(total, dtype)
    assert cases[-1].wrong(6, exact=True) == 0 < cases[-1].wrong(5, exact=True)


def test_sizes_are_whole_for_every_rank(gpu_cases, case_of):
    case_of(3, 0, "bcast")  # there are three ranks
    near = gpu_cases.Point.near
    assert near("allgather", "float32", 8, "plain").nbytes == 12
    assert near("alltoall", "float16", 1 << 20, "plain").nbytes == (1 << 20) // 6 * 6
    assert near("allreduce", "float16", 9, "plain").nbytes == 8
