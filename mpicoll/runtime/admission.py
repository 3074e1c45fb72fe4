"""Schedules that somebody else has registered: verified before they run.

Those of the catalogue are verified when mpicoll is tested.  A fault of another one could leave
ranks waiting for messages that nobody sends, or let messages overwrite memory.  So before its first
run with a number of ranks, a root and parameters every rank runs the schedules of all ranks on
symbols (:mod:`mpicoll.verify`), and they tell each other what they have found: all of them raise,
or none.  A non-blocking call must not wait for others, so there each rank goes by what it has
found, which is the same as long as all ranks have the same schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from mpicoll.base.wording import plural
from mpicoll.registry import find
from mpicoll.runtime import agree
from mpicoll.runtime.calls import Prepared
from mpicoll.runtime.guard import Guard
from mpicoll.schedule import Block, Copy
from mpicoll.schedule.layout import Layout
from mpicoll.schedule.matching import Matching, Pair, run
from mpicoll.schedule.memory import Blank, ScheduleError, unequal_copy
from mpicoll.schedule.methods import METHODS, OWN
from mpicoll.schedule.parameters import Value


class Case(NamedTuple):
    """What the schedules of all ranks depend on."""

    collective: str
    algorithm: str
    size: int
    root: int
    parameters: tuple[tuple[str, Value], ...]
    #: The function that makes them: names may be given anew.
    schedule: Callable[..., Any]


class Admission:
    """The schedules that a communicator has let run.

    Args:
        guard: of the communicator.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._agreed: set[Case] = set()

    def check(self, prepared: Prepared, waits: bool) -> None:
        """Raise if a schedule that a call is to run by has a fault.

        Collective where the call may wait for others (``waits``).

        Raises:
            ScheduleError: names the first fault; the same on all ranks.
            Disagreement: the ranks have different schedules.
        """
        definition, place, choice, call = prepared
        entry = find(definition.name, choice.algorithm)
        assert call is not None
        case = Case(
            definition.name,
            entry.name,
            place.size,
            place.root,
            choice.parameters,
            entry.schedule,
        )
        found = fault(case)
        if waits and case not in self._agreed:
            found = self._first(case, found, prepared.described())
            self._agreed.add(case)
        if not found and METHODS[definition.method].blocks is not OWN:
            # All ranks know the length of every block, so all of them find the same.
            found = fault_of_lengths(case, call.shape(choice).output)
        if found:
            raise ScheduleError(
                f"{definition.name} {entry.name} on {plural(place.size, 'rank')}: {found}; "
                f"mpicoll.verify says what a schedule must do"
            )

    def _first(self, case: Case, found: str, described: str) -> str:
        """The fault that the first rank has found that has found one; "" if none has."""
        facts: dict[str, str] = {"error": found}
        if not found:
            name = f"schedule of {case.collective} {case.algorithm}"
            parameters = case.collective, case.algorithm, case.parameters, case.size, case.root
            facts = {name: agree.schedule_hash(*parameters)}
        every = self._guard.exchange(described, facts)
        for other in every:
            if other.get("error"):
                return str(other["error"])
        agree.compare(every)
        return ""


@lru_cache(maxsize=256)
def fault(case: Case) -> str:
    """What the schedules of all ranks do wrong, in one sentence; "" if nothing."""
    from mpicoll.verify import checked, programs_of  # what simulates is not needed otherwise

    entry = find(case.collective, case.algorithm)
    try:
        checked(entry, programs_of(entry, case.size, case.root, dict(case.parameters)), case.root)
    except ScheduleError as error:
        return str(error)
    except Exception as error:  # it is somebody else's code that runs
        return f"{type(error).__name__}: {error}"
    return ""


@lru_cache(maxsize=256)
def fault_of_lengths(case: Case, layout: Layout) -> str:
    """The first message or copy between blocks of different lengths; "" if there is none."""
    from mpicoll.verify import programs_of

    if len(set(layout.counts)) < 2:
        return ""
    entry = find(case.collective, case.algorithm)
    programs = programs_of(entry, case.size, case.root, dict(case.parameters))
    nblocks, nscratch = entry.blocks(case.size), entry.scratch(case.size)
    memories = [Blank() for _ in programs]
    try:
        run(_Lengths(programs, nblocks, nscratch, memories, layout))
    except ScheduleError as error:
        return str(error)
    return ""


class _Lengths(Matching[None]):
    """The schedules of all ranks, where both sides of a message must be equally long."""

    def __init__(
        self,
        programs: Any,
        nblocks: int,
        nscratch: int,
        memories: list[Blank],
        layout: Layout,
    ) -> None:
        self._layout = layout
        super().__init__(programs, nblocks, nscratch, memories)

    def _lengths(self, block: Block) -> list[int]:
        return [self._layout.counts[cell.block % self.nblocks] for cell in self.cells(block, 0)]

    def deliver(self, message: Pair) -> None:
        sender, receiver = message.sender, message.receiver
        assert sender is not None and receiver is not None and message.step is not None
        sent, expected = self._lengths(message.sent), self._lengths(message.step.block)
        if sent != expected:
            raise ScheduleError(
                f"rank {sender.rank} sends blocks of {sent} to rank {receiver.rank}, which expects "
                f"{expected}: {message.step}; where blocks differ in length they must keep their "
                "numbers"
            )
        super().deliver(message)

    def _copy(self, rank: int, step: Copy, segment: int) -> None:
        if self._lengths(step.src) != self._lengths(step.dst):
            raise unequal_copy(step, rank, "a block of another length")
        super()._copy(rank, step, segment)
