"""What a rank waits for samples that are augmented, with and without a data server.

    mpirun -n 3 python benchmarks/data_servers.py

Two ranks train a convolutional net on mnist5k by all-reduce, with `shift:3,flip`; the third reads
for them, or does nothing. Medians over the steps, in milliseconds. Adds lines to
results/training/data_servers.jsonl.
"""

from __future__ import annotations

import statistics

from mpicoll.train import threads

threads.limit_blas_threads()

import training  # noqa: E402 - threads first
from mpi4py import MPI  # noqa: E402

import mpicoll  # noqa: E402
from mpicoll.train import Config, Step, data, run  # noqa: E402


def main() -> None:
    """Two ranks and one beside them, three times, in turn."""
    comm = mpicoll.Intracomm(MPI.COMM_WORLD)
    if comm.size != 3:
        raise SystemExit("start 3 ranks")
    dataset = data.load("mnist5k").astype("float32")
    pair = comm.Split(comm.rank == 2, comm.rank)
    for turn in range(2):
        for servers in (0, 1):
            config = Config(
                dataset="mnist5k",
                model="conv",
                dtype="float32",
                algorithm="ring",
                batch=256,
                epochs=1,
                augment="shift:3,flip",
                data_servers=servers,
            )
            steps: list[Step] = []
            group = comm if servers else pair
            if servers or comm.rank < 2:
                run(config, group, dataset=dataset, on_step=steps.append, quiet=True)
            comm.Barrier()
            if comm.rank == 0:
                facts = {"data_servers": servers, "turn": turn}
                for phase in ("loading", "compute", "exposed", "hidden", "waiting"):
                    middle = statistics.median(getattr(step, phase) for step in steps)
                    facts[phase] = round(1e3 * middle, 3)
                training.write("data_servers", facts)


if __name__ == "__main__":
    main()
