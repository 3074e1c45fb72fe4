"""What a run has trained, out of its checkpoint: in a program, or in a file for other programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.base.files import replacing
from mpicoll.train.driver import checkpoints
from mpicoll.train.models import Sequential, specification

Arrays = dict[str, Array]
_KINDS = ("parameter", "buffer")


class Trained(NamedTuple):
    """A model out of a checkpoint.

    Attributes:
        model: The model, made of what the checkpoint says of it.
        parameters: Its parameters by name.
        buffers: Other arrays that it needs, by name.
    """

    model: Sequential
    parameters: Arrays
    buffers: Arrays


def load_model(run: str | Path, best: bool = False) -> Trained:
    """Load a trained model from a checkpoint.

    Args:
        run: A folder of checkpoints, of which the last is used, or one checkpoint.
        best: Use the best one instead.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is damaged, or its model cannot be made: it was given in Python and is no
            `Sequential` of the layers that come with mpicoll.
    """
    path = checkpoints.find(Path(run), best)
    found, facts = checkpoints.load(path, _KINDS)
    return trained_of(path, facts, found)


def trained_of(path: Path, facts: Mapping[str, Any], found: Mapping[str, Array]) -> Trained:
    """The model of a checkpoint, and its arrays.

    Args:
        path: Of the checkpoint, for messages.
        facts: What its manifest says.
        found: Its arrays, by their names there.

    Raises:
        ValueError: It cannot be made, or has other parameters than are there.
    """
    if "model" not in facts:
        raise ValueError(
            f"{path} is of format 1, which does not say what the model is: go on from it with "
            "mpicoll train --resume, which writes a checkpoint that does"
        )
    try:
        model = specification.build(facts["model"])
    except ValueError as error:
        raise ValueError(
            f"{path}: {error}; build the model in Python, and give it the arrays that mpicoll "
            "export writes"
        ) from None
    parameters, buffers = _by_kind(found)
    wanted = model.initial_parameters(0), model.initial_buffers()
    if [*map(_shapes, wanted)] != [*map(_shapes, (parameters, buffers))]:
        raise ValueError(
            f"{path}: its files have other parameters or buffers than the model it describes: "
            "take another checkpoint"
        )
    return Trained(model, parameters, buffers)


def _shapes(arrays: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}


def _by_kind(found: Mapping[str, Array]) -> tuple[Arrays, Arrays]:
    """Parameters and buffers, each by its own name."""
    parameters, buffers = (
        {
            name.removeprefix(f"{kind}/"): array
            for name, array in found.items()
            if name.startswith(f"{kind}/")
        }
        for kind in _KINDS
    )
    return parameters, buffers


# --- files for other programs ---------------------------------------------------------------------


def export_model(run: str | Path, path: str | Path, best: bool = False) -> Path:
    """Write the parameters and buffers of a checkpoint to a file, by their names.

    Args:
        run, best: As of `load_model`; any model will do.
        path: The file. Its name says the format: `.npz` of NumPy; `.safetensors`, with the package
            safetensors; `.pt` or `.pth`, a ``state_dict`` of PyTorch, which
            ``torch.load(..., weights_only=True)`` reads.

    Returns:
        The checkpoint's folder.

    Raises:
        FileNotFoundError: There is no checkpoint.
        ValueError: It is damaged, the name says no format, or a parameter and a buffer have one
            name.
        ModuleNotFoundError: The format needs a package that is not installed.
        OSError: The file cannot be written; an old one of the name is as it was.
    """
    path = Path(path)
    if path.suffix not in _WRITERS:
        raise ValueError(
            f"{path}: the name ends with no format that is known: give one that ends with "
            f"{', '.join(_WRITERS)}"
        )
    folder = checkpoints.find(Path(run), best)
    parameters, buffers = _by_kind(checkpoints.load(folder, _KINDS)[0])
    both = parameters.keys() & buffers.keys()
    if both:
        raise ValueError(
            f"{folder} has a parameter and a buffer of the name {min(both)}, and a file has one "
            "array of a name: give the layer another name"
        )
    with replacing(path) as draft:
        try:
            _WRITERS[path.suffix](draft, parameters | buffers)
        except ModuleNotFoundError as error:
            package = (error.name or "").split(".")[0]
            raise ModuleNotFoundError(
                f"{path}: files that end with {path.suffix} need the package {package}: pip "
                f"install {package}, or give a name that ends with .npz",
                name=package,
            ) from None
    return folder


def _write_npz(path: Path, arrays: Arrays) -> None:
    with ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", mode="w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def _write_safetensors(path: Path, arrays: Arrays) -> None:
    from safetensors.numpy import save_file

    save_file(arrays, path)


def _write_state_dict(path: Path, arrays: Arrays) -> None:
    import torch

    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)


_WRITERS: dict[str, Callable[[Path, Arrays], None]] = {
    ".npz": _write_npz,
    ".safetensors": _write_safetensors,
    ".pt": _write_state_dict,
    ".pth": _write_state_dict,
}
