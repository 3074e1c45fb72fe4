"""What the layers of a model cost, whole or shared by some ranks, for each size of a microbatch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, cast

import numpy as np

from mpicoll.base.wording import plural
from mpicoll.train.models.layers import Layer, Residual, held, shapes_of
from mpicoll.train.models.networks import Sequential
from mpicoll.train.parallel.conjugate import Group
from mpicoll.train.parallel.mesh import groups
from mpicoll.train.parallel.placements import WHOLE, Placement
from mpicoll.train.parallel.rules import TOKENS
from mpicoll.train.parallel.sharded import Sharded, collectives_of
from mpicoll.train.parallel.shards import SAMPLES, divided, ring
from mpicoll.train.parallel.traffic import sent_together
from mpicoll.train.parallel.wires import MOST
from mpicoll.train.planner.cluster import PICO, Cluster
from mpicoll.train.planner.flops import flops
from mpicoll.train.planner.layers import LONGEST, Layers
from mpicoll.train.planner.measured import described
from mpicoll.train.planner.problem import LayersOf, TooLongError
from mpicoll.train.planner.profile import Profile

if TYPE_CHECKING:
    from mpi4py import MPI


def layers_of(model: Sequential, profile: Profile, cluster: Cluster) -> LayersOf:
    """What layers cost, as `Problem` wants it.

    A rank's part of a layer takes as large a share of its time as it has of its operations; layers
    are divided as a run divides them (`shard`).

    Args:
        model: The model, whole.
        profile: Of its layers.
        cluster: The ranks.

    Raises:
        ValueError: The profile is of another model.
    """
    require_profile(model, profile)
    parameters = [
        {
            own: model.parameter_shapes[name]
            for own, name in model.names(index).items()
            if name in model.parameter_shapes
        }
        for index in range(len(model.layers))
    ]
    item = np.promote_types(model.dtype, np.float32).itemsize
    names = [[*model.names(index).values()] for index in range(len(model.layers))]
    holders = model.holders
    first = np.array([holders.get(own[0], [n])[0] if own else n for n, own in enumerate(names)])

    @cache
    def seconds(tensor: int, name: str, nbytes: int) -> int:
        every = groups("tensor", 1, len(cluster.nodes) // tensor, tensor)
        return int(cluster.collective(name, every, np.array([nbytes]))[0])

    @cache
    def of(tensor: int, samples: int, sequence: bool) -> Layers | None:
        if tensor > len(cluster.nodes):
            return None
        factor = samples * item
        parts, places = list(model.layers), [WHOLE] * len(model.layers)
        if tensor > 1:
            group = Group(cast("MPI.Intracomm", None), tensor, 0)
            try:
                costs = SAMPLES * model.dtype.itemsize, ring(tensor)
                parts, places = divided(parts, model.shapes, group, *costs, sequence)
            except ValueError:  # a layer has less to divide
                return None
        shapes = shapes_of(parts, model.shapes[0])
        times, calls = [], []
        for index, layer in enumerate(parts):
            whole = flops(model.layers[index], model.shapes[index])
            share = min(flops(layer, shapes[index]) / whole, 1.0) if whole else 1.0
            found = profile.layers[index].at(samples)
            times.append([PICO * share * t for t in (found.forward, found.input, found.weight)])
            both = collectives_of(layer, samples, first=index == 0)
            calls.append([[(name, item * n) for name, n in each] for each in both])
        waits = [[sum(seconds(tensor, *call) for call in each) for each in pair] for pair in calls]
        # Forward passes may be made twice.
        total = sum(
            2 * t[0] + t[1] + t[2] + 2 * w[0] + w[1] for t, w in zip(times, waits, strict=True)
        )
        if total > LONGEST:
            raise TooLongError(total / PICO)
        wire = np.array(waits, np.int64)
        sent = np.array([[_sent(tensor, each) for each in pair] for pair in calls])
        forward, inputs, weight = np.rint(np.array(times).T).astype(np.int64)
        values = [prod(shape) for shape in shapes]
        sizes = [*map(_sizes, parts, parameters)]
        kept = np.array(held(parts, shapes), np.int64)
        # A run refuses messages that are longer.
        inner = zip(places, values[1:-1], strict=False)
        fits = [_is_passed_on(place) and factor * count <= MOST for place, count in inner]
        alone = [held([p], [*pair])[0] for p, pair in zip(parts, pairwise(shapes), strict=True)]
        return Layers(
            forward + wire[:, 0],
            inputs + wire[:, 1],
            weight,
            *(wire[:, 0], wire[:, 1], sent[:, 0], sent[:, 1]),
            edges=factor * np.array(values, np.int64),
            kept=factor * kept,
            begins=factor * (np.array(alone, np.int64) - kept),
            working=factor
            * np.array([p.working(s) for p, s in zip(parts, shapes, strict=False)], np.int64),
            waiting=factor
            * np.array([p.waiting(s) for p, s in zip(parts, shapes, strict=False)], np.int64),
            weights=item * np.array([sum(own) for own in sizes], np.int64),
            first=first,
            cuts=np.array([True, *fits, True]),
            item=item,
        )

    return of


def _is_passed_on(place: Placement) -> bool:
    """Whether stages may pass on values that are there: whole ones, or parts of the tokens."""
    return place == WHOLE or (place.cut is not None and place.cut.axis == TOKENS)


def require_profile(model: Sequential, profile: Profile) -> None:
    """Check that a profile is that of a model.

    Raises:
        ValueError: It is not, or of another type; names the first layer that differs.
    """
    dtype = profile.about.get("dtype", model.dtype.name)
    if dtype != model.dtype.name:
        raise ValueError(
            f"the profile is of {dtype}, and the model computes in {model.dtype.name}: measure it "
            f"by --measure, or give --dtype {dtype}"
        )
    wanted = described(model)
    if len(wanted) != len(profile.layers):
        raise ValueError(
            f"the profile has {plural(len(profile.layers), 'layer')} and the model "
            f"{len(wanted)}: measure this model by --measure"
        )
    for number, (facts, found) in enumerate(zip(wanted, profile.layers, strict=True)):
        known = found.kind, found.inputs, found.parameters
        if facts != known:
            raise ValueError(
                f"layer {number} is {_words(facts)}, and {_words(known)} in the profile: measure "
                "this model by --measure"
            )


def _words(facts: tuple[str, tuple[int, ...], int]) -> str:
    kind, shape, count = facts
    return f"{kind} of inputs {'x'.join(map(str, shape))} with {plural(count, 'parameter')}"


def _sizes(layer: Layer, shapes: Mapping[str, tuple[int, ...]]) -> list[int]:
    """Elements of each parameter of a rank's part of a layer, from the whole one's shapes."""
    if isinstance(layer, Residual):
        return [
            size
            for number, part in enumerate(layer.layers)
            for size in _sizes(
                part,
                {
                    name.removeprefix(f"{number}."): shape
                    for name, shape in shapes.items()
                    if name.startswith(f"{number}.")
                },
            )
        ]
    if not isinstance(layer, Sharded):
        return [*map(prod, shapes.values())]
    if not layer.cuts:
        return _sizes(layer.local, shapes)
    cuts, size = layer.cuts, layer.group.size
    return [
        prod(cuts[name].part_shape(shape, size, 0)) if name in cuts else prod(shape)
        for name, shape in shapes.items()
    ]


def _sent(ranks: int, calls: Iterable[tuple[str, int]]) -> int:
    """Bytes that a rank sends in collectives of these vectors."""
    return sum(sent_together(name, ranks, nbytes) // ranks for name, nbytes in calls)
