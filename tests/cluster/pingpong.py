"""A plain ping-pong between the first rank and each other one, by mpi4py alone.

``pingpong.py TURNS SIZE...`` prints JSON: for each other rank, for each size, the seconds that a
message takes one way, in each of the turns.
"""

import json
import sys
import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
turns, sizes = int(sys.argv[1]), list(map(int, sys.argv[2:]))
found: dict[int, dict[int, list[float]]] = {}
for other in range(1, comm.Get_size()):
    for size in sizes:
        message, times = np.zeros(size, np.uint8), []
        comm.Barrier()
        for _ in range(turns + 2):
            begin = time.perf_counter()
            if rank == 0:
                comm.Send(message, other)
                comm.Recv(message, other)
            elif rank == other:
                comm.Recv(message, 0)
                comm.Send(message, 0)
            times.append((time.perf_counter() - begin) / 2)
        found.setdefault(other, {})[size] = times[2:]
if rank == 0:
    print(json.dumps(found))
