"""``mpicoll export``: a trained model's parameters for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mpicoll.cli import output
from mpicoll.cli.errors import UsageError, reading
from mpicoll.cli.options import Best, Run


def command(
    run: Run,
    file: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE", help="File to write, such as model.safetensors."
        ),
    ],
    best: Best = False,
) -> int:
    """Write the parameters of a checkpoint to a file, by name.

    The name of the file says the format: `.npz` of NumPy, `.safetensors`, or `.pt`, a state_dict
    of PyTorch that `torch.load(..., weights_only=True)` reads. The last two need the packages
    safetensors and torch.
    """
    from mpicoll.train import export_model

    with reading():
        try:
            folder = export_model(run, file, best)
        except ModuleNotFoundError as error:
            raise UsageError(str(error)) from None
    output.remark(f"parameters of {folder} written to {file}")
    return 0
