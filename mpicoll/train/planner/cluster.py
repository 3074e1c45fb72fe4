"""What collectives and messages between some of the ranks of a cluster take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from mpicoll import algorithms, tuning
from mpicoll.simulate.costs import CostModel
from mpicoll.simulate.machine import Machine
from mpicoll.train.planner.layers import LONGEST, Numbers
from mpicoll.tuning import predict

#: Units in a second: picoseconds, so that sums are exact.
PICO = 10**12
#: Of more ranks, predictions with reasons take seconds, and so does following every message.
_FEW = 16


class Cluster:
    """Ranks on nodes.

    A collective of ranks takes what `mpicoll.tuning.predict` says of the algorithm that a
    communicator of theirs would choose, where these ranks lie, but no more than `LONGEST`; between
    lengths that are powers of two it is interpolated.

    Args:
        model: What messages cost, as `mpicoll fit` writes it.
        nodes: The node of each rank.
    """

    def __init__(self, model: CostModel, nodes: Sequence[int]) -> None:
        self._model, self.nodes = model, tuple(nodes)
        self._general = Machine.of(model.general, PICO)
        rules = tuning.table_from(model.rules, "rules of the model", tuning.MODEL)
        self._table = tuning.combined(tuning.BUILTIN, rules)
        self._known: dict[tuple[str, tuple[int, ...], int], int] = {}

    def times(self, count: int) -> Cluster:
        """So many such clusters in one."""
        more = max(self.nodes) + 1
        return Cluster(self._model, [n + more * k for k in range(count) for n in self.nodes])

    def collective(self, name: str, groups: Iterable[Sequence[int]], nbytes: Numbers) -> Numbers:
        """Picoseconds of a collective that several groups make at a time: of the slowest group.

        Args:
            name: As `mpicoll list` has it.
            groups: Ranks of each group.
            nbytes: Of the whole vector, for several vectors.
        """
        layouts = {self._layout(ranks) for ranks in groups}
        return np.max([self._interpolated(name, layout, nbytes) for layout in layouts], axis=0)

    def machine(self, ranks: Sequence[int]) -> Machine:
        """What messages between some ranks cost, in picoseconds; they are counted from 0."""
        return replace(self._general, nodes=self._layout(ranks))

    def longest_message(self, nbytes: int) -> int:
        """Picoseconds of a message over the slowest kind of link."""
        ends = range(len(self.nodes))
        apart = next((rank for rank in ends if self.nodes[rank] != self.nodes[0]), 0)
        machine = self.machine(ends)
        return max(machine.message(0, other, nbytes) for other in (0, apart))

    def _layout(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """The nodes of some ranks, numbered in the order in which they come."""
        numbers: dict[int, int] = {}
        return tuple(numbers.setdefault(self.nodes[rank], len(numbers)) for rank in ranks)

    def _interpolated(self, name: str, layout: tuple[int, ...], nbytes: Numbers) -> Numbers:
        found = np.zeros(nbytes.shape, np.int64)
        if len(layout) == 1:
            return found
        powers = np.frexp(nbytes)[1] - 1  # 2**power <= nbytes < 2**(power + 1)
        for power in np.unique(powers[nbytes > 0]).tolist():
            low, where = 1 << power, (powers == power) & (nbytes > 0)
            first, last = (self._predicted(name, layout, n) for n in (low, 2 * low))
            times = first + (last - first) * ((nbytes[where] - low) / low)
            found[where] = np.rint(times)
        return found

    def _predicted(self, name: str, layout: tuple[int, ...], nbytes: int) -> int:
        key = name, layout, nbytes
        if key not in self._known:
            seconds = self._seconds(name, layout, nbytes)
            self._known[key] = round(min(PICO * seconds, LONGEST))
        return self._known[key]

    def _seconds(self, name: str, layout: tuple[int, ...], nbytes: int) -> float:
        size, apart = len(layout), len(set(layout)) > 1
        choice = tuning.choose_placed(name, size, nbytes, self._table, layout)
        nodes = layout if apart else ()
        if choice.algorithm == tuning.NATIVE:
            if not apart:
                with suppress(ValueError):  # it was not measured on so many ranks
                    return predict.predict(self._model, name, choice, size, nbytes).seconds
            # Its schedule is unknown, so it is taken to be as fast as the fastest that is known.
            known = (tuning.parse(name, other, "") for other in algorithms.names(name))
            return min(
                predict.estimate(self._model, name, other, size, nbytes, nodes, size > _FEW)
                for other in known
                if tuning.fits(name, other, size)
            )
        if size > _FEW:
            return predict.estimate(self._model, name, choice, size, nbytes, nodes, largest=True)
        return predict.predict(self._model, name, choice, size, nbytes, nodes=nodes).seconds
