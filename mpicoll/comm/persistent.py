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
from mpicoll.schedule.parameters import Parameter


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
        return self._persistent("Exscan", algorithm, parameters, info, sendbuf, recvbuf, op)
