"""Schedule files on a communicator: rank 0 alone reads and verifies them, all ranks get the same.

What a table names is shared when the table is; what a call or a program names, by :class:`Loaded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpi4py import MPI

from mpicoll import algorithms, tuning
from mpicoll.base import caller
from mpicoll.base.consensus import Problem, attempt, from_rank_0
from mpicoll.base.later import Later
from mpicoll.registry import FILE_PREFIX, is_path, path_of

if TYPE_CHECKING:
    from mpicoll.files import schedule_files
else:
    schedule_files = Later("mpicoll.files.schedule_files")


def share(private: MPI.Intracomm, table: tuning.Table) -> None:
    """Let all ranks have the files that a table names, which rank 0 has loaded.  Collective.

    Raises:
        ValueError: on all ranks, if one cannot read what rank 0 has read.
    """
    for collective, name in sorted(_files(table)):  # the same on all ranks
        _share(private, collective, name)


def _files(table: tuning.Table) -> set[tuple[str, str]]:
    """The schedule files that a table names, each with its collective."""
    return {
        (collective, candidate.algorithm)
        for collective, rules in table.items()
        for rule in rules
        for candidate in rule.candidates
        if candidate.algorithm.startswith(FILE_PREFIX)
    }


def _share(private: MPI.Intracomm, collective: str, name: str) -> None:
    content = b""
    if private.Get_rank() == 0:
        content = algorithms.find(collective, name).content
    content = private.bcast(content)
    if private.Get_rank() == 0:
        done: object = attempt(private, lambda: None)
    else:
        done = attempt(private, lambda: schedule_files.adopt(path_of(name), content))
    if isinstance(done, Problem):
        raise ValueError(f"{name}: {done}")


def placed(table: tuning.Table, nodes: Sequence[int], rank: int) -> tuning.Table:
    """A table without the schedules that were made for ranks on other hosts.

    Those that are asked for by name stay, as they are right there too: rank 0 is warned.
    """
    if not _files(table):  # of most communicators, which are to be made quickly
        return table

    def serves(collective: str, candidate: tuning.Choice) -> bool:
        if not _is_misplaced(collective, candidate.algorithm, nodes):
            return True
        if candidate.asked:
            _warn(candidate.algorithm, rank)
        return candidate.asked

    def kept(collective: str, rule: tuning.Rule) -> tuning.Rule:
        return rule._replace(candidates=tuple(c for c in rule.candidates if serves(collective, c)))

    return {name: tuple(kept(name, rule) for rule in rules) for name, rules in table.items()}


def _is_misplaced(collective: str, name: str, nodes: Sequence[int]) -> bool:
    if not name.startswith(FILE_PREFIX):
        return False
    algorithm = algorithms.find(collective, name)
    # Of other ranks it does not serve at all, which a call says.
    return algorithm.runs_on(len(nodes)) and schedule_files.misplaced(algorithm, nodes)


def _warn(name: str, rank: int) -> None:
    caller.warn_once(
        f"{name} was made for ranks on other hosts than these, and may be slow here",
        UserWarning,
        rank,
    )


class Loaded:
    """The files that a communicator has loaded: the name of the algorithm by path."""

    def __init__(self, private: MPI.Intracomm, nodes: tuple[int, ...]) -> None:
        self._private, self._nodes = private, nodes
        self._names: dict[str, str] = {}

    def name(self, algorithm: str) -> str | None:
        """What an algorithm's name stands for: itself, or what its file had when it was loaded.

        None if it is of a file that has not been loaded.
        """
        if not is_path(algorithm):
            return algorithm
        return self._names.get(path_of(algorithm))

    def load(self, path: str) -> str:
        """Load a file, again if it has been; the algorithm's name.  Collective.

        Raises:
            ValueError: on all ranks, if the ranks name different files, or rank 0's cannot be
                loaded.
        """
        paths = self._private.allgather(path)
        if len(set(paths)) > 1:
            raise ValueError(
                f"the ranks name different schedule files, {paths[0]!r} and "
                f"{next(p for p in paths if p != paths[0])!r}: name the same on all"
            )

        def load() -> tuple[str, str]:
            try:
                found = schedule_files.load(path)
            except ModuleNotFoundError as error:
                raise ValueError(str(error)) from None
            return found.collective, found.name

        collective, name = from_rank_0(self._private, load)
        _share(self._private, collective, name)
        if _is_misplaced(collective, name, self._nodes):
            _warn(name, self._private.Get_rank())
        self._names[path] = name
        return name
