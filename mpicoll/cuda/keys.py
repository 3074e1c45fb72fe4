"""What a collective is to the GPUs: all that its launch depends on, by the kernels' names.

A key is equal on all ranks as far as MPI requires the calls to be, and says which rank this is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mpicoll import ops

OPS = ops.OPERATORS
#: The types that a GPU reduces, by the kernels' names of :mod:`mpicoll.ops`.
TYPES = (
    "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool", "f16", "bf16", "f32", "f64",
    "c64", "c128", "i16_int", "i32_int", "i64_int", "f32_int", "f64_int",
)  # fmt: skip

COLLECTIVES = (
    "allreduce", "reduce", "bcast", "allgather", "reduce_scatter", "alltoall", "gather", "scatter",
    "scan", "exscan",
)  # fmt: skip
REDUCING = frozenset({"allreduce", "reduce", "reduce_scatter", "scan", "exscan"})
#: Those that can work on registered memory where it lies.
DIRECT = frozenset({"allreduce", "reduce", "bcast", "allgather", "reduce_scatter", "alltoall"})
#: Those that can be cut into blocks that one rank each folds and hands out.
PHASES = frozenset({"allreduce", "reduce", "bcast"})
#: Those that neighbours in a ring can do.
RING = frozenset({"allreduce", "reduce_scatter", "allgather"})


class LaunchKey(NamedTuple):
    """What MPI requires to be equal on all ranks, and who this rank is.

    Attributes:
        collective, root: as in the call.
        nbytes: of the whole vector, all blocks.
        op, type: names of the operator and of the type as in :mod:`mpicoll.ops`; "" if none.
        in_place: whether this rank's call is in place.
    """

    collective: str
    nbytes: int
    rank: int
    size: int
    root: int = 0
    op: str = ""
    type: str = ""
    in_place: bool = False


def key_of(
    collective: str,
    sent: int | None,
    received: int | None,
    op: str | None,
    dtype: Any,
    rank: int,
    size: int,
    root: int,
) -> LaunchKey:
    """The key of a call.

    Args:
        collective, op, root: as in the call.
        sent, received: bytes of this rank's buffers; None: there is none, or in place.
        dtype: of their elements.
        rank, size: of this rank, and how many there are.
    """
    given, wanted = sent or 0, received or 0
    nbytes, in_place = max(given, wanted), sent is None
    if collective == "bcast":
        in_place = False
    elif collective == "scatter":
        in_place = rank == root and received is None
        nbytes = given if rank == root else wanted * size
    elif collective == "gather":
        in_place = rank == root and sent is None
        nbytes = wanted if rank == root else given * size
    elif collective == "reduce":
        nbytes = given or wanted
    elif collective == "allgather":
        nbytes = wanted
    elif collective == "reduce_scatter":
        nbytes = wanted if in_place else given
    reduced = (op or "") if collective in REDUCING else ""
    type = type_of(reduced, dtype) if reduced else ""
    return LaunchKey(collective, nbytes, rank, size, root, reduced, type, in_place)


def type_of(op: str | None, dtype: Any) -> str:
    """The kernels' name of a type; "" where the operator has no meaning for it."""
    try:
        return ops.reduction(op or "", dtype).type
    except (TypeError, ValueError):
        return ""


def kind_of(op: str, type: str) -> int:
    """The number of an operator on a type."""
    return OPS.index(op) * 32 + TYPES.index(type) if op else 0


def kernel_of(op: str, type: str) -> str:
    """The family of kernels that serves an operator on a type."""
    if not op:
        return "copy"
    if type in ("f16", "bf16") and op in ("sum", "prod"):
        return "narrow"
    return "whole" if type in ("i64_int", "f64_int") or (type, op) == ("c128", "prod") else "plain"
