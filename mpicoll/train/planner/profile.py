"""How long the layers of a model take: measured for some sizes of a microbatch, or from a rate.

A file is JSON::

    {"mpicoll": "layers 1", "about": {"ranks": 4, ...},
     "layers": [{"kind": "Dense", "inputs": [784], "parameters": 50240,
                 "times": [{"samples": 1, "forward": 2e-5, "input": 2e-5, "weight": 3e-5}, ...]},
                ...]}

Times are seconds; see `LayerProfile`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpicoll.base.files import checked_json, naming, write_atomically

FORMAT = "layers 1"
#: Of a layer, in a file.
_MOST_SECONDS = 1e6


class Times(NamedTuple):
    """Seconds of a layer for a microbatch.

    Attributes:
        samples: Of the microbatch.
        forward: Of the forward pass.
        input, weight: Of the backward pass in two parts; where it has one, that is `input`.
    """

    samples: int
    forward: float
    input: float
    weight: float


@dataclass(frozen=True)
class LayerProfile:
    """One layer of a model.

    Attributes:
        kind: Of layer.
        inputs: Shape of a sample at its inputs.
        parameters: How many.
        times: For some sizes of a microbatch, ascending.
    """

    kind: str
    inputs: tuple[int, ...]
    parameters: int
    times: tuple[Times, ...]

    def at(self, samples: int) -> Times:
        """Times for a microbatch: between sizes that were measured, and beyond, straight lines.

        Beyond, they are never shorter than at the nearest size, nor longer for fewer samples.
        """
        sizes = [t.samples for t in self.times]
        found = []
        for name in ("forward", "input", "weight"):
            seconds = [getattr(t, name) for t in self.times]
            value = float(np.interp(samples, sizes, seconds))
            if samples > sizes[-1]:
                value = seconds[-1] * samples / sizes[-1]
                if len(sizes) > 1:
                    slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
                    value = seconds[-1] + max(slope, 0.0) * (samples - sizes[-1])
            elif len(sizes) == 1:
                value = seconds[0] * samples / sizes[0]
            found.append(value)
        return Times(samples, *found)


@dataclass(frozen=True)
class Profile:
    """The layers of a model.

    Attributes:
        layers: First to last.
        about: Where and how they were measured; for the reader.
    """

    layers: tuple[LayerProfile, ...]
    about: dict[str, Any] = field(default_factory=dict)


def write(path: str | Path, profile: Profile) -> None:
    """Write a profile; whoever reads at the same time finds the old file or the new one.

    Raises:
        OSError: It cannot be written.
    """
    layers = [
        {**asdict(layer), "times": [times._asdict() for times in layer.times]}
        for layer in profile.layers
    ]
    content = {"mpicoll": FORMAT, "about": profile.about, "layers": layers}
    write_atomically(path, json.dumps(content, indent=1) + "\n")


def read(path: str | Path) -> Profile:
    """The profile of a file.

    Raises:
        ValueError: It cannot be read, or is none; names the file and the place.
        ModuleNotFoundError: pydantic is missing.
    """
    with naming(f"profile {str(path)!r}", "; give a file that `mpicoll plan --measure` wrote"):
        content = _checked(Path(path).read_bytes())
    layers = tuple(
        LayerProfile(**{**layer, "times": tuple(Times(**times) for times in layer["times"])})
        for layer in content["layers"]
    )
    return Profile(layers, content["about"])


def _checked(content: bytes) -> dict[str, Any]:
    from typing import Annotated, Literal

    import pydantic

    Seconds = Annotated[float, pydantic.Field(ge=0, le=_MOST_SECONDS, allow_inf_nan=False)]
    Count = Annotated[int, pydantic.Field(ge=0)]

    class TimesOf(pydantic.BaseModel, extra="forbid"):
        samples: Annotated[int, pydantic.Field(ge=1)]
        forward: Seconds
        input: Seconds
        weight: Seconds

    class LayerOf(pydantic.BaseModel, extra="forbid"):
        kind: str
        inputs: tuple[Count, ...]
        parameters: Count
        times: Annotated[list[TimesOf], pydantic.Field(min_length=1)]

        @pydantic.field_validator("times")
        @classmethod
        def ascending(cls, every: list[TimesOf]) -> list[TimesOf]:
            sizes = [times.samples for times in every]
            if sizes != sorted(set(sizes)):
                raise ValueError("samples do not ascend")
            return every

    class About(pydantic.BaseModel, extra="allow"):
        ranks: Annotated[int, pydantic.Field(ge=1, strict=True)] = 1
        dtype: str = ""

    class File(pydantic.BaseModel, extra="forbid"):
        mpicoll: Literal["layers 1"]
        about: dict[str, Any] = {}
        layers: Annotated[list[LayerOf], pydantic.Field(min_length=1)]

        @pydantic.field_validator("about")
        @classmethod
        def readable(cls, about: dict[str, Any]) -> dict[str, Any]:
            About.model_validate(about)
            return about

    # Local classes cannot be looked up by name, as annotations of this module would be.
    names = {**globals(), **locals()}
    for made in (TimesOf, LayerOf, About, File):
        made.model_rebuild(_types_namespace=names)
    return checked_json(content, File)
