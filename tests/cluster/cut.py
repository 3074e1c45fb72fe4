"""All-reduces without end; what becomes of each rank when a link is cut.

``cut.py FOLDER ALGORITHM``: rank R makes ``FOLDER/alive-R`` after the first one, and writes the
error that ends its last one, with its seconds, to ``FOLDER/error-R`` as JSON.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import mpicoll

folder, algorithm = Path(sys.argv[1]), sys.argv[2]
comm = mpicoll.Intracomm(MPI.COMM_WORLD)
rank = comm.Get_rank()
values = np.empty(20_000)
while True:
    values[:] = rank
    begin = time.monotonic()
    try:
        comm.Allreduce(MPI.IN_PLACE, values, algorithm=algorithm)
    except Exception as error:
        seconds = time.monotonic() - begin
        words = {"seconds": seconds, "type": type(error).__name__, "words": str(error)}
        (folder / f".error-{rank}").write_text(json.dumps(words))
        (folder / f".error-{rank}").rename(folder / f"error-{rank}")
        break
    (folder / f"alive-{rank}").touch()
time.sleep(999)  # until the test has seen it; nothing could be sent to the others
