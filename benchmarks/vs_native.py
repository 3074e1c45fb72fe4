"""mpicoll's default choices against the MPI library's own collectives, in one launch.

    mpirun -n 2 python benchmarks/vs_native.py [--collectives allreduce bcast] [--largest 64M]
        [--type half] [--persistent] [--samples 15] [--json results.jsonl]

Both are called through mpi4py's spelling, in the same process, on the same buffers (float32 if no
type is named; sums; the root is rank 0; all-reduce in place). With --persistent a call is the start
of a persistent one and the wait for its end; mpicoll's names the algorithm that is its default. A
size where the choice is the library's own counts as 1 in the geometric mean. How it is measured:
benchmarks/pairs.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pairs
from mpi4py import MPI

import mpicoll
from mpicoll import tuning
from mpicoll.bench.workload import Workload
from mpicoll.schedule.collectives import COLLECTIVES


def persistent(comm: MPI.Intracomm, call: Any, **choice: Any) -> Callable[[], object]:
    """The start and the end of a persistent call, for a blocking one of a communicator's."""
    init = getattr(comm, f"{call.func.__name__}_init")
    plan = init(*call.args, **call.keywords, **choice)

    def run() -> None:
        plan.Start()
        plan.Wait()

    weakref.finalize(run, plan.Free)  # MPICH complains of those that are not freed
    return run


def main() -> None:
    parser = pairs.parser(__doc__, list(COLLECTIVES))
    parser.add_argument("--persistent", action="store_true", help="measure Start and Wait")
    options = parser.parse_args()
    ours = mpicoll.Intracomm(MPI.COMM_WORLD.Dup())

    def ways(work: Workload, words: str) -> list[Callable[[], object]]:
        calls = [work.bind(ours), work.bind(MPI.COMM_WORLD)]
        if not options.persistent:
            return calls
        choice = tuning.parse(work.collective, words, tuning.ARGUMENT)
        named = {"algorithm": choice.algorithm, **dict(choice.parameters)}
        return [persistent(ours, calls[0], **named), persistent(MPI.COMM_WORLD, calls[1])]

    pairs.run(options, ours, {"other": "native", "persistent": options.persistent}, ways)


if __name__ == "__main__":
    main()
