"""Ranks without MPI: threads of this process, and the communicator that they need."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

#: Seconds after which a rank gives up to wait for the others.
PATIENCE = 20

_here = threading.local()


def rank():
    """The rank that this thread is."""
    return _here.rank


class Ranks:
    """So many ranks."""

    def __init__(self, size):
        self.size = size
        self._meeting = threading.Barrier(size)
        self._box = [None] * size

    def run(self, work):
        """Call ``work(comm)`` on all ranks at once: what it returns, or the first error."""
        with ThreadPoolExecutor(self.size) as pool:
            futures = [pool.submit(self._run, work, number) for number in range(self.size)]
        errors = [future.exception() for future in futures]
        others = (threading.BrokenBarrierError, type(None))
        for error in sorted(errors, key=lambda error: isinstance(error, others)):
            if error is not None:
                raise error
        return [future.result() for future in futures]

    def _run(self, work, number):
        _here.rank = number
        try:
            return work(_Comm(self, number))
        except BaseException:
            self._meeting.abort()  # nobody waits for this rank
            raise


class _Comm:
    """A rank's communicator."""

    def __init__(self, ranks, number):
        self._ranks, self._number = ranks, number

    def Get_rank(self):
        return self._number

    def Get_size(self):
        return self._ranks.size

    def Barrier(self):
        self._ranks._meeting.wait(PATIENCE)

    def allgather(self, own):
        self._ranks._box[self._number] = own
        self.Barrier()
        found = [*self._ranks._box]
        self.Barrier()
        return found

    def Ibarrier(self):
        return _Ibarrier(self)


class _Ibarrier:
    """It is complete when it is asked for."""

    def __init__(self, comm):
        self._comm = comm

    def Test(self):
        self._comm.Barrier()
        return True
