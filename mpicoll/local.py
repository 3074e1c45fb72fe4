"""Run all ranks in one process, on arrays, without MPI.

The tests use this for all combinations of algorithms, sizes, operators and counts.  It moves the
same messages and reduces in the same order as the runners over MPI, so it gives the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mpicoll import ops
from mpicoll.registry import COMMUTATIVE, Algorithm
from mpicoll.schedule import layout
from mpicoll.schedule.collectives import Place
from mpicoll.schedule.layout import Layout
from mpicoll.schedule.matching import Matching, run
from mpicoll.schedule.memory import Cell, Memory
from mpicoll.schedule.parameters import Parameter
from mpicoll.schedule.steps import GIVEN, WORK
from mpicoll.simulate.clock import check_call

__all__ = ["execute"]

Array = np.ndarray


def execute(
    algorithm: Algorithm,
    inputs: Sequence[Array | None],
    op: str | ops.Reduction = "sum",
    root: int = 0,
    parameters: Mapping[str, Parameter] | None = None,
    counts: Sequence[int] | None = None,
) -> list[Array | None]:
    """Run one collective over the inputs of all ranks, in this process.

    Args:
        algorithm: from :func:`mpicoll.algorithms.find`.
        inputs: one 1-D array a rank; None where a rank gives nothing (broadcast, scatter).
            Reductions: vectors of equal length.  All-gather, gather: each rank's block.  Scatter
            (at the root), all-to-all: the blocks of all ranks one behind the other, of equal
            lengths unless ``counts`` is given.
        op: operator of a reduction, by name or from :mod:`mpicoll.ops`.
        root: the root rank, for collectives that have one.
        parameters: the algorithm's.
        counts: elements of each rank's block (scatter; reduce-scatter, even if not given).

    Returns:
        One array a rank; None where a rank gets nothing.

    Raises:
        ValueError: arguments out of range.
        TypeError: the operator does not serve the data type, or not this algorithm.
    """
    size = len(inputs)
    check_call(size, root)
    definition = algorithm.definition
    nblocks = algorithm.blocks(size)
    places = [Place(rank, size, root, nblocks) for rank in range(size)]
    arrays = [np.asarray(a).reshape(-1) if a is not None else None for a in inputs]
    first = next((a for a in arrays if a is not None), np.empty(0))
    reduction = ops.reduction(op, first.dtype) if isinstance(op, str) else op
    if definition.reduces and COMMUTATIVE in algorithm.needs and not reduction.commutative:
        raise TypeError(
            f"{algorithm.collective} {algorithm.name} needs a commutative operator, "
            f"and {reduction.name} is not"
        )
    shape = _layout(algorithm, arrays, counts)

    def fold(values: list[Array]) -> Array:
        result = np.empty_like(values[0])
        reduction.fold(result, values)
        return result

    channels = [algorithm.channels(rank, size, root, parameters) for rank in range(size)]
    segments = channels[0][0].segments if channels[0] else 1
    memories = []
    for place, array in zip(places, arrays, strict=True):
        given = {}
        # Gather-like collectives hand in one block; it is block `rank` of the layout.
        start = 0
        for block in definition.held(place):
            length = shape.counts[block]
            for segment in range(segments):
                offset, count = layout.part(length, segments, segment)
                if array is None:
                    raise ValueError(f"rank {place.rank} must give an input")
                lo = start + offset
                given[Cell(GIVEN, block, segment)] = array[lo : lo + count].copy()
            start += length
        memories.append(Memory(given, definition.reads_through, fold))
    run(Matching(channels, nblocks, algorithm.scratch(size), memories))
    outputs = []
    for place, memory in zip(places, memories, strict=True):
        cells = [
            Cell(WORK, block, s) for block in definition.wanted(place) for s in range(segments)
        ]
        outputs.append(np.concatenate([memory.result(cell) for cell in cells]) if cells else None)
    return outputs


def _layout(
    algorithm: Algorithm, arrays: Sequence[Array | None], counts: Sequence[int] | None
) -> Layout:
    size, name = len(arrays), algorithm.collective
    lengths = [0 if array is None else array.size for array in arrays]
    if name in ("allgather", "gather"):
        return layout.displaced(lengths)
    if counts is not None:
        if len(counts) != size or sum(counts) != max(lengths):
            raise ValueError(f"counts={list(counts)} must be {size} numbers of sum {max(lengths)}")
        return layout.displaced(counts)
    if algorithm.definition.reduces and len(set(lengths)) > 1:
        raise ValueError(f"vectors of equal length are needed, not {lengths}")
    return layout.even(max(lengths), algorithm.blocks(size))
