"""Tensor parallelism: a list of layers becomes one of which each rank has a part.

Every layer with a matrix is divided.  How, is the shortest path through the chain of layers: its
length is what the collectives between them take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mpicoll import algorithms
from mpicoll.train.models.layers import Layer, Residual, Shape, shapes_of
from mpicoll.train.parallel.conjugate import Group, Step
from mpicoll.train.parallel.placements import WHOLE, Placement, conversion
from mpicoll.train.parallel.rules import Rule, Setting, rules_of
from mpicoll.train.parallel.sharded import Sharded

if TYPE_CHECKING:
    from mpi4py import MPI

#: Seconds of a collective, by its name and the bytes of its whole vector.
Seconds = Callable[[str, int], float]
#: Seconds of a message, and of each byte, of ranks that share a node; what matters is their ratio.
_LATENCY, _PER_BYTE = 5e-6, 2e-10
#: Of a batch, where nobody says how many.
SAMPLES = 32


def shard(
    layers: Sequence[Layer],
    comm: MPI.Intracomm | None,
    inputs: Shape,
    *,
    sequence: bool = False,
    samples: int = SAMPLES,
    dtype: str = "float32",
    seconds: Seconds | None = None,
) -> list[Layer]:
    """Divide layers among ranks; not collective.

    The result is for a `Sequential` with the same `inputs`; its parameters have the same names.
    Each rank has its part of the parameters, drawn like the whole ones.  All ranks compute with the
    same samples, and all have the whole outputs.  Layers of your own are computed whole on every
    rank.

    Args:
        layers: First to last.
        comm: The ranks, best on one node, an `mpicoll.Intracomm` or one of mpi4py's; None for this
            process alone.
        inputs: Shape of a sample.
        sequence: For sequences (tokens, width): divide the values between layers with matrices
            (norms, residuals, dropout) by tokens; each rank keeps its part of them.
        samples: Samples in a batch, for the costs.
        dtype: Type of the values, for the costs.
        seconds: Function that returns the time of a collective, such as a prediction of
            `mpicoll.tuning.predict`; None for rings in the memory of a node.

    Raises:
        ValueError: A layer has fewer heads, channels or values to divide than there are ranks; or
            there is nothing for `sequence` to divide.  The same on all ranks.
    """
    size = 1 if comm is None else comm.Get_size()
    shapes = shapes_of(layers, inputs)
    if sequence and not any(len(shape) == 2 for shape in shapes):
        raise ValueError(
            f"sequence=True and samples of shape {inputs}: give layers of sequences (tokens, "
            "width), or sequence=False"
        )
    if comm is None or size == 1:
        return list(layers)
    group = Group(comm, size, comm.Get_rank())
    factor = samples * np.dtype(dtype).itemsize
    return divided(layers, shapes, group, factor, seconds or ring(size), sequence)[0]


def divided(
    layers: Sequence[Layer],
    shapes: Sequence[Shape],
    group: Group,
    factor: int,
    seconds: Seconds,
    sequence: bool = False,
) -> tuple[list[Layer], list[Placement]]:
    """A rank's parts of layers, and where the outputs of each layer are.

    Args:
        layers: First to last.
        shapes: Of a sample at the inputs of each, and at the outputs of the last one.
        group: The ranks; of a group that is not there, their number is enough.
        factor: Bytes of a batch for each value of a sample.
        seconds: What a collective takes.
        sequence: See `shard`.

    Raises:
        ValueError: A layer has less to divide than there are ranks.
    """
    costs = _Costs(factor, seconds)
    chain = _Chain(layers, shapes, Setting(group, sequence), costs, first=True)
    _, rules = chain.path(WHOLE, WHOLE)
    return chain.built(WHOLE, rules, WHOLE), [*(rule.after for rule in rules[:-1]), WHOLE]


def ring(size: int) -> Seconds:
    """What rings of so many ranks take in the memory of a node, by the formulas of the textbooks.

    By it a run divides layers.
    """

    def seconds(collective: str, nbytes: int) -> float:
        entry = algorithms.find(collective, "ring")
        found = entry.textbook_time(size, nbytes, _LATENCY, _PER_BYTE, 0.0)
        assert found is not None, "rings have formulas"
        return found

    return seconds


@dataclass(frozen=True)
class _Costs:
    """What steps take.

    Attributes:
        factor: Bytes for each value of a sample.
        seconds: Of a collective.
    """

    factor: int
    seconds: Seconds

    def of(self, steps: Sequence[Step], backward: bool) -> float:
        """Seconds of the forward pass, and of the backward pass if there is one."""
        found = 0.0
        for step in steps:
            there, back = step.collectives(1)
            for collective, values in there + (back if backward else []):
                found += self.seconds(collective, values * self.factor)
        return found


def _steps(source: Placement, target: Placement, shape: Shape) -> tuple[Step, ...] | None:
    pairs = conversion(source, target)
    return None if pairs is None else tuple(Step(pair, cut, shape) for pair, cut in pairs)


class _Chain:
    """Layers one after the other.

    Args:
        layers: First to last.
        shapes: Of whole samples, as `_shapes`.
        setting: The ranks.
        costs: What steps take.
        first: Whether nobody needs slopes by the inputs.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        shapes: Sequence[Shape],
        setting: Setting,
        costs: _Costs,
        first: bool,
    ) -> None:
        self._layers, self._shapes, self._setting = layers, shapes, setting
        self._costs, self._first = costs, first

    def path(self, start: Placement, end: Placement) -> tuple[float, list[Rule]]:
        """The rules that take least, and their seconds: a shortest path (Viterbi 1967)."""
        states: dict[Placement, tuple[float, list[Rule]]] = {start: (0.0, [])}
        for number, layer in enumerate(self._layers):
            first = self._first and number == 0
            found: dict[Placement, tuple[float, list[Rule]]] = {}
            for rule in self._rules(layer, self._shapes[number], list(states), first):
                for place, (before, chosen) in states.items():
                    steps = _steps(place, rule.before, self._shapes[number])
                    if steps is None:
                        continue
                    total = before + rule.seconds + self._costs.of(steps, not first)
                    if rule.after not in found or total < found[rule.after][0]:
                        found[rule.after] = total, [*chosen, rule]
            states = found
        ends = [
            (before + self._costs.of(steps, True), chosen)
            for place, (before, chosen) in states.items()
            if (steps := _steps(place, end, self._shapes[-1])) is not None
        ]
        return min(ends, key=lambda pair: pair[0])

    def built(self, start: Placement, rules: Sequence[Rule], end: Placement) -> list[Layer]:
        """The layers by some rules."""
        places = [start, *(rule.after for rule in rules)]
        found: list[Layer] = []
        for number, rule in enumerate(rules):
            before = _steps(places[number], rule.before, self._shapes[number])
            last = number == len(rules) - 1
            after = _steps(rule.after, end, self._shapes[-1]) if last else ()
            assert before is not None and after is not None
            found.append(self._layer(rule, before, after))
        return found

    def _layer(self, rule: Rule, before: tuple[Step, ...], after: tuple[Step, ...]) -> Layer:
        facts = rule.cuts, rule.once, rule.summed
        return Sharded(
            rule.layer, rule.local, rule.shape, self._setting.group, before, after, *facts
        )

    def _rules(
        self, layer: Layer, shape: Shape, placements: Sequence[Placement], first: bool
    ) -> list[Rule]:
        if not isinstance(layer, Residual):
            return rules_of(layer, shape, placements, self._setting)
        tokens = self._setting.tokens(shape)
        return [self._residual(layer, shape, tokens or WHOLE, first)]

    def _residual(self, layer: Residual, shape: Shape, place: Placement, first: bool) -> Rule:
        """What is added to the inputs is where they are."""
        shapes = shapes_of(layer.layers, shape)
        chain = _Chain(layer.layers, shapes, self._setting, self._costs, first)
        seconds, rules = chain.path(place, place)
        local = Residual(tuple(chain.built(place, rules, place)))
        group = self._setting.group
        if place.cut is not None:
            shape = place.cut.part_shape(shape, group.size, group.rank)
        return Rule(place, place, local, local, shape, seconds=seconds)
