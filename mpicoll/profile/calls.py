"""Which methods of mpi4py's communicators are recorded, and how many bytes a call of one has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.schedule import methods
from mpicoll.schedule.methods import METHODS, NEIGHBOURHOOD, Blocks

#: What a rank waits for in a collective before it can be done.
ALL, ROOT, LOWER, NOBODY = "all", "root", "lower", "nobody"

_FROM_ROOT = ("bcast", "scatter")
_TO_ROOT = ("reduce", "gather")
_OBJECTS = (
    *("barrier", "bcast", "gather", "scatter", "allgather", "alltoall"),
    *("reduce", "allreduce", "scan", "exscan", "neighbor_allgather", "neighbor_alltoall"),
)

#: Stands for objects that are pickled.
PICKLED = "pickled"

#: Point-to-point calls, and what they send: an argument, objects that are pickled, or nothing.
MESSAGES = {
    **dict.fromkeys(("Send", "Bsend", "Ssend", "Rsend", "Sendrecv", "Sendrecv_replace"), "buf"),
    **dict.fromkeys(("Isend", "Ibsend", "Issend", "Irsend"), "buf"),
    **dict.fromkeys(("Isendrecv", "Isendrecv_replace"), "buf"),
    **dict.fromkeys(("Recv", "Irecv", "Probe", "Iprobe", "Mprobe", "Improbe"), ""),
    **dict.fromkeys(("send", "bsend", "ssend", "isend", "ibsend", "issend", "sendrecv"), PICKLED),
    **dict.fromkeys(("recv", "irecv", "probe", "iprobe", "mprobe", "improbe"), ""),
    **dict.fromkeys(("Send_init", "Bsend_init", "Ssend_init", "Rsend_init", "Recv_init"), ""),
}

#: Beyond all arguments.
NONE = 99

_IN_PLACE, _DATATYPE, _ARRAY = MPI.InPlaceType, MPI.Datatype, np.ndarray
#: Bytes of elements of MPI's own datatypes, by their ids: they are never freed.
_SIZES = {
    id(kind): kind.Get_size()
    for kind in vars(MPI).values()
    if isinstance(kind, MPI.Datatype) and kind != MPI.DATATYPE_NULL
}

Arguments = tuple[Any, ...]
Named = Mapping[str, Any]
#: Bytes of a call, from its arguments and the number of ranks.
Counting = Callable[[Arguments, Named, int], int]


@dataclass(frozen=True)
class Recorded:
    """A method that is recorded.

    Attributes:
        name: Of the method.
        collective: What it does, as `mpicoll list` has it.
        equal: Whether all ranks know the bytes of the whole vector, so that they tell calls apart.
        root: Place of the root among its arguments; -1 if it has none.
        nbytes: Bytes of the whole vector, or of what this rank gives where ranks differ, from the
            arguments and the number of ranks; None for objects, whose bytes are counted when they
            are pickled.
        array: Place of the argument whose bytes these are where it is an array, or `NONE`.
    """

    name: str
    collective: str
    equal: bool
    root: int
    nbytes: Counting | None
    array: int

    @property
    def method(self) -> str:
        """The blocking method for the same."""
        name = self.name.removesuffix("_init")
        if name[0] == "I" and name not in METHODS:
            name = name[1:].capitalize()
        return name


def at_once(message: Any) -> int:
    """Bytes of a message that says them without a search, as most do: an array, or one with a count
    and a datatype of MPI's; -1 of others."""
    if type(message) is _ARRAY:
        return int(message.nbytes)
    if type(message) is list and len(message) == 3 and type(message[1]) is int:
        size = _SIZES.get(id(message[2]))
        if size is not None:
            return int(message[1] * size)
    return -1


def payload(message: Any, several: bool = False) -> int:
    """Bytes of a message as mpi4py's methods take it.

    Args:
        message: A buffer, or a list of one with counts, displacements and datatypes.
        several: Whether it has a block for each rank.

    Returns:
        The bytes that are sent; 0 where there are none or the message is not understood, which
        mpi4py reports.
    """
    found = at_once(message)
    if found >= 0:
        return found
    if message is None or isinstance(message, _IN_PLACE):
        return 0
    if not isinstance(message, (list, tuple)):
        return _whole(message)
    try:
        return _of_list(message, several)
    except (TypeError, ValueError, LookupError, MPI.Exception):
        return 0


def _of_list(message: Sequence[Any], several: bool) -> int:
    buffer, length = message[0], len(message)
    types = message[length - 1] if length > 1 and _is_type(message[length - 1]) else None
    counts = message[1] if length > (1 if types is None else 2) else None
    if isinstance(counts, tuple) and len(counts) == 2 and (not several or _is_list(counts[0])):
        counts = counts[0]  # the displacements follow
    if counts is None:
        return _whole(buffer)
    if isinstance(types, (list, tuple)):
        nbytes = 0
        for place, kind in enumerate(types):
            nbytes += int(counts[place]) * _size(kind, buffer)
        return nbytes
    number = int(sum(counts)) if _is_list(counts) else int(counts)
    return number * _size(types, buffer)


def _is_list(value: Any) -> bool:
    return hasattr(value, "__len__")


def _is_type(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        value = value[0] if value else None
    return type(value) is str or isinstance(value, _DATATYPE)


def _whole(buffer: Any) -> int:
    try:
        return int(buffer.nbytes)
    except AttributeError:
        try:
            return memoryview(buffer).nbytes
        except TypeError:
            return 0


def _size(kind: Any, buffer: Any) -> int:
    """Bytes of an element."""
    known = _SIZES.get(id(kind))
    if known is not None:
        return known
    if isinstance(kind, str):
        kind = MPI.Datatype.fromcode(kind)
    if kind is not None:
        return 0 if kind == MPI.DATATYPE_NULL else kind.Get_size()
    return int(getattr(buffer, "itemsize", 0) or memoryview(buffer).itemsize)


def element(message: Any) -> str:
    """The NumPy name of a message's elements; "" where they have none."""
    data = message[0] if isinstance(message, (list, tuple)) and message else message
    kind = getattr(data, "dtype", None)
    return getattr(kind, "name", "")


def _of(
    place: int,
    name: str,
    several: bool = False,
    per_rank: bool = False,
    in_place: Counting | None = None,
) -> Counting:
    """What counts the bytes of a call by one of its arguments.

    Args:
        place, name: Of the argument.
        several: Whether it has a block for each rank, with counts of their own.
        per_rank: Whether it is one of as many blocks as there are ranks.
        in_place: What counts them where MPI.IN_PLACE stands for it.
    """

    def nbytes(arguments: Arguments, named: Named, size: int) -> int:
        message = arguments[place] if len(arguments) > place else named.get(name)
        if in_place is not None and isinstance(message, _IN_PLACE):
            return in_place(arguments, named, size)
        whole = payload(message, several)
        return whole * size if per_rank else whole

    return nbytes


_SENT = _of(0, "sendbuf", in_place=_of(1, "recvbuf"))
_SENT_BLOCKS = _of(0, "sendbuf", several=True, in_place=_of(1, "recvbuf", several=True))

#: Place of the argument that has the whole vector where it is an array, if not the first.
_ARRAYS = {
    **dict.fromkeys(("Barrier", "Gather", "Scatter"), NONE),
    **dict.fromkeys(("Allgather", "Allgatherv", "Scatterv"), 1),
}

#: Of blocking methods, where it is not the send buffer that has the whole vector.
_NBYTES: dict[str, Counting] = {
    "Barrier": lambda arguments, named, size: 0,
    "Bcast": _of(0, "buf"),
    "Gather": _of(0, "sendbuf", per_rank=True, in_place=_of(1, "recvbuf")),
    "Scatter": _of(1, "recvbuf", per_rank=True, in_place=_of(0, "sendbuf")),
    "Allgather": _of(1, "recvbuf"),
    "Allgatherv": _of(1, "recvbuf", several=True),
    "Scatterv": _of(1, "recvbuf"),
    "Alltoallv": _SENT_BLOCKS,
    "Alltoallw": _SENT_BLOCKS,
}


def _collectives() -> dict[str, Recorded]:
    found = {}
    for method in METHODS.values():
        definition, name = method.definition, method.name
        root = method.arguments.index(methods.ROOT) if definition.rooted else -1
        how = method.blocks is not Blocks.OWN, root, _NBYTES.get(name, _SENT), _ARRAYS.get(name, 0)
        for form in (name, f"I{name.lower()}", f"{name}_init"):
            found[form] = Recorded(form, method.collective, *how)
    for name in NEIGHBOURHOOD:
        nbytes = _SENT if name.endswith(("gather", "gatherv")) else _SENT_BLOCKS
        for form in (name, f"I{name.lower()}", f"{name}_init"):
            found[form] = Recorded(form, name.lower(), False, -1, nbytes, 0)
    for name in _OBJECTS:
        rooted = name in (*_FROM_ROOT, *_TO_ROOT)
        root = (2 if name == "reduce" else 1) if rooted else -1
        found[name] = Recorded(name, name, name == "barrier", root, None, NONE)
    return found


#: Of the methods that are collectives, by name.
COLLECTIVES = _collectives()


def awaited(collective: str, rank: int, root: int) -> str:
    """For whom a rank has to wait in a collective: `ALL`, `ROOT`, `LOWER` ranks or `NOBODY`."""
    if collective in _FROM_ROOT:
        return NOBODY if rank == root else ROOT
    if collective in _TO_ROOT:
        return ALL if rank == root else ROOT
    if collective in ("scan", "exscan"):
        return LOWER
    return NOBODY if collective.startswith("neighbor") else ALL
