"""Which algorithm serves a call: pure functions of what is equal on all ranks.

A table maps a collective to rules; a rule holds from a number of bytes on and lists candidates,
best first.  The first candidate that can serve the call is taken.  ``native`` stands for the MPI
library's own collective.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from mpicoll import algorithms
from mpicoll.collectives import COLLECTIVES
from mpicoll.registry import LABELS, Parameter, Value, in_words, read_value

__all__ = [
    "ARGUMENT",
    "BUILTIN",
    "BUILTIN_SOURCE",
    "NATIVE",
    "NEAR",
    "NEAR_SOURCE",
    "Choice",
    "Rule",
    "Table",
    "check",
    "choose",
    "fits",
    "from_environment",
    "is_default",
    "named",
    "placed",
    "prefer",
]

#: The MPI library's own collective.
NATIVE = "native"
#: Where the choices of :data:`BUILTIN` come from.
BUILTIN_SOURCE = "built-in table"
#: Where the choices of :data:`NEAR` come from.
NEAR_SOURCE = "built-in table for ranks that share memory"
#: Where they come from when the caller names them.
ARGUMENT = "argument"

Parameters: TypeAlias = tuple[tuple[str, Value], ...]


class Choice(NamedTuple):
    """An algorithm with its parameters, all of them, in order of their names."""

    algorithm: str
    parameters: Parameters = ()
    #: Why: where the rule comes from.
    source: str = ""

    @property
    def words(self) -> str:
        """Algorithm and parameters, as ``MPICOLL_ALLREDUCE`` takes them."""
        return f"{self.algorithm} {in_words(dict(self.parameters))}".rstrip()


class Rule(NamedTuple):
    """Candidates, best first, for at least ``nbytes`` bytes on at least ``ranks`` ranks."""

    nbytes: int
    candidates: tuple[Choice, ...]
    ranks: int = 1


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
    known = (*algorithms.names(collective), NATIVE)
    if algorithm not in known:
        raise ValueError(
            f"unknown algorithm {algorithm!r} for {collective}: known are {', '.join(known)}"
        )
    complete = algorithms.find(collective, algorithm).complete(parameters)
    return tuple(sorted(complete.items()))


#: Names by number of ranks and bytes: the library's own collectives are good at small vectors.
_NAMES: dict[str, dict[tuple[int, int], tuple[str, ...]]] = {
    "allreduce": {
        (1, 0): (NATIVE, "recursive_doubling"),
        (1, 1 << 20): ("ring", NATIVE, "parameter_server"),
    },
    "reduce_scatter": {(1, 0): (NATIVE, "ring"), (1, 1 << 20): ("ring", NATIVE)},
    "allgather": {(1, 0): (NATIVE, "ring"), (1, 1 << 20): ("ring", NATIVE)},
    "reduce": {(1, 0): (NATIVE, "linear")},
    "bcast": {(1, 0): (NATIVE, "linear")},
    "gather": {(1, 0): (NATIVE, "linear")},
    "scatter": {(1, 0): (NATIVE, "linear")},
    "alltoall": {(1, 0): (NATIVE, "pairwise")},
    "scan": {(1, 0): (NATIVE, "recursive_doubling")},
    "exscan": {(1, 0): (NATIVE, "recursive_doubling")},
    "barrier": {(1, 0): (NATIVE, "dissemination")},
}

#: The same where all ranks share memory.
_NEAR_NAMES: dict[str, dict[tuple[int, int], tuple[str, ...]]] = {
    "allreduce": {
        (2, 0): ("recursive_doubling", NATIVE),
        (2, 1 << 19): ("parameter_server", NATIVE),
        (3, 0): ("recursive_doubling", NATIVE),
        (3, 16 << 10): ("parameter_server", NATIVE),
    },
    "reduce_scatter": {(2, 0): ("parameter_server", NATIVE)},
    "allgather": {(2, 0): ("linear", NATIVE)},
    "reduce": {(2, 0): ("linear", NATIVE), (5, 0): ("binomial", "linear", NATIVE)},
    "bcast": {(2, 0): ("linear", NATIVE)},
    "gather": {(2, 0): ("linear", NATIVE)},
    "scatter": {(2, 0): ("linear", NATIVE)},
    "alltoall": {(2, 0): ("pairwise", NATIVE)},
    "scan": {(2, 0): ("linear", NATIVE), (3, 0): ("recursive_doubling", NATIVE)},
    "exscan": {(2, 0): ("linear", NATIVE), (3, 0): ("recursive_doubling", NATIVE)},
    "barrier": {(2, 0): ("dissemination", NATIVE)},
}


def _table(named: Mapping[str, Mapping[tuple[int, int], tuple[str, ...]]], source: str) -> Table:
    return {
        collective: tuple(
            Rule(
                nbytes,
                tuple(Choice(name, check(collective, name, {}), source) for name in names),
                ranks,
            )
            for (ranks, nbytes), names in rules.items()
        )
        for collective, rules in named.items()
    }


#: Used where nothing else is said.
BUILTIN: Table = _table(_NAMES, BUILTIN_SOURCE)
#: Used in its place where all ranks share memory.
NEAR: Table = _table(_NEAR_NAMES, NEAR_SOURCE)


def named(choice: Choice) -> str | None:
    """The algorithm if the caller has named it, the caller's own string."""
    return choice.algorithm if choice.source == ARGUMENT else None


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


def prefer(better: Table, table: Table) -> Table:
    """``better`` in place of the built-in choices of a table."""
    return {
        collective: (
            better[collective]
            if all(c.source == BUILTIN_SOURCE for rule in rules for c in rule.candidates)
            else rules
        )
        for collective, rules in table.items()
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
        The first candidate that serves, of the rule for the most ranks and bytes that holds; if
        none of its candidates serves, of the next such rule.

    Raises:
        LookupError: no candidate of a rule that holds serves the call.
    """
    rules = table.get(collective, (Rule(0, (Choice(NATIVE, (), BUILTIN_SOURCE),)),))
    for rule in sorted(rules, key=lambda rule: (rule.ranks, rule.nbytes), reverse=True):
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


def from_environment(environment: Mapping[str, str], table: Table = BUILTIN) -> Table:
    """The table with what the environment asks for put first.

    ``MPICOLL_<COLLECTIVE>`` names an algorithm, and its parameters if wanted:
    ``MPICOLL_ALLREDUCE="double_binary_tree segments=16"``.

    Raises:
        ValueError: an unknown algorithm or parameter; the message names variable and value.
    """
    merged = dict(table)
    for collective in COLLECTIVES:
        variable = f"MPICOLL_{collective.upper()}"
        value = environment.get(variable, "").split()
        if not value:
            continue
        try:
            words = (word.split("=") for word in value[1:])
            parameters = {key: read_value(number) for key, number in words}
            chosen = Choice(value[0], check(collective, value[0], parameters), variable)
        except ValueError as error:
            raise ValueError(
                f"{variable}={environment[variable]!r}: {error}; write an algorithm's name, "
                "followed by name=value for each parameter"
            ) from None
        rules = merged.get(collective, (Rule(0, ()),))
        merged[collective] = tuple(
            rule._replace(candidates=(chosen, *rule.candidates)) for rule in rules
        )
    return merged
