"""The persistent collectives of mpi4py, with ``algorithm=`` and its parameters by keyword.

They return a persistent request of the MPI library (where that has none, before MPI 4.0, one that
starts its non-blocking collective); with ``algorithm=``, or where a thread makes progress, a
:class:`mpicoll.requests.Prequest`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from mpicoll.comm.dispatch import Dispatch
from mpicoll.schedule.methods import BOUND, METHODS
from mpicoll.schedule.parameters import Parameter

# The numbers of methods on the fast path.
ALLREDUCE_INIT = METHODS["Allreduce"].number + BOUND
REDUCE_INIT = METHODS["Reduce"].number + BOUND
BCAST_INIT = METHODS["Bcast"].number + BOUND
BARRIER_INIT = METHODS["Barrier"].number + BOUND
ALLGATHER_INIT = METHODS["Allgather"].number + BOUND
ALLGATHERV_INIT = METHODS["Allgatherv"].number + BOUND
REDUCE_SCATTER_BLOCK_INIT = METHODS["Reduce_scatter_block"].number + BOUND
REDUCE_SCATTER_INIT = METHODS["Reduce_scatter"].number + BOUND
ALLTOALL_INIT = METHODS["Alltoall"].number + BOUND
ALLTOALLV_INIT = METHODS["Alltoallv"].number + BOUND
ALLTOALLW_INIT = METHODS["Alltoallw"].number + BOUND
GATHER_INIT = METHODS["Gather"].number + BOUND
GATHERV_INIT = METHODS["Gatherv"].number + BOUND
SCATTER_INIT = METHODS["Scatter"].number + BOUND
SCATTERV_INIT = METHODS["Scatterv"].number + BOUND
SCAN_INIT = METHODS["Scan"].number + BOUND
EXSCAN_INIT = METHODS["Exscan"].number + BOUND


class Persistent(Dispatch):
    """Collectives bound to their arguments, to be started many times."""

    def Barrier_init(
        self,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Bind a ``Barrier`` to its arguments."""
        if not parameters and info == MPI.INFO_NULL:
            request = self._fast_path.start(
                self, BARRIER_INIT, None, None, None, 0, None, algorithm
            )
            if request is not None:
                return request
        return self._persistent("Barrier", algorithm, parameters, info)

    def Bcast_init(
        self,
        buf: Any,
        root: int = 0,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Bind a ``Bcast`` to its arguments."""
        if not parameters and info == MPI.INFO_NULL:
            request = self._fast_path.start(
                self, BCAST_INIT, None, buf, None, root, None, algorithm
            )
            if request is not None:
                return request
        return self._persistent("Bcast", algorithm, parameters, info, None, buf, None, root)

    def Reduce_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        root: int = 0,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Bind a ``Reduce`` to its arguments."""
        if not parameters and info == MPI.INFO_NULL:
            request = self._fast_path.start(
                self, REDUCE_INIT, sendbuf, recvbuf, op, root, None, algorithm
            )
            if request is not None:
                return request
        return self._persistent("Reduce", algorithm, parameters, info, sendbuf, recvbuf, op, root)

    def Allreduce_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Bind an ``Allreduce`` to its arguments."""
        if not parameters and info == MPI.INFO_NULL:
            request = self._fast_path.start(
                self, ALLREDUCE_INIT, sendbuf, recvbuf, op, 0, None, algorithm
            )
            if request is not None:
                return request
        return self._persistent("Allreduce", algorithm, parameters, info, sendbuf, recvbuf, op)

    def Reduce_scatter_block_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Bind a ``Reduce_scatter_block`` to its arguments."""
        if not parameters and info == MPI.INFO_NULL:
            request = self._fast_path.start(
                self, REDUCE_SCATTER_BLOCK_INIT, sendbuf, recvbuf, op, 0, None, algorithm
            )
            if request is not None:
                return request
        return self._persistent(
            "Reduce_scatter_block", algorithm, parameters, info, sendbuf, recvbuf, op
        )

    def Reduce_scatter_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: MPI.Op = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Bind a ``Reduce_scatter`` to its arguments."""
        if not parameters and info == MPI.INFO_NULL:
            request = self._fast_path.start(
                self, REDUCE_SCATTER_INIT, sendbuf, recvbuf, op, 0, recvcounts, algorithm
            )
            if request is not None:
                return request
        return self._persistent(
            "Reduce_scatter", algorithm, parameters, info, sendbuf, recvbuf, op, 0, recvcounts
        )

    def Allgather_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Bind an ``Allgather`` to its arguments."""
        if not parameters and info == MPI.INFO_NULL:
            request = self._fast_path.start(
                self, ALLGATHER_INIT, sendbuf, recvbuf, None, 0, None, algorithm
            )
            if request is not None:
                return request
        return self._persistent("Allgather", algorithm, parameters, info, sendbuf, recvbuf)

    def Allgatherv_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Bind an ``Allgatherv`` to its arguments."""
        if not parameters and info == MPI.INFO_NULL:
            request = self._fast_path.start(
                self, ALLGATHERV_INIT, sendbuf, recvbuf, None, 0, None, algorithm
            )
            if request is not None:
                return request
        return self._persistent("Allgatherv", algorithm, parameters, info, sendbuf, recvbuf)

    def Gather_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Bind a ``Gather`` to its arguments."""
        if not parameters and info == MPI.INFO_NULL:
            request = self._fast_path.start(
                self, GATHER_INIT, sendbuf, recvbuf, None, root, None, algorithm
            )
            if request is not None:
                return request
        return self._persistent("Gather", algorithm, parameters, info, sendbuf, recvbuf, None, root)

    def Gatherv_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Bind a ``Gatherv`` to its arguments."""
        if not parameters and info == MPI.INFO_NULL:
            request = self._fast_path.start(
                self, GATHERV_INIT, sendbuf, recvbuf, None, root, None, algorithm
            )
            if request is not None:
                return request
        return self._persistent(
            "Gatherv", algorithm, parameters, info, sendbuf, recvbuf, None, root
        )

    def Scatter_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Bind a ``Scatter`` to its arguments."""
        if not parameters and info == MPI.INFO_NULL:
            request = self._fast_path.start(
                self, SCATTER_INIT, sendbuf, recvbuf, None, root, None, algorithm
            )
            if request is not None:
                return request
        return self._persistent(
            "Scatter", algorithm, parameters, info, sendbuf, recvbuf, None, root
        )

    def Scatterv_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Bind a ``Scatterv`` to its arguments."""
        if not parameters and info == MPI.INFO_NULL:
            request = self._fast_path.start(
                self, SCATTERV_INIT, sendbuf, recvbuf, None, root, None, algorithm
            )
            if request is not None:
                return request
        return self._persistent(
            "Scatterv", algorithm, parameters, info, sendbuf, recvbuf, None, root
        )

    def Alltoall_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Bind an ``Alltoall`` to its arguments."""
        if not parameters and info == MPI.INFO_NULL:
            request = self._fast_path.start(
                self, ALLTOALL_INIT, sendbuf, recvbuf, None, 0, None, algorithm
            )
            if request is not None:
                return request
        return self._persistent("Alltoall", algorithm, parameters, info, sendbuf, recvbuf)

    def Alltoallv_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Bind an ``Alltoallv`` to its arguments."""
        if not parameters and info == MPI.INFO_NULL:
            request = self._fast_path.start(
                self, ALLTOALLV_INIT, sendbuf, recvbuf, None, 0, None, algorithm
            )
            if request is not None:
                return request
        return self._persistent("Alltoallv", algorithm, parameters, info, sendbuf, recvbuf)

    def Alltoallw_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Bind an ``Alltoallw`` to its arguments."""
        if not parameters and info == MPI.INFO_NULL:
            request = self._fast_path.start(
                self, ALLTOALLW_INIT, sendbuf, recvbuf, None, 0, None, algorithm
            )
            if request is not None:
                return request
        return self._persistent("Alltoallw", algorithm, parameters, info, sendbuf, recvbuf)

    def Scan_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Bind a ``Scan`` to its arguments."""
        if not parameters and info == MPI.INFO_NULL:
            request = self._fast_path.start(
                self, SCAN_INIT, sendbuf, recvbuf, op, 0, None, algorithm
            )
            if request is not None:
                return request
        return self._persistent("Scan", algorithm, parameters, info, sendbuf, recvbuf, op)

    def Exscan_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> Any:
        """Bind an ``Exscan`` to its arguments."""
        if not parameters and info == MPI.INFO_NULL:
            request = self._fast_path.start(
                self, EXSCAN_INIT, sendbuf, recvbuf, op, 0, None, algorithm
            )
            if request is not None:
                return request
        return self._persistent("Exscan", algorithm, parameters, info, sendbuf, recvbuf, op)
