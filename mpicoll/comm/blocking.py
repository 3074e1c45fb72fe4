"""The blocking collectives of mpi4py, with ``algorithm=`` and its parameters by keyword."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mpi4py import MPI

from mpicoll.buffers import buckets
from mpicoll.comm.compiled import set_collectives
from mpicoll.comm.dispatch import Dispatch
from mpicoll.schedule.collectives import Place
from mpicoll.schedule.parameters import Parameter


class Blocking(Dispatch):
    """Collectives that return when they are complete on this rank."""

    def Barrier(self, *, algorithm: str | None = None, **parameters: Parameter) -> None:
        """Wait until all ranks have entered."""
        self._blocking("Barrier", algorithm, parameters)

    def Bcast(
        self, buf: Any, root: int = 0, *, algorithm: str | None = None, **parameters: Parameter
    ) -> None:
        """Copy the root's buffer to all ranks."""
        self._blocking("Bcast", algorithm, parameters, None, buf, None, root)

    def Reduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        root: int = 0,
        *,
        algorithm: str | None = None,
        reproducible: bool = False,
        **parameters: Parameter,
    ) -> None:
        """Reduce over all ranks, to the root."""
        self._blocking(
            "Reduce", algorithm, parameters, sendbuf, recvbuf, op, root, reproducible=reproducible
        )

    def Allreduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        *,
        algorithm: str | None = None,
        reproducible: bool = False,
        **parameters: Parameter,
    ) -> None:
        """Reduce over all ranks, to all of them.

        The buffers may be lists of arrays, of the same types and lengths on all ranks: they are
        reduced as if one behind the other, small ones together.

        With ``reproducible=True`` each element is the exact sum of all contributions, rounded once
        (see :mod:`mpicoll.ops.exact`), for float32, float64, complex numbers of these, and
        integers.
        """
        if buckets.is_list(recvbuf):
            self._allreduce_list(sendbuf, recvbuf, op, algorithm, parameters, reproducible)
        else:
            self._blocking(
                "Allreduce", algorithm, parameters, sendbuf, recvbuf, op, reproducible=reproducible
            )

    def _allreduce_list(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op,
        algorithm: str | None,
        parameters: Mapping[str, Parameter],
        reproducible: bool,
    ) -> None:
        """Reduce a list of arrays, in buckets."""

        def allreduce(send: Any, recv: Any) -> None:
            self._blocking(
                "Allreduce", algorithm, parameters, send, recv, op, reproducible=reproducible
            )

        state = self._ready()
        for bucket in buckets.buckets(Place(state.rank, state.size, 0, 1), sendbuf, recvbuf):
            bucket.reduce(allreduce)

    def Reduce_scatter_block(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        *,
        algorithm: str | None = None,
        reproducible: bool = False,
        **parameters: Parameter,
    ) -> None:
        """Reduce over all ranks; rank i gets block i of the result, all blocks equally long."""
        self._blocking(
            "Reduce_scatter_block",
            algorithm,
            parameters,
            sendbuf,
            recvbuf,
            op,
            reproducible=reproducible,
        )

    def Reduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: MPI.Op = MPI.SUM,
        *,
        algorithm: str | None = None,
        reproducible: bool = False,
        **parameters: Parameter,
    ) -> None:
        """Reduce over all ranks; rank i gets block i of the result, ``recvcounts[i]`` elements."""
        self._blocking(
            "Reduce_scatter",
            algorithm,
            parameters,
            sendbuf,
            recvbuf,
            op,
            0,
            recvcounts,
            reproducible=reproducible,
        )

    def Allgather(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> None:
        """Collect a block of every rank, on all of them."""
        self._blocking("Allgather", algorithm, parameters, sendbuf, recvbuf)

    def Allgatherv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> None:
        """Collect a block of every rank, on all of them; lengths may differ."""
        self._blocking("Allgatherv", algorithm, parameters, sendbuf, recvbuf)

    def Gather(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> None:
        """Collect a block of every rank, at the root."""
        self._blocking("Gather", algorithm, parameters, sendbuf, recvbuf, None, root)

    def Gatherv(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> None:
        """Collect a block of every rank, at the root; lengths may differ."""
        self._blocking("Gatherv", algorithm, parameters, sendbuf, recvbuf, None, root)

    def Scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> None:
        """Give every rank its block of the root's buffer."""
        self._blocking("Scatter", algorithm, parameters, sendbuf, recvbuf, None, root)

    def Scatterv(
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> None:
        """Give every rank its block of the root's buffer; lengths may differ."""
        self._blocking("Scatterv", algorithm, parameters, sendbuf, recvbuf, None, root)

    def Alltoall(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> None:
        """Send block j to rank j, for every j, and receive block i from rank i."""
        self._blocking("Alltoall", algorithm, parameters, sendbuf, recvbuf)

    def Alltoallv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> None:
        """Send a block to every rank and receive one from each; lengths may differ."""
        self._blocking("Alltoallv", algorithm, parameters, sendbuf, recvbuf)

    def Alltoallw(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> None:
        """Send a block to every rank and receive one from each; datatypes may differ too."""
        self._blocking("Alltoallw", algorithm, parameters, sendbuf, recvbuf)

    def Scan(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> None:
        """Reduce over the ranks up to this one."""
        self._blocking("Scan", algorithm, parameters, sendbuf, recvbuf, op)

    def Exscan(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        *,
        algorithm: str | None = None,
        **parameters: Parameter,
    ) -> None:
        """Reduce over the ranks before this one; rank 0's receive buffer is left alone."""
        self._blocking("Exscan", algorithm, parameters, sendbuf, recvbuf, op)


set_collectives(Blocking)
