"""Started on several ranks: in each round one of them is killed during calls of one kind, and the
others go on.

The arguments are a JSON object: ``rounds``, a list of [kind, rank, when]; ``elements`` of the
arrays; ``after``: seconds after which the rank is killed by a timer, in whatever it does, null: it
kills itself just before a call, or ends by ``os._exit``, if ``exits``.  One rank prints, for each
round, what all have found.
"""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import Request
from mpicoll.comm import exit_on_exception

JOB = json.loads(sys.argv[1])
ELEMENTS, AFTER = JOB["elements"], JOB["after"]
CALLS = 10_000  # far more than any round makes


def expected(comm, k):
    return sum(rank + k for rank in range(comm.size))


def segments():
    """The files in shared memory that this process maps and that are there."""
    mapped = re.findall(r" (/dev/shm/\S+)$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    return {path for path in mapped if os.path.exists(path)}


class Kind:
    """Calls of one kind, to be made again and again: ``call(k)`` returns what is ``expected``."""

    def __init__(self, comm, name):
        self.comm, self.send, self.recv = comm, np.empty(ELEMENTS), np.empty(ELEMENTS)
        self.call = getattr(self, name)
        self.algorithm = "recursive_doubling" if name.endswith("doubling") else "ring"
        if name.startswith("persistent"):
            algorithm = {} if name == "persistent_native" else {"algorithm": self.algorithm}
            self.plan = comm.Allreduce_init(self.send, self.recv, **algorithm)

    def fill(self, k):
        self.send[:] = self.comm.rank + k

    def blocking(self, k):
        self.fill(k)
        self.comm.Allreduce(self.send, self.recv, algorithm=self.algorithm)
        return self.recv

    blocking_doubling = blocking

    def native(self, k):
        self.fill(k)
        self.comm.Allreduce(self.send, self.recv, algorithm="native")
        return self.recv

    def started(self, **algorithm):
        return self.comm.Iallreduce(self.send, self.recv, **algorithm)

    def waited(self, k):
        self.fill(k)
        self.started(algorithm=self.algorithm).Wait()
        return self.recv

    def tested(self, k):
        self.fill(k)
        request = self.started(algorithm=self.algorithm)
        while not request.Test():
            os.sched_yield()
        return self.recv

    def all_waited(self, k):
        self.fill(k)
        Request.Waitall([self.started(algorithm=self.algorithm)])
        return self.recv

    def native_waited(self, k):
        self.fill(k)
        self.started().Wait()
        return self.recv

    def native_all_waited(self, k):
        self.fill(k)
        Request.Waitall([self.started()])
        return self.recv

    def persistent(self, k):
        self.fill(k)
        self.plan.Start()
        self.plan.Wait()
        return self.recv

    persistent_doubling = persistent_native = persistent

    def barrier(self, k):
        self.comm.Barrier(algorithm="dissemination")
        return np.array([expected(self.comm, k)])

    def broadcast(self, k):
        """The root needs nothing from anybody."""
        self.recv[:] = expected(self.comm, k) if self.comm.rank == 0 else -1
        self.comm.Bcast(self.recv, algorithm="binomial")
        return self.recv

    def objects(self, k):
        return np.array([sum(self.comm.allgather(self.comm.rank + k))])


def die():
    if JOB.get("exits"):
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


def run(comm, name, victim, when):
    """A round: the communicator of those that are left, and what this rank has found."""
    kind, done, started = Kind(comm, name), 0, time.monotonic()
    before, shares = sum(comm.stats().calls.values()), comm.shared_memory() is not None
    if AFTER is not None and comm.rank == victim:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, AFTER)

    def call():
        nonlocal done, started
        for k in range(CALLS):
            if AFTER is None and comm.rank == victim and k == when:
                die()
            started = time.monotonic()
            found = kind.call(k)
            assert (found == expected(comm, k)).all(), (k, found, expected(comm, k))
            done += 1

    with pytest.raises(mpicoll.RankLost) as caught:
        call()
    lost, seconds = caught.value, time.monotonic() - started
    told = str(lost)
    for again in (comm.Barrier, comm.barrier, lambda: comm.Iallreduce(kind.send, kind.recv)):
        with pytest.raises(mpicoll.RankLost) as caught:
            again()
        assert caught.value is lost
    assert comm.lost_ranks() == lost.ranks == (victim,)
    left = comm.survivors()
    recovered = time.monotonic() - started
    while len(segments()) > left.size:  # the launcher removes what the MPI library shared
        assert time.monotonic() < started + 10, segments()
    counts = left.allgather(done)
    each = 2 if name == "objects" else 1  # lengths, and what has them
    assert 0 <= lost.finished - before - each * min(counts) < each, (lost.finished, before, counts)
    assert lost.ranks == (victim,) and left.size == comm.size - 1
    # Only the root of a broadcast does not wait for anybody.
    assert max(counts) - min(counts) <= 1 or name == "broadcast", counts
    assert (left.shared_memory() is not None) == (shares and left.size > 1)
    return left, {"kind": name, "seconds": seconds, "recovered": recovered, "told": told}


@exit_on_exception()
def main():
    comm = mpicoll.Intracomm(MPI.COMM_WORLD, survive=True)
    for name, victim, when in JOB["rounds"]:
        comm, found = run(comm, name, victim, when)
        every = comm.gather(found)
        if comm.rank == 0:
            print(json.dumps(every), flush=True)
    if comm.rank == 0:
        print("done", flush=True)
    comm.leave()


main()
