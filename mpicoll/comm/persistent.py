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

__all__ = ["Persistent"]


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
        return self._persistent("Barrier", info=info, algorithm=algorithm, parameters=parameters)

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
        return self._persistent(
            "Bcast", None, buf, root=root, info=info, algorithm=algorithm, parameters=parameters
        )

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
        return self._persistent(
            "Reduce",
            sendbuf,
            recvbuf,
            op=op,
            root=root,
            info=info,
            algorithm=algorithm,
            parameters=parameters,
        )

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
        return self._persistent(
            "Allreduce",
            sendbuf,
            recvbuf,
            op=op,
            info=info,
            algorithm=algorithm,
            parameters=parameters,
        )

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
            "Reduce_scatter_block",
            sendbuf,
            recvbuf,
            op=op,
            info=info,
            algorithm=algorithm,
            parameters=parameters,
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
            "Reduce_scatter",
            sendbuf,
            recvbuf,
            counts=recvcounts,
            op=op,
            info=info,
            algorithm=algorithm,
            parameters=parameters,
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
        return self._persistent(
            "Allgather", sendbuf, recvbuf, info=info, algorithm=algorithm, parameters=parameters
        )

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
        return self._persistent(
            "Allgatherv", sendbuf, recvbuf, info=info, algorithm=algorithm, parameters=parameters
        )

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
        return self._persistent(
            "Gather",
            sendbuf,
            recvbuf,
            root=root,
            info=info,
            algorithm=algorithm,
            parameters=parameters,
        )

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
            "Gatherv",
            sendbuf,
            recvbuf,
            root=root,
            info=info,
            algorithm=algorithm,
            parameters=parameters,
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
            "Scatter",
            sendbuf,
            recvbuf,
            root=root,
            info=info,
            algorithm=algorithm,
            parameters=parameters,
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
            "Scatterv",
            sendbuf,
            recvbuf,
            root=root,
            info=info,
            algorithm=algorithm,
            parameters=parameters,
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
        return self._persistent(
            "Alltoall", sendbuf, recvbuf, info=info, algorithm=algorithm, parameters=parameters
        )

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
        return self._persistent(
            "Alltoallv", sendbuf, recvbuf, info=info, algorithm=algorithm, parameters=parameters
        )

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
        return self._persistent(
            "Alltoallw", sendbuf, recvbuf, info=info, algorithm=algorithm, parameters=parameters
        )

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
        return self._persistent(
            "Scan", sendbuf, recvbuf, op=op, info=info, algorithm=algorithm, parameters=parameters
        )

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
        return self._persistent(
            "Exscan", sendbuf, recvbuf, op=op, info=info, algorithm=algorithm, parameters=parameters
        )
