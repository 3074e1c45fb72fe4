"""The non-blocking collectives of mpi4py, with ``algorithm=`` and its parameters by keyword.

They return a request of the MPI library; with ``algorithm=``, or where a thread makes progress, a
:class:`mpicoll.requests.Request`.  Functions on several requests that take both kinds are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from mpicoll.comm.compiled import set_collectives
from mpicoll.comm.dispatch import Dispatch
from mpicoll.schedule.parameters import Parameter


class Nonblocking(Dispatch):
    """Collectives that are complete when their request is."""

    def Ibarrier(self, *, algorithm: str | None = None, **parameters: Parameter) -> Any:
        """Start a ``Barrier``."""
        return self._non_blocking("Barrier", algorithm, parameters)

    def Ibcast(
        self, buf: Any, root: int = 0, *, algorithm: str | None = None, **parameters: Parameter
    ) -> Any:
        """Start a ``Bcast``."""
        return self._non_blocking("Bcast", algorithm, parameters, None, buf, None, root)

    def Ireduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        root: int = 0,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Start a ``Reduce``."""
        return self._non_blocking("Reduce", algorithm, parameters, sendbuf, recvbuf, op, root)

    def Iallreduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Start an ``Allreduce``."""
        return self._non_blocking("Allreduce", algorithm, parameters, sendbuf, recvbuf, op)

    def Ireduce_scatter_block(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Start a ``Reduce_scatter_block``."""
        return self._non_blocking(
            "Reduce_scatter_block", algorithm, parameters, sendbuf, recvbuf, op
        )

    def Ireduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: MPI.Op = MPI.SUM,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Start a ``Reduce_scatter``."""
        return self._non_blocking(
            "Reduce_scatter", algorithm, parameters, sendbuf, recvbuf, op, 0, recvcounts
        )

    def Iallgather(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> Any:
        """Start an ``Allgather``."""
        return self._non_blocking("Allgather", algorithm, parameters, sendbuf, recvbuf)

    def Iallgatherv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> Any:
        """Start an ``Allgatherv``."""
        return self._non_blocking("Allgatherv", algorithm, parameters, sendbuf, recvbuf)

    def Igather(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Start a ``Gather``."""
        return self._non_blocking("Gather", algorithm, parameters, sendbuf, recvbuf, None, root)

    def Igatherv(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Start a ``Gatherv``."""
        return self._non_blocking("Gatherv", algorithm, parameters, sendbuf, recvbuf, None, root)

    def Iscatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Start a ``Scatter``."""
        return self._non_blocking("Scatter", algorithm, parameters, sendbuf, recvbuf, None, root)

    def Iscatterv(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Start a ``Scatterv``."""
        return self._non_blocking("Scatterv", algorithm, parameters, sendbuf, recvbuf, None, root)

    def Ialltoall(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> Any:
        """Start an ``Alltoall``."""
        return self._non_blocking("Alltoall", algorithm, parameters, sendbuf, recvbuf)

    def Ialltoallv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> Any:
        """Start an ``Alltoallv``."""
        return self._non_blocking("Alltoallv", algorithm, parameters, sendbuf, recvbuf)

    def Ialltoallw(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> Any:
        """Start an ``Alltoallw``."""
        return self._non_blocking("Alltoallw", algorithm, parameters, sendbuf, recvbuf)

    def Iscan(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Start a ``Scan``."""
        return self._non_blocking("Scan", algorithm, parameters, sendbuf, recvbuf, op)

    def Iexscan(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Start an ``Exscan``."""
        return self._non_blocking("Exscan", algorithm, parameters, sendbuf, recvbuf, op)


set_collectives(Nonblocking)
