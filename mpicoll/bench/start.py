"""The synchronised start of a repetition: an own barrier with a fixed algorithm.

A library's barrier changes its algorithm with the number of ranks and the placement, and with it
how far apart the ranks leave; results would change with it. This one is always the dissemination
barrier: in round k every rank tells the rank 2^k ahead that it has arrived, and waits for the rank
2^k behind, so that after ceil(log2 P) rounds everyone has heard of everyone.

    P = 4      0 -> 1 -> 2 -> 3 -> 0        round 0
               0 -> 2 -> 0,  1 -> 3 -> 1    round 1

It is never part of a measured time.

Source: D. Hensgen, R. Finkel, U. Manber, Two algorithms for barrier synchronization, Int. J. of
Parallel Programming 17, 1988.
"""

from __future__ import annotations

from mpi4py import MPI


class Start:
    """A dissemination barrier over persistent requests, on a communicator of its own use.

    Args:
        comm: Communicator whose point-to-point traffic belongs to this barrier alone.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        rank, size = comm.Get_rank(), comm.Get_size()
        nothing = [bytearray(1), 0, MPI.BYTE]
        self._rounds = [
            [
                comm.Recv_init(nothing, source=(rank - distance) % size, tag=k),
                comm.Send_init(nothing, dest=(rank + distance) % size, tag=k),
            ]
            for k, distance in enumerate(1 << k for k in range((size - 1).bit_length()))
        ]

    def __call__(self) -> None:
        """Return once every rank has called."""
        for requests in self._rounds:
            MPI.Prequest.Startall(requests)
            MPI.Request.Waitall(requests)

    def free(self) -> None:
        """Free the requests; every rank must have returned from its last call."""
        for requests in self._rounds:
            for request in requests:
                request.Free()
        self._rounds = []
