"""An algorithm of the catalogue: its schedule, and what is said of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

from mpicoll.base.wording import plural
from mpicoll.schedule import collectives
from mpicoll.schedule.collectives import Collective
from mpicoll.schedule.counts import Counts
from mpicoll.schedule.counts import count as counted
from mpicoll.schedule.needs import Need, of_size
from mpicoll.schedule.parameters import Parameter, ParameterKind, Value
from mpicoll.schedule.steps import Channel, Schedule, as_channels

Count = Callable[..., int]
Formula = Callable[..., float]


class Algorithm(NamedTuple):
    """One algorithm of one collective.

    The counts are exact integer functions of the number of ranks and the parameters, and tested
    against the schedule; None where they are not declared, and counted when they are asked for.
    Blocks are counted in (block, segment) pairs.

    Attributes:
        collective: the collective's name.
        name: the field's name of the algorithm.
        origin: the module that has registered it.
        schedule: ``schedule(rank, size, [root,] **parameters)``.
        parameters: name and default of each parameter.
        kinds: what the values of each parameter are.
        rounds: rounds with a message, summed over a rank's channels; the most of any rank.
        depth: steps of one message each until all ranks are done, with one full-duplex port;
            exact for one channel, an upper bound for several and where ``depth_bound``.
        messages: messages of all ranks together.
        blocks_sent: blocks sent by all ranks together.
        blocks_sent_max: blocks sent by the rank that sends most.
        fan_in: the most messages that a rank receives in one round.
        textbook: the alpha-beta-gamma formula of the textbooks, for (P, n bytes, alpha, beta,
            gamma) and, if it has any, the parameters; it assumes that P is a power of two and
            divides n, and is an upper estimate where there are several channels.  None: no formula.
        blocks: number of blocks for P ranks.
        scratch: number of scratch blocks for P ranks.
        needs: what it needs of the call (``COMMUTATIVE``, ``EQUAL_BLOCKS``) and of the
            number of ranks (``EVEN_SIZE``, ``POWER_OF_TWO``, or a :class:`.SizeNeed`).
        order: order classes (``SAME_BITS``, ``RANK_ORDER``).
        symmetric: every rank does the same, turned by its rank.
        parts: schedules that it consists of, one after the other in one channel; none, if it is
            one by itself.
        only: the one number of ranks that it serves, if it was made for one.
        root: the one root that it serves, if it was made for one.
        hosts: the host of each rank that it was made for; none, if it was made for no machine.
        content: the schedule file that it was read from.
        depth_bound: with one channel, too, ``depth`` is an upper bound.
        reference: where it comes from.
    """

    collective: str
    name: str
    origin: str
    schedule: Callable[..., Schedule]
    parameters: Mapping[str, Value]
    kinds: Mapping[str, ParameterKind]
    rounds: Count | None
    depth: Count | None
    messages: Count | None
    blocks_sent: Count | None
    blocks_sent_max: Count | None
    fan_in: Count | None
    textbook: Formula | None
    blocks: Count
    scratch: Count
    needs: tuple[Need, ...]
    order: tuple[str, ...]
    symmetric: bool
    depth_bound: bool
    reference: str
    parts: tuple[Callable[..., Schedule], ...]
    only: int | None = None
    root: int | None = None
    hosts: tuple[int, ...] = ()
    content: bytes = b""

    @property
    def definition(self) -> Collective:
        """What the collective means."""
        return collectives.collective(self.collective)

    @property
    def summary(self) -> str:
        """One sentence: the first line of the schedule's docstring."""
        return (inspect.getdoc(self.schedule) or "").split("\n", 1)[0]

    @property
    def picture(self) -> str:
        """The schedule's docstring after its first line."""
        return (inspect.getdoc(self.schedule) or "").partition("\n")[2].strip("\n")

    def runs_on(self, size: int) -> bool:
        """Whether it serves this number of ranks."""
        if self.only is not None:
            return size == self.only
        return all(need.serves(size) for need in of_size(self.needs))

    def misfit(self, size: int, parameters: Mapping[str, Value], root: int | None = None) -> str:
        """Why it does not serve this number of ranks with these parameters; "" if it does.

        ``root``: that of the call, where it is known.
        """
        if self.only not in (None, size):
            return f"it was made for {plural(self.only or 0, 'rank')}, not for {size}"
        if root is not None and self.root not in (None, root):
            return f"it was made for root {self.root}, not for {root}"
        for need in of_size(self.needs):
            if why := need.misfit(size):
                return why
        for name, value in parameters.items():
            if isinstance(value, tuple) and value and len(value) != size:
                return (
                    f"{name}={value!r} is for {plural(len(value), 'rank')}, not for {size}: give a "
                    f"number for each rank, or leave {name} out"
                )
        return ""

    def declares(self, count: str) -> bool:
        """Whether a count is declared: ``rounds``, ``depth``, ``messages``, ..."""
        return getattr(self, count) is not None

    def count_of(
        self, name: str, size: int, root: int = 0, parameters: Mapping[str, Parameter] | None = None
    ) -> int:
        """One of the counts, such as ``rounds``; few depend on the root.

        One that is not declared is counted in the schedules of all ranks, but for ``depth``, which
        :func:`mpicoll.verify.verify` finds.
        """
        function: Count | None = getattr(self, name)
        complete = self.complete(parameters)
        if function is None:
            key = self.schedule, size, root, tuple(sorted(complete.items()))
            return int(getattr(_counted(*key, self.blocks(size), self.scratch(size)), name))
        return int(function(size, **_wanted(function, complete, root)))

    def textbook_time(
        self,
        size: int,
        nbytes: float,
        alpha: float,
        beta: float,
        gamma: float,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> float | None:
        """The formula of the textbooks, in the unit of alpha; None where there is none."""
        if self.textbook is None:
            return None
        more = _wanted(self.textbook, self.complete(parameters))
        return float(self.textbook(size, nbytes, alpha, beta, gamma, **more))

    def complete(self, parameters: Mapping[str, Parameter] | None = None) -> dict[str, Value]:
        """Parameters with the defaults filled in.

        Raises:
            ValueError: an unknown parameter, or a value that is none of its kind.
        """
        given = dict(parameters or {})
        for name in given:
            if name not in self.parameters:
                known = ", ".join(self.parameters) or "none"
                raise ValueError(
                    f"{self.collective} {self.name} has no parameter {name!r}: known are {known}"
                )
        checked = {name: self.kinds[name].value(name, value) for name, value in given.items()}
        return {**self.parameters, **checked}

    def fitting(
        self,
        size: int,
        parameters: Mapping[str, Parameter] | None = None,
        root: int | None = None,
    ) -> dict[str, Value]:
        """All parameters, for a number of ranks, and a root where that is known.

        Raises:
            ValueError: see :meth:`complete`; or it does not serve this number of ranks, or this
                root, with them.
        """
        complete = self.complete(parameters)
        misfit = self.misfit(size, complete, root if self.definition.rooted else None)
        if misfit:
            raise ValueError(f"{self.collective} {self.name}: {misfit}")
        return complete

    def channels(
        self, rank: int, size: int, root: int = 0, parameters: Mapping[str, Parameter] | None = None
    ) -> tuple[Channel, ...]:
        """One rank's schedule, as channels.

        Raises:
            ValueError: see :meth:`fitting`.
        """
        complete = self.fitting(size, parameters, root)
        return self.program(self.schedule, size, root, complete)(rank)

    def program(
        self, part: Callable[..., Schedule], size: int, root: int, complete: Mapping[str, Value]
    ) -> Callable[[int], tuple[Channel, ...]]:
        """Channels of a rank in the schedule, or in one of its parts, with all parameters given."""
        return _program(part, size, root, complete)


def _program(
    part: Callable[..., Schedule], size: int, root: int, complete: Mapping[str, Value]
) -> Callable[[int], tuple[Channel, ...]]:
    named = _wanted(part, complete, root)
    return lambda rank: as_channels(part(rank, size, **named))


@lru_cache(maxsize=64)
def _counted(
    schedule: Callable[..., Schedule],
    size: int,
    root: int,
    parameters: tuple[tuple[str, Value], ...],
    nblocks: int,
    nscratch: int,
) -> Counts:
    """What the schedules of all ranks do."""
    channels = _program(schedule, size, root, dict(parameters))
    programs = (channels(rank) for rank in range(size))
    listed = [[c._replace(rounds=tuple(c.rounds)) for c in program] for program in programs]
    return counted(listed, nblocks, nscratch)


def _wanted(
    function: Callable[..., Any], complete: Mapping[str, Value], root: int = 0
) -> dict[str, Any]:
    """Those of the parameters and the root that a registered function takes."""
    more = {**complete, "root": root}
    return {name: more[name] for name in _arguments(function) if name in more}


@cache
def _arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)
