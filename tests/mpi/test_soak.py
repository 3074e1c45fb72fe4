"""Many collectives of every sort, one after another: nothing is lost, and nothing is kept.

What the libraries lose themselves is in it.  Open MPI 5.0 loses 112 bytes with each ``Bcast_init``
of its own, as a loop of ``MPI.COMM_WORLD.Bcast_init(out).Free()`` shows.  UCX, under MPICH, loses
some 300 bytes with each thread that is started, as a loop of ``Thread(target=int).start()`` shows,
unless its memory hooks are off: tests/launch.py sets UCX_MEM_EVENTS=n.
"""

import contextlib
import ctypes
import gc
import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll.comm import Intracomm
from mpicoll.engine import progress
from mpicoll.runtime import plans

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
TOTAL = P * (P + 1) // 2

LONG = os.environ.get("MPICOLL_TEST_LONG", "") not in ("", "0")
#: Operations after which memory is compared, and the most that it may have grown, bytes a rank.
FIRST, LAST, GROWTH = (10_000, 100_000, 1 << 20) if LONG else (2_000, 5_000, 1 << 17)
#: Plans that are kept: so few that all are there before memory is looked at.
PLANS = 16


def resident():
    """Bytes of memory that this process has in use, without what is free already."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Soak:
    """Operations in turn, all on the same few buffers; each checks what it got."""

    def __init__(self, comm):
        self.comm = comm
        self.ones = np.full(64, RANK + 1.0)
        self.out = np.zeros(64)
        self.blocks = np.zeros(64 * P)
        self.strided = np.full(128, RANK + 1.0)[::2]
        self.requests = []
        self.plan = comm.Allreduce_init(self.ones, self.out, algorithm="ring")

    def reduced(self, **how):
        self.out[:] = 0
        self.comm.Allreduce(self.ones, self.out, **how)
        assert self.out[0] == self.out[-1] == TOTAL

    def gathered(self, **how):
        self.comm.Allgather(self.ones, self.blocks, **how)
        assert self.blocks[0] == 1 and self.blocks[-1] == P

    def copied(self, **how):
        self.out[:] = RANK
        self.comm.Bcast(self.out, root=P - 1, **how)
        assert self.out[0] == self.out[-1] == P - 1

    def by_value(self):
        self.comm.Allreduce(self.strided, self.out, algorithm="recursive_doubling")
        assert self.out[0] == TOTAL

    def scattered(self):
        counts = [64] * P
        self.blocks[:] = RANK + 1
        self.comm.Reduce_scatter(self.blocks, self.out, counts, algorithm="pairwise")
        assert self.out[0] == TOTAL

    def exchanged(self):
        send = np.full(P, RANK + 1.0)
        self.comm.Alltoall(send, self.blocks[:P], algorithm="bruck")
        assert self.blocks[:P].tolist() == [*range(1, P + 1)]

    def varying(self, number):
        """A plan that is not in the cache for long."""
        count = number % (3 * PLANS)
        out = np.zeros(count)
        self.comm.Allreduce(np.ones(count), out, algorithm="parameter_server")
        assert not count or out[-1] == P

    def started(self, **how):
        out = np.zeros(64)
        self.requests.append((self.comm.Iallreduce(self.ones, out, **how), out))
        if len(self.requests) == 5:
            for request, result in reversed(self.requests):
                request.Wait()
                assert result[-1] == TOTAL
            self.requests.clear()

    def restarted(self):
        self.out[:] = 0
        self.plan.Start()
        self.plan.Wait()
        assert self.out[-1] == TOTAL

    def bound(self, **how):
        plan = self.comm.Bcast_init(self.out, 0, **how)
        for turn in range(2):
            self.out[:] = RANK + turn
            plan.Start()
            plan.Wait()
            assert self.out[-1] == turn
        plan.Free()

    def refused(self):
        with pytest.raises(ValueError, match="the counts must be equal"):
            self.comm.Allreduce(self.ones, self.out[:3])

    def operations(self):
        names = ("linear", "ring", "double_binary_tree", "recursive_halving_doubling", "native")
        for number in itertools.count():
            for name in names:
                yield lambda name=name: self.reduced(algorithm=name)
                yield lambda name=name: self.started(algorithm=name)
            for name in ("ring", "bruck", "native"):
                yield lambda name=name: self.gathered(algorithm=name)
            for name in ("binomial", "chain", "native"):
                yield lambda name=name: self.copied(algorithm=name)
            for name in ("linear", "native"):
                yield lambda name=name: self.bound(algorithm=name)
            for name in ("tree", "dissemination", "native"):
                yield lambda name=name: self.comm.Barrier(algorithm=name)
            yield lambda: self.reduced(reproducible=True)
            yield self.by_value
            yield self.scattered
            yield self.exchanged
            yield lambda number=number: self.varying(number)
            yield self.restarted
            yield self.refused
            yield lambda: self.comm.allreduce(1)

    def finish(self):
        for request, _ in self.requests:
            request.Wait()
        self.requests.clear()
        self.plan.Free()


@pytest.mark.skipif(P != 4, reason="once is enough: on 4 ranks")
@pytest.mark.timeout(3000)
def test_memory_does_not_grow_and_no_request_is_lost(monkeypatch):
    monkeypatch.setattr(plans, "PLANS", PLANS)
    comm = Intracomm(WORLD.Dup())
    soak = Soak(comm)
    sizes = {}
    for number, operation in zip(range(LAST + 1), soak.operations(), strict=False):
        if number in (FIRST, LAST):
            sizes[number] = resident()
        operation()
    soak.finish()
    assert not comm._state.under_way
    assert not progress.under_way
    growth = WORLD.allgather(sizes[LAST] - sizes[FIRST])
    assert max(growth) < GROWTH, f"bytes by which the ranks have grown: {growth}"
    comm.Free()
