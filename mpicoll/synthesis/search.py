"""The search: schedules of many kinds for one machine, and the clock says which is fastest.

The number of schedules that the clock tries is given, never a time, and dice have a seed: the same
question gets the same answer, bit by bit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mpicoll.schedule.steps import MAX_OPEN_CHANNELS, MAX_SEGMENTS
from mpicoll.simulate.clock import check_call
from mpicoll.simulate.machine import Machine
from mpicoll.synthesis import core, forest
from mpicoll.synthesis.bound import Bound, bound
from mpicoll.synthesis.candidates import Known, Made, known
from mpicoll.synthesis.edges import Edges
from mpicoll.synthesis.pack import Forest, Packer, Taste, pack

#: Collectives for which schedules are made.
KINDS = ("allreduce", "reduce_scatter", "allgather", "bcast", "reduce")

_SEGMENTS = (1, 2, 4, 8, 16, 32, 64)
_WINDOWS = (1, 2, 4, 8, 16)
#: What each forest is tried with before any is looked at closer.
_FIRST = ((1, 1), (8, 4), (32, 4), (64, 8))
#: Power and cost of a level of the trees that are grown.
_TASTES = ((8, 0.05), (4, 1.0), (16, 0.2), (8, 0.0))
#: Ranks from which on fewer forests are grown.
_MANY = 16
#: Bytes of a vector up to which there are core trees, too, and their part of the evaluations.
_SHORT, _OF_CORES = 64 << 10, 0.5
#: Segments that can be under way at a time where blocks have channels of their own.
_APART = 4
#: Of the best schedules so many are looked at closer.
_CLOSER = 4


@dataclass(frozen=True)
class Wish:
    """What a search may try.

    Attributes:
        trees: numbers of strands; none: as the number of ranks suggests.
        segments: numbers of segments; none: powers of two.
        evaluations: schedules that the clock tries for each size.
        seed: of the dice.
        longest: bytes of the longest message of what is made; None: any.
    """

    trees: tuple[int, ...] = ()
    segments: tuple[int, ...] = ()
    evaluations: int = 300
    seed: int = 0
    longest: int | None = None


class Timed(NamedTuple):
    """A schedule that was made, how it is cut, and how long it takes by the clock."""

    time: int
    made: Made
    segments: int
    window: int

    @property
    def words(self) -> str:
        """Its parameters as a tuning file has them."""
        return f"segments={self.segments} window={self.window}"


@dataclass(frozen=True)
class Found:
    """What a search has found.

    Attributes:
        collective, machine, root, sizes: what was asked.
        bound: the least load.
        known: by size, the algorithms of the catalogue, the fastest first.
        made: by size, the schedules made, the fastest first.
        evaluations: how many schedules the clock has tried.
    """

    collective: str
    machine: Machine
    root: int
    sizes: tuple[int, ...]
    bound: Bound
    known: dict[int, list[Known]]
    made: dict[int, list[Timed]]
    evaluations: int

    def best(self) -> Made:
        """The schedule that is fastest against the catalogue, over all sizes."""
        times = [{id(each.made): each.made for each in self.made[n]} for n in self.sizes]
        everywhere = [m for m in times[0].values() if all(id(m) in each for each in times)]
        return min(everywhere, key=self._against)

    def _against(self, made: Made) -> float:
        times = ((self.of(made, n), self.known[n][0].time) for n in self.sizes)
        return sum(math.log(own.time / other) if own and other else 0.0 for own, other in times)

    def of(self, made: Made, nbytes: int) -> Timed | None:
        """How one schedule is best cut at a size; None where it was not timed."""
        return next((each for each in self.made[nbytes] if each.made is made), None)

    def gap(self, time: int, nbytes: int) -> float | None:
        """How far a time is above the bound, as a part of it; None where that is 0."""
        least = self.bound.time(nbytes)
        return time / least - 1 if least else None


def search(
    collective: str,
    machine: Machine,
    sizes: Sequence[int],
    root: int = 0,
    wish: Wish | None = None,
    tick: Callable[[], object] = lambda: None,
) -> Found:
    """Search for schedules on a machine with a network.

    Args:
        collective: one of :data:`KINDS`.
        machine: with a network.
        sizes: bytes of the whole vector.
        root: of a rooted collective.
        wish: what to try.
        tick: called once for each schedule that the clock tries.

    Raises:
        ValueError: a collective for which none are made, a root that is no rank, or nothing fits
            the wish.
        ModuleNotFoundError: scipy is missing.
    """
    if collective not in KINDS:
        raise ValueError(
            f"schedules are made for {', '.join(KINDS)}, not for {collective}: take an algorithm "
            "of the catalogue"
        )
    assert machine.network is not None
    check_call(machine.network.ranks, root)
    wish = wish or Wish()
    least = bound(collective, machine, root)
    one = _Search(collective, machine, root, wish, least, tick)
    made = one.all(tuple(sizes))
    every = {nbytes: known(collective, machine, nbytes, root) for nbytes in sizes}
    return Found(collective, machine, root, tuple(sizes), least, every, made, one.evaluations)


@dataclass
class _Search:
    collective: str
    machine: Machine
    root: int
    wish: Wish
    bound: Bound
    tick: Callable[[], object]
    evaluations: int = 0
    #: The forest that a schedule was made of, the taste of its trees, and whether blocks are apart.
    forests: dict[int, tuple[Forest, Taste, bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.edges = Edges.of(self.machine)
        self.ranks = self.edges.ranks

    def all(self, sizes: tuple[int, ...]) -> dict[int, list[Timed]]:
        """The schedules by size; each is timed at every size."""
        start = list(self._grown())
        best = {nbytes: self._at(nbytes, list(start)) for nbytes in sizes}
        finalists: dict[int, Made] = {}
        for rows in best.values():
            finalists |= {id(each.made): each.made for each in rows[:_CLOSER]}
        for nbytes, rows in best.items():
            there = {id(each.made) for each in rows}
            for made in finalists.values():
                if id(made) not in there:
                    rows += self._cuts(made, nbytes, self._allowed(made, nbytes, _FIRST))
            rows.sort(key=lambda each: each.time)
            if not rows:
                raise ValueError(
                    f"no schedule has messages of at most {self.wish.longest} bytes; give a "
                    "larger --longest, or more --segments"
                )
        return best

    def _grown(self) -> Iterator[Made]:
        for count in self._strands():
            tastes = _TASTES if self.ranks <= _MANY else _TASTES[:1]
            for power, depth in tastes:
                taste = Taste(count, power, depth)
                packed = pack(
                    self.collective, self.edges, self.bound, taste, self.root, self.wish.seed
                )
                yield self._made(packed, taste)
                if 1 < len(packed.strands[0]) * count <= MAX_OPEN_CHANNELS // _APART:
                    yield self._made(packed, taste, apart=True)

    def _strands(self) -> tuple[int, ...]:
        if self.wish.trees:
            return self.wish.trees
        if forest.blocks(self.collective, self.ranks) > 1:
            return (1, 2)
        if self.ranks > _MANY:
            return (1, 16)
        return tuple(sorted({1, 4, self.ranks, 2 * self.ranks}))

    def _made(self, packed: Forest, taste: Taste, apart: bool = False) -> Made:
        origin = f"{taste.strands} strands of trees, power {taste.power}, depth {taste.depth:g}"
        made = Made(
            origin + ", blocks apart" * apart,
            forest.programs(packed, self.ranks, apart),
            forest.blocks(self.collective, self.ranks),
            packed.loads,
        )
        self.forests[id(made)] = packed, taste, apart
        return made

    def _allowed(
        self, made: Made, nbytes: int, cuts: Sequence[tuple[int, int]] | None = None
    ) -> list[tuple[int, int]]:
        """Segments and windows with which a schedule may be cut."""
        pairs = cuts or [(s, w) for s in self.wish.segments or _SEGMENTS for w in _WINDOWS]
        if cuts and self.wish.segments:
            pairs = [(s, min(4, s)) for s in self.wish.segments]
        longest = self.wish.longest
        if longest is not None:
            needed = 1
            while made.longest(nbytes, needed) > longest and needed * made.strands < MAX_SEGMENTS:
                needed *= 2
            pairs = [(max(s, needed), w) for s, w in pairs]
        return [
            (segments, window)
            for segments, window in dict.fromkeys(pairs)
            if window <= segments
            and window * made.channels <= MAX_OPEN_CHANNELS
            and segments * made.strands <= MAX_SEGMENTS
            and (longest is None or made.longest(nbytes, segments) <= longest)
        ]

    def _cuts(self, made: Made, nbytes: int, cuts: Sequence[tuple[int, int]]) -> list[Timed]:
        found = []
        for segments, window in cuts:
            self.evaluations += 1
            self.tick()
            time = made.time(nbytes, self.machine, segments, window)
            found.append(Timed(time, made, segments, window))
        return found

    def _at(self, nbytes: int, start: list[Made]) -> list[Timed]:
        """The schedules at a size, the fastest first."""
        before = self.evaluations
        rows: list[Timed] = []
        if nbytes <= _SHORT and self.collective in core.WAYS:
            for made in self._cores(nbytes):
                rows += self._cuts(made, nbytes, self._allowed(made, nbytes, ((1, 1),)))
        for made in start:
            rows += self._cuts(made, nbytes, self._allowed(made, nbytes, _FIRST))

        def left() -> int:
            return self.wish.evaluations - (self.evaluations - before)

        rows.sort(key=lambda each: each.time)
        tried = {(id(each.made), each.segments, each.window) for each in rows}
        for made in {id(each.made): each.made for each in rows}.values():
            if left() < self.wish.evaluations // 2:
                break
            cuts = [c for c in self._allowed(made, nbytes) if (id(made), *c) not in tried]
            rows += self._cuts(made, nbytes, cuts[: max(0, left())])
        rows.sort(key=lambda each: each.time)
        dice = random.Random(f"{self.wish.seed} {self.collective} {nbytes}")
        while left() > 0:
            best = next((each for each in rows if id(each.made) in self.forests), None)
            if best is None:
                break
            new = self._cuts(self._other(best, dice), nbytes, [best[2:]])
            rows = sorted(rows + new, key=lambda each: each.time)
        return rows

    def _cores(self, nbytes: int) -> list[Made]:
        """Core trees for a short vector."""
        gathers = self.collective == "allgather"
        nblocks = forest.blocks(self.collective, self.ranks)

        def cost(one: core.Core) -> core.Cost:
            self.evaluations += 1
            self.tick()
            programs = core.programs(one, gathers)
            done = forest.finish(programs, nblocks, nbytes, self.machine)
            return max(done), sum(done)

        root = self.root if self.collective in ("bcast", "reduce") else None
        found = core.search(
            self.collective,
            self.machine,
            nbytes,
            root,
            cost,
            int(self.wish.evaluations * _OF_CORES),
            self.wish.seed,
        )
        return [
            Made(f"trees to a core of {len(one.core)}", core.programs(one, gathers), nblocks)
            for one in found
        ]

    def _other(self, best: Timed, dice: random.Random) -> Made:
        """The same trees but for one, which is grown anew."""
        packed, taste, apart = self.forests[id(best.made)]
        packer = Packer(self.collective, self.edges, self.bound, taste, self.root, self.wish.seed)
        parts = [part for strand in packed.strands for part in strand]
        number = dice.randrange(len(parts))
        root = parts[number].root
        if self.collective == "allreduce" and dice.random() < 0.5:
            root = dice.randrange(self.ranks)
        power, depth = dice.choice(_TASTES)
        changed = Taste(taste.strands, power, depth * dice.random())
        return self._made(packer.regrown(packed, number, changed, root), taste, apart)
