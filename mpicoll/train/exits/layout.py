"""Which rank is what: the tiers of a system, and the layers of a network that each has.

A tier has groups of as many ranks as a sample has parts there. A batch of samples goes through one
group of each tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.models.exits import EarlyExits
from mpicoll.train.models.layers import Layer
from mpicoll.train.models.parts import Aggregate, Binarize, EachPart, Split
from mpicoll.train.models.pointwise import Reshape


class Tier(NamedTuple):
    """A tier of a system.

    Attributes:
        name: As the user calls it.
        ranks: Its ranks.
        parts: Ranks of a group, each for a part of a sample.
    """

    name: str
    ranks: range
    parts: int

    @property
    def groups(self) -> int:
        """How many groups it has."""
        return len(self.ranks) // self.parts

    def members(self, group: int) -> range:
        """The ranks of a group."""
        return self.ranks[group * self.parts : (group + 1) * self.parts]


class Bytes(NamedTuple):
    """What one sample costs between a tier and the next, by all ranks of a group together.

    Attributes:
        scores: Where it reaches the exit of the tier.
        features: Where it goes on.
    """

    scores: int
    features: int


def parse(text: str) -> dict[str, int]:
    """Names and numbers of ranks of tiers: `device=4,edge=2,cloud=1`.

    Raises:
        ValueError: It is something else.
    """
    found: dict[str, int] = {}
    for word in text.split(","):
        name, _, number = (piece.strip() for piece in word.partition("="))
        if not name or not number.isdecimal() or int(number) < 1 or name in found:
            raise ValueError(
                f"tiers {text!r}: {word!r} is no tier of its own name and ranks; write "
                "device=4,edge=2,cloud=1"
            )
        found[name] = int(number)
    return found


def tiers(model: EarlyExits, counts: dict[str, int], ranks: int) -> list[Tier]:
    """The tiers of a network on ranks: devices first.

    Args:
        model: The network.
        counts: Ranks of each tier, by its name, devices first.
        ranks: How many there are.

    Raises:
        ValueError: They do not fit; with the remedy.
    """
    words = ",".join(f"{name}={number}" for name, number in counts.items())
    if len(counts) != len(model.exits) + 1:
        raise ValueError(
            f"tiers {words} are {len(counts)}, and the model has {len(model.exits)} exit(s): give "
            f"{len(model.exits) + 1} tiers"
        )
    if sum(counts.values()) != ranks:
        raise ValueError(
            f"tiers {words} have {sum(counts.values())} ranks and {ranks} were started: start "
            f"{sum(counts.values())}, or give other numbers"
        )
    found: list[Tier] = []
    start = 0
    for (name, number), parts in zip(counts.items(), parts_of(model), strict=True):
        if number % parts:
            raise ValueError(
                f"tier {name} has {number} rank(s), and a sample has {parts} parts there: give a "
                f"multiple of {parts}"
            )
        tier = Tier(name, range(start, start + number), parts)
        if found and found[-1].groups < tier.groups:
            raise ValueError(
                f"tier {name} has {tier.groups} groups of ranks and {found[-1].name} below it "
                f"{found[-1].groups}: give {name} at most as many"
            )
        found.append(tier)
        start += number
    return found


def parts_of(model: EarlyExits) -> list[int]:
    """In how many parts a sample is in each tier.

    Raises:
        ValueError: The layers cannot be computed apart; with the remedy.
    """
    found: list[int] = []
    parts = 1
    for number, (start, end, head) in enumerate(model.sections()):
        layers, seen = model.layers[start:end], parts
        if seen > 1 and not isinstance(layers[0], Aggregate):
            raise ValueError(
                f"tier {number + 1} begins with {type(layers[0]).__name__}, and {seen} parts come "
                "from below: begin it with Aggregate"
            )
        for index, layer in enumerate(layers):
            _require_apart(number, index, layer, layers[:index], parts)
            parts = _parts_after(layer, parts)
        found.append(parts)
        if head is not None and parts > 1:
            head_cut(model.heads[head].layers)
    if parts != 1:
        raise ValueError(f"the last tier leaves {parts} parts: end it with one, by Aggregate")
    return found


def _parts_after(layer: Layer, parts: int) -> int:
    """In how many parts a sample is behind a layer."""
    if isinstance(layer, Split):
        return layer.rows * layer.columns
    return layer.into if isinstance(layer, Aggregate) else parts


def _require_apart(
    tier: int, index: int, layer: Layer, before: Sequence[Layer], parts: int
) -> None:
    """Refuse a layer that no rank can compute with what it has.

    Raises:
        ValueError: With the remedy.
    """
    name, where = type(layer).__name__, f"tier {tier + 1}"
    if isinstance(layer, Split):
        if tier or not all(isinstance(other, Reshape) for other in before):
            raise ValueError(
                f"{where} has a Split behind other layers, and devices see parts from the start: "
                "put it first"
            )
    elif isinstance(layer, Aggregate):
        if index or not tier:
            raise ValueError(
                f"{where} has an Aggregate inside, and parts come together between tiers: put an "
                "exit before it"
            )
    elif parts > 1 and not isinstance(layer, EachPart):
        raise ValueError(f"{where} has {name} over several parts: put it into EachPart")


def head_cut(layers: Sequence[Layer]) -> int:
    """The number of the layer of a head that aggregates parts.

    Raises:
        ValueError: There is none, or parts meet before.
    """
    for number, layer in enumerate(layers):
        if isinstance(layer, Aggregate) and layer.into == 1:
            return number
        if not isinstance(layer, (EachPart, Reshape)) or (number and isinstance(layer, Reshape)):
            break
    raise ValueError(
        "a head of several parts is EachPart and then Aggregate: each device makes scores, which "
        "are aggregated"
    )


def is_binary(layers: Sequence[Layer]) -> bool:
    """Whether what a tier's layers make are signs."""
    last = layers[-1]
    return isinstance(last.layers[-1] if isinstance(last, EachPart) else last, Binarize)


def costs(model: EarlyExits, item: int) -> list[Bytes]:
    """Bytes of a sample above each tier but the last, by the formula.

    S. Teerapittayanon et al. 2017, section III-D, has the same for bytes of one device: scores of
    all classes, and features of a bit each where the sample goes on.

    Args:
        model: The network.
        item: Bytes of a number.
    """
    found: list[Bytes] = []
    for (start, end, _), parts in zip(model.sections()[:-1], parts_of(model), strict=False):
        shape = model.shapes[end]
        values = prod(shape[1:] if parts > 1 else shape)
        binary = is_binary(model.layers[start:end])
        features = -(-values // 8) if binary else item * values
        scores = prod(score_shape(model, len(found))) * item * parts if parts > 1 else 0
        found.append(Bytes(scores, features * parts))
    return found


def score_shape(model: EarlyExits, exit_number: int) -> tuple[int, ...]:
    """Shape of what each part of a sample sends to be aggregated at an exit."""
    head = model.heads[exit_number]
    return head.shapes[head_cut(head.layers)][1:]


def leaves(scores: Array, threshold: float) -> Array:
    """Which samples leave with these scores, shape (samples,).

    Those whose entropy over that of even odds, from 0 to 1, is at most the threshold; scores that
    are not finite count as even odds.

    Args:
        scores: Shape (samples, classes).
        threshold: From 0 (only the certain leave) to 1 (all leave); below 0 none leaves.
    """
    return entropies(scores) <= threshold


def entropies(scores: Array) -> Array:
    """Entropy of the softmax of scores over its largest, from 0 to 1, shape (samples,)."""
    wide = np.asarray(scores, np.float64)
    finite = np.asarray(np.isfinite(wide).all(axis=1))
    wide = np.where(finite[:, None], wide, 0.0)
    logs = wide - wide.max(axis=1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
    found = -(np.exp(logs) * logs).sum(axis=1) / np.log(wide.shape[1])
    return np.clip(found, 0.0, 1.0)
