"""What is measured: the buffers of one collective at one size, the call, and the right answer.

Inputs are small whole numbers that every element type holds exactly and whose reductions it holds
exactly too, so an output is right or wrong and never almost right. They repeat with a prime
period, so that blocks of any usual length differ and a misplaced one is found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mpicoll.collectives import COLLECTIVES

if TYPE_CHECKING:
    from mpi4py import MPI

Array = npt.NDArray[Any]
Call = Callable[[], Any]

TYPES = {
    "char": "int8",
    "int": "int32",
    "uint": "uint32",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    **{f"{kind}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"float{bits}" for bits in (16, 32, 64)},
}

_REDUCTIONS: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
_BITWISE = ("band", "bor", "bxor")
_PERIOD = 1021


def element_type(name: str) -> np.dtype[Any]:
    """The element type of a name such as ``float``, ``half``, ``int32`` or ``uint8``.

    Raises:
        ValueError: if there is none of that name.
    """
    try:
        return np.dtype(TYPES[name.lower()])
    except KeyError:
        raise ValueError(
            f"unknown element type {name!r}; the known ones are {', '.join(sorted(TYPES))}"
        ) from None


@dataclass(frozen=True)
class Wrong:
    """An element that is not what it should be."""

    rank: int
    index: int
    want: Any
    got: Any

    def __str__(self) -> str:
        return f"rank {self.rank}, index {self.index}: want {self.want}, got {self.got}"


class Pattern:
    """The numbers that ranks put in, and what they reduce to, as functions of the position.

    Args:
        dtype: Element type.
        op: Name of the operator.
        ranks: Number of contributing ranks.

    Raises:
        ValueError: if the operator is unknown or makes no sense for the type, or if so many ranks
            cannot be reduced exactly in the type.
    """

    def __init__(self, dtype: np.dtype[Any], op: str, ranks: int) -> None:
        if op not in _REDUCTIONS:
            raise ValueError(
                f"unknown operator {op!r}; bench measures {', '.join(sorted(_REDUCTIONS))}"
            )
        if op in _BITWISE and dtype.kind == "f":
            raise ValueError(f"operator {op!r} makes no sense for {dtype}; use an integer type")
        self._dtype, self._largest = dtype, _largest_input(dtype, op, ranks)
        self._signs = op == "prod" and dtype.kind == "f"
        with np.errstate(over="ignore"):
            reduced = self._row(0)
            for rank in range(1, ranks):
                reduced = _REDUCTIONS[op](reduced, self._row(rank))
        self._reduced = reduced.astype(dtype)

    def _row(self, rank: int) -> Array:
        generator = np.random.default_rng(rank)
        values = generator.integers(0, self._largest + 1, _PERIOD)
        if self._signs:
            values = 1 - 2 * values
        return values.astype(self._dtype)

    def given(self, rank: int, count: int, start: int = 0) -> Array:
        """Elements ``start`` to ``start + count`` of what the rank puts in."""
        return np.resize(np.roll(self._row(rank), -start), count)

    def reduced(self, count: int, start: int = 0) -> Array:
        """Elements ``start`` to ``start + count`` of the reduction over all ranks."""
        return np.resize(np.roll(self._reduced, -start), count)


def _largest_input(dtype: np.dtype[Any], op: str, ranks: int) -> int:
    """The largest input value whose reduction over the ranks is exact (integers may wrap)."""
    if dtype.kind != "f" or op in ("max", "min"):
        return 60
    if op == "prod":
        return 1
    largest = min(60, (2 << np.finfo(dtype).nmant) // ranks)
    if largest < 1:
        raise ValueError(
            f"a sum over {ranks} ranks is not exact in {dtype}; use a wider type or op max"
        )
    return largest


@dataclass
class Workload:
    """One collective at one size on one rank.

    Attributes:
        collective: Its name.
        size: Bytes of the total vector, as measured (whole elements, equal blocks).
        count: Elements of the total vector.
        type: NumPy name of the element type, or ``none``.
        redop: Name of the operator, or ``none``.
        root: Root rank, or -1.
        bind: Gives the call on a communicator, with what else its method takes.
        output: The array the rank receives into, or None.
        expected: What it must hold after a call, or None.
    """

    collective: str
    size: int
    count: int
    type: str
    redop: str
    root: int
    bind: Callable[..., Call]
    output: Array | None = None
    expected: Array | None = None

    def poison(self) -> None:
        """Make every element of the output wrong, so that one never written is noticed."""
        if self.output is None or self.expected is None:
            return
        if self.output.dtype.kind == "f":
            self.output.fill(np.nan)
        else:
            np.invert(self.expected, out=self.output)

    def check(self, rank: int) -> tuple[int, Wrong | None]:
        """Number of wrong elements in the output, and the first of them."""
        if self.output is None or self.expected is None:
            return 0, None
        (wrong,) = np.nonzero(self.output != self.expected)
        if not len(wrong):
            return 0, None
        index = int(wrong[0])
        want, got = self.expected[index].item(), self.output[index].item()
        return len(wrong), Wrong(rank, index, want, got)


def allreduce(
    comm: MPI.Intracomm, count: int, dtype: np.dtype[Any], op: str, root: int
) -> Workload:
    """Every rank gives and gets the whole vector."""
    pattern = Pattern(dtype, op, comm.Get_size())
    send, recv = pattern.given(comm.Get_rank(), count), np.empty(count, dtype)
    mpi_op = _mpi_op(op)

    def bind(target: MPI.Intracomm, **choice: Any) -> Call:
        return partial(target.Allreduce, send, recv, op=mpi_op, **choice)

    return Workload(
        "allreduce", send.nbytes, count, dtype.name, op, -1, bind, recv, pattern.reduced(count)
    )


def reduce(comm: MPI.Intracomm, count: int, dtype: np.dtype[Any], op: str, root: int) -> Workload:
    """Every rank gives the whole vector, the root gets it."""
    pattern = Pattern(dtype, op, comm.Get_size())
    send = pattern.given(comm.Get_rank(), count)
    at_root = comm.Get_rank() == root
    recv = np.empty(count, dtype) if at_root else None
    mpi_op = _mpi_op(op)

    def bind(target: MPI.Intracomm, **choice: Any) -> Call:
        return partial(target.Reduce, send, recv, op=mpi_op, root=root, **choice)

    expected = pattern.reduced(count) if at_root else None
    return Workload("reduce", send.nbytes, count, dtype.name, op, root, bind, recv, expected)


def bcast(comm: MPI.Intracomm, count: int, dtype: np.dtype[Any], op: str, root: int) -> Workload:
    """The root gives the whole vector, every other rank gets it."""
    pattern = Pattern(dtype, "max", 1)
    expected = pattern.given(0, count)
    buffer = expected.copy()
    at_root = comm.Get_rank() == root

    def bind(target: MPI.Intracomm, **choice: Any) -> Call:
        return partial(target.Bcast, buffer, root=root, **choice)

    output = None if at_root else buffer
    return Workload("bcast", buffer.nbytes, count, dtype.name, "none", root, bind, output, expected)


def allgather(
    comm: MPI.Intracomm, count: int, dtype: np.dtype[Any], op: str, root: int
) -> Workload:
    """Every rank gives one block and gets all of them."""
    ranks = comm.Get_size()
    pattern = Pattern(dtype, "max", 1)
    send, recv = pattern.given(comm.Get_rank(), count // ranks), np.empty(count, dtype)

    def bind(target: MPI.Intracomm, **choice: Any) -> Call:
        return partial(target.Allgather, send, recv, **choice)

    expected = np.concatenate([pattern.given(r, count // ranks) for r in range(ranks)])
    return Workload("allgather", recv.nbytes, count, dtype.name, "none", -1, bind, recv, expected)


def reduce_scatter(
    comm: MPI.Intracomm, count: int, dtype: np.dtype[Any], op: str, root: int
) -> Workload:
    """Every rank gives the whole vector and gets its own block of the reduction."""
    rank, ranks = comm.Get_rank(), comm.Get_size()
    pattern = Pattern(dtype, op, ranks)
    send, recv = pattern.given(rank, count), np.empty(count // ranks, dtype)
    mpi_op = _mpi_op(op)

    def bind(target: MPI.Intracomm, **choice: Any) -> Call:
        return partial(target.Reduce_scatter_block, send, recv, op=mpi_op, **choice)

    expected = pattern.reduced(len(recv), start=rank * len(recv))
    return Workload("reduce_scatter", send.nbytes, count, dtype.name, op, -1, bind, recv, expected)


def gather(comm: MPI.Intracomm, count: int, dtype: np.dtype[Any], op: str, root: int) -> Workload:
    """Every rank gives one block, the root gets all of them."""
    ranks = comm.Get_size()
    pattern = Pattern(dtype, "max", 1)
    send = pattern.given(comm.Get_rank(), count // ranks)
    recv = expected = None
    if comm.Get_rank() == root:
        recv = np.empty(count, dtype)
        expected = np.concatenate([pattern.given(r, len(send)) for r in range(ranks)])

    def bind(target: MPI.Intracomm, **choice: Any) -> Call:
        return partial(target.Gather, send, recv, root=root, **choice)

    size = count * dtype.itemsize
    return Workload("gather", size, count, dtype.name, "none", root, bind, recv, expected)


def scatter(comm: MPI.Intracomm, count: int, dtype: np.dtype[Any], op: str, root: int) -> Workload:
    """The root gives all blocks, every rank gets its own."""
    rank, ranks = comm.Get_rank(), comm.Get_size()
    pattern = Pattern(dtype, "max", 1)
    send = pattern.given(0, count) if rank == root else None
    recv = np.empty(count // ranks, dtype)

    def bind(target: MPI.Intracomm, **choice: Any) -> Call:
        return partial(target.Scatter, send, recv, root=root, **choice)

    expected = pattern.given(0, len(recv), start=rank * len(recv))
    size = count * dtype.itemsize
    return Workload("scatter", size, count, dtype.name, "none", root, bind, recv, expected)


def alltoall(comm: MPI.Intracomm, count: int, dtype: np.dtype[Any], op: str, root: int) -> Workload:
    """Every rank gives each rank a block of its own; ``count`` elements are given by each."""
    rank, ranks = comm.Get_rank(), comm.Get_size()
    pattern = Pattern(dtype, "max", 1)
    send, recv = pattern.given(rank, count), np.empty(count, dtype)
    block = count // ranks

    def bind(target: MPI.Intracomm, **choice: Any) -> Call:
        return partial(target.Alltoall, send, recv, **choice)

    expected = np.concatenate([pattern.given(r, block, start=rank * block) for r in range(ranks)])
    return Workload("alltoall", recv.nbytes, count, dtype.name, "none", -1, bind, recv, expected)


def scan(comm: MPI.Intracomm, count: int, dtype: np.dtype[Any], op: str, root: int) -> Workload:
    """Every rank gives the whole vector, and gets the reduction over the ranks up to itself."""
    rank = comm.Get_rank()
    pattern = Pattern(dtype, op, comm.Get_size())
    send, recv = pattern.given(rank, count), np.empty(count, dtype)
    mpi_op = _mpi_op(op)

    def bind(target: MPI.Intracomm, **choice: Any) -> Call:
        return partial(target.Scan, send, recv, op=mpi_op, **choice)

    expected = Pattern(dtype, op, rank + 1).reduced(count)
    return Workload("scan", send.nbytes, count, dtype.name, op, -1, bind, recv, expected)


def barrier(comm: MPI.Intracomm, count: int, dtype: np.dtype[Any], op: str, root: int) -> Workload:
    """Nothing is given, nobody leaves before all have come."""

    def bind(target: MPI.Intracomm, **choice: Any) -> Call:
        return partial(target.Barrier, **choice)

    return Workload("barrier", 0, 0, "none", "none", -1, bind)


def _mpi_op(name: str) -> MPI.Op:
    from mpi4py import MPI

    found: MPI.Op = getattr(MPI, name.upper())
    return found


def elements(collective: str, size: int, itemsize: int, ranks: int) -> int:
    """Elements of the total vector that are measured where ``size`` bytes were asked for.

    They are whole elements, in equal blocks where each rank has one, and at least one element or
    one in each block.
    """
    if collective == "barrier":
        return 0
    blocks = ranks if COLLECTIVES[collective].block_per_rank else 1
    return max(1, size // (itemsize * blocks)) * blocks


WORKLOADS: dict[str, Callable[..., Workload]] = {
    f.__name__: f
    for f in (
        allreduce,
        reduce,
        bcast,
        allgather,
        reduce_scatter,
        gather,
        scatter,
        alltoall,
        scan,
        barrier,
    )
}

# Collectives that end on all ranks at about the same time, so that calls may follow one another
# directly; in a rooted one the root or the leaves would run ahead.
SYMMETRIC = ("allreduce", "allgather", "alltoall", "barrier")
