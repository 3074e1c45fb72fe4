"""Schedules that somebody else has registered: verified before they run.

Those of the catalogue are verified when mpicoll is tested.  A fault of another one could leave
ranks waiting for messages that nobody sends, or let messages overwrite memory.  So before its first
run with a number of ranks, a root and parameters every rank runs the schedules of all ranks on
symbols (:mod:`mpicoll.verify`), and they tell each other what they have found: all of them raise,
or none.  A non-blocking call must not wait for others, so there each rank goes by what it has
found, which is the same as long as all ranks have the same schedule.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from mpicoll.base.wording import plural
from mpicoll.registry import find
from mpicoll.runtime import agree
from mpicoll.runtime.calls import Prepared
from mpicoll.runtime.guard import Guard
from mpicoll.schedule.memory import ScheduleError
from mpicoll.schedule.parameters import Value


class Case(NamedTuple):
    """What the schedules of all ranks depend on."""

    collective: str
    algorithm: str
    parameters: tuple[tuple[str, Value], ...]
    size: int
    root: int


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
        definition, place, choice, _ = prepared
        case = Case(definition.name, choice.algorithm, choice.parameters, place.size, place.root)
        found = fault(case)
        if waits and case not in self._agreed:
            found = self._first(case, found, prepared.described())
        if found:
            raise ScheduleError(
                f"{case.collective} {case.algorithm} on {plural(case.size, 'rank')}: {found}; "
                "mpicoll.verify says what a schedule must do"
            )
        if waits:
            self._agreed.add(case)

    def _first(self, case: Case, found: str, described: str) -> str:
        """The fault that the first rank has found that has found one; "" if none has."""
        facts: dict[str, str] = {"error": found}
        if not found:
            name = f"schedule of {case.collective} {case.algorithm}"
            facts = {name: agree.schedule_hash(*case)}
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
