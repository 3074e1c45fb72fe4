"""Simulated time of a collective: message by message, or with less work for many ranks.

Three methods give the same times:

* every message is followed (:mod:`mpicoll.simulate.clock`, or compiled:
  :mod:`mpicoll.simulate.compiled`);
* if ranks do the same, shifted by their rank, one represents all, or one for each position in a
  node; this is exact for equal blocks over equal links;
* rounds of all ranks are computed as arrays (:mod:`mpicoll.simulate.rounds`), if a rank sends one
  message and receives one at a time.

The symmetry of ranks is never assumed: the schedules of sampled ranks are compared.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median

from mpicoll.base.wording import plural
from mpicoll.registry import Algorithm
from mpicoll.schedule import Schedule
from mpicoll.schedule.parameters import Parameter, Value
from mpicoll.simulate.clock import Result, Transfer, check_call, follow, trace
from mpicoll.simulate.machine import Machine, Sizes
from mpicoll.simulate.symmetry import Program, repeats_every, weight

__all__ = ["METHODS", "Machine", "Result", "TooLargeError", "Transfer", "simulate", "trace"]

#: Ways to simulate; see :func:`simulate`.
METHODS = ("auto", "events", "compiled", "representative", "sweep")

#: Messages that are followed one by one without looking for a faster way; and at most, those of
#: all segments too where the clock is compiled.
_FEW, _MANY, _WITH_SEGMENTS = 1 << 18, 1 << 22, 1 << 24
#: Steps of all ranks that are read at most.
_READABLE = 1 << 24
#: Up to here the schedules of all ranks are compared, above those of a sample.
_COMPARED = 64

Part = Callable[..., Schedule]
Programs = Callable[[int], Program]


class TooLargeError(ValueError):
    """A simulation that would take too long."""


@dataclass
class _Task:
    """One call to simulate, and what all ways need to know of it."""

    algorithm: Algorithm
    size: int
    nbytes: int
    machine: Machine
    root: int
    complete: dict[str, Value]

    def __post_init__(self) -> None:
        self.nblocks = self.algorithm.blocks(self.size)

    def programs(self, part: Part) -> Programs:
        return self.algorithm.program(part, self.size, self.root, self.complete)

    @property
    def name(self) -> str:
        return f"{self.algorithm.collective} {self.algorithm.name}"

    @property
    def uneven(self) -> bool:
        """Whether blocks differ in length."""
        return bool(self.nblocks and self.nbytes % self.nblocks)

    def sizes(self, program: Program, largest: bool = False) -> Sizes:
        segments = program[0].segments if program else 1
        return Sizes(self.nbytes, self.nblocks, segments, largest)

    def events(self, programs: Sequence[Program], largest: bool = False) -> Result:
        from mpicoll.simulate import compiled

        if compiled.available(self.machine):
            return compiled.run(programs, self.size, self.sizes(programs[0], largest), self.machine)
        return follow(self.algorithm, programs, self.size, self.nbytes, self.machine, largest)

    def beyond(self, steps: float, program: Program) -> bool:
        """Whether so many steps, two of each message, are too many to be followed."""
        from mpicoll.simulate import compiled

        segments = program[0].segments if program else 1
        if compiled.available(self.machine):
            return steps > 2 * _WITH_SEGMENTS or steps > 2 * _MANY * segments
        return steps > 2 * _MANY

    @property
    def samples(self) -> list[int]:
        """Ranks whose schedules are compared."""
        if self.size <= _COMPARED:
            return list(range(self.size))
        special = [0, 1, self.size // 2, -1, random.Random(self.size).randrange(self.size)]
        if self.algorithm.definition.rooted:
            special += [self.root - 1, self.root, self.root + 1]
        return sorted({rank % self.size for rank in special})


def simulate(
    algorithm: Algorithm,
    size: int,
    nbytes: int,
    machine: Machine | None = None,
    root: int = 0,
    parameters: Mapping[str, Parameter] | None = None,
    method: str = "auto",
) -> Result:
    """Simulate one collective of ``nbytes`` (the whole vector) on ``size`` ranks.

    Args:
        algorithm: from the registry.
        size: number of ranks.
        nbytes: bytes of the whole vector.
        machine: its costs.
        root: of a rooted collective.
        parameters: of the algorithm.
        method: ``events`` follows every message, ``compiled`` too, by the compiled clock where it
            has been built; ``representative`` some ranks for all, and takes
            every block to be as long as the longest; ``sweep`` rounds of all ranks; ``auto``
            chooses.  All find the same where the blocks are equally long.

    Raises:
        ValueError: a size, root, count, parameter or method out of range; or the method does not
            serve this schedule.
        TooLargeError: it would take too long.
    """
    machine = machine or Machine()
    check_call(size, root, nbytes)
    if method not in METHODS:
        raise ValueError(f"method={method!r} is none of {', '.join(METHODS)}")
    if machine.nodes and len(machine.nodes) != size:
        raise ValueError(f"nodes of {plural(len(machine.nodes), 'rank')}, and there are {size}")
    outside = [rank for rank in machine.slow if not 0 <= rank < size]
    if outside:
        raise ValueError(f"rank {outside[0]} is slow, but is not among the ranks 0 .. {size - 1}")
    if machine.network:
        if machine.network.ranks != size:
            raise ValueError(
                f"the network has {plural(machine.network.ranks, 'rank')}, not {size}: give as many"
            )
        if method in ("representative", "sweep"):
            raise ValueError(
                f"method={method!r} does not know links that messages share: give events, "
                "compiled or auto"
            )
    complete = algorithm.fitting(size, parameters, root)
    task = _Task(algorithm, size, nbytes, machine, root, complete)
    whole = task.programs(algorithm.schedule)
    messages = algorithm.count_of("messages", size, root, parameters)
    with _without_collector():
        if method == "events":
            every = [whole(rank) for rank in range(size)]
            found = follow(algorithm, every, size, nbytes, machine)
        elif method == "compiled" or (method == "auto" and (messages <= _FEW or machine.network)):
            programs = [whole(rank) for rank in range(size)]
            if machine.network and task.beyond(2 * messages, programs[0]):
                raise _too_large(task)
            found = task.events(programs)
        else:
            found = _in_parts(task, method)
    if machine.call:
        found = replace(found, finish=tuple(time + machine.call for time in found.finish))
    return found


@contextmanager
def _without_collector() -> Iterator[None]:
    """Schedules of many ranks are millions of objects, none of them garbage in a circle."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _in_parts(task: _Task, method: str) -> Result:
    """The parts of an algorithm one after the other, each by the way that serves it."""
    start: Sequence[int] = (0,) * task.size
    sent, count, ways, exact = [0] * task.size, 0, [], True
    for part in task.algorithm.parts or (task.algorithm.schedule,):
        found = _part(task, part, method, start)
        start, count, exact = found.finish, count + found.messages, exact and found.exact
        sent = [a + b for a, b in zip(sent, found.sent, strict=True)]
        ways.append(found.how)
    return Result(tuple(start), tuple(sent), count, "; then ".join(dict.fromkeys(ways)), exact)


def _part(task: _Task, part: Part, method: str, start: Sequence[int]) -> Result:
    from mpicoll.simulate.rounds import SeveralMessagesError

    programs = task.programs(part)
    together = min(start) == max(start)
    if method in ("auto", "representative") and together:
        period = _period(task, programs)
        if period:
            return _from(start[0], _represented(task, programs, period))
    if method == "representative" and not task.algorithm.parts:
        raise ValueError(f"{task.name}: ranks do not all do the same, so that none represent all")
    limit = _READABLE // task.size
    steps = median(weight(programs(rank), limit) for rank in task.samples)
    if steps > limit:
        return _repeated(task, programs, start)
    if len(programs(0)) == 1 or method == "sweep":
        try:
            return _swept(task, [programs(rank) for rank in range(task.size)], start)
        except SeveralMessagesError as error:
            if method == "sweep":
                raise ValueError(f"{task.name} cannot be swept: {error}") from None
    if not together or task.beyond(steps * task.size, programs(0)):
        raise _too_large(task)
    return _from(start[0], task.events([programs(rank) for rank in range(task.size)]))


def _from(start: int, found: Result) -> Result:
    """The same, begun later."""
    return replace(found, finish=tuple(start + time for time in found.finish)) if start else found


def _swept(task: _Task, programs: Sequence[Program], start: Sequence[int]) -> Result:
    from mpicoll.simulate.rounds import sweep

    found = sweep(programs, task.size, task.sizes(programs[0]), task.machine, start)
    return replace(found, how="rounds of all ranks")


def _represented(task: _Task, programs: Programs, period: int) -> Result:
    """Simulate the first ranks, which represent all, with blocks as long as the longest."""
    from mpicoll.simulate.rounds import SeveralMessagesError, sweep

    def some() -> list[Program]:
        return [programs(rank) for rank in range(period)]

    # Each message is two steps.
    steps = weight(programs(0), _READABLE) * period
    try:
        if steps <= 2 * _FEW:
            found = task.events(some(), largest=True)
        else:
            sizes = task.sizes(some()[0], largest=True)
            found = sweep(some(), task.size, sizes, task.machine)
    except SeveralMessagesError:
        if task.beyond(steps, programs(0)):
            raise _too_large(task) from None
        found = task.events(some(), largest=True)
    turns = task.size // period
    how = f"{plural(period, 'rank')} for all"
    if task.uneven:
        how += ", largest block"
    return Result(
        found.finish * turns, found.sent * turns, found.messages * turns, how, not task.uneven
    )


def _period(task: _Task, programs: Programs) -> int | None:
    """How many ranks represent all: those of a node, or twice as many; None if there are none."""
    length = task.machine.per_node
    if task.machine.slow or not length:
        return None
    for period in (length, 2 * length):
        if repeats_every(period, task.size, programs, task.samples):
            return period
    return None


def _repeated(task: _Task, programs: Programs, start: Sequence[int]) -> Result:
    """Where all rounds of a rank are of one kind, as sampled ranks show, read one of each rank."""
    from mpicoll.simulate.rounds import SeveralMessagesError, plain_rounds, repeat

    sizes = task.sizes(programs(0), largest=True)
    try:
        samples = [list(plain_rounds(programs(rank), sizes)) for rank in task.samples]
    except SeveralMessagesError:
        raise _too_large(task) from None
    if len({len(rounds) for rounds in samples}) > 1 or any(len(set(r)) != 1 for r in samples):
        raise _too_large(task)
    first = [next(plain_rounds(programs(rank), sizes)) for rank in range(task.size)]
    found = repeat(first, len(samples[0]), task.machine, start)
    how = "rounds that repeat" + (", largest block" if task.uneven else "")
    return replace(found, how=how, exact=not task.uneven)


def _too_large(task: _Task) -> TooLargeError:
    return TooLargeError(
        f"{task.name} on {task.size} ranks has too many messages to be followed one by one, and "
        f"its ranks do not all do the same here (stragglers and uneven nodes are reasons): give "
        f"fewer ranks, or fewer segments"
    )
