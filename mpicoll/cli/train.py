"""``mpicoll train``: data-parallel SGD in lockstep."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mpicoll.cli import session
from mpicoll.cli.errors import usage
from mpicoll.cli.options import Json


def command(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="mnist5k: 5,000 images of written digits.")
    ],
    model: Annotated[
        str, typer.Option(help="softmax, mlp, or conv (a small convolutional net).")
    ] = "softmax",
    hidden: Annotated[
        str, typer.Option(metavar="LIST", help="Sizes of the hidden layers, as 128,64.")
    ] = "64",
    channels: Annotated[
        str, typer.Option(metavar="LIST", help="Channels of the convolutions of conv, as 16,32.")
    ] = "16,32",
    dropout: Annotated[
        float, typer.Option(help="Share of hidden values set to zero while training.")
    ] = 0.0,
    epochs: Annotated[int, typer.Option(help="Passes over the training set.")] = 15,
    steps: Annotated[int | None, typer.Option(help="Stop after so many steps.")] = None,
    target_loss: Annotated[
        float | None, typer.Option(help="Stop after an epoch with at most this training loss.")
    ] = None,
    target_accuracy: Annotated[
        float | None, typer.Option(help="Stop after an epoch with at least this test accuracy.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Samples in a batch, of all ranks together.")] = 64,
    batch_per_rank: Annotated[
        int | None, typer.Option(help="Samples in a batch of one rank, in place of --batch.")
    ] = None,
    accumulate: Annotated[int, typer.Option(help="Batches in a step.")] = 1,
    optimizer: Annotated[
        str, typer.Option(help="sgd, momentum, nesterov, adam or adamw.")
    ] = "momentum",
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 0.05,
    momentum: Annotated[float, typer.Option(help="Of momentum and nesterov.")] = 0.9,
    weight_decay: Annotated[float, typer.Option(help="Decoupled in adamw.")] = 0.0,
    lr_scaling: Annotated[
        str, typer.Option(help="Of the learning rate with the number of ranks: none, linear, sqrt.")
    ] = "none",
    schedule: Annotated[
        str, typer.Option(help="Of the learning rate: constant, linear, cosine or steps.")
    ] = "constant",
    warmup: Annotated[int, typer.Option(help="Steps over which the learning rate grows.")] = 0,
    clip: Annotated[
        float | None, typer.Option(help="Largest norm of a gradient; a larger one is scaled down.")
    ] = None,
    skip_limit: Annotated[
        int, typer.Option(help="Steps in a row that may be skipped as not finite.")
    ] = 10,
    loss_scale: Annotated[
        float | None, typer.Option(help="First factor of the loss in front of a narrow type.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of initial weights and the order of samples.")] = 0,
    dtype: Annotated[str, typer.Option(help="float64, float32 or float16.")] = "float64",
    strategy: Annotated[
        str, typer.Option(help="allreduce, or zero1: each rank keeps a part of the state.")
    ] = "allreduce",
    algorithm: Annotated[
        str, typer.Option(help="All-reduce algorithm of the gradients; auto: the tuned choice.")
    ] = "ring",
    bucket: Annotated[
        int | None, typer.Option(help="Bytes of gradients that are summed together.")
    ] = None,
    wire: Annotated[
        str, typer.Option(help="Gradients travel in full, fp16, bf16, int8 or topk:SHARE.")
    ] = "full",
    check_every: Annotated[
        int, typer.Option(help="Steps between comparisons of the ranks' parameters; 0: never.")
    ] = 100,
    compare: Annotated[
        bool,
        typer.Option("--compare/--no-compare", help="Train again in one process and compare."),
    ] = True,
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
    given: dict[str, Any] = dict(locals())
    from mpicoll.train import threads

    # Before anything loads NumPy.
    threads.limit_blas_threads()
    from mpicoll.train import Config, main

    for name in ("compare", "progress", "json"):
        del given[name]
    with usage():
        given["hidden"] = _sizes("--hidden", hidden)
        given["channels"] = _sizes("--channels", channels)
        given["algorithm"] = None if algorithm == "auto" else algorithm
        config = Config(**given)
    return main(config, session.communicator(), as_json=json, progress=progress, compare=compare)


def _sizes(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(
            f"{option} {text!r} is no list of sizes; write whole numbers, as 128,64"
        ) from None
