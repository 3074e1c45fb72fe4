"""What a small decoder learns of Python's own library, beside a table of three bytes.

    mpirun -n 2 python benchmarks/decoder.py

Two layers of width 128, 4 heads, 128 bytes of context, float32, Adam with a cosine schedule; 2930
steps of 8 samples are 3.0 million bytes.
Adds lines to results/training/decoder.jsonl.
"""

from __future__ import annotations

import argparse
import time

from mpicoll.train import threads

threads.limit_blas_threads()

import training  # noqa: E402 - threads first
from mpi4py import MPI  # noqa: E402

import mpicoll  # noqa: E402
from mpicoll.train import Config, data, run  # noqa: E402
from mpicoll.train.data import trigram_loss  # noqa: E402


def main() -> None:
    """Train once, and make the table of the same files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=2930)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    comm = mpicoll.Intracomm(MPI.COMM_WORLD)
    dataset = data.load("text")
    config = Config(
        dataset="text",
        model="transformer",
        dtype="float32",
        optimizer="adam",
        lr=options.lr,
        schedule="cosine",
        warmup=min(100, options.steps // 4),
        batch=options.batch,
        epochs=1 + options.steps * options.batch // len(dataset.train_targets),
        steps=options.steps,
        seed=options.seed,
    )
    processor = time.process_time()
    result = run(config, comm, dataset=dataset, quiet=True)
    processor = comm.allreduce(time.process_time() - processor)
    if comm.rank == 0:
        text, held_out = (dataset.parts[part][0][:].reshape(-1) for part in ("train", "validation"))
        facts = {
            "ranks": comm.size,
            "text": dataset.about,
            "bytes": options.steps * options.batch * dataset.features,
            "lr": options.lr,
            "seed": options.seed,
            "validation_loss": round(result.history[-1].validation["loss"], 4),
            "test_loss": round(result.test["loss"], 4),
            "table": round(trigram_loss(text, held_out), 4),
            "processor_seconds": round(processor, 1),
        }
        training.write("decoder", facts)


if __name__ == "__main__":
    main()
