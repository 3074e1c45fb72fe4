"""Verify schedules: all ranks run on symbols instead of numbers.

A value records which ranks have contributed to which item, and the expression that made it.  So one
run proves, for every number of elements, data type and operator:

* every contribution arrives exactly once;
* contributions are in rank order if the algorithm promises it;
* all ranks evaluate the same expression if it promises the same bits;
* nothing deadlocks and every message is matched;
* the registered counts are those of the schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from mpicoll.registry import COMMUTATIVE, RANK_ORDER, SAME_BITS, Algorithm
from mpicoll.schedule import Channel, Copy, Location, RecvReduce, Round, Send, Step, blocks, period
from mpicoll.schedule.collectives import Place
from mpicoll.schedule.counts import Counts, count
from mpicoll.schedule.matching import Matching, run
from mpicoll.schedule.memory import Blank, Cell, Memory, ScheduleError
from mpicoll.schedule.parameters import Parameter, Value
from mpicoll.schedule.steps import GIVEN, WORK
from mpicoll.schedule.symbols import Arrivals, Symbol, SymbolMemory, Symbols
from mpicoll.simulate.clock import check_call, clock
from mpicoll.simulate.machine import STEPS
from mpicoll.simulate.symmetry import repeats_every

__all__ = ["Case", "Counts", "checked", "count", "programs_of", "tried", "verify"]


@dataclass(frozen=True)
class Case:
    """The verdict on one algorithm at one number of ranks, root and set of parameters."""

    collective: str
    algorithm: str
    size: int
    root: int
    parameters: dict[str, Value]
    counts: Counts
    depth: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    def as_dict(self) -> dict[str, object]:
        """Plain data, for JSON."""
        return {**asdict(self), "counts": self.counts._asdict(), "ok": self.ok}


def verify(
    algorithm: Algorithm,
    size: int,
    root: int = 0,
    parameters: Mapping[str, Parameter] | None = None,
) -> Case:
    """Verify one algorithm for one number of ranks.

    Raises:
        ValueError: a size, root or parameter out of range (a broken schedule does not raise: it is
            in ``problems``).
    """
    check_call(size, root)
    complete = algorithm.fitting(size, parameters, root)
    problems: list[str] = []
    counts, depth = Counts(0, 0, 0, 0, 0), 0
    try:
        programs = programs_of(algorithm, size, root, complete)
        counts, depth = checked(algorithm, programs, root)
        problems += _compare(algorithm, size, root, complete, counts, depth)
    except (ScheduleError, TypeError, ValueError) as error:
        problems.append(str(error))
    return Case(
        algorithm.collective,
        algorithm.name,
        size,
        root,
        complete,
        counts,
        depth,
        tuple(problems),
    )


def tried(algorithm: Algorithm, size: int, segments: Sequence[int] = ()) -> list[dict[str, Value]]:
    """Parameters with which an algorithm is to be verified on a number of ranks.

    Each value of each parameter is in one of them at least; not all combinations are there.
    ``segments``: the values of that parameter.
    """
    values = {name: kind.tried(size) for name, kind in algorithm.kinds.items()}
    if "segments" in algorithm.parameters:
        values["segments"] = tuple(segments)
    values = {name: several for name, several in values.items() if several}
    return [
        {name: several[number % len(several)] for name, several in values.items()}
        for number in range(max(map(len, values.values()), default=1))
    ]


Program = tuple[Channel, ...]


def programs_of(
    algorithm: Algorithm, size: int, root: int, complete: Mapping[str, Parameter]
) -> list[Program]:
    """The schedules of all ranks, with their rounds at hand."""
    return [
        tuple(
            channel._replace(rounds=tuple(channel.rounds))
            for channel in algorithm.channels(rank, size, root, complete)
        )
        for rank in range(size)
    ]


def checked(algorithm: Algorithm, programs: Sequence[Program], root: int) -> tuple[Counts, int]:
    """Run the schedules of all ranks on symbols; returns what they do, and their depth.

    Raises:
        ScheduleError, TypeError, ValueError: they do not do what the collective means.
    """
    size = len(programs)
    nblocks, nscratch = algorithm.blocks(size), algorithm.scratch(size)
    for rank, program in enumerate(programs):
        _check_structure(rank, program, nblocks, nscratch)
    if algorithm.definition.one_buffer:
        _check_read_only(programs[root], nblocks, nscratch)
    counts = count(programs, nblocks, nscratch)
    # Where all ranks do the same, what one does without values stands for all.
    alike = repeats_every(1, size, lambda rank: programs[rank], range(size))
    few = programs[:1] if alike else programs
    depth = _run(algorithm, programs, few, root)
    _run_otherwise(few, size, nblocks, nscratch, counts.fan_in)
    return counts, depth


# --- structure -------------------------------------------------------------------------------


def _steps(program: Sequence[Channel]) -> Iterator[Step]:
    return (step for channel in program for steps in channel.rounds for step in steps)


def _reads(step: Step, nblocks: int, nscratch: int) -> tuple[Location, ...]:
    if isinstance(step, Copy):
        return blocks(step.src, nblocks, nscratch)
    return blocks(step.block, nblocks, nscratch) if isinstance(step, Send) else ()


def _writes(step: Step, nblocks: int, nscratch: int) -> tuple[Location, ...]:
    if isinstance(step, Copy):
        return blocks(step.dst, nblocks, nscratch)
    return () if isinstance(step, Send) else blocks(step.block, nblocks, nscratch)


def _check_structure(rank: int, program: Sequence[Channel], nblocks: int, nscratch: int) -> None:
    """Rounds write each block once, and channels keep to blocks of their own.

    Segments have cells of their own, so those that repeat the same rounds need one look.
    """
    for segment in range(period(program)):
        channels = [channel for channel in program if channel.segment == segment]
        _check_channels(rank, channels, nblocks, nscratch)


def _check_channels(rank: int, channels: Sequence[Channel], nblocks: int, nscratch: int) -> None:
    for channel in channels:
        for steps in channel.rounds:
            _check_round(rank, steps, nblocks, nscratch)
    if len(channels) < 2:
        return
    written: set[Location] = set()
    touched: dict[Location, set[int]] = {}
    for number, channel in enumerate(channels):
        for step in _steps([channel]):
            writes = _writes(step, nblocks, nscratch)
            written.update(writes)
            for place in writes + _reads(step, nblocks, nscratch):
                touched.setdefault(place, set()).add(number)
    for place in written:
        if len(touched[place]) > 1:
            raise ScheduleError(
                f"rank {rank}: {place.space} block {place.block} is written by one channel and "
                f"touched by another (channels {sorted(touched[place])})"
            )


def _check_read_only(program: Sequence[Channel], nblocks: int, nscratch: int) -> None:
    """Where input and output are one buffer, the root may not be allowed to write it."""
    for step in _steps(program):
        if any(place.space == WORK for place in _writes(step, nblocks, nscratch)):
            raise ScheduleError(f"the root writes its own buffer: {step}")


def _check_round(rank: int, steps: Round, nblocks: int, nscratch: int) -> None:
    for step in steps:
        if not isinstance(step, Copy) and type(step.peer) is not int:
            raise ScheduleError(f"{step} of rank {rank}: a peer is an int")
    if len(steps) == 1 and not isinstance(steps[0], Copy) and isinstance(steps[0].block, int):
        return  # one step on one block of work
    writers: dict[Location, list[type]] = {}
    for step in steps:
        for place in _writes(step, nblocks, nscratch):
            writers.setdefault(place, []).append(type(step))
    for place, kinds in writers.items():
        if place.space == GIVEN:
            raise ScheduleError(f"rank {rank} writes input block {place.block}")
        if len(kinds) > 1 and set(kinds) != {RecvReduce}:
            raise ScheduleError(
                f"rank {rank}: two steps of a round write {place.space} block {place.block}: "
                f"{steps}"
            )


def _compare(
    algorithm: Algorithm,
    size: int,
    root: int,
    parameters: dict[str, Value],
    counts: Counts,
    depth: int,
) -> list[str]:
    """Where the registered functions differ from what was counted."""
    wrong = []
    for name, found in counts._asdict().items():
        if not algorithm.declares(name):
            continue
        registered = algorithm.count_of(name, size, root, parameters)
        if registered != found:
            wrong.append(f"{name}: {registered} registered, {found} counted")
    if not algorithm.declares("depth"):
        return wrong
    registered = algorithm.count_of("depth", size, root, parameters)
    bound = algorithm.depth_bound or len(algorithm.channels(0, size, 0, parameters)) > 1
    if depth > registered or (depth != registered and not bound):
        wrong.append(f"depth: {registered} registered, {depth} found")
    return wrong


# --- values ----------------------------------------------------------------------------------


def _run(
    algorithm: Algorithm,
    programs: Sequence[Sequence[Channel]],
    few: Sequence[Sequence[Channel]],
    root: int,
) -> int:
    """Run all ranks on symbols, check the outcome, return the depth by the step clock."""
    size, definition = len(programs), algorithm.definition
    nblocks, nscratch = algorithm.blocks(size), algorithm.scratch(size)
    places = [Place(rank, size, root, nblocks) for rank in range(size)]
    if definition.block_per_rank and nblocks != size:
        raise ScheduleError(f"{definition.name} needs one block a rank, not {nblocks}")
    if not nblocks:
        return _run_barrier(programs)
    symbols = Symbols()
    segments = programs[0][0].segments if programs[0] else 1
    memories = []
    for place in places:
        given = {}
        for block in definition.held(place):
            value = symbols.contribution(definition.start(place, block))
            for segment in range(segments):
                given[Cell(GIVEN, block, segment)] = value
        memory = SymbolMemory(given, definition.reads_through, symbols.fold)
        memory.nblocks = nblocks
        memories.append(memory)
    matching = Matching(programs, nblocks, nscratch, memories)
    if len(few) == size:
        depth = clock(matching, STEPS).makespan
    else:
        run(matching)
        blanks = [Blank() for _ in few]
        depth = clock(Matching(few, nblocks, nscratch, blanks, ranks=size), STEPS).makespan
    _check_end(algorithm, places, memories, segments)
    return depth


def _run_barrier(programs: Sequence[Sequence[Channel]]) -> int:
    size = len(programs)
    if len(programs[0]) > 1:
        raise ScheduleError(
            "a barrier has one channel: another could end before this one has heard from all ranks"
        )
    arrivals = [Arrivals(rank) for rank in range(size)]
    depth = clock(Matching(programs, 0, 0, arrivals), STEPS).makespan
    for rank, memory in enumerate(arrivals):
        missing = [other for other in range(size) if not memory.known >> other & 1]
        if missing:
            raise ScheduleError(f"rank {rank} leaves without hearing from ranks {missing}")
    return depth


def _run_otherwise(
    programs: Sequence[Sequence[Channel]], size: int, nblocks: int, nscratch: int, fan_in: int
) -> None:
    """The ranks ran the rendezvous protocol; see that nothing hangs in the other ways to run.

    Values cannot differ, so none are moved.
    """
    ways = [{"eager": True}, {"joint": True}] if fan_in > 1 else [{"eager": True}]
    for way in ways:
        try:
            blanks = [Blank() for _ in programs]
            run(Matching(programs, nblocks, nscratch, blanks, ranks=size, **way))
        except ScheduleError as error:
            raise ScheduleError(f"with {' '.join(way)} messages: {error}") from None


def _check_end(
    algorithm: Algorithm, places: list[Place], memories: Sequence[Memory[Symbol]], segments: int
) -> None:
    definition = algorithm.definition
    in_order = RANK_ORDER in algorithm.order or (
        definition.reduces and COMMUTATIVE not in algorithm.needs
    )
    same = SAME_BITS in algorithm.order
    expressions: dict[tuple[int, int], object] = {}
    for place, memory in zip(places, memories, strict=True):
        for block in definition.wanted(place):
            want = definition.end(place, block)
            ranks = (1 << want.last + 1) - (1 << want.first)
            for segment in range(segments):
                found = memory.result(Cell(WORK, block, segment))
                wrong = ""
                if found.item != want.item:
                    wrong = f"holds {found.item} instead of {want.item}"
                elif found.ranks != ranks:
                    wrong = f"has contributions {found.ranks:#b} of ranks, wanted {ranks:#b}"
                elif in_order and found.interval != (want.first, want.last):
                    wrong = (
                        "was not combined in rank order, as promised or as operators that "
                        "are not commutative need"
                    )
                elif same and found.expression != expressions.setdefault(
                    (block, segment), found.expression
                ):
                    wrong = "was computed otherwise than on other ranks"
                if wrong:
                    raise ScheduleError(f"rank {place.rank}, block {block} {wrong}")
