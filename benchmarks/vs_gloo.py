"""mpicoll's default choices against PyTorch's gloo, in one launch.

    mpirun -n 2 python benchmarks/vs_gloo.py [--collectives allreduce bcast] [--largest 64M]
        [--samples 15] [--json results.jsonl]

Both work on the same memory, a NumPy array and a tensor of the same bytes (float32, sums, root 0,
all-reduce in place).  gloo's messages go through the loopback device if all ranks share a host.
Needs PyTorch (pip install torch).  How it is measured: benchmarks/pairs.py.
"""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable
from typing import Any

import pairs
import torch
import torch.distributed as dist
from mpi4py import MPI

import mpicoll
from mpicoll.bench.workload import Workload

COLLECTIVES = ["allreduce", "reduce", "bcast", "allgather", "reduce_scatter", "alltoall", "barrier"]


class Gloo:
    """gloo's collectives in mpi4py's spelling, for buffers that are plain NumPy arrays."""

    def Allreduce(self, send: Any, recv: Any, op: MPI.Op = MPI.SUM) -> None:
        if send is not MPI.IN_PLACE:
            recv[...] = send
        dist.all_reduce(torch.from_numpy(recv))

    def Reduce(self, send: Any, recv: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        # gloo's works in place on every rank: the others must not lose what they give.
        mine = torch.from_numpy(send).clone() if recv is None else torch.from_numpy(recv)
        if recv is not None:
            recv[...] = send
        dist.reduce(mine, root)

    def Bcast(self, buffer: Any, root: int = 0) -> None:
        dist.broadcast(torch.from_numpy(buffer), root)

    def Allgather(self, send: Any, recv: Any) -> None:
        dist.all_gather_into_tensor(torch.from_numpy(recv), torch.from_numpy(send))

    def Reduce_scatter_block(self, send: Any, recv: Any, op: MPI.Op = MPI.SUM) -> None:
        dist.reduce_scatter_tensor(torch.from_numpy(recv), torch.from_numpy(send))

    def Alltoall(self, send: Any, recv: Any) -> None:
        dist.all_to_all_single(torch.from_numpy(recv), torch.from_numpy(send))

    def Barrier(self) -> None:
        dist.barrier()


def join(comm: MPI.Intracomm) -> None:
    """Make gloo's group of the ranks of a communicator."""
    host, found = socket.gethostname(), comm.allgather(socket.gethostname())
    if len(set(found)) == 1:
        host = "127.0.0.1"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    host = comm.bcast(host)
    # Rank 0 lets the system choose a port, and serves there before the others ask for it.
    store = None
    if comm.Get_rank() == 0:
        store = dist.TCPStore(host, 0, comm.Get_size(), is_master=True, wait_for_workers=False)
    port = comm.bcast(store.port if store else None)
    if store is None:
        store = dist.TCPStore(host, port, comm.Get_size(), is_master=False)
    dist.init_process_group("gloo", store=store, rank=comm.Get_rank(), world_size=comm.Get_size())


def main() -> None:
    options = pairs.parser(__doc__, COLLECTIVES).parse_args()
    torch.set_num_threads(1)
    # Newer names of what older versions have, too.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    join(MPI.COMM_WORLD)
    ours, gloo = mpicoll.Intracomm(MPI.COMM_WORLD.Dup()), Gloo()

    def ways(work: Workload, words: str) -> list[Callable[[], object]]:
        return [work.bind(ours), work.bind(gloo)]

    version = {"other": f"gloo of torch {torch.__version__}", "persistent": False}
    pairs.run(options, ours, version, ways)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
