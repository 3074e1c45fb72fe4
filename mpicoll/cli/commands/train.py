"""``mpicoll train``: SGD on all ranks, which share the data, and with a mesh the model too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mpicoll.cli import session
from mpicoll.cli.errors import reading, usage
from mpicoll.cli.options import Json, from_fields, on_command_line
from mpicoll.train.options import Options

#: The options of the help by group; others stand last.
GROUPS = {
    "Data": "data context augment batch batch_per_rank accumulate data_servers",
    "Model": "model hidden channels layers width heads blocks norm dropout dtype device seed",
    "Optimizer": "optimizer lr momentum weight_decay decay_on groups lr_scaling schedule warmup "
    "clip loss_scale skip_limit",
    "Length and evaluation": "epochs steps pause_after target_loss target_accuracy evaluate_train",
    "Pipeline and tensor parallelism": "mesh microbatches pipeline_schedule ahead chunks cut "
    "sequence recompute timeline",
    "Ranks": "strategy gather keep_gathered algorithm bucket wire invariant deterministic balance "
    "survive spares check_every hang_after",
    "Parameter server, local SGD and gossip": "servers consistency push_rate workers replicas "
    "send_every apply_at_once average_every graph",
    "Checkpoints and records": "checkpoint checkpoint_every keep resume metrics tensorboard",
}


#: The group of each option.
GROUP_OF = {field: name for name, of in GROUPS.items() for field in of.split()}


@from_fields(Options, GROUP_OF)
def command(
    invocation: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read options from a TOML or YAML file."),
    ] = None,
    *,
    compare: Annotated[
        bool,
        typer.Option("--compare/--no-compare", help="Train again in one process and compare."),
    ] = False,
    progress: Annotated[
        bool | None,
        typer.Option("--progress/--no-progress", help="Progress bars; default: on a terminal."),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Say what a step sends along each axis, and train nothing."),
    ] = False,
    json: Json = False,
    **_: Any,
) -> int:
    """Train a model on all ranks.

    The ranks share each batch, with --mesh also the layers: the result equals that of one process
    up to rounding; with --compare the exit status is 1 if it does not. On SIGTERM or SIGUSR1 all
    ranks write a checkpoint and exit with status 75; `--resume auto` continues.
    """
    from mpicoll.train import threads

    # Before anything loads NumPy.
    threads.limit_blas_threads()
    from mpicoll.train import Config, main

    with usage():
        chosen = Config(**given(invocation, config))
    if chosen.device == "gpu":
        session.use_gpu()
    return main(
        chosen,
        session.communicator(),
        as_json=json,
        progress=progress,
        compare=compare,
        explain=explain,
    )


def given(invocation: typer.Context, path: Path | None) -> dict[str, Any]:
    """What the file says, and over it what the command line says."""
    from mpicoll.train.driver import config_file

    with reading():
        values = {} if path is None else config_file.read(path)
    for name in on_command_line(invocation, config_file.KEYS):
        values[name] = invocation.params[name]
    for name in ("hidden", "channels"):
        if isinstance(values.get(name), str):
            values[name] = _sizes(f"--{name}", values[name])
    if isinstance(values.get("groups"), str):
        values["groups"] = tuple(part for part in values["groups"].split(",") if part.strip())
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
