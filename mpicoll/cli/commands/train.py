"""``mpicoll train``: data-parallel SGD in lockstep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mpicoll.cli import session
from mpicoll.cli.errors import UsageError, describe, usage
from mpicoll.cli.options import Json


def command(
    context: typer.Context,
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="[DATASET]",
            help="digits, mnist5k, fashion-mnist, an .npz file or a folder of .npy files.",
        ),
    ] = "mnist5k",
    config: Annotated[
        Path | None,
        typer.Option(help="A TOML or YAML file; keys are these options, with _ for -."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where the files of fashion-mnist are.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="softmax, mlp, or conv (a small convolutional net).")
    ] = "softmax",
    hidden: Annotated[
        str, typer.Option(metavar="LIST", help="Sizes of the hidden layers, as 128,64.")
    ] = "64",
    channels: Annotated[
        str, typer.Option(metavar="LIST", help="Channels of the convolutions of conv, as 16,32.")
    ] = "16,32",
    augment: Annotated[
        str | None, typer.Option(help="Of images: shift:N, flip or shift:N,flip.")
    ] = None,
    data_servers: Annotated[
        int, typer.Option(help="Ranks, the last, that read and augment data for the others.")
    ] = 0,
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
    device: Annotated[str, typer.Option(help="cpu, or gpu (with CuPy).")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float64, float32 or float16.")] = "float64",
    strategy: Annotated[
        str, typer.Option(help="allreduce, zero1, parameter_server, local_sgd or gossip.")
    ] = "allreduce",
    servers: Annotated[
        str,
        typer.Option(help="Of parameter_server: a number, colocated or decentralized."),
    ] = "colocated",
    consistency: Annotated[
        str,
        typer.Option(help="Of parameter_server: bsp, ssp:S, adaptive:MIN,MAX[,M] or async."),
    ] = "bsp",
    push_rate: Annotated[
        str,
        typer.Option(help="Learning rate of a push, but in bsp: share, staleness or full."),
    ] = "share",
    workers: Annotated[
        int | None,
        typer.Option(help="Of parameter_server: ranks that must be left to compute."),
    ] = None,
    replicas: Annotated[
        int, typer.Option(help="Of parameter_server: servers that hold each server's part too.")
    ] = 0,
    send_every: Annotated[
        int | None,
        typer.Option(help="Of parameter_server: updates after which servers send unasked."),
    ] = None,
    apply_at_once: Annotated[
        bool,
        typer.Option(
            "--apply-at-once/--apply-between",
            help="With --send-every: take over what arrives between layers, or between steps.",
        ),
    ] = False,
    average_every: Annotated[int, typer.Option(help="Of local_sgd: steps between averages.")] = 8,
    graph: Annotated[str, typer.Option(help="Of gossip: ring or exponential.")] = "exponential",
    algorithm: Annotated[
        str,
        typer.Option(
            help="All-reduce algorithm of the gradients; auto: the tuned choice; default: ring, on "
            "GPUs auto."
        ),
    ] = "default",
    bucket: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Gradients that are summed together; model: as MPICOLL_MODEL says.",
        ),
    ] = None,
    wire: Annotated[
        str, typer.Option(help="Gradients travel in full, fp16, bf16, int8 or topk:SHARE.")
    ] = "full",
    invariant: Annotated[
        int | None,
        typer.Option(
            metavar="[=V]",
            help="The same bits on any number of ranks up to V, 16 if it is not said.",
        ),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="The same bits for every bucket size."),
    ] = False,
    balance: Annotated[
        str, typer.Option(help="Samples of each rank: none (as many) or speed (as it is fast).")
    ] = "none",
    check_every: Annotated[
        int, typer.Option(help="Steps between comparisons of the ranks' parameters; 0: never.")
    ] = 100,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Keep checkpoints there.")
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Steps between checkpoints; by default, one an epoch.")
    ] = None,
    keep: Annotated[int, typer.Option(help="Checkpoints kept beside the best.")] = 2,
    resume: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Go on from a checkpoint; auto: from the last, if any."),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write JSON lines there, a file a rank.")
    ] = None,
    tensorboard: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write event files of TensorBoard there.")
    ] = None,
    hang_after: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="All ranks write their stacks where no step ends for so long."
        ),
    ] = 600.0,
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
    one process but for rounding. The exit status is 1 if it differs by more. SIGTERM or SIGUSR1 on
    any rank lets all write a checkpoint and leave with status 75; `--resume auto` goes on.
    """
    from mpicoll.train import threads

    # Before anything loads NumPy.
    threads.limit_blas_threads()
    from mpicoll.train import Config, main

    with usage():
        chosen = Config(**_given(context, config))
    if chosen.device == "gpu":
        session.use_gpu()
    return main(chosen, session.communicator(), as_json=json, progress=progress, compare=compare)


def _given(context: typer.Context, path: Path | None) -> dict[str, Any]:
    """What the file says, and over it what the command line says."""
    from mpicoll.train.driver import config_file

    values = {}
    if path is not None:
        try:
            values = config_file.read(path)
        except OSError as error:
            raise UsageError(describe(error)) from None
    for name in config_file.KEYS:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            values[name] = context.params[name]
    for name in ("hidden", "channels"):
        if isinstance(values.get(name), str):
            values[name] = _sizes(f"--{name}", values[name])
    if isinstance(values.get("bucket"), str) and values["bucket"].isdecimal():
        values["bucket"] = int(values["bucket"])
    if values.get("algorithm") == "auto":
        values["algorithm"] = None
    return values


def _sizes(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(
            f"{option} {text!r} is no list of sizes; write whole numbers, as 128,64"
        ) from None
