"""What is measured: the buffers of one collective at one size, the call, and the right answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpicoll import algorithms
from mpicoll.base import arrays
from mpicoll.bench.blocks import Blocks, base
from mpicoll.bench.pattern import Array, Pattern, Wrong, is_float
from mpicoll.registry import EQUAL_BLOCKS
from mpicoll.schedule.collectives import COLLECTIVES, Collective, Place
from mpicoll.schedule.methods import OWN, VARIANTS

if TYPE_CHECKING:
    from mpi4py import MPI

BoundCall = Callable[[], Any]

# Collectives that end on all ranks at about the same time, so that calls may follow one another
# directly; in a rooted one the root or the leaves would run ahead.
_SYMMETRIC = ("allreduce", "allgather", "alltoall", "barrier")

#: Collectives whose buffers are one already, or that have none.
_ONE_BUFFER = ("bcast", "barrier")

#: The name of a call that names no algorithm.
AUTO = "auto"

_LINE = 64  # bytes of a cache line


def serving(collective: str, ranks: int | None = None) -> list[str]:
    """Algorithms that serve the collective; with a number of ranks, those that serve it there."""
    known = algorithms.names(base(collective), ranks)
    if VARIANTS[collective].blocks is not OWN:
        return list(known)
    return [n for n in known if EQUAL_BLOCKS not in algorithms.find(base(collective), n).needs]


def symmetric(collective: str) -> bool:
    """Whether calls of the collective may follow one another directly."""
    return base(collective) in _SYMMETRIC


def elements(collective: str, size: int, itemsize: int, ranks: int) -> int:
    """Elements of the whole vector that are measured where ``size`` bytes were asked for.

    They are whole elements, in blocks of equal mean where each rank has one, and at least one
    element or one for each block.
    """
    if collective == "barrier":
        return 0
    blocks = ranks if COLLECTIVES[base(collective)].block_per_rank else 1
    return max(1, size // (itemsize * blocks)) * blocks


@dataclass
class Workload:
    """One collective at one size on one rank.

    There is room for the buffers in several places, so that a call may find them in no cache.

    Attributes:
        collective: Its name.
        size: Bytes of the whole vector, as measured.
        count: Elements of the whole vector.
        type: NumPy name of the element type, or ``none``.
        redop: Name of the operator, or ``none``.
        root: Root rank, or -1.
        in_place: Whether input and output are the same memory.
        bind: Gives the call on a communicator and in a place, with what else its method takes.
        outputs: What the rank receives into, in each place; None if nothing.
        expected: What must be there after a call, or None.
        before: What is there before a call in place, or None.
    """

    collective: str
    size: int
    count: int
    type: str
    redop: str
    root: int
    bind: Callable[..., BoundCall]
    outputs: Array | None = None
    expected: Array | None = None
    before: Array | None = None
    in_place: bool = False

    @property
    def places(self) -> int:
        """Places for the buffers."""
        return 1 if self.outputs is None else len(self.outputs)

    def poison(self, place: int = 0) -> None:
        """Make every element of the output wrong, so that one never written is noticed.

        In place the input is put there again.
        """
        if self.outputs is None:
            return
        output = self.outputs[place]
        if self.before is not None:
            arrays.put(output, self.before)
        elif self.expected is not None:
            spoiled = np.empty_like(self.expected)
            _spoil(spoiled, self.expected)
            arrays.put(output, spoiled)

    def check(self, rank: int, place: int = 0) -> tuple[int, Wrong | None]:
        """Number of wrong elements in the output, and the first of them."""
        if self.outputs is None or self.expected is None:
            return 0, None
        output = arrays.host(self.outputs[place][: len(self.expected)])
        unequal = output != self.expected
        wrong = int(np.count_nonzero(unequal))
        if not wrong:
            return 0, None
        index = int(unequal.argmax())
        want, got = self.expected[index].item(), output[index].item()
        return wrong, Wrong(rank, index, want, got)


def _spoil(output: Array, expected: Array) -> None:
    if is_float(output.dtype):
        output.fill(np.nan)
    else:
        np.invert(expected, out=output)


class Footprint(NamedTuple):
    """Bytes that a workload takes.

    Attributes:
        buffers: what calls send and receive, wherever that is.
        beside: in memory, while they are filled and checked: the values and the right answer.
    """

    buffers: int
    beside: int


def footprint(
    rank: int,
    ranks: int,
    collective: str,
    count: int,
    dtype: np.dtype[Any],
    root: int = 0,
    *,
    in_place: bool = False,
    skew: float = 0.0,
    pool: int = 0,
) -> Footprint:
    """What `prepare` and the checks take on a rank, before anything is taken; rounded up.

    The arguments are those of `prepare`.
    """
    definition = COLLECTIVES[base(collective)]
    if collective == "barrier":
        return Footprint(0, 0)
    place = Place(rank, ranks, root, ranks if definition.block_per_rank else 1)
    blocks = Blocks(collective, count, place, skew, Pattern(dtype, "max", ranks))
    sent, received = (n * dtype.itemsize for n in (blocks.sent, blocks.received))
    if definition.name == "exscan":
        received = sent  # rank 0 has a buffer too
    # What is sent is cut out of the whole vector.
    vector = count * dtype.itemsize if sent else 0
    one_buffer = in_place or definition.one_buffer
    row = max(sent, received) if one_buffer else sent + received
    places = _places(pool, row)
    again = row if in_place else 0  # the input, for when it has been overwritten
    return Footprint(places * row + places * 2 * _LINE, max(vector, received) + received + again)


def prepare(
    comm: MPI.Intracomm,
    collective: str,
    count: int,
    dtype: np.dtype[Any],
    op: str = "sum",
    root: int = 0,
    *,
    in_place: bool = False,
    skew: float = 0.0,
    pool: int = 0,
    device: str = "cpu",
) -> Workload:
    """The buffers of a collective, filled, and the call.

    Args:
        comm: Communicator, of which rank and size are taken.
        collective: One of `mpicoll.schedule.methods.VARIANTS`.
        count: Elements of the whole vector, as `elements` gives them.
        dtype: Element type.
        op: Name of the operator for collectives that reduce.
        root: Root for collectives that have one.
        in_place: Whether input and output are the same memory, where there is such a form.
        skew: How far block lengths of the variants lie apart, see `mpicoll.bench.blocks`.
        pool: Bytes over which the places for the buffers are spread; 0 for a single place.
        device: Where the buffers are, one of `mpicoll.base.arrays.DEVICES`.
    """
    definition = COLLECTIVES[base(collective)]
    if collective == "barrier":
        return Workload("barrier", 0, 0, "none", "none", -1, _binder("Barrier", lambda place: []))
    ranks = comm.Get_size()
    place = Place(comm.Get_rank(), ranks, root, ranks if definition.block_per_rank else 1)
    pattern = Pattern(dtype, op if definition.reduces else "max", ranks)
    blocks = Blocks(collective, count, place, skew, pattern)
    given, expected = blocks.given(), blocks.expected()
    in_place = in_place and collective not in _ONE_BUFFER
    joined = in_place and (place.is_root or definition.name not in ("reduce", "gather", "scatter"))
    before = None
    if (definition.one_buffer and place.is_root) or (joined and definition.name == "scatter"):
        expected = None  # it has it already
    elif joined:
        assert given is not None
        before, given = _before(given, expected, blocks.own, definition), None
    received = before if before is not None else expected
    if received is None and definition.name == "exscan":
        received = given  # rank 0 passes a buffer that is left alone
    used = sum(array.nbytes for array in (given, received) if array is not None)
    places = _places(pool, used)
    sends = None if given is None else arrays.on(device, _rows(places, given))
    outputs = None if received is None else arrays.on(device, _rows(places, received))
    return Workload(
        collective,
        count * dtype.itemsize,
        count,
        dtype.name,
        op if definition.reduces else "none",
        root if definition.rooted else -1,
        _binder(
            VARIANTS[collective].name,
            _arguments(collective, blocks, op, root, sends, outputs, joined),
        ),
        outputs,
        expected,
        before,
        in_place,
    )


def _before(given: Array, expected: Array | None, own: slice, definition: Collective) -> Array:
    """What the one buffer of a call in place holds before it."""
    if not definition.input_alone or expected is None:
        return given
    whole = np.empty_like(expected)
    _spoil(whole, expected)
    whole[own] = given
    return whole


def _places(pool: int, used: int) -> int:
    """Places for buffers of so many bytes, to fill a pool; with a pool at least two."""
    return max(2, -(-pool // max(used, _LINE))) if pool else 1


def _rows(places: int, values: Array) -> Array:
    """The values in several places, each on cache lines of its own."""
    line = max(1, _LINE // values.itemsize)
    rows = np.empty((places, max(1, -(-len(values) // line)) * line), values.dtype)
    rows[:, : len(values)] = values
    return rows[:, : len(values)]


def _arguments(
    collective: str,
    blocks: Blocks,
    op: str,
    root: int,
    sends: Array | None,
    outputs: Array | None,
    joined: bool,
) -> Callable[[int], list[Any]]:
    """What the method takes in each place, after ``self``."""
    from mpi4py import MPI

    definition, vary = blocks.definition, VARIANTS[collective].varies
    rest: list[Any] = []
    if collective == "reduce_scatterv":
        rest.append(list(blocks.lengths))
    if definition.reduces:
        rest.append(getattr(MPI, op.upper()))
    if definition.rooted:
        rest.append(root)

    def message(rows: Array | None, place: int, alone: bool) -> Any:
        if rows is None:
            return None
        row = rows[place]
        if not definition.reduces and row.dtype.name in ("float16", "bfloat16"):
            row = row.view("u2")  # not every MPI has the type, and it is only moved
        if not vary or alone:
            return row
        if collective != "alltoallw":
            return [row, list(blocks.lengths)]
        counts = [length * row.itemsize for length in blocks.lengths]
        displacements = [0, *accumulate(counts[:-1])]
        return [row, (counts, displacements), [MPI.BYTE] * len(counts)]

    def arguments(place: int) -> list[Any]:
        send = message(sends, place, definition.input_alone or definition.reduces)
        recv = message(outputs, place, definition.output_alone)
        if definition.one_buffer:
            return [recv if send is None else send, *rest]
        if joined and definition.name == "scatter":
            recv = MPI.IN_PLACE
        elif joined:
            send = MPI.IN_PLACE
        return [send, recv, *rest]

    return arguments


def _binder(method: str, arguments: Callable[[int], list[Any]]) -> Callable[..., BoundCall]:
    def bind(target: MPI.Intracomm, place: int = 0, **choice: Any) -> BoundCall:
        return partial(getattr(target, method), *arguments(place), **choice)

    return bind
