"""One call of a collective: parsed and checked, then turned into what runs it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from mpicoll import agree, algorithms, buffers, exact, layout, ops, plan, tuning
from mpicoll.buffers import Buffer, Unsupported
from mpicoll.collectives import Collective, Place
from mpicoll.exact import EXACT, SCHEDULES
from mpicoll.registry import COMMUTATIVE
from mpicoll.tuning import NATIVE, Choice

__all__ = ["Call", "Prepared", "asked_for", "parse", "place_of", "reproducible"]

#: MPI's operators by handle.
_OPERATORS = {getattr(MPI, name.upper()).handle: name for name in ops.OPERATORS}


@dataclass(frozen=True)
class Call:
    """One rank's call, parsed and checked.

    Attributes:
        definition: the collective.
        place: rank, size and root; as many blocks as ranks where each rank has one, else one.
        send, recv, in_place: see :class:`mpicoll.buffers.Operands`.
        reduction: what the operator is on these elements; None where nothing is reduced.
    """

    definition: Collective
    place: Place
    send: Buffer | None
    recv: Buffer | None
    in_place: bool
    reduction: ops.Reduction | None

    @property
    def buffer(self) -> Buffer | None:
        """A buffer that tells type and count; None for a barrier."""
        return self.send if self.send is not None else self.recv

    @property
    def nbytes(self) -> int:
        """Bytes of the whole vector; equal on all ranks."""
        return self.buffer.block_bytes * self.place.nblocks if self.buffer is not None else 0

    def obstacle(self, algorithm: str) -> str:
        """Why an algorithm cannot serve this call, "" if it can; equal on all ranks."""
        if self.reduction is None or self.buffer is None:
            return ""
        if algorithm == NATIVE:
            missing = self.buffer.datatype is None
            return f"this MPI library has no datatype for {self.buffer.name}" if missing else ""
        needs = algorithms.find(self.definition.name, algorithm).needs
        if COMMUTATIVE in needs and not self.reduction.commutative:
            return f"{algorithm} needs a commutative operator, and this one is not"
        return ""

    def choose(self, table: tuning.Table) -> tuple[Choice, str]:
        """The algorithm if the caller names none; why it is not the one the environment names."""
        facts = self.definition.name, self.place.size, self.nbytes, table
        wanted = tuning.choose(*facts)
        obstacle = self.obstacle(wanted.algorithm)
        if not obstacle:
            return wanted, ""
        choice = tuning.choose(*facts, serves=lambda algorithm: not self.obstacle(algorithm))
        if wanted.source == tuning.BUILTIN_SOURCE:
            return choice, ""
        return choice, f"{wanted.source}: {obstacle}, so {choice.algorithm} serves"

    def facts(self) -> agree.Facts:
        """What must be equal on all ranks, of buffers and operator.

        What is only moved may be of different types, bytes on one rank, as long as its length is
        the same.
        """
        if self.buffer is None:
            return {}
        if self.reduction is None:
            return {"bytes of a block": self.buffer.block_bytes}
        operator = self.reduction.name
        if self.reduction.function is not None:
            kind = "commutative" if self.reduction.commutative else "not commutative"
            operator = f"user-defined, {kind}"
        return {
            "operator": operator,
            "datatype": str(self.reduction.dtype),
            "count": self.buffer.count,
        }

    def messages(self) -> tuple[Any, Any]:
        """Send and receive buffer as mpi4py wants them."""
        reduces = self.definition.reduces
        send = None if self.send is None else self.send.message(reduces)
        recv = None if self.recv is None else self.recv.message(reduces)
        if not self.in_place or self.definition.name == "bcast":
            return send, recv
        return (send, MPI.IN_PLACE) if self.definition.name == "scatter" else (MPI.IN_PLACE, recv)

    def memory(self) -> tuple[buffers.Bytes | None, buffers.Bytes | None]:
        """Send and receive buffer as a runner wants them."""
        send, recv = self.send, self.recv
        return None if send is None else send.memory, None if recv is None else recv.memory

    def shape(self, choice: Choice) -> plan.Shape:
        """What to plan.  Reductions are cut in elements, data movement in bytes."""
        length, itemsize, wide = 0, 1, 1
        if self.buffer is not None and self.reduction is not None:
            length, itemsize = self.buffer.count, self.buffer.itemsize
            wide = self.reduction.wide.itemsize
        elif self.buffer is not None:
            length = self.buffer.block_bytes
        place, algorithm = self.place, _schedule(self.definition, choice)
        blocks = algorithms.find(self.definition.name, algorithm).blocks(place.size)
        cut = _even(length * place.nblocks, blocks)
        return plan.Shape(
            collective=self.definition.name,
            algorithm=algorithm,
            parameters=choice.parameters,
            rank=place.rank,
            size=place.size,
            root=place.root,
            in_place=self.in_place,
            itemsize=itemsize,
            wide=wide,
            input=cut,
            output=cut,
            whole=choice.algorithm == EXACT,
        )


_even = lru_cache(layout.even)


def _schedule(definition: Collective, choice: Choice) -> str:
    """The algorithm whose schedule a choice has."""
    return SCHEDULES[definition.name] if choice.algorithm == EXACT else choice.algorithm


class Prepared(NamedTuple):
    """A call that can run.

    Attributes:
        definition: the collective.
        place: see :class:`Call`.
        choice: the algorithm.
        call: the call; None where the MPI library alone understands the arguments.
        arguments: send and receive buffer, as the caller passed them.
        op: the operator, as the caller passed it.
    """

    definition: Collective
    place: Place
    choice: Choice
    call: Call | None
    arguments: tuple[Any, Any]
    op: Any

    @property
    def nbytes(self) -> int:
        """Bytes of the whole vector; 0 where that is not known."""
        return self.call.nbytes if self.call is not None else 0

    def facts(self) -> agree.Facts:
        """What must be equal on all ranks."""
        choice, root = self.choice, self.place.root
        known: dict[str, Any] = {"collective": self.definition.method}
        if self.definition.rooted:
            known["root"] = root
        known["algorithm"] = " ".join(
            [choice.algorithm, *(f"{name}={value}" for name, value in choice.parameters)]
        )
        if choice.algorithm != NATIVE:
            algorithm = _schedule(self.definition, choice)
            known["schedule"] = agree.schedule_hash(
                self.definition.name, algorithm, choice.parameters, self.place.size, root
            )
        return {**known, **(self.call.facts() if self.call is not None else {})}


def reproducible(
    definition: Collective,
    place: Place,
    sendbuf: Any,
    recvbuf: Any,
    op: Any,
    algorithm: str | None,
) -> Prepared:
    """A reduction by exact sums; see :mod:`mpicoll.exact`.

    Raises:
        TypeError, ValueError, BufferError: see :func:`parse`; and an algorithm, an operator other
            than ``MPI.SUM``, elements that have no exact sum.
        Unsupported: only the MPI library can serve the buffers, and it does not sum exactly.
    """
    method = definition.method
    if algorithm is not None:
        raise ValueError(
            f"{method}: reproducible=True has an algorithm of its own; leave out either it or "
            f"algorithm={algorithm!r}"
        )
    try:
        call = parse(definition, place, sendbuf, recvbuf, op)
    except Unsupported as reason:
        raise Unsupported(
            f"{method}: {reason}; reproducible=True needs a contiguous array of a predefined "
            "datatype"
        ) from None
    assert call.reduction is not None
    if call.reduction.name != "sum":
        raise ValueError(
            f"{method}: reproducible=True sums, so op must be MPI.SUM, not {call.reduction.name}"
        )
    call = replace(call, reduction=exact.reduction(call.reduction.dtype))
    choice = Choice(EXACT, (), "reproducible=True")
    return Prepared(definition, place, choice, call, (sendbuf, recvbuf), op)


def parse(definition: Collective, place: Place, sendbuf: Any, recvbuf: Any, op: Any) -> Call:
    """Parse and check the arguments of a call, from what this rank alone knows.

    Raises:
        TypeError, ValueError, BufferError, Unsupported: see :func:`mpicoll.buffers.operands`; and
            TypeError for an operator that has no meaning for the elements.
    """
    found = buffers.operands(definition, place, sendbuf, recvbuf)
    reduction = None
    if definition.reduces and found.send is not None:
        reduction = _reduction(op, found.send)
    return Call(definition, place, found.send, found.recv, found.in_place, reduction)


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

    def function(invec: np.ndarray, inoutvec: np.ndarray) -> None:
        op.Reduce_local([invec, invec.size, datatype], [inoutvec, inoutvec.size, datatype])

    dtype = buffer.dtype if buffer.dtype is not None else np.dtype(f"V{buffer.itemsize}")
    return ops.user(function, dtype, op.Is_commutative())


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


def asked_for(
    definition: Collective, algorithm: str | None, parameters: Mapping[str, int]
) -> Choice | None:
    """The algorithm that the caller names, with all its parameters; None if none is named.

    Raises:
        TypeError: parameters without an algorithm, or an algorithm that is no name.
        ValueError: see :func:`mpicoll.tuning.check`.
    """
    if algorithm is None:
        if parameters:
            raise TypeError(
                f"{definition.method}: {next(iter(parameters))}= is a parameter of an algorithm; "
                "name it too by algorithm="
            )
        return None
    if not isinstance(algorithm, str):
        raise TypeError(f"{definition.method}: algorithm={algorithm!r} must be a name")
    return Choice(algorithm, tuning.check(definition.name, algorithm, parameters), "argument")
