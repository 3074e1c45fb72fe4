"""What a byte between two ranks costs the ports and links of a machine, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mpicoll.simulate.machine import Machine

Array = Any


@dataclass(frozen=True)
class Edges:
    """The edges between all ranks, and the resources on their ways.

    Attributes:
        ranks: number of ranks.
        source, target: ranks of each edge.
        resources: of each edge the numbers of its resources; what fills the rows is the last
            resource, which is none.
        betas: of each edge the time of a byte at each of them, in units of ``unit``, over the
            resource's capacity.
        latency: of each edge, in attoseconds.
        names: of the resources.
        unit: attoseconds of a byte that count as 1.
    """

    ranks: int
    source: Array
    target: Array
    resources: Array
    betas: Array
    latency: Array
    names: tuple[str, ...]
    unit: int

    @classmethod
    def of(cls, machine: Machine) -> Edges:
        """The edges of a machine with a network."""
        network = machine.network
        assert network is not None
        ranks = network.ranks
        pairs = [(s, r) for s in range(ranks) for r in range(ranks) if s != r]
        routes = [network.route(*pair) for pair in pairs]
        width = 2 + max((len(route.links) for route in routes), default=0)
        none = 2 * ranks + len(network.links)
        resources = np.full((len(pairs), width), none)
        betas = np.zeros((len(pairs), width))
        unit = max((route.beta for route in routes), default=1) or 1
        for row, ((s, r), route) in enumerate(zip(pairs, routes, strict=True)):
            used = [
                (s, route.out / machine.ports),
                (ranks + r, route.into / machine.ports),
                *((2 * ranks + link, beta) for link, beta in route.links),
            ]
            for column, (resource, beta) in enumerate(used):
                resources[row, column], betas[row, column] = resource, beta / unit
        names = (
            *(f"output port of rank {rank}" for rank in range(ranks)),
            *(f"input port of rank {rank}" for rank in range(ranks)),
            *network.links,
        )
        source, target = np.array(pairs).reshape(-1, 2).T
        latency = np.array([route.latency for route in routes])
        return cls(ranks, source, target, resources, betas, latency, names, unit)

    @cached_property
    def into(self) -> list[Array]:
        """Of each rank the edges that lead to it."""
        return [np.flatnonzero(self.target == rank) for rank in range(self.ranks)]

    @cached_property
    def number(self) -> Array:
        """The number of the edge between two ranks."""
        found = np.full((self.ranks, self.ranks), -1)
        found[self.source, self.target] = np.arange(len(self.source))
        return found
