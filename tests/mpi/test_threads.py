"""Threads with communicators of their own, side by side."""

import threading

import numpy as np
import pytest
from connected import connected
from mpi4py import MPI

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="no MPI_THREAD_MULTIPLE"),
]

WORLD = MPI.COMM_WORLD


def test_each_thread_gets_its_own_sums():
    comms = [connected(WORLD.Dup()) for _ in range(3)]
    wrong, failures = [], []

    def work(number, comm):
        try:
            for step in range(30):
                out = np.zeros(50 + number)
                own = np.full(50 + number, step + 100.0 * number)
                comm.Allreduce(
                    own, out, algorithm=("ring", "native", "linear")[(step + number) % 3]
                )
                if (out != WORLD.size * own).any():
                    wrong.append((number, step))
                comm.Barrier(algorithm="dissemination")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(comms)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not failures
    for comm in comms:
        comm.Free()
