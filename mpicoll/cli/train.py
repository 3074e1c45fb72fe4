"""``mpicoll train``: data-parallel SGD in lockstep."""

from __future__ import annotations

from typing import Annotated

import typer

from mpicoll.cli import session
from mpicoll.cli.errors import usage
from mpicoll.cli.options import Json


def command(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="mnist5k: 5,000 images of written digits.")
    ],
    model: Annotated[str, typer.Option(help="softmax or mlp.")] = "softmax",
    hidden: Annotated[
        str, typer.Option(metavar="LIST", help="Sizes of the hidden layers of an mlp, as 128,64.")
    ] = "64",
    epochs: Annotated[int, typer.Option(help="Passes over the training set.")] = 15,
    batch: Annotated[int, typer.Option(help="Samples in a step, of all ranks together.")] = 64,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 0.05,
    momentum: Annotated[float, typer.Option(help="0 for plain SGD.")] = 0.9,
    seed: Annotated[int, typer.Option(help="Of initial weights and the order of samples.")] = 0,
    dtype: Annotated[str, typer.Option(help="float64 or float32.")] = "float64",
    algorithm: Annotated[
        str, typer.Option(help="All-reduce algorithm of the gradients; auto: the tuned choice.")
    ] = "ring",
    progress: Annotated[
        bool | None,
        typer.Option("--progress/--no-progress", help="A bar; by default on a terminal only."),
    ] = None,
    json: Json = False,
) -> int:
    """Train a model on all ranks and compare its weights with those of a single process.

    Gradients of the ranks' shares of each batch are summed by all-reduce, so the result is that of
    one process but for rounding. The exit status is 1 if it differs by more.
    """
    from mpicoll.train import threads

    # Before anything loads NumPy.
    threads.limit_blas_threads()
    from mpicoll.train import Config, main

    with usage():
        config = Config(
            dataset=dataset,
            model=model,
            hidden=_layers(hidden),
            epochs=epochs,
            batch=batch,
            lr=lr,
            momentum=momentum,
            seed=seed,
            dtype=dtype,
            algorithm=None if algorithm == "auto" else algorithm,
        )
    return main(config, session.communicator(), as_json=json, progress=progress)


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(
            f"--hidden {text!r} is no list of sizes; write whole numbers, as 128,64"
        ) from None
