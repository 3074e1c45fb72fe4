"""Collectives of Python objects, where ranks may die.

Those of mpi4py wait within the MPI library, where nobody hears of a death.  On a communicator that
outlives its ranks objects travel as bytes, by the collectives of arrays; on all others they are
mpi4py's.  A process that has no communicator of the first kind has mpi4py's methods themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from mpi4py import MPI

from mpicoll.base.wording import plural
from mpicoll.comm.blocking import Blocking
from mpicoll.runtime.alarm import Alarm
from mpicoll.runtime.state import find

if TYPE_CHECKING:
    import numpy.typing as npt

_Bytes: TypeAlias = "npt.NDArray[np.uint8]"
_Op = Callable[[Any, Any], Any]

#: mpi4py's methods, which are found more slowly by ``super()``.
_COMM: Any = MPI.Comm


class Objects(Blocking):
    """The lower-case methods of mpi4py's: its own until :func:`survive`."""


def survive() -> None:
    """Let communicators that outlive their ranks hear of deaths in lower-case methods."""
    for name, function in vars(_Surviving).items():
        if isinstance(function, FunctionType):
            setattr(Objects, name, function)


Alarm.at_first.append(survive)


class _Surviving(Blocking):
    """The lower-case methods where a communicator may outlive its ranks."""

    def barrier(self) -> None:
        """Wait until all ranks have entered."""
        if not _survives(self):
            return _COMM.barrier(self)
        self.Barrier()
        return None

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Copy the root's object to all ranks."""
        if not _survives(self):
            return _COMM.bcast(self, obj, root)
        data = _dumped(obj) if self.rank == root else _nothing()
        length = np.array([data.size], np.int64)
        self.Bcast(length, root)
        if self.rank != root:
            data = np.empty(length[0], np.uint8)
        self.Bcast(data, root)
        return obj if self.rank == root else _loaded(data)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Collect an object of every rank, at the root."""
        if not _survives(self):
            return _COMM.gather(self, sendobj, root)
        data, here = _dumped(sendobj), self.rank == root
        lengths = np.zeros(self.size if here else 0, np.int64)
        self.Gather(np.array([data.size], np.int64), lengths if here else None, root)
        every = np.empty(lengths.sum(), np.uint8)
        self.Gatherv(data, (every, lengths.tolist()) if here else None, root)
        return _parts(every, lengths) if here else None

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """Give every rank its object of the root's sequence."""
        if not _survives(self):
            return _COMM.scatter(self, sendobj, root)
        length, every = np.zeros(1, np.int64), None
        if self.rank == root:
            parts = self._one_each(sendobj)
            lengths = np.array([part.size for part in parts], np.int64)
            every = np.concatenate(parts), lengths.tolist()
            self.Scatter(lengths, length, root)
        else:
            self.Scatter(None, length, root)
        data = np.empty(length[0], np.uint8)
        self.Scatterv(every, data, root)
        return _loaded(data)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Collect an object of every rank, on all of them."""
        if not _survives(self):
            return _COMM.allgather(self, sendobj)
        data, lengths = _dumped(sendobj), np.zeros(self.size, np.int64)
        self.Allgather(np.array([data.size], np.int64), lengths)
        every = np.empty(lengths.sum(), np.uint8)
        self.Allgatherv(data, (every, lengths.tolist()))
        return _parts(every, lengths)

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Send an object to every rank, and receive one from each."""
        if not _survives(self):
            return _COMM.alltoall(self, sendobj)
        parts = self._one_each(sendobj)
        sent = np.array([part.size for part in parts], np.int64)
        lengths = np.zeros(self.size, np.int64)
        self.Alltoall(sent, lengths)
        every = np.empty(lengths.sum(), np.uint8)
        self.Alltoallv((np.concatenate(parts), sent.tolist()), (every, lengths.tolist()))
        return _parts(every, lengths)

    def reduce(self, sendobj: Any, op: _Op = MPI.SUM, root: int = 0) -> Any:
        """Reduce over all ranks, to the root."""
        if not _survives(self):
            return _COMM.reduce(self, sendobj, op, root)
        every = self.gather(sendobj, root)
        return None if every is None else reduce(op, every)

    def allreduce(self, sendobj: Any, op: _Op = MPI.SUM) -> Any:
        """Reduce over all ranks, to all of them."""
        if not _survives(self):
            return _COMM.allreduce(self, sendobj, op)
        return reduce(op, self.allgather(sendobj))

    def scan(self, sendobj: Any, op: _Op = MPI.SUM) -> Any:
        """Reduce over the ranks up to this one."""
        if not _survives(self):
            return _COMM.scan(self, sendobj, op)
        return [*accumulate(self.allgather(sendobj), op)][self.rank]

    def exscan(self, sendobj: Any, op: _Op = MPI.SUM) -> Any:
        """Reduce over the ranks before this one; None on rank 0."""
        if not _survives(self):
            return _COMM.exscan(self, sendobj, op)
        return [None, *accumulate(self.allgather(sendobj), op)][self.rank]

    def _one_each(self, objects: Sequence[Any] | None) -> list[_Bytes]:
        """The bytes of a sequence of one object a rank."""
        if objects is None or len(objects) != self.size:
            found = "nothing" if objects is None else plural(len(objects), "object")
            raise ValueError(f"{found} for {plural(self.size, 'rank')}: give one each")
        return [_dumped(each) for each in objects]


def _survives(comm: Any) -> bool:
    """Whether a communicator outlives its ranks."""
    state = comm._state or (find(comm) if comm else None)
    return state is not None and state.alarm is not None


def _nothing() -> _Bytes:
    return np.empty(0, np.uint8)


def _dumped(obj: Any) -> _Bytes:
    return np.frombuffer(MPI.pickle.dumps(obj), np.uint8)


def _loaded(data: _Bytes) -> Any:
    return MPI.pickle.loads(data)


def _parts(every: _Bytes, lengths: npt.NDArray[np.int64]) -> list[Any]:
    return [_loaded(part) for part in np.split(every, np.cumsum(lengths)[:-1])]
