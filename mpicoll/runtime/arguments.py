"""From the arguments of a method to a call."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from mpicoll import algorithms, ops, tuning
from mpicoll.base.later import Later
from mpicoll.buffers import Buffer, Unsupported, pair, vectors
from mpicoll.runtime.calls import Call
from mpicoll.schedule.collectives import Collective, Place
from mpicoll.schedule.methods import METHODS
from mpicoll.schedule.parameters import Parameter
from mpicoll.tuning import Choice

if TYPE_CHECKING:
    from mpicoll.ops import exact
else:
    exact = Later("mpicoll.ops.exact")

#: MPI's operators by handle.
_OPERATORS = {getattr(MPI, name.upper()).handle: name for name in ops.OPERATORS}


def parse(
    definition: Collective,
    place: Place,
    sendbuf: Any,
    recvbuf: Any,
    op: Any,
    counts: Sequence[int] | None = None,
) -> Call:
    """Parse and check the arguments of a call, from what this rank alone knows.

    Raises:
        TypeError, ValueError, BufferError, Unsupported: see :func:`mpicoll.buffers.pair.operands`;
            and TypeError for an operator that has no meaning for the elements.
    """
    sendbuf, recvbuf = _in_place(definition, place, sendbuf, recvbuf)
    if METHODS[definition.method].varies:
        found = vectors.operands(definition, place, sendbuf, recvbuf, counts)
    else:
        found = pair.operands(definition, place, sendbuf, recvbuf)
    _check_memory(definition, found.send, found.recv)
    reduction = None
    if definition.reduces and found.send is not None:
        reduction = _reduction(op, found.send)
    return Call(
        definition,
        place,
        found.send,
        found.recv,
        found.in_place,
        reduction,
        found.layouts,
        (sendbuf, recvbuf),
    )


def _in_place(definition: Collective, place: Place, sendbuf: Any, recvbuf: Any) -> tuple[Any, Any]:
    """The two buffers; None is ``MPI.IN_PLACE`` where that may stand, as in mpi4py."""
    if definition.one_buffer or (definition.rooted and not place.is_root):
        return sendbuf, recvbuf
    if definition.name == "scatter":
        return sendbuf, MPI.IN_PLACE if recvbuf is None else recvbuf
    return MPI.IN_PLACE if sendbuf is None else sendbuf, recvbuf


def _check_memory(definition: Collective, send: Buffer | None, recv: Buffer | None) -> None:
    """Both buffers must be in device memory, or both in the host's; what is empty is anywhere."""
    kinds = [b.device is not None for b in (send, recv) if b is not None and b.memory.size]
    if len(set(kinds)) > 1:
        ours, theirs = ("device", "host") if kinds[0] else ("host", "device")
        raise TypeError(
            f"{definition.method}: send buffer in {ours} memory but receive buffer in {theirs} "
            "memory; copy one, by cupy.asarray or cupy.asnumpy for example"
        )


def summed_exactly(call: Call) -> Call:
    """A reduction by exact sums in place of rounded ones; see :mod:`mpicoll.ops.exact`.

    Raises:
        TypeError: elements that have no exact sum.
        ValueError: an operator other than ``MPI.SUM``.
    """
    assert call.reduction is not None
    if call.reduction.name != "sum":
        raise ValueError(
            f"{call.definition.method}: reproducible=True sums, so op must be MPI.SUM, not "
            f"{call.reduction.name}"
        )
    return call._replace(reduction=exact.reduction(call.reduction.dtype))


def _reduction(op: Any, buffer: Buffer) -> ops.Reduction:
    """The reduction that an MPI operator is on a buffer's elements."""
    if not isinstance(op, MPI.Op):
        raise TypeError(f"op must be an MPI operator such as MPI.SUM, not {type(op).__name__}")
    if op.is_predefined:
        if op.handle not in _OPERATORS:
            known = ", ".join(f"MPI.{name.upper()}" for name in _OPERATORS.values())
            raise ValueError(f"op=MPI.{op.__reduce__()} does not reduce: choose one of {known}")
        if buffer.dtype is None:
            raise Unsupported(f"reduces {buffer.name}, which NumPy has no dtype for")
        return ops.reduction(_OPERATORS[op.handle], buffer.dtype)
    datatype = buffer.datatype
    if datatype is None:
        raise TypeError(
            f"user-defined operators get MPI datatypes, and {buffer.name} has none in this "
            "library; convert the array"
        )

    dtype = buffer.dtype if buffer.dtype is not None else np.dtype(f"V{buffer.itemsize}")
    return ops.user(_function(op, datatype), dtype, op.Is_commutative())


def _function(op: MPI.Op, datatype: MPI.Datatype) -> ops.UserFunction:
    """What a user-defined operator does to arrays of a datatype, also once it has been freed.

    MPI frees an operator when all that uses it is complete, but ``op.Free()`` takes the handle away
    at once, and mpi4py forgets the function.  So the function itself is kept, as pickling has it;
    an operator that was not made in Python is only its handle, and must be kept by its owner.
    """
    try:
        reduced: Any = op.__reduce__()
    except ValueError:

        def through_handle(invec: np.ndarray, inoutvec: np.ndarray) -> None:
            op.Reduce_local([invec, invec.size, datatype], [inoutvec, inoutvec.size, datatype])

        return through_handle
    python: Callable[..., object] = reduced[1][0]

    def function(invec: np.ndarray, inoutvec: np.ndarray) -> None:
        left, right = (
            MPI.buffer.frombuffer(array.view(np.uint8), readonly=not array.flags.writeable)
            for array in (invec, inoutvec)
        )
        python(left, right, datatype)

    return function


def place_of(definition: Collective, rank: int, size: int, root: Any) -> Place:
    """A rank's place in a call.

    Raises:
        TypeError: the root is no integer.
        ValueError: the root is not one of the ranks.
    """
    try:
        number = operator.index(root)
    except TypeError:
        raise TypeError(f"root={root!r} must be an integer") from None
    if not 0 <= number < size:
        raise ValueError(f"root={number} must be a rank of the communicator, 0 to {size - 1}")
    return Place(rank, size, number, size if definition.block_per_rank else 1)


def _unasked(definition: Collective, name: str) -> str:
    """What is wrong with an argument by keyword where no algorithm is named."""
    every = (algorithms.find(definition.name, each) for each in algorithms.names(definition.name))
    known = sorted({parameter for algorithm in every for parameter in algorithm.parameters})
    if name in known:
        return f"{name}= is a parameter of an algorithm; name it too by algorithm="
    more = f" and, with it, {', '.join(f'{each}=' for each in known)}" if known else ""
    return f"unknown argument {name}=; known are mpi4py's, algorithm={more}"


def asked_for(
    definition: Collective, algorithm: str | None, parameters: Mapping[str, Parameter]
) -> Choice | None:
    """The algorithm that the caller names, with all its parameters; None if none is named.

    Raises:
        TypeError: parameters without an algorithm, or an algorithm that is no name.
        ValueError: see :func:`mpicoll.tuning.check`.
    """
    if "reproducible" in parameters:
        raise TypeError(
            f"{definition.method}: reproducible= is for the blocking Allreduce, Reduce, "
            "Reduce_scatter and Reduce_scatter_block alone; leave it out"
        )
    if algorithm is None:
        for name in parameters:
            raise TypeError(f"{definition.method}: {_unasked(definition, name)}")
        return None
    if not isinstance(algorithm, str):
        raise TypeError(f"{definition.method}: algorithm={algorithm!r} must be a name")
    return Choice(algorithm, tuning.check(definition.name, algorithm, parameters), tuning.ARGUMENT)
