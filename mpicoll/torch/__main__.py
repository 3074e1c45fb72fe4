"""Run a script as PyTorch's launcher would, where MPI has started it:

    mpirun -n 4 python -m mpicoll.torch script.py [arguments]     (or -m module, as Python has it)

Sets what torchrun sets, for what MPI knows: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
GROUP_RANK, MASTER_ADDR and MASTER_PORT, where a store serves.  A rank takes one thread where
several share a node, unless OMP_NUM_THREADS or its like says otherwise.  An exception ends the
whole job.
"""

from __future__ import annotations

import os
import sys

from mpi4py import MPI
from mpi4py.run import run_command_line

from mpicoll.train import threads


def main() -> None:
    """Run what the command line asks for."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        if MPI.COMM_WORLD.Get_rank() == 0:
            print(__doc__)
        sys.exit(0 if arguments else 2)
    world = MPI.COMM_WORLD
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    if node.Get_size() > 1:
        threads.limit_blas_threads()

    from mpicoll.comm import abort_on_exception  # after that, since NumPy comes with it
    from mpicoll.torch.rendezvous import address, serve

    with abort_on_exception():
        store = serve(world)  # as long as the script runs
        os.environ.update(
            RANK=str(world.Get_rank()),
            WORLD_SIZE=str(world.Get_size()),
            LOCAL_RANK=str(node.Get_rank()),
            LOCAL_WORLD_SIZE=str(node.Get_size()),
            GROUP_RANK=str(_number_of(node, world)),
            MASTER_ADDR=address(world),
            MASTER_PORT=str(store.port),
            # The store serves already: PyTorch is not to start another there.
            TORCHELASTIC_USE_AGENT_STORE="True",
        )
        node.Free()
        run_command_line(arguments)


def _number_of(node: MPI.Comm, world: MPI.Intracomm) -> int:
    """The number of this rank's node, in the order of their first ranks.  Collective."""
    firsts = world.allgather(node.bcast(world.Get_rank()))
    return sorted(set(firsts)).index(firsts[world.Get_rank()])


if __name__ == "__main__":
    main()
