"""A user's functions that see a run: what they are given."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

import numpy as np

from mpicoll.base.arrays import library_of
from mpicoll.train.models.flat import Flat, Parameters
from mpicoll.train.records import Beginning, Epoch, Step

OnBegin = Callable[[Beginning], object]
OnStep = Callable[[Step], "bool | None"] | Callable[[Step, Parameters], "bool | None"]
OnEpoch = Callable[[Epoch], "bool | None"] | Callable[[Epoch, Parameters], "bool | None"]
#: A function of a record alone.
Callback = Callable[[Any], "bool | None"]


def read_only(weights: Flat) -> Parameters:
    """Views of the parameters that refuse to be written to; but CuPy's arrays cannot refuse."""
    views = {name: view.view() for name, view in weights.views.items()}
    for view in views.values():
        if library_of(view) is np:
            view.flags.writeable = False
    return views


def seeing(callback: OnStep | OnEpoch | None, parameters: Parameters) -> Callback | None:
    """A user's function, given the parameters beside the record if it asks for two arguments."""
    function: Any = callback
    if callback is None or not _takes_two(callback):
        return function
    return lambda record: function(record, parameters)


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        parameters = signature(function).parameters.values()
    except ValueError:  # of some functions that are not written in Python
        return False
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is Parameter.empty for p in parameters) == 2
