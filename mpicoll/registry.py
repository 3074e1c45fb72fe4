"""The catalogue of algorithms: one line each, from which everything else is generated.

Dispatch, ``mpicoll list``, the documentation's tables, the test matrix, the sweep and the simulator
read it.  To add an algorithm is to write one schedule and one :func:`register` call beside it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from mpicoll.base.wording import plural
from mpicoll.schedule import Channel, Schedule, as_channels, collectives
from mpicoll.schedule.collectives import Collective
from mpicoll.schedule.parameters import (
    LABELS,
    NUMBER,
    PERMUTATION,
    Parameter,
    ParameterKind,
    Value,
)

__all__ = [
    "COMMUTATIVE",
    "EQUAL_BLOCKS",
    "EVEN_SIZE",
    "FILE_PREFIX",
    "LABELS",
    "NUMBER",
    "PERMUTATION",
    "RANK_ORDER",
    "SAME_BITS",
    "Algorithm",
    "ParameterKind",
    "catalogue",
    "find",
    "keep",
    "names",
    "of_a_user",
    "per_rank",
    "register",
]

#: Need: the operator must be commutative (every algorithm needs it to be associative).
COMMUTATIVE = "commutative"

#: Need: the number of ranks must be even (or 1).
EVEN_SIZE = "even size"

#: Need: all blocks are equally long, or every rank knows the length of each: it passes on blocks of
#: other ranks, and in a Gatherv, Scatterv or Alltoallv a rank knows the lengths of its own alone.
EQUAL_BLOCKS = "equal blocks"

#: Order class: every rank evaluates the same expression, so all get the same bits.
SAME_BITS = "same bits on all ranks"
#: Order class: contributions are combined in rank order, so the operator need not be commutative.
RANK_ORDER = "rank order"

Count = Callable[..., int]
Formula = Callable[..., float]


def per_rank(size: int) -> int:
    """One block a rank."""
    return size


@dataclass(frozen=True)
class Algorithm:
    """One algorithm of one collective.

    The counts are exact integer functions of the number of ranks and the parameters, and tested
    against the schedule.  Blocks are counted in (block, segment) pairs.

    Attributes:
        collective: the collective's name.
        name: the field's name of the algorithm.
        family: the module it stands in.
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
            divides n, and is an upper estimate where there are several channels.
        blocks: number of blocks for P ranks.
        scratch: number of scratch blocks for P ranks.
        needs: what it needs of the call (:data:`COMMUTATIVE`, :data:`EQUAL_BLOCKS`,
            :data:`EVEN_SIZE`).
        order: order classes (:data:`SAME_BITS`, :data:`RANK_ORDER`).
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
    family: str
    schedule: Callable[..., Schedule]
    parameters: Mapping[str, Value]
    kinds: Mapping[str, ParameterKind]
    rounds: Count
    depth: Count
    messages: Count
    blocks_sent: Count
    blocks_sent_max: Count
    fan_in: Count
    textbook: Formula
    blocks: Count
    scratch: Count
    needs: tuple[str, ...]
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
        return EVEN_SIZE not in self.needs or size == 1 or size % 2 == 0

    def misfit(self, size: int, parameters: Mapping[str, Value], root: int | None = None) -> str:
        """Why it does not serve this number of ranks with these parameters; "" if it does.

        ``root``: that of the call, where it is known.
        """
        if self.only not in (None, size):
            return f"it was made for {plural(self.only or 0, 'rank')}, not for {size}"
        if root is not None and self.root not in (None, root):
            return f"it was made for root {self.root}, not for {root}"
        if not self.runs_on(size):
            return (
                f"it needs an even number of ranks, not {size}: take {size + 1} ranks, or another "
                "algorithm"
            )
        for name, value in parameters.items():
            if isinstance(value, tuple) and value and len(value) != size:
                return (
                    f"{name}={value!r} is for {plural(len(value), 'rank')}, not for {size}: give a "
                    f"number for each rank, or leave {name} out"
                )
        return ""

    def count(
        self, name: str, size: int, root: int = 0, parameters: Mapping[str, Parameter] | None = None
    ) -> int:
        """One of the registered counts, such as ``rounds``; few depend on the root."""
        function: Count = getattr(self, name)
        return int(function(size, **_wanted(function, self.complete(parameters), root)))

    def textbook_time(
        self,
        size: int,
        nbytes: float,
        alpha: float,
        beta: float,
        gamma: float,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> float:
        """The formula of the textbooks, in the unit of alpha."""
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
        named = _wanted(part, complete, root)
        return lambda rank: as_channels(part(rank, size, **named))


def _wanted(
    function: Callable[..., Any], complete: Mapping[str, Value], root: int = 0
) -> dict[str, Any]:
    """Those of the parameters and the root that a registered function takes."""
    more = {**complete, "root": root}
    return {name: more[name] for name in _arguments(function) if name in more}


@cache
def _arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


_CATALOGUE: dict[tuple[str, str], Algorithm] = {}
#: Algorithms from files: found by name, and never listed.
_FILES: dict[tuple[str, str], Algorithm] = {}

#: How the name of an algorithm from a file begins.
FILE_PREFIX = "file:"


def register(
    collective: str,
    name: str,
    schedule: Callable[..., Schedule],
    *,
    rounds: Count,
    depth: Count | None = None,
    messages: Count,
    blocks_sent: Count | None = None,
    blocks_sent_max: Count,
    fan_in: Count = lambda P: int(P > 1),
    textbook: Formula,
    reference: str,
    blocks: Count | None = None,
    scratch: Count = lambda P: 0,
    needs: tuple[str, ...] = (),
    order: tuple[str, ...] = (),
    symmetric: bool = False,
    depth_bound: bool = False,
    parts: tuple[Callable[..., Schedule], ...] = (),
    kinds: Mapping[str, ParameterKind] = MappingProxyType({}),
) -> Algorithm:
    """Add an algorithm to the catalogue; see :class:`Algorithm` for the arguments.

    Counts left out are those of ranks that send one block and receive one message a round: the
    depth is the rounds, the blocks sent are the messages, and the fan-in is 1.  There is one block
    a rank where the collective needs it (see :class:`.Collective`), else one in all.

    Parameters are the schedule's arguments that have a default.  They are of the kind
    :data:`NUMBER` where ``kinds`` does not say otherwise.

    Raises:
        ValueError: the collective is unknown, or it has an algorithm of that name already.
    """
    definition = collectives.collective(collective)
    if (collective, name) in _CATALOGUE:
        raise ValueError(f"{collective} {name} is registered already")
    signature: Mapping[str, Any] = inspect.signature(schedule).parameters
    parameters = {
        key: argument.default
        for key, argument in signature.items()
        if argument.default is not inspect.Parameter.empty
    }
    entry = Algorithm(
        collective=collective,
        name=name,
        family=schedule.__module__.rpartition(".")[2],
        schedule=schedule,
        parameters=parameters,
        kinds={key: kinds.get(key, NUMBER) for key in parameters},
        rounds=rounds,
        depth=depth or rounds,
        messages=messages,
        blocks_sent=blocks_sent or messages,
        blocks_sent_max=blocks_sent_max,
        fan_in=fan_in,
        textbook=textbook,
        blocks=blocks or (per_rank if definition.block_per_rank else lambda P: 1),
        scratch=scratch,
        needs=needs,
        order=order,
        symmetric=symmetric,
        depth_bound=depth_bound,
        reference=reference,
        parts=parts,
    )
    _CATALOGUE[collective, name] = entry
    return entry


def keep(algorithm: Algorithm) -> None:
    """Let :func:`find` find an algorithm from a file, by a name that tells its content too."""
    _FILES[algorithm.collective, algorithm.name] = algorithm


def catalogue() -> tuple[Algorithm, ...]:
    """All algorithms: collectives in their own order, names in alphabetical order."""
    ranking = list(collectives.COLLECTIVES)
    return tuple(
        sorted(_CATALOGUE.values(), key=lambda entry: (ranking.index(entry.collective), entry.name))
    )


def of_a_user(collective: str, name: str) -> Algorithm | None:
    """An algorithm that somebody else has registered; None for mpicoll's own, and for no name."""
    entry = _CATALOGUE.get((collective, name))
    ours = entry is None or entry.schedule.__module__.startswith("mpicoll.")
    return None if ours else entry


def names(collective: str, size: int | None = None) -> tuple[str, ...]:
    """Names of a collective's algorithms; with a number of ranks, of those that serve it.

    Raises:
        ValueError: unknown collective.
    """
    collectives.collective(collective)
    return tuple(
        entry.name
        for entry in catalogue()
        if entry.collective == collective and (size is None or entry.runs_on(size))
    )


def find(collective: str, name: str) -> Algorithm:
    """One algorithm.

    Raises:
        ValueError: unknown collective or algorithm; the message names the known ones.
    """
    entry = _CATALOGUE.get((collective, name)) or _FILES.get((collective, name))
    if entry is None and name.startswith(FILE_PREFIX):
        loaded = " and ".join(of for of, other in _FILES if other == name)
        reason = f"it is for {loaded}" if loaded else "it has not been loaded"
        raise ValueError(f"{name} for {collective}: {reason}")
    if entry is None:
        known = ", ".join(names(collective)) or "none"
        raise ValueError(f"unknown algorithm {name!r} for {collective}: known are {known}")
    return entry
