"""What a model is made of, in JSON's types: so a checkpoint can be used without the program.

    {"inputs": [784], "dtype": "float32", "loss": {"kind": "CrossEntropy"},
     "layers": [{"kind": "Dense", "outputs": 64, "gain": 2.0, "bias": true}, {"kind": "ReLU"}, ...]}

Layers and losses are those that come with mpicoll: a name from a file is looked up among them, and
nothing else is made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from mpicoll.train import models
from mpicoll.train.models.exits import EarlyExits, Exit
from mpicoll.train.models.layers import Layer
from mpicoll.train.models.losses import Loss
from mpicoll.train.models.networks import MLP, Model, Sequential

#: Of a model that cannot be described: why.
REASON = "given in Python"


def of(model: Model) -> dict[str, Any]:
    """The specification of a model; of one that has none, the reason under `REASON`."""
    try:
        if not isinstance(model, Sequential) or type(model) not in (Sequential, MLP, EarlyExits):
            raise TypeError(f"{type(model).__name__} is no Sequential of mpicoll's layers")
        return {
            "inputs": list(model.shapes[0]),
            "dtype": model.dtype.name,
            "loss": _plain(model.loss),
            "layers": _plain(model.layers),
            **({"exits": _plain(model.exits)} if isinstance(model, EarlyExits) else {}),
        }
    except TypeError as error:
        return {REASON: str(error)}


def build(found: Mapping[str, Any]) -> Sequential:
    """The model of a specification.

    Raises:
        ValueError: It is of no model that this mpicoll can make; the message says why.
    """
    if REASON in found:
        raise ValueError(f"its model was {REASON}: {found[REASON]}")
    try:
        layers, loss, inputs = (_made(found[name]) for name in ("layers", "loss", "inputs"))
        if "exits" in found:
            return EarlyExits(layers, _made(found["exits"]), inputs, found["dtype"], loss)
        return Sequential(layers, inputs, found["dtype"], loss)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"its model cannot be made by this mpicoll: {type(error).__name__}: {error}"
        ) from None


def _known() -> dict[str, type]:
    """Layers, losses and exits that come with mpicoll, by name."""
    return {
        name: found
        for name, found in vars(models).items()
        if isinstance(found, type) and {Layer, Loss, Exit} & set(found.__mro__)
    }


def _plain(value: Any) -> Any:
    """A layer, a loss, or what they are made of, in JSON's types."""
    kind = type(value)
    if _known().get(kind.__name__) is kind:
        return {
            "kind": kind.__name__,
            **{field.name: _plain(getattr(value, field.name)) for field in fields(kind)},
        }
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if value is None or kind in (bool, int, float, str):
        return value
    raise TypeError(f"{value!r} is none of the layers, losses and numbers that mpicoll knows")


def _made(value: Any) -> Any:
    """What `_plain` has described."""
    if isinstance(value, list):
        return tuple(map(_made, value))
    if isinstance(value, dict):
        kind = _known()[value["kind"]]
        return kind(**{name: _made(item) for name, item in value.items() if name != "kind"})
    return value
