"""The blocking collectives of mpi4py, with ``algorithm=`` and its parameters by keyword."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from mpicoll.buffers import buckets
from mpicoll.comm.dispatch import Dispatch
from mpicoll.runtime.state import METHODS
from mpicoll.schedule.collectives import Place
from mpicoll.schedule.parameters import Parameter

__all__ = ["Blocking"]

(
    ALLREDUCE,
    REDUCE,
    BCAST,
    BARRIER,
    ALLGATHER,
    REDUCE_SCATTER_BLOCK,
    ALLTOALL,
    GATHER,
    SCATTER,
    SCAN,
    EXSCAN,
) = METHODS.values()


class Blocking(Dispatch):
    """Collectives that return when they are complete on this rank."""

    def Barrier(self, *, algorithm: str | None = None, **parameters: Parameter) -> None:
        """Wait until all ranks have entered."""
        if not parameters and self._front.serve(self, BARRIER, None, None, None, 0, algorithm):
            return
        self._blocking("Barrier", algorithm=algorithm, parameters=parameters)

    def Bcast(
        self, buf: Any, root: int = 0, *, algorithm: str | None = None, **parameters: Parameter
    ) -> None:
        """Copy the root's buffer to all ranks."""
        if not parameters and self._front.serve(self, BCAST, None, buf, None, root, algorithm):
            return
        self._blocking("Bcast", None, buf, root=root, algorithm=algorithm, parameters=parameters)

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
        if not (reproducible or parameters) and self._front.serve(
            self, REDUCE, sendbuf, recvbuf, op, root, algorithm
        ):
            return
        self._blocking(
            "Reduce",
            sendbuf,
            recvbuf,
            op=op,
            root=root,
            algorithm=algorithm,
            parameters=parameters,
            reproducible=reproducible,
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
        if not (reproducible or parameters) and self._front.serve(
            self, ALLREDUCE, sendbuf, recvbuf, op, 0, algorithm
        ):
            return
        if not buckets.is_list(recvbuf):
            self._blocking(
                "Allreduce",
                sendbuf,
                recvbuf,
                op=op,
                algorithm=algorithm,
                parameters=parameters,
                reproducible=reproducible,
            )
            return
        state = self._ready()
        for bucket in buckets.buckets(Place(state.rank, state.size, 0, 1), sendbuf, recvbuf):
            bucket.reduce(
                lambda send, recv: self._blocking(
                    "Allreduce",
                    send,
                    recv,
                    op=op,
                    algorithm=algorithm,
                    parameters=parameters,
                    reproducible=reproducible,
                )
            )

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
        if not (reproducible or parameters) and self._front.serve(
            self, REDUCE_SCATTER_BLOCK, sendbuf, recvbuf, op, 0, algorithm
        ):
            return
        self._blocking(
            "Reduce_scatter_block",
            sendbuf,
            recvbuf,
            op=op,
            algorithm=algorithm,
            parameters=parameters,
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
        if not (reproducible or parameters or recvcounts is None) and self._front.serve_vectors(
            self, "Reduce_scatter", sendbuf, recvbuf, recvcounts, op, 0, algorithm
        ):
            return
        self._blocking(
            "Reduce_scatter",
            sendbuf,
            recvbuf,
            counts=recvcounts,
            op=op,
            algorithm=algorithm,
            parameters=parameters,
            reproducible=reproducible,
        )

    def Allgather(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> None:
        """Collect a block of every rank, on all of them."""
        if not parameters and self._front.serve(
            self, ALLGATHER, sendbuf, recvbuf, None, 0, algorithm
        ):
            return
        self._blocking("Allgather", sendbuf, recvbuf, algorithm=algorithm, parameters=parameters)

    def Allgatherv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> None:
        """Collect a block of every rank, on all of them; lengths may differ."""
        if not parameters and self._front.serve_vectors(
            self, "Allgatherv", sendbuf, recvbuf, None, None, 0, algorithm
        ):
            return
        self._blocking("Allgatherv", sendbuf, recvbuf, algorithm=algorithm, parameters=parameters)

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
        if not parameters and self._front.serve(
            self, GATHER, sendbuf, recvbuf, None, root, algorithm
        ):
            return
        self._blocking(
            "Gather", sendbuf, recvbuf, root=root, algorithm=algorithm, parameters=parameters
        )

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
        if not parameters and self._front.serve_vectors(
            self, "Gatherv", sendbuf, recvbuf, None, None, root, algorithm
        ):
            return
        self._blocking(
            "Gatherv", sendbuf, recvbuf, root=root, algorithm=algorithm, parameters=parameters
        )

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
        if not parameters and self._front.serve(
            self, SCATTER, sendbuf, recvbuf, None, root, algorithm
        ):
            return
        self._blocking(
            "Scatter", sendbuf, recvbuf, root=root, algorithm=algorithm, parameters=parameters
        )

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
        if not parameters and self._front.serve_vectors(
            self, "Scatterv", sendbuf, recvbuf, None, None, root, algorithm
        ):
            return
        self._blocking(
            "Scatterv", sendbuf, recvbuf, root=root, algorithm=algorithm, parameters=parameters
        )

    def Alltoall(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> None:
        """Send block j to rank j, for every j, and receive block i from rank i."""
        if not parameters and self._front.serve(
            self, ALLTOALL, sendbuf, recvbuf, None, 0, algorithm
        ):
            return
        self._blocking("Alltoall", sendbuf, recvbuf, algorithm=algorithm, parameters=parameters)

    def Alltoallv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> None:
        """Send a block to every rank and receive one from each; lengths may differ."""
        if not parameters and self._front.serve_vectors(
            self, "Alltoallv", sendbuf, recvbuf, None, None, 0, algorithm
        ):
            return
        self._blocking("Alltoallv", sendbuf, recvbuf, algorithm=algorithm, parameters=parameters)

    def Alltoallw(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, **parameters: Parameter
    ) -> None:
        """Send a block to every rank and receive one from each; datatypes may differ too."""
        if not parameters and self._front.serve_vectors(
            self, "Alltoallw", sendbuf, recvbuf, None, None, 0, algorithm
        ):
            return
        self._blocking("Alltoallw", sendbuf, recvbuf, algorithm=algorithm, parameters=parameters)

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
        if not parameters and self._front.serve(self, SCAN, sendbuf, recvbuf, op, 0, algorithm):
            return
        self._blocking("Scan", sendbuf, recvbuf, op=op, algorithm=algorithm, parameters=parameters)

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
        if not parameters and self._front.serve(self, EXSCAN, sendbuf, recvbuf, op, 0, algorithm):
            return
        self._blocking(
            "Exscan", sendbuf, recvbuf, op=op, algorithm=algorithm, parameters=parameters
        )
