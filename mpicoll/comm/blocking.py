"""The blocking collectives of mpi4py, with ``algorithm=`` and its parameters by keyword."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mpi4py import MPI

from mpicoll.buffers import buckets
from mpicoll.comm.dispatch import Dispatch
from mpicoll.schedule.collectives import Place
from mpicoll.schedule.methods import METHODS
from mpicoll.schedule.parameters import Parameter

# The numbers of methods on the fast path.
ALLREDUCE = METHODS["Allreduce"].number
REDUCE = METHODS["Reduce"].number
BCAST = METHODS["Bcast"].number
BARRIER = METHODS["Barrier"].number
ALLGATHER = METHODS["Allgather"].number
ALLGATHERV = METHODS["Allgatherv"].number
REDUCE_SCATTER_BLOCK = METHODS["Reduce_scatter_block"].number
REDUCE_SCATTER = METHODS["Reduce_scatter"].number
ALLTOALL = METHODS["Alltoall"].number
ALLTOALLV = METHODS["Alltoallv"].number
ALLTOALLW = METHODS["Alltoallw"].number
GATHER = METHODS["Gather"].number
GATHERV = METHODS["Gatherv"].number
SCATTER = METHODS["Scatter"].number
SCATTERV = METHODS["Scatterv"].number
SCAN = METHODS["Scan"].number
EXSCAN = METHODS["Exscan"].number


class Blocking(Dispatch):
    """Collectives that return when they are complete on this rank."""

    def Barrier(self, *, algorithm: str | None = None, **parameters: Parameter) -> None:
        """Wait until all ranks have entered."""
        if parameters or not self._fast_path.serve(
            self, BARRIER, None, None, None, 0, None, algorithm
        ):
            self._blocking("Barrier", algorithm, parameters)

    def Bcast(
        self, buf: Any, root: int = 0, *, algorithm: str | None = None, **parameters: Parameter
    ) -> None:
        """Copy the root's buffer to all ranks."""
        if parameters or not self._fast_path.serve(
            self, BCAST, None, buf, None, root, None, algorithm
        ):
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
        if not (reproducible or parameters) and self._fast_path.serve(
            self, REDUCE, sendbuf, recvbuf, op, root, None, algorithm
        ):
            return
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
        if not (reproducible or parameters) and self._fast_path.serve(
            self, ALLREDUCE, sendbuf, recvbuf, op, 0, None, algorithm
        ):
            return
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
        if not (reproducible or parameters) and self._fast_path.serve(
            self, REDUCE_SCATTER_BLOCK, sendbuf, recvbuf, op, 0, None, algorithm
        ):
            return
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
        # Without counts the ranks tell one another first.
        if not (reproducible or parameters or recvcounts is None) and self._fast_path.serve(
            self, REDUCE_SCATTER, sendbuf, recvbuf, op, 0, recvcounts, algorithm
        ):
            return
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
        if parameters or not self._fast_path.serve(
            self, ALLGATHER, sendbuf, recvbuf, None, 0, None, algorithm
        ):
            self._blocking("Allgather", algorithm, parameters, sendbuf, recvbuf)

    def Allgatherv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> None:
        """Collect a block of every rank, on all of them; lengths may differ."""
        if parameters or not self._fast_path.serve(
            self, ALLGATHERV, sendbuf, recvbuf, None, 0, None, algorithm
        ):
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
        if parameters or not self._fast_path.serve(
            self, GATHER, sendbuf, recvbuf, None, root, None, algorithm
        ):
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
        if parameters or not self._fast_path.serve(
            self, GATHERV, sendbuf, recvbuf, None, root, None, algorithm
        ):
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
        if parameters or not self._fast_path.serve(
            self, SCATTER, sendbuf, recvbuf, None, root, None, algorithm
        ):
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
        if parameters or not self._fast_path.serve(
            self, SCATTERV, sendbuf, recvbuf, None, root, None, algorithm
        ):
            self._blocking("Scatterv", algorithm, parameters, sendbuf, recvbuf, None, root)

    def Alltoall(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> None:
        """Send block j to rank j, for every j, and receive block i from rank i."""
        if parameters or not self._fast_path.serve(
            self, ALLTOALL, sendbuf, recvbuf, None, 0, None, algorithm
        ):
            self._blocking("Alltoall", algorithm, parameters, sendbuf, recvbuf)

    def Alltoallv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> None:
        """Send a block to every rank and receive one from each; lengths may differ."""
        if parameters or not self._fast_path.serve(
            self, ALLTOALLV, sendbuf, recvbuf, None, 0, None, algorithm
        ):
            self._blocking("Alltoallv", algorithm, parameters, sendbuf, recvbuf)

    def Alltoallw(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> None:
        """Send a block to every rank and receive one from each; datatypes may differ too."""
        if parameters or not self._fast_path.serve(
            self, ALLTOALLW, sendbuf, recvbuf, None, 0, None, algorithm
        ):
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
        if parameters or not self._fast_path.serve(
            self, SCAN, sendbuf, recvbuf, op, 0, None, algorithm
        ):
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
        if parameters or not self._fast_path.serve(
            self, EXSCAN, sendbuf, recvbuf, op, 0, None, algorithm
        ):
            self._blocking("Exscan", algorithm, parameters, sendbuf, recvbuf, op)
