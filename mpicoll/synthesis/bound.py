"""What no schedule along trees can beat: the least load of the busiest port or link.

Each part of a vector that is broadcast goes down a tree from its root; each part that is reduced
goes up one.  Let every edge have a capacity for what goes down, and one for what goes up, in parts
of the vector, and every rank a share of the roots.  By Edmonds' theorem on branchings there are
such trees, fractional ones, exactly where the capacities into every set of ranks, and the shares in
it, make at least 1, and for what goes up those out of it.  So a linear program finds the least
load. There are too many sets to write down: those that a solution violates are found by maximum
flows, and added, until none is.  A program of some of them bounds the load from below, too.

Bandwidth alone counts: neither latencies, nor arithmetic, nor the order in time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpicoll.simulate.machine import Machine
from mpicoll.synthesis.edges import Edges

Array = Any

#: What goes down, and what goes up, in a collective; and whose the roots are.
DOWN, UP = "down", "up"
_WAYS = {
    "allreduce": (DOWN, UP),
    "allgather": (DOWN,),
    "bcast": (DOWN,),
    "reduce_scatter": (UP,),
    "reduce": (UP,),
}

#: Capacities as whole numbers, for flows.
_WHOLE = 1 << 26
#: How much of a cut may be missing, as flows are whole numbers and the solver has a tolerance.
_MISSING = 1e-6
#: Ranks from which on few programs are solved, each of which takes seconds.
_MANY, _MOST_ROUNDS, _FEW_ROUNDS = 32, 200, 3


@dataclass(frozen=True)
class Bound:
    """The least load.

    Attributes:
        per_byte: time of each byte of the vector, in attoseconds.
        exact: whether it is the least load; else it is below.
        busiest: what is busy all the time, whatever the trees.
        cut: the ranks on one side of the tightest cut.
        shares: of each rank, its part of the roots.
        down, up: capacities of the edges, in parts of the vector.
        cuts: how many sets of ranks were asked for.
    """

    per_byte: float
    exact: bool
    busiest: tuple[str, ...]
    cut: tuple[int, ...]
    shares: tuple[float, ...]
    down: Array
    up: Array
    cuts: int

    def time(self, nbytes: int) -> float:
        """Of a vector, in attoseconds."""
        return self.per_byte * nbytes


def ways(collective: str) -> tuple[str, ...]:
    """What goes down the trees of a collective, up, or both."""
    return _WAYS[collective]


def shares(collective: str, ranks: int, root: int) -> Array | None:
    """Each rank's part of the roots, where the collective says so."""
    if collective == "allreduce":
        return None
    if collective in ("bcast", "reduce"):
        return np.eye(ranks)[root]
    return np.full(ranks, 1 / ranks)


def bound(collective: str, machine: Machine, root: int = 0) -> Bound:
    """The bound of a collective on a machine with a network.

    Raises:
        ModuleNotFoundError: scipy is missing.
    """
    edges = Edges.of(machine)
    program = _Program(edges, collective, shares(collective, edges.ranks, root))
    if edges.ranks == 1:
        return Bound(0.0, True, (), (), (1.0,), np.zeros(0), np.zeros(0), 0)
    hosts = machine.network.hosts if machine.network else ()
    found = program.solve(_first_cuts(edges.ranks, hosts))
    exact = False
    for _ in range(_MOST_ROUNDS if edges.ranks <= _MANY else _FEW_ROUNDS):
        violated = program.violated(found)
        if not violated:
            exact = True
            break
        found = program.solve(violated)
    return program.bound(found, exact)


def _first_cuts(ranks: int, hosts: tuple[int, ...]) -> list[frozenset[int]]:
    """Each rank, each host, and all but them."""
    labels = dict.fromkeys(hosts)
    sets = [{rank} for rank in range(ranks)]
    sets += [{rank for rank, host in enumerate(hosts) if host == label} for label in labels]
    every = frozenset(range(ranks))
    cuts = [frozenset(one) for one in sets] + [every - one for one in sets]
    return [cut for cut in dict.fromkeys(cuts) if cut and cut != every]


class _Program:
    """The linear program: variables are the load, capacities down and up, and shares."""

    def __init__(self, edges: Edges, collective: str, fixed: Array | None) -> None:
        self.edges, self.fixed = edges, fixed
        self.ways = ways(collective)
        self.count = len(edges.source)
        self.free = 0 if fixed is not None else edges.ranks
        self.variables = 1 + self.count * len(self.ways) + self.free
        self.loads = self._loads()
        self.rows: list[tuple[Array, Array, float]] = []
        self.cuts: list[tuple[str, frozenset[int]]] = []

    def _loads(self) -> Any:
        from scipy import sparse

        edges, width = self.edges, self.edges.resources.shape[1]
        resources = len(edges.names)
        used = edges.resources.ravel() < resources
        row = edges.resources.ravel()[used]
        betas = edges.betas.ravel()[used]
        column = np.repeat(np.arange(self.count), width)[used]
        parts = [(betas, row, 1 + number * self.count + column) for number in range(len(self.ways))]
        parts.append((-np.ones(resources), np.arange(resources), np.zeros(resources, int)))
        values, rows, columns = (np.concatenate(each) for each in zip(*parts, strict=True))
        return sparse.coo_matrix((values, (rows, columns)), (resources, self.variables))

    def _add(self, way: str, cut: frozenset[int]) -> None:
        inside = np.zeros(self.edges.ranks, bool)
        inside[list(cut)] = True
        source, target = inside[self.edges.source], inside[self.edges.target]
        crossing = target & ~source if way == DOWN else source & ~target
        columns = 1 + self.ways.index(way) * self.count + np.flatnonzero(crossing)
        needed = 1.0
        if self.fixed is None:
            columns = np.concatenate([columns, self.variables - self.free + np.array(sorted(cut))])
        else:
            needed -= float(self.fixed[list(cut)].sum())
        self.rows.append((columns, -np.ones(len(columns)), -needed))
        self.cuts.append((way, cut))

    def solve(self, cuts: Iterable[Any]) -> Any:
        """Solve with some more cuts; of a set alone, for all ways."""
        from scipy import sparse
        from scipy.optimize import linprog

        for cut in cuts:
            for way, each in [cut] if isinstance(cut, tuple) else [(way, cut) for way in self.ways]:
                self._add(way, each)
        columns = np.concatenate([row[0] for row in self.rows])
        values = np.concatenate([row[1] for row in self.rows])
        rows = np.repeat(np.arange(len(self.rows)), [len(row[0]) for row in self.rows])
        shape = len(self.rows), self.variables
        more = sparse.coo_matrix((values, (rows, columns)), shape)
        limits = np.concatenate([np.zeros(len(self.edges.names)), [row[2] for row in self.rows]])
        equal, right = None, None
        if self.fixed is None:
            equal = np.zeros((1, self.variables))
            equal[0, -self.free :] = 1
            right = [1.0]
        cost = np.zeros(self.variables)
        cost[0] = 1
        matrix = sparse.vstack([self.loads, more]).tocsr()
        found = linprog(cost, matrix, limits, equal, right, method="highs")
        if not found.success:
            raise RuntimeError(
                f"the linear program of the bound has not been solved: {found.message}"
            )
        return found

    def capacities(self, found: Any, way: str) -> Array:
        """Those of the edges for one way."""
        if way not in self.ways:
            return np.zeros(self.count)
        first = 1 + self.ways.index(way) * self.count
        return np.maximum(found.x[first : first + self.count], 0)

    def roots(self, found: Any) -> Array:
        """Each rank's share."""
        if self.fixed is not None:
            return self.fixed
        return np.maximum(found.x[-self.free :], 0)

    def violated(self, found: Any) -> list[tuple[str, frozenset[int]]]:
        """The cuts that a solution violates, for each rank and way the least one."""
        cuts: dict[tuple[str, frozenset[int]], None] = {}
        for way in self.ways:
            capacities = self.capacities(found, way)
            for rank in range(self.edges.ranks):
                cut = self._least_cut(way, capacities, self.roots(found), rank)
                if cut:
                    cuts[way, cut] = None
        return [*cuts]

    def _least_cut(
        self, way: str, capacities: Array, roots: Array, rank: int
    ) -> frozenset[int] | None:
        """The set with a rank into which the least goes, if it is too little."""
        from scipy import sparse
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        ranks = self.edges.ranks
        source, target = self.edges.source, self.edges.target
        if way == UP:
            source, target = target, source
        rows = np.concatenate([source, np.full(ranks, ranks)])
        columns = np.concatenate([target, np.arange(ranks)])
        # Rounded up, so that what is enough stays enough.
        whole = np.ceil(np.concatenate([capacities, roots]) * _WHOLE).astype(np.int32)
        graph = sparse.csr_matrix((whole, (rows, columns)), (ranks + 1, ranks + 1))
        graph.eliminate_zeros()
        flow = maximum_flow(graph, ranks, rank)
        if flow.flow_value >= _WHOLE * (1 - _MISSING):
            return None
        left = graph - flow.flow
        left.data = np.maximum(left.data, 0)
        left.eliminate_zeros()
        reached = set(breadth_first_order(left, ranks, return_predecessors=False).tolist())
        return frozenset(range(ranks)) - reached

    def bound(self, found: Any, exact: bool) -> Bound:
        """What a solution says."""
        resources = len(self.edges.names)
        prices = -np.asarray(found.ineqlin.marginals)
        busy, tight = prices[:resources], prices[resources:]
        busiest = tuple(
            self.edges.names[i] for i in np.argsort(-busy, kind="stable") if busy[i] > 1e-6
        )
        cut = self.cuts[int(np.argmax(tight))][1] if len(tight) else frozenset()
        return Bound(
            float(found.x[0]) * self.edges.unit,
            exact,
            busiest,
            tuple(sorted(cut)),
            tuple(self.roots(found).tolist()),
            self.capacities(found, DOWN),
            self.capacities(found, UP),
            len(self.cuts),
        )
