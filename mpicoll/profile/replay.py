"""What it would take: the costliest calls of a profile, measured by every algorithm.

Exactly their sizes, types and numbers of ranks are measured, twice.  The first sweep of all
algorithms chooses; the second, of the fastest and of what runs today, says what the choice gains.
So a choice is not praised for the luck that it was chosen for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpicoll.base.files import write_atomically
from mpicoll.base.json_lines import new_run
from mpicoll.bench import environment, workload
from mpicoll.bench.measurement import Skipped
from mpicoll.bench.pattern import TYPES
from mpicoll.bench.records import Point, Run, Writer, scan
from mpicoll.bench.settings import SweepSettings
from mpicoll.bench.sweep import sweep
from mpicoll.profile.calls import COLLECTIVES
from mpicoll.profile.merged import Line, Profile
from mpicoll.schedule.methods import METHODS
from mpicoll.tuning import NATIVE, rule_files

#: Lines that are looked at.
COSTLIEST = 5
#: Seconds for one algorithm, when all are measured, and when two are.
_CHOOSING, _COMPARING = 0.2, 1.0
_OPERATORS = ("sum", "prod", "max", "min", "band", "bor", "bxor")


class Question(NamedTuple):
    """What is measured for a line: a variant of a collective, as `mpicoll bench` has it."""

    collective: str
    ranks: int
    size: int
    type: str
    op: str
    root: int


@dataclass(frozen=True)
class Answer:
    """What it would take to make a line cheaper.

    Attributes:
        line: Of the profile.
        reason: Why nothing can be said; "" where there are points.
        now: What runs today.
        best: What was fastest when all were measured; both as measured afterwards.
    """

    line: Line
    reason: str = ""
    now: Point | None = None
    best: Point | None = None

    @property
    def told(self) -> Point | None:
        """What to run: the best where it is told to gain, else what runs today."""
        if self.now is None or self.best is None:
            return None
        return self.best if self.saved else self.now

    @property
    def saved(self) -> tuple[float, float, float] | None:
        """Share of a call's time that the best saves: least, expected and most, of 95 % intervals.

        None where that is not significant.
        """
        if self.now is None or self.best is None or self.now.choice == self.best.choice:
            return None
        now, best = self.now.summary, self.best.summary
        if now.low is None or now.high is None or best.low is None or best.high is None:
            return None
        least = 1 - best.high / now.low
        expected, most = 1 - best.median / now.median, 1 - best.low / now.high
        return (least, expected, most) if least > 0 else None

    @property
    def gain(self) -> tuple[float, float, float] | None:
        """The same as a share of the run: of the time in which the line did not wait for ranks."""
        saved = self.saved
        if saved is None or not self.line.total:
            return None
        least, expected, most = (part * self.line.transfer / self.line.total for part in saved)
        return least, expected, most


def question(line: Line) -> Question | str:
    """What to measure for a line, or why there is nothing."""
    name = COLLECTIVES[line.method].method
    if name not in METHODS:
        what = "objects, which are pickled: with arrays" if name.islower() else "neighbours:"
        if name.islower():
            return f"{what} {name.capitalize()} has algorithms to choose from"
        return "of neighbours: the MPI library's own alone"
    if line.ranks < 2 or line.inter:
        return "one rank alone" if line.ranks < 2 else "of an intercommunicator: the library's own"
    method = METHODS[name]
    size = int(line.nbytes)
    if method.collective in ("gather", "scatter") and method.varies:
        size *= line.ranks
    if size == 0 and name != "Barrier":
        return "no bytes"
    op = (line.op or "sum") if method.definition.reduces else "sum"  # mpi4py's default
    if op not in _OPERATORS:
        return "an operator that is not measured"
    kind = line.type if line.type in TYPES.values() else "uint8"
    if method.definition.reduces and line.type not in TYPES.values():
        return f"elements of type {line.type or 'unknown'}, which are not measured"
    return Question(method.variant, line.ranks, size, kind, op, max(0, line.root))


def costliest(profile: Profile) -> list[Line]:
    """The lines with the most transfer; without those that take next to nothing."""
    lines = sorted(profile.lines, key=lambda line: -line.transfer)
    return [line for line in lines if line.share >= 1e-4][:COSTLIEST]


def measure(
    comm: Any, questions: Iterable[Question], path: Path, remark: Callable[[str], None]
) -> None:
    """Measure what lines ask for, and write it as a file of sweeps.  Collective.

    Args:
        comm: All ranks, with methods that take ``algorithm=``.
        questions: The same on all ranks.
        path: On rank 0, the file.
        remark: Told on rank 0 what is measured.

    Raises:
        OSError: on rank 0, if the file cannot be written.
    """
    facts = environment.gather(comm)
    for asked in dict.fromkeys(questions):
        names = (*workload.serving(asked.collective, asked.ranks), NATIVE)
        remark(f"measuring {asked.collective} of {asked.size} bytes, {asked.ranks} ranks")
        found = _sweep(comm, asked, names, _CHOOSING, facts, path, "choosing")
        best = comm.bcast(min(found, key=lambda p: p.summary.median).algorithm if found else None)
        if best is not None:
            _sweep(comm, asked, dict.fromkeys((NATIVE, best)), _COMPARING, facts, path, "comparing")


def _sweep(
    comm: Any,
    asked: Question,
    names: Iterable[str],
    seconds: float,
    facts: dict[str, Any],
    path: Path,
    purpose: str,
) -> list[Point]:
    """Measure some algorithms; the points, on rank 0."""
    settings = SweepSettings(
        algorithms={asked.collective: tuple(names)},
        sizes=(asked.size,),
        dtypes=(np.dtype(asked.type),),
        ranks=(asked.ranks,),
        op=asked.op,
        root=asked.root,
        point_seconds=seconds,
    )
    found: list[Point] = []

    def take(outcome: Point | Skipped) -> None:
        if isinstance(outcome, Point) and not outcome.wrong:
            found.append(outcome)

    run = comm.bcast(new_run())
    crowded = environment.crowded(facts, asked.ranks)
    sweep(comm, settings, take, run=run, oversubscribed={asked.ranks} if crowded else ())
    if comm.Get_rank() == 0:
        with Writer(path) as file:
            about = {"settings": settings.plain(), "purpose": purpose, "asked": asked._asdict()}
            file.run(run, {**facts, **about})
            for point in found:
                file.point(point)
    return found


def answers(profile: Profile, path: Path) -> Iterator[Answer]:
    """What was measured for the costliest lines of a profile.

    Raises:
        OSError: if the file cannot be read.
    """
    compared: dict[Question, list[Point]] = {}
    for run in scan(path) if path.is_file() else ():
        if run.facts.get("purpose") == "comparing":
            compared[_asked(run)] = run.points
    for line in costliest(profile):
        asked = question(line)
        if isinstance(asked, str):
            yield Answer(line, asked)
        elif asked not in compared:
            yield Answer(line, "not measured; --replay measures it")
        else:
            yield _answer(line, compared[asked])


def _asked(run: Run) -> Question:
    return Question(**run.facts["asked"])


def _answer(line: Line, points: list[Point]) -> Answer:
    by_name = {point.algorithm: point for point in points}
    now = by_name.get(line.algorithm, by_name.get(NATIVE))
    best = min(points, key=lambda point: point.summary.median)
    return Answer(line, "", now, best)


def advice(found: Iterable[Answer], tuning: Path) -> list[str]:
    """The lines to write for what is told to gain, in the order of the collectives.

    Args:
        found: What was measured.
        tuning: The tuning file that `write_rules` has written.
    """
    choices: dict[str, dict[str, None]] = {}
    gaining = set()
    for answer in found:
        if (told := answer.told) is not None:
            choices.setdefault(told.base, {})[told.choice] = None
            gaining |= {told.base} if answer.saved else set()
    if any(len(choices[name]) > 1 for name in gaining):
        return [f"MPICOLL_TUNING={tuning}"]
    return [f"MPICOLL_{name.upper()}={_quoted(*choices[name])}" for name in sorted(gaining)]


def _quoted(choice: str) -> str:
    return f"'{choice}'" if " " in choice else choice


def write_rules(found: Iterable[Answer], path: Path) -> None:
    """Write a tuning file of all that was measured: what gains, else what runs today.

    Raises:
        OSError: if the file cannot be written.
    """
    rules: dict[str, list[dict[str, Any]]] = {}
    for answer in found:
        if (told := answer.told) is not None:
            rule = {"nbytes": told.size, "ranks": told.ranks, "algorithms": [told.choice]}
            if rule not in rules.setdefault(told.base, []):
                rules[told.base].append(rule)
    for each in rules.values():
        each.sort(key=lambda rule: (rule["ranks"], rule["nbytes"]))
    about = {"made by": "mpicoll profile --replay, one launch"}
    write_atomically(path, rule_files.written(about, rules))
