"""The catalogue of algorithms: one line each, from which everything else is generated.

Dispatch, ``mpicoll list``, the documentation's tables, the test matrix, the sweep and the simulator
read it.  To add an algorithm is to write one schedule and one :func:`register` call beside it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mpicoll import collectives
from mpicoll.collectives import Collective
from mpicoll.schedule import Channel, Schedule, as_channels

__all__ = [
    "COMMUTATIVE",
    "EQUAL_BLOCKS",
    "EVEN_SIZE",
    "RANK_ORDER",
    "SAME_BITS",
    "Algorithm",
    "catalogue",
    "find",
    "names",
    "one_block",
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


def one_block(size: int) -> int:
    """The vector is not cut."""
    return 1


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
        rounds: rounds with a message, summed over a rank's channels; the most of any rank.
        depth: steps of one message each until all ranks are done, with one full-duplex port;
            exact for one channel, an upper bound for several.
        messages: messages of all ranks together.
        blocks_sent: blocks sent by all ranks together.
        blocks_sent_max: blocks sent by the rank that sends most.
        fan_in: the most messages that a rank receives in one round.
        lecture: the alpha-beta-gamma formula of the textbooks, for (P, n bytes, alpha, beta,
            gamma) and, if it has any, the parameters; it assumes that P is a power of two and
            divides n, and is an upper estimate where there are several channels.
        blocks: number of blocks for P ranks.
        scratch: number of scratch blocks for P ranks.
        needs: what it needs of the call (:data:`COMMUTATIVE`, :data:`EQUAL_BLOCKS`,
            :data:`EVEN_SIZE`).
        order: order classes (:data:`SAME_BITS`, :data:`RANK_ORDER`).
        symmetric: every rank does the same, turned by its rank.
        reference: where it comes from.
    """

    collective: str
    name: str
    family: str
    schedule: Callable[..., Schedule]
    parameters: Mapping[str, int]
    rounds: Count
    depth: Count
    messages: Count
    blocks_sent: Count
    blocks_sent_max: Count
    fan_in: Count
    lecture: Formula
    blocks: Count
    scratch: Count
    needs: tuple[str, ...]
    order: tuple[str, ...]
    symmetric: bool
    reference: str

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
        return EVEN_SIZE not in self.needs or size == 1 or size % 2 == 0

    def count(
        self, name: str, size: int, root: int = 0, parameters: Mapping[str, int] | None = None
    ) -> int:
        """One of the registered counts, such as ``rounds``; few depend on the root."""
        function = getattr(self, name)
        arguments = self.complete(parameters)
        if "root" in inspect.signature(function).parameters:
            arguments["root"] = root
        return int(function(size, **arguments))

    def complete(self, parameters: Mapping[str, int] | None = None) -> dict[str, int]:
        """Parameters with the defaults filled in.

        Raises:
            ValueError: an unknown parameter, or one that is no positive integer.
        """
        given = dict(parameters or {})
        for name, value in given.items():
            if name not in self.parameters:
                known = ", ".join(self.parameters) or "none"
                raise ValueError(
                    f"{self.collective} {self.name} has no parameter {name!r}: known are {known}"
                )
            integer = None if isinstance(value, bool) else getattr(value, "__index__", None)
            if integer is None or integer() < 1:
                raise ValueError(f"{name}={value!r} must be an integer of at least 1")
            given[name] = integer()
        return {**self.parameters, **given}

    def channels(
        self, rank: int, size: int, root: int = 0, parameters: Mapping[str, int] | None = None
    ) -> tuple[Channel, ...]:
        """One rank's schedule, as channels.

        Raises:
            ValueError: it does not serve this number of ranks, or a parameter is not its own.
        """
        if not self.runs_on(size):
            raise ValueError(
                f"{self.collective} {self.name} needs an even number of ranks, not {size}"
            )
        roots = {"root": root} if self.definition.rooted else {}
        return as_channels(self.schedule(rank, size, **roots, **self.complete(parameters)))


_CATALOGUE: dict[tuple[str, str], Algorithm] = {}


def register(
    collective: str,
    name: str,
    schedule: Callable[..., Schedule],
    *,
    rounds: Count,
    depth: Count,
    messages: Count,
    blocks_sent: Count,
    blocks_sent_max: Count,
    fan_in: Count,
    lecture: Formula,
    reference: str,
    blocks: Count = one_block,
    scratch: Count = lambda size: 0,
    needs: tuple[str, ...] = (),
    order: tuple[str, ...] = (),
    symmetric: bool = False,
) -> Algorithm:
    """Add an algorithm to the catalogue; see :class:`Algorithm` for the arguments.

    Parameters are the schedule's arguments that have a default.

    Raises:
        ValueError: the collective is unknown, or it has an algorithm of that name already.
    """
    collectives.collective(collective)
    if (collective, name) in _CATALOGUE:
        raise ValueError(f"{collective} {name} is registered already")
    signature: Mapping[str, Any] = inspect.signature(schedule).parameters
    entry = Algorithm(
        collective=collective,
        name=name,
        family=schedule.__module__.rpartition(".")[2],
        schedule=schedule,
        parameters={
            key: argument.default
            for key, argument in signature.items()
            if argument.default is not inspect.Parameter.empty
        },
        rounds=rounds,
        depth=depth,
        messages=messages,
        blocks_sent=blocks_sent,
        blocks_sent_max=blocks_sent_max,
        fan_in=fan_in,
        lecture=lecture,
        blocks=blocks,
        scratch=scratch,
        needs=needs,
        order=order,
        symmetric=symmetric,
        reference=reference,
    )
    _CATALOGUE[collective, name] = entry
    return entry


def catalogue() -> tuple[Algorithm, ...]:
    """All algorithms: collectives in their own order, names in alphabetical order."""
    ranking = list(collectives.COLLECTIVES)
    return tuple(
        sorted(_CATALOGUE.values(), key=lambda entry: (ranking.index(entry.collective), entry.name))
    )


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
    known = names(collective)
    if name not in known:
        raise ValueError(
            f"unknown algorithm {name!r} for {collective}: known are {', '.join(known) or 'none'}"
        )
    return _CATALOGUE[collective, name]
