"""Which algorithm serves a call: pure functions of what is equal on all ranks.

A table maps a collective to rules; a rule holds from a number of ranks and bytes on and lists
candidates, best first.  The first candidate that can serve the call is taken.  ``native`` stands
for the MPI library's own collective.  Rules come from built_in.json, which is part of the package,
from fitted parameters (:mod:`mpicoll.tuning.cost_files`), a tuning file
(:mod:`mpicoll.tuning.rule_files`), the environment and a communicator's hints; each of these comes
before the one named before it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from mpicoll import algorithms
from mpicoll.base.later import Later
from mpicoll.registry import FILE_PREFIX, is_path, path_of
from mpicoll.schedule import collectives
from mpicoll.schedule.parameters import LABELS, Parameter, Value, in_words, read_words

if TYPE_CHECKING:
    from mpicoll.files import schedule_files
else:
    schedule_files = Later("mpicoll.files.schedule_files")

__all__ = [
    "ARGUMENT",
    "BUILTIN",
    "BUILTIN_SOURCE",
    "BUILT_IN",
    "ENVIRONMENT",
    "EXACT",
    "FILE",
    "HINT",
    "MODEL",
    "NATIVE",
    "Choice",
    "Rule",
    "Table",
    "check",
    "choose",
    "choose_fitting",
    "choose_placed",
    "combined",
    "fits",
    "for_layout",
    "from_environment",
    "from_hints",
    "is_default",
    "is_grouped",
    "named",
    "parse",
    "placed",
    "table_from",
]

#: The MPI library's own collective.
NATIVE = "native"
#: Exact sums, see :mod:`mpicoll.ops.exact`; asked for by ``reproducible=True``.
EXACT = "exact"
#: Where the choices of :data:`BUILTIN` come from.
BUILTIN_SOURCE = "built-in table"
#: Ranks of rules, the least first.
BUILT_IN, MODEL, FILE, ENVIRONMENT, HINT = range(5)
#: Where they come from when the caller names them.
ARGUMENT = "argument"

Parameters: TypeAlias = tuple[tuple[str, Value], ...]


class Choice(NamedTuple):
    """An algorithm with its parameters, all of them, in order of their names."""

    algorithm: str
    parameters: Parameters = ()
    #: Why: where the rule comes from.
    source: str = ""
    #: Whether it is asked for by its name, so that what serves in its place is a fallback.
    asked: bool = False

    @property
    def words(self) -> str:
        """Algorithm and parameters, as ``MPICOLL_ALLREDUCE`` takes them."""
        return f"{self.algorithm} {in_words(dict(self.parameters))}".rstrip()


class Rule(NamedTuple):
    """Candidates, best first, for at least ``nbytes`` bytes on at least ``ranks`` ranks."""

    nbytes: int
    candidates: tuple[Choice, ...]
    ranks: int = 1
    #: Whether for ranks that all share memory, or for others; None: for all.
    near: bool | None = None
    #: Whether for ranks on several nodes, several of them on one, or for others; None: for all.
    grouped: bool | None = None
    #: What comes before what: one of :data:`BUILT_IN`, :data:`MODEL`, ...
    rank: int = 0


Table: TypeAlias = Mapping[str, tuple[Rule, ...]]


def check(collective: str, algorithm: str, parameters: Mapping[str, Parameter]) -> Parameters:
    """The parameters of an algorithm asked for by name, with the defaults filled in.

    Raises:
        ValueError: unknown algorithm or parameter (the message names the known ones), or a
            parameter whose value is none of its kind.
    """
    if algorithm == NATIVE:
        if parameters:
            raise ValueError(
                f"{collective} {NATIVE} has no parameter {next(iter(parameters))!r}: known are none"
            )
        return ()
    try:
        entry = algorithms.find(collective, algorithm)
    except ValueError:
        known = (*algorithms.names(collective), NATIVE)
        if algorithm in known or algorithm.startswith(FILE_PREFIX):
            raise
        raise ValueError(
            f"unknown algorithm {algorithm!r} for {collective}: known are {', '.join(known)}"
        ) from None
    return tuple(sorted(entry.complete(parameters).items()))


def parse(collective: str, words: str, source: str, asked: bool = False) -> Choice:
    """A choice as it is written: an algorithm's name, followed by name=value for each parameter.

    A schedule file, ``file:PATH``, is loaded.

    Raises:
        ValueError: see :func:`check` and :func:`mpicoll.files.schedule_files.load`.
    """
    name, parameters = read_words(words)
    if is_path(name):
        try:
            name = schedule_files.find(collective, name).name
        except ModuleNotFoundError as error:
            raise ValueError(str(error)) from None
    return Choice(name, check(collective, name, parameters), source, asked)


def table_from(rules: Mapping[str, Iterable[Mapping[str, Any]]], source: str, rank: int) -> Table:
    """A table of rules as a tuning file has them.

    Args:
        rules: by collective: ``algorithms`` (see :func:`parse`), best first, and perhaps
            ``nbytes``, ``ranks``, ``near`` and ``grouped``, see :class:`Rule`.
        source: where they come from.
        rank: see :class:`Rule`.

    Raises:
        ValueError: an unknown collective, algorithm or parameter.
    """
    table = {}
    for name, written in rules.items():
        collectives.collective(name)
        table[name] = tuple(
            _rule(name, number, rule, source, rank) for number, rule in enumerate(written)
        )
    return table


def _rule(name: str, number: int, rule: Mapping[str, Any], source: str, rank: int) -> Rule:
    try:
        candidates = tuple(parse(name, words, source) for words in rule["algorithms"])
    except ValueError as error:
        raise ValueError(f"rules.{name}.{number}: {error}") from None
    more = {key: value for key, value in rule.items() if key != "algorithms"}
    return Rule(**{"nbytes": 0, **more}, candidates=candidates, rank=rank)


def _built_in() -> Table:
    with open(os.path.join(os.path.dirname(__file__), "built_in.json"), encoding="utf-8") as file:
        return table_from(json.load(file)["rules"], BUILTIN_SOURCE, BUILT_IN)


#: Used where nothing else is said; from measurements.
BUILTIN: Table = _built_in()


def named(choice: Choice) -> str | None:
    """The algorithm if the caller has named it, the caller's own string."""
    if choice.source != ARGUMENT:
        return None
    if choice.algorithm.startswith(FILE_PREFIX):
        return FILE_PREFIX + path_of(choice.algorithm)
    return choice.algorithm


def placed(collective: str, choice: Choice, nodes: tuple[int, ...]) -> Choice:
    """A choice with the nodes of the ranks filled in where it leaves them open."""
    if all(value != () for _, value in choice.parameters):
        return choice
    kinds = algorithms.find(collective, choice.algorithm).kinds
    return choice._replace(
        parameters=tuple(
            (name, nodes if value == () and kinds[name] is LABELS else value)
            for name, value in choice.parameters
        )
    )


def is_default(collective: str, choice: Choice, nodes: tuple[int, ...] = ()) -> bool:
    """Whether a choice comes from a table, or is an algorithm that is named and nothing more.

    ``nodes``: those of the ranks, see :func:`placed`.
    """
    if choice.source != ARGUMENT:
        return bool(choice.source)
    default = Choice(choice.algorithm, check(collective, choice.algorithm, {}))
    return choice.parameters == placed(collective, default, nodes).parameters


def combined(*tables: Table) -> Table:
    """The rules of several tables."""
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: tuple(rule for table in tables for rule in table.get(name, ())) for name in names}


def is_grouped(nodes: Sequence[int]) -> bool:
    """Whether the ranks are on several nodes, several of them on one; by the node of each."""
    return 1 < len(set(nodes)) < len(nodes)


def for_layout(table: Table, near: bool, grouped: bool = False) -> Table:
    """The rules that hold for some ranks.

    Args:
        table: the rules.
        near: whether all ranks share memory.
        grouped: see :func:`is_grouped`.
    """
    return {
        name: tuple(
            rule for rule in rules if rule.near in (None, near) and rule.grouped in (None, grouped)
        )
        for name, rules in table.items()
    }


def choose(
    collective: str,
    size: int,
    nbytes: int,
    table: Table,
    serves: Callable[[Choice], bool] = lambda candidate: True,
) -> Choice:
    """The algorithm for a call.

    Args:
        collective: its name.
        size: number of ranks.
        nbytes: bytes of the whole vector (all-gather, reduce-scatter, ...: of all blocks).
        table: the rules; a collective without any is the library's.
        serves: whether a candidate can serve the call at all.

    Returns:
        The first candidate that serves, of the first rule that holds: of those of the highest
        rank the one for the most ranks and bytes; if none of its candidates serves, of the next.

    Raises:
        LookupError: no candidate of a rule that holds serves the call.
    """
    rules = (*table.get(collective, ()), Rule(0, (Choice(NATIVE, (), BUILTIN_SOURCE),), rank=-1))
    for rule in sorted(rules, key=lambda rule: (rule.rank, rule.ranks, rule.nbytes), reverse=True):
        if size >= rule.ranks and nbytes >= rule.nbytes:
            for candidate in rule.candidates:
                if serves(candidate):
                    return candidate
    raise LookupError(f"no algorithm of the table serves this {collective}")


def fits(collective: str, choice: Choice, size: int) -> bool:
    """Whether an algorithm with its parameters serves a number of ranks."""
    if choice.algorithm == NATIVE:
        return True
    entry = algorithms.find(collective, choice.algorithm)
    return not entry.misfit(size, dict(choice.parameters))


def choose_fitting(collective: str, size: int, nbytes: int, table: Table) -> Choice:
    """As :func:`choose`, of what serves the number of ranks, whatever the arguments of the call."""
    return choose(collective, size, nbytes, table, lambda choice: fits(collective, choice, size))


def choose_placed(
    collective: str, size: int, nbytes: int, table: Table, nodes: Sequence[int]
) -> Choice:
    """As :func:`choose_fitting`, by the rules that hold on these nodes; none: all ranks on one."""
    here = for_layout(table, len(set(nodes)) < 2, is_grouped(nodes))
    return choose_fitting(collective, size, nbytes, here)


def from_environment(environment: Mapping[str, str]) -> Table:
    """What the environment asks for.

    ``MPICOLL_<COLLECTIVE>`` names an algorithm, and its parameters if wanted:
    ``MPICOLL_ALLREDUCE="double_binary_tree segments=16"``.

    Raises:
        ValueError: an unknown algorithm or parameter; the message names variable and value.
    """
    return _asked(environment, "MPICOLL_{}", str.upper, ENVIRONMENT)


def from_hints(hints: Mapping[str, str]) -> Table:
    """What the hints of a communicator ask for: the same by ``mpicoll_<collective>``."""
    return _asked(hints, "mpicoll_{}", str.lower, HINT)


def _asked(texts: Mapping[str, str], pattern: str, case: Callable[[str], str], rank: int) -> Table:
    table = {}
    for name in collectives.COLLECTIVES:
        variable = pattern.format(case(name))
        text = texts.get(variable, "").strip()
        if text:
            try:
                choice = parse(name, text, variable, asked=True)
            except ValueError as error:
                raise ValueError(
                    f"{variable}={texts[variable]!r}: {error}; write an algorithm's name, "
                    "followed by name=value for each parameter"
                ) from None
            table[name] = (Rule(0, (choice,), rank=rank),)
    return table
