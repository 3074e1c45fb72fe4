"""What takes part in a search: algorithms of the catalogue, and schedules made for the machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mpicoll import algorithms
from mpicoll.files import schedule_files
from mpicoll.registry import LABELS, NUMBER, PERMUTATION, Algorithm
from mpicoll.schedule import number_of_blocks
from mpicoll.schedule.parameters import Value, in_words
from mpicoll.simulate import TooLargeError, simulate
from mpicoll.simulate.machine import Machine
from mpicoll.synthesis import forest
from mpicoll.synthesis.forest import Program

#: Segments with which algorithms of the catalogue are tried.
_SEGMENTS = (1, 4, 16, 64)


@dataclass(frozen=True)
class Known:
    """An algorithm of the catalogue with its parameters, and how long it takes."""

    algorithm: Algorithm
    parameters: dict[str, Value]
    time: int

    @property
    def words(self) -> str:
        """As a tuning file has it."""
        return f"{self.algorithm.name} {in_words(self.parameters)}".rstrip()


@dataclass(frozen=True)
class Made:
    """A schedule that was made for the machine.

    Attributes:
        origin: how it was made, in words.
        programs: of each rank.
        blocks: how many there are.
        loads: of each resource, as multiples of the bound; none where nothing is said of them.
    """

    origin: str
    programs: list[Program]
    blocks: int
    loads: tuple[float, ...] = ()

    @property
    def strands(self) -> int:
        """How many there are."""
        return len(self.programs[0])

    @property
    def channels(self) -> int:
        """How many there are, of all strands together."""
        return sum(map(len, self.programs[0]))

    def longest(self, nbytes: int, segments: int) -> int:
        """Bytes of its longest message."""
        most = max(
            (
                number_of_blocks(step.block)  # type: ignore[union-attr]
                for program in self.programs
                for strand in program
                for rounds in strand
                for steps in rounds
                for step in steps
            ),
            default=0,
        )
        return -(-nbytes // (self.blocks * self.strands * segments)) * most

    def time(self, nbytes: int, machine: Machine, segments: int, window: int) -> int:
        """How long it takes by the clock."""
        return max(forest.finish(self.programs, self.blocks, nbytes, machine, segments, window))

    def file(
        self,
        collective: str,
        root: int | None,
        hosts: Sequence[int],
        segments: int,
        window: int,
        about: dict[str, Any],
    ) -> bytes:
        """Its schedule file."""
        needs, order = forest.promises(collective)
        content = schedule_files.Content(
            collective,
            self.programs,
            root,
            self.blocks,
            segments,
            window,
            tuple(hosts),
            needs,
            order,
            {"made": self.origin, **about},
        )
        return schedule_files.render(content)


def known(collective: str, machine: Machine, nbytes: int, root: int) -> list[Known]:
    """The algorithms of the catalogue, the fastest first."""
    network = machine.network
    assert network is not None
    found = []
    for entry in algorithms.catalogue():
        if entry.collective != collective or not entry.runs_on(network.ranks):
            continue
        for parameters in _settings(entry, network.hosts):
            try:
                result = simulate(entry, network.ranks, nbytes, machine, root, parameters)
            except TooLargeError:
                continue
            found.append(Known(entry, parameters, result.makespan))
    return sorted(found, key=lambda each: (each.time, each.words))


def _settings(entry: Algorithm, hosts: Sequence[int]) -> Iterator[dict[str, Value]]:
    """Parameters to try: segments, the hosts, and rings that go from host to host."""
    base: dict[str, Value] = {
        name: tuple(hosts) for name, kind in entry.kinds.items() if kind is LABELS
    }
    # Ranks of a host one after the other, where they are not so already.
    order = tuple(sorted(range(len(hosts)), key=lambda rank: (hosts.index(hosts[rank]), rank)))
    orders = [name for name, kind in entry.kinds.items() if kind is PERMUTATION]
    choices = [base, *({**base, name: order} for name in orders if order != tuple(sorted(order)))]
    segmented = "segments" in entry.parameters and entry.kinds["segments"] is NUMBER
    for choice in choices:
        for segments in _SEGMENTS if segmented else (1,):
            yield {**choice, "segments": segments} if segmented else dict(choice)
