"""The non-blocking collectives of mpi4py, with ``algorithm=`` and its parameters by keyword.

They return a request of the MPI library; with ``algorithm=``, or where a thread makes progress, a
:class:`mpicoll.requests.Request`.  Functions on several requests that take both kinds are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from mpicoll.comm.dispatch import Dispatch
from mpicoll.schedule.parameters import Parameter

__all__ = ["Nonblocking"]


class Nonblocking(Dispatch):
    """Collectives that are complete when their request is."""

    def Ibarrier(self, *, algorithm: str | None = None, **parameters: Parameter) -> Any:
        """Start a ``Barrier``."""
        return self._non_blocking("Barrier", algorithm=algorithm, parameters=parameters)

    def Ibcast(
        self, buf: Any, root: int = 0, *, algorithm: str | None = None, **parameters: Parameter
    ) -> Any:
        """Start a ``Bcast``."""
        return self._non_blocking(
            "Bcast", None, buf, root=root, algorithm=algorithm, parameters=parameters
        )

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
        return self._non_blocking(
            "Reduce", sendbuf, recvbuf, op=op, root=root, algorithm=algorithm, parameters=parameters
        )

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
        return self._non_blocking(
            "Allreduce", sendbuf, recvbuf, op=op, algorithm=algorithm, parameters=parameters
        )

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
            "Reduce_scatter_block",
            sendbuf,
            recvbuf,
            op=op,
            algorithm=algorithm,
            parameters=parameters,
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
            "Reduce_scatter",
            sendbuf,
            recvbuf,
            counts=recvcounts,
            op=op,
            algorithm=algorithm,
            parameters=parameters,
        )

    def Iallgather(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> Any:
        """Start an ``Allgather``."""
        return self._non_blocking(
            "Allgather", sendbuf, recvbuf, algorithm=algorithm, parameters=parameters
        )

    def Iallgatherv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> Any:
        """Start an ``Allgatherv``."""
        return self._non_blocking(
            "Allgatherv", sendbuf, recvbuf, algorithm=algorithm, parameters=parameters
        )

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
        return self._non_blocking(
            "Gather", sendbuf, recvbuf, root=root, algorithm=algorithm, parameters=parameters
        )

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
        return self._non_blocking(
            "Gatherv", sendbuf, recvbuf, root=root, algorithm=algorithm, parameters=parameters
        )

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
        return self._non_blocking(
            "Scatter", sendbuf, recvbuf, root=root, algorithm=algorithm, parameters=parameters
        )

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
        return self._non_blocking(
            "Scatterv", sendbuf, recvbuf, root=root, algorithm=algorithm, parameters=parameters
        )

    def Ialltoall(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> Any:
        """Start an ``Alltoall``."""
        return self._non_blocking(
            "Alltoall", sendbuf, recvbuf, algorithm=algorithm, parameters=parameters
        )

    def Ialltoallv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> Any:
        """Start an ``Alltoallv``."""
        return self._non_blocking(
            "Alltoallv", sendbuf, recvbuf, algorithm=algorithm, parameters=parameters
        )

    def Ialltoallw(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> Any:
        """Start an ``Alltoallw``."""
        return self._non_blocking(
            "Alltoallw", sendbuf, recvbuf, algorithm=algorithm, parameters=parameters
        )

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
        return self._non_blocking(
            "Scan", sendbuf, recvbuf, op=op, algorithm=algorithm, parameters=parameters
        )

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
        return self._non_blocking(
            "Exscan", sendbuf, recvbuf, op=op, algorithm=algorithm, parameters=parameters
        )
