"""The non-blocking collectives of mpi4py, with ``algorithm=`` and its parameters by keyword.

They return a request of the MPI library; with ``algorithm=``, or where a thread makes progress, a
:class:`mpicoll.requests.Request`.  Functions on several requests that take both kinds are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from mpicoll.comm.dispatch import Dispatch
from mpicoll.schedule.methods import METHODS, STARTED
from mpicoll.schedule.parameters import Parameter

# The numbers of methods on the fast path.
IALLREDUCE = METHODS["Allreduce"].number + STARTED
IREDUCE = METHODS["Reduce"].number + STARTED
IBCAST = METHODS["Bcast"].number + STARTED
IBARRIER = METHODS["Barrier"].number + STARTED
IALLGATHER = METHODS["Allgather"].number + STARTED
IALLGATHERV = METHODS["Allgatherv"].number + STARTED
IREDUCE_SCATTER_BLOCK = METHODS["Reduce_scatter_block"].number + STARTED
IREDUCE_SCATTER = METHODS["Reduce_scatter"].number + STARTED
IALLTOALL = METHODS["Alltoall"].number + STARTED
IALLTOALLV = METHODS["Alltoallv"].number + STARTED
IALLTOALLW = METHODS["Alltoallw"].number + STARTED
IGATHER = METHODS["Gather"].number + STARTED
IGATHERV = METHODS["Gatherv"].number + STARTED
ISCATTER = METHODS["Scatter"].number + STARTED
ISCATTERV = METHODS["Scatterv"].number + STARTED
ISCAN = METHODS["Scan"].number + STARTED
IEXSCAN = METHODS["Exscan"].number + STARTED


class Nonblocking(Dispatch):
    """Collectives that are complete when their request is."""

    def Ibarrier(self, *, algorithm: str | None = None, **parameters: Parameter) -> Any:
        """Start a ``Barrier``."""
        if not parameters:
            path = self._fast_path
            if algorithm is None:
                request = path.start_barrier(self)
            else:
                request = path.start(self, IBARRIER, None, None, None, 0, None, algorithm)
            if request is not None:
                return request
        return self._non_blocking("Barrier", algorithm, parameters)

    def Ibcast(
        self, buf: Any, root: int = 0, *, algorithm: str | None = None, **parameters: Parameter
    ) -> Any:
        """Start a ``Bcast``."""
        if not parameters:
            request = self._fast_path.start(self, IBCAST, None, buf, None, root, None, algorithm)
            if request is not None:
                return request
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
        if not parameters:
            request = self._fast_path.start(
                self, IREDUCE, sendbuf, recvbuf, op, root, None, algorithm
            )
            if request is not None:
                return request
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
        if not parameters:
            request = self._fast_path.start(
                self, IALLREDUCE, sendbuf, recvbuf, op, 0, None, algorithm
            )
            if request is not None:
                return request
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
        if not parameters:
            request = self._fast_path.start(
                self, IREDUCE_SCATTER_BLOCK, sendbuf, recvbuf, op, 0, None, algorithm
            )
            if request is not None:
                return request
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
        if not parameters:
            request = self._fast_path.start(
                self, IREDUCE_SCATTER, sendbuf, recvbuf, op, 0, recvcounts, algorithm
            )
            if request is not None:
                return request
        return self._non_blocking(
            "Reduce_scatter", algorithm, parameters, sendbuf, recvbuf, op, 0, recvcounts
        )

    def Iallgather(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> Any:
        """Start an ``Allgather``."""
        if not parameters:
            request = self._fast_path.start(
                self, IALLGATHER, sendbuf, recvbuf, None, 0, None, algorithm
            )
            if request is not None:
                return request
        return self._non_blocking("Allgather", algorithm, parameters, sendbuf, recvbuf)

    def Iallgatherv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> Any:
        """Start an ``Allgatherv``."""
        if not parameters:
            request = self._fast_path.start(
                self, IALLGATHERV, sendbuf, recvbuf, None, 0, None, algorithm
            )
            if request is not None:
                return request
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
        if not parameters:
            request = self._fast_path.start(
                self, IGATHER, sendbuf, recvbuf, None, root, None, algorithm
            )
            if request is not None:
                return request
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
        if not parameters:
            request = self._fast_path.start(
                self, IGATHERV, sendbuf, recvbuf, None, root, None, algorithm
            )
            if request is not None:
                return request
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
        if not parameters:
            request = self._fast_path.start(
                self, ISCATTER, sendbuf, recvbuf, None, root, None, algorithm
            )
            if request is not None:
                return request
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
        if not parameters:
            request = self._fast_path.start(
                self, ISCATTERV, sendbuf, recvbuf, None, root, None, algorithm
            )
            if request is not None:
                return request
        return self._non_blocking("Scatterv", algorithm, parameters, sendbuf, recvbuf, None, root)

    def Ialltoall(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> Any:
        """Start an ``Alltoall``."""
        if not parameters:
            request = self._fast_path.start(
                self, IALLTOALL, sendbuf, recvbuf, None, 0, None, algorithm
            )
            if request is not None:
                return request
        return self._non_blocking("Alltoall", algorithm, parameters, sendbuf, recvbuf)

    def Ialltoallv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> Any:
        """Start an ``Alltoallv``."""
        if not parameters:
            request = self._fast_path.start(
                self, IALLTOALLV, sendbuf, recvbuf, None, 0, None, algorithm
            )
            if request is not None:
                return request
        return self._non_blocking("Alltoallv", algorithm, parameters, sendbuf, recvbuf)

    def Ialltoallw(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> Any:
        """Start an ``Alltoallw``."""
        if not parameters:
            request = self._fast_path.start(
                self, IALLTOALLW, sendbuf, recvbuf, None, 0, None, algorithm
            )
            if request is not None:
                return request
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
        if not parameters:
            request = self._fast_path.start(self, ISCAN, sendbuf, recvbuf, op, 0, None, algorithm)
            if request is not None:
                return request
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
        if not parameters:
            request = self._fast_path.start(self, IEXSCAN, sendbuf, recvbuf, op, 0, None, algorithm)
            if request is not None:
                return request
        return self._non_blocking("Exscan", algorithm, parameters, sendbuf, recvbuf, op)
