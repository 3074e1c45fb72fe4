"""The catalogue of algorithms: one line each, from which everything else is generated.

Dispatch, ``mpicoll list``, the documentation's tables, the test matrix, the sweep and the simulator
read it.  To add an algorithm is to write one schedule and one :func:`register` call beside it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from mpicoll.base import extensions
from mpicoll.schedule import Schedule, collectives
from mpicoll.schedule.algorithm import Algorithm, Count, Formula
from mpicoll.schedule.needs import (
    COMMUTATIVE,
    EQUAL_BLOCKS,
    EVEN_SIZE,
    POWER_OF_TWO,
    Need,
    SizeNeed,
)
from mpicoll.schedule.needs import check as check_needs
from mpicoll.schedule.parameters import LABELS, NUMBER, PERMUTATION, ParameterKind

__all__ = [
    "COMMUTATIVE",
    "EQUAL_BLOCKS",
    "EVEN_SIZE",
    "FILE_PREFIX",
    "LABELS",
    "NUMBER",
    "PERMUTATION",
    "POWER_OF_TWO",
    "RANK_ORDER",
    "SAME_BITS",
    "Algorithm",
    "ParameterKind",
    "SizeNeed",
    "catalogue",
    "find",
    "is_path",
    "keep",
    "names",
    "of_a_user",
    "path_of",
    "per_rank",
    "register",
]

#: Order class: every rank evaluates the same expression, so all get the same bits.
SAME_BITS = "same bits on all ranks"
#: Order class: contributions are combined in rank order, so the operator need not be commutative.
RANK_ORDER = "rank order"


def per_rank(size: int) -> int:
    """One block a rank."""
    return size


_CATALOGUE: dict[tuple[str, str], Algorithm] = {}
#: Algorithms from files: found by name, and never listed.
_FILES: dict[tuple[str, str], Algorithm] = {}

#: How the name of an algorithm from a file begins.
FILE_PREFIX = "file:"


def is_path(name: str) -> bool:
    """Whether a name is that of a file which may have to be loaded."""
    return name.startswith(FILE_PREFIX) and "#" not in name


def path_of(name: str) -> str:
    """The path in a name, ``file:PATH`` or ``file:PATH#HASH``."""
    return name.removeprefix(FILE_PREFIX).rpartition("#")[0] or name.removeprefix(FILE_PREFIX)


def _one(P: int) -> int:
    return int(P > 1)


def register(
    collective: str,
    name: str,
    schedule: Callable[..., Schedule],
    *,
    rounds: Count | None = None,
    depth: Count | None = None,
    messages: Count | None = None,
    blocks_sent: Count | None = None,
    blocks_sent_max: Count | None = None,
    fan_in: Count | None = None,
    textbook: Formula | None = None,
    reference: str = "",
    blocks: Count | None = None,
    scratch: Count = lambda P: 0,
    needs: tuple[Need, ...] = (),
    order: tuple[str, ...] = (),
    symmetric: bool = False,
    depth_bound: bool = False,
    parts: tuple[Callable[..., Schedule], ...] = (),
    kinds: Mapping[str, ParameterKind] = MappingProxyType({}),
) -> Algorithm:
    """Add an algorithm to the catalogue; see :class:`Algorithm` for the arguments.

    A collective, a name and a schedule are enough.  Counts are checked against the schedule where
    they are declared, and counted where they are not.  Beside ``rounds`` the depth and the fan-in
    may be left out, and beside ``messages`` the blocks sent: they are then those of ranks that send
    one block and receive one message a round.  There is one block a rank where the collective needs
    it (see :class:`.Collective`), else one in all: ``blocks=per_rank`` cuts the vector into as many
    as there are ranks.

    Parameters are the schedule's arguments that have a default.  They are of the kind
    :data:`NUMBER` where ``kinds`` does not say otherwise.

    Raises:
        ValueError: the collective or a need is unknown, or it has an algorithm of that name
            already.
    """
    definition = collectives.collective(collective)
    if (collective, name) in _CATALOGUE:
        raise ValueError(f"{collective} {name} is registered already")
    check_needs(needs)
    signature: Mapping[str, Any] = inspect.signature(schedule).parameters
    parameters = {
        key: argument.default
        for key, argument in signature.items()
        if argument.default is not inspect.Parameter.empty
    }
    entry = Algorithm(
        collective=collective,
        name=name,
        origin=sys._getframe(1).f_globals.get("__name__", ""),
        schedule=schedule,
        parameters=parameters,
        kinds={key: kinds.get(key, NUMBER) for key in parameters},
        rounds=rounds,
        depth=depth or rounds,
        messages=messages,
        blocks_sent=blocks_sent or messages,
        blocks_sent_max=blocks_sent_max,
        fan_in=fan_in or (rounds and _one),
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
    """All algorithms: collectives in their own order, names in alphabetical order.

    Raises:
        ValueError: see :func:`mpicoll.base.extensions.load_all`.
    """
    extensions.load_all()
    ranking = list(collectives.COLLECTIVES)
    return tuple(
        sorted(_CATALOGUE.values(), key=lambda entry: (ranking.index(entry.collective), entry.name))
    )


def of_a_user(collective: str, name: str) -> Algorithm | None:
    """An algorithm that somebody else has registered; None for mpicoll's own, and for no name."""
    entry = _CATALOGUE.get((collective, name))
    ours = entry is None or entry.origin.startswith("mpicoll.algorithms.")
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
    if entry is None and not name.startswith(FILE_PREFIX):
        extensions.load_all()
        entry = _CATALOGUE.get((collective, name))
    if entry is None and name.startswith(FILE_PREFIX):
        loaded = " and ".join(of for of, other in _FILES if other == name)
        reason = f"it is for {loaded}" if loaded else "it has not been loaded"
        raise ValueError(f"{name} for {collective}: {reason}")
    if entry is None:
        known = ", ".join(names(collective)) or "none"
        raise ValueError(f"unknown algorithm {name!r} for {collective}: known are {known}")
    return entry
