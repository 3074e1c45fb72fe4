"""Whether a schedule is right: its programs, run with as little room for messages as can be.

There is one slot for each direction of an edge, or as many as are registered, and a sender waits
until its message is in one; more room, and senders that do not wait, only take constraints away.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from mpicoll.train.step.catalogue import Schedule
from mpicoll.train.step.core import DeadlockError, run
from mpicoll.train.step.tasks import SENDS, Durations, Task
from mpicoll.train.step.timing import SLOTS, simulate

Programs = Sequence[Sequence[Task]]


@dataclass(frozen=True)
class Verdict:
    """The result of a check.

    Attributes:
        schedule: the schedule.
        problems: the problems found.
        held: most microbatches whose activations (with recomputation: inputs) each rank holds at a
            time, counted for each chunk.
        recomputed: most microbatches whose recomputed activations each rank holds.
        versions: most versions of its weights that each rank keeps at a time.
        messages: number of messages of all ranks.
    """

    schedule: Schedule
    problems: tuple[str, ...]
    held: tuple[int, ...]
    recomputed: tuple[int, ...]
    versions: tuple[int, ...]
    messages: int

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    def as_dict(self) -> dict[str, object]:
        """Plain data, for JSON."""
        return {
            **self.schedule.facts,
            "ok": self.ok,
            "problems": list(self.problems),
            "held": list(self.held),
            "recomputed": list(self.recomputed),
            "versions": list(self.versions),
            "messages": self.messages,
        }


def check(schedule: Schedule, programs: Programs | None = None) -> Verdict:
    """Check a schedule, and the registered numbers of its order.

    Args:
        schedule: the schedule.
        programs: programs of all ranks, if they are not the schedule's own.

    The check finds tasks that are missing, occur twice, are on the wrong rank, or come before what
    they need; sums of gradients in another order than that of the microbatches; messages that two
    ranks expect in different orders; deadlocks; weights of the wrong age; and numbers that differ
    from the registered ones.
    """
    programs = schedule.programs if programs is None else programs
    verdict = Verdict(
        schedule=schedule,
        problems=(),
        held=held(schedule, programs),
        recomputed=tuple(_most(program, "R", "BW") for program in programs),
        versions=tuple(map(_versions, programs)),
        messages=sum(task.kind in SENDS for program in programs for task in program),
    )
    problems = [
        *_complete(schedule, programs),
        *_ascending(programs),
        *_messages(schedule, programs),
        *_dependencies(schedule, programs),
        *_weights(schedule, programs),
    ]
    problems += _registered(verdict)
    if not problems:
        problems += _makespan(schedule)
    return replace(verdict, problems=tuple(problems))


# --- what one rank does ---------------------------------------------------------------------------


def _complete(schedule: Schedule, programs: Programs) -> Iterator[str]:
    """Everything once, where it belongs."""
    order = schedule.order
    found = Counter(
        (rank, task.kind, task.chunk, task.microbatch)
        for rank, program in enumerate(programs)
        for task in program
        if not task.is_message
    )
    for chunk in range(schedule.chunks):
        rank = schedule.place(chunk)
        for m in range(schedule.microbatches):
            whole = found[rank, "B", chunk, m] > 0
            wanted = "F" + ("" if not order.trains else "B" if whole else "IW")
            wanted += "R" * (schedule.recompute and order.trains) + "U" * order.updates
            for kind in "FBIWRU":
                times = found.pop((rank, kind, chunk, m), 0)
                if times != (kind in wanted):
                    often = f"{times} times, not {'once' if kind in wanted else 'at all'}"
                    yield f"rank {rank} runs {Task(kind, chunk, m)} {often}"
    for (rank, kind, chunk, m), times in found.items():
        if times:
            yield f"rank {rank} runs {Task(kind, chunk, m)}, which is not its own"


def _ascending(programs: Programs) -> Iterator[str]:
    for rank, program in enumerate(programs):
        last: dict[tuple[str, int], Task] = {}
        for task in program:
            before = last.get((task.kind, task.chunk))
            if before is not None and before.microbatch > task.microbatch:
                yield f"rank {rank} runs {task} after microbatch {before.microbatch}"
            last[task.kind, task.chunk] = task


def held(schedule: Schedule, programs: Programs | None = None) -> tuple[int, ...]:
    """The most microbatches whose activations each rank holds at a time, counted for each chunk."""
    programs = schedule.programs if programs is None else programs
    return tuple(_most(program, "F", "BW") * schedule.order.trains for program in programs)


def _most(program: Sequence[Task], begin: str, ends: str) -> int:
    """The most that have begun and not ended at a time."""
    most = now = 0
    for task in program:
        if task.kind == begin:
            now += 1
            most = max(most, now)
        elif task.kind in ends:
            now -= 1
    return most


def _versions(program: Sequence[Task]) -> int:
    """The most versions of a chunk's weights that are kept at a time: the newest, and those that
    are needed again."""
    last = {
        (task.chunk, task.version): number
        for number, task in enumerate(program)
        if task.kind in ("F", "R", "B", "I", "W")
    }
    kept: defaultdict[int, set[int]] = defaultdict(lambda: {0})
    newest: defaultdict[int, int] = defaultdict(int)
    most = 1
    for number, task in enumerate(program):
        if task.is_message:
            continue
        chunk = task.chunk
        if task.kind == "U":
            newest[chunk] += 1
            kept[chunk].add(newest[chunk])
        kept[chunk] = {
            version
            for version in kept[chunk]
            if version == newest[chunk] or last.get((chunk, version), -1) > number
        }
        most = max(most, len(kept[chunk]))
    return most


# --- ranks together -------------------------------------------------------------------------------


def _messages(schedule: Schedule, programs: Programs) -> Iterator[str]:
    """Every message has two ends on the right ranks, which see it in one order."""
    ends: defaultdict[tuple[str, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for rank, program in enumerate(programs):
        for task in program:
            if not task.is_message:
                continue
            sends = task.kind in SENDS
            owner = schedule.place(task.source if sends else task.destination)
            if owner != rank:
                yield f"rank {rank} has {task}, which is rank {owner}'s"
            ends[task.kind[-1], task.chunk][not sends].append(task.microbatch)
    for (direction, edge), (sent, received) in ends.items():
        for place, (a, b) in enumerate(zip_longest(sent, received, fillvalue="none")):
            if a != b:
                way = "forward" if direction == "F" else "backward"
                yield (
                    f"message {place} over edge {edge}, {way}: microbatch {a} is sent and {b} is "
                    "awaited"
                )
                break


def _dependencies(schedule: Schedule, programs: Programs) -> Iterator[str]:
    """Tasks come after what they need, and no rank waits for ever."""
    has: list[set[tuple[str, int, int]]] = [set() for _ in programs]
    try:
        slots = schedule.order.slots(schedule.stages, schedule.microbatches, **schedule.parameters)
        for rank, task, _, _ in run(programs, slots=slots):
            for need in _needs(schedule, task):
                if need not in has[rank]:
                    yield f"rank {rank} runs {task} before it has {Task(*need)}"
            has[rank].update(_gives(task))
    except DeadlockError as error:
        yield str(error)


def _needs(schedule: Schedule, task: Task) -> Iterator[tuple[str, int, int]]:
    """What must be on a rank before a task; B stands for the gradient of a chunk's input."""
    kind, chunk, m, _ = task
    match kind:
        case "F" if chunk > 0:
            yield "F", chunk - 1, m
        case "B" | "I":
            yield ("R" if schedule.recompute else "F"), chunk, m
            if chunk < schedule.chunks - 1:
                yield "B", chunk + 1, m
        case "R":
            yield "F", chunk, m
        case "W":
            yield "I", chunk, m
        case "U":
            yield "B", chunk, m
        case "SEND_F":
            yield "F", chunk - 1, m
        case "SEND_B":
            yield "B", chunk, m


def _gives(task: Task) -> Iterator[tuple[str, int, int]]:
    kind, chunk, m, _ = task
    match kind:
        case "RECV_F":
            yield "F", chunk - 1, m
        case "RECV_B":
            yield "B", chunk, m
        case _:
            yield kind, chunk, m
            if kind == "I":
                yield "B", chunk, m


# --- weights --------------------------------------------------------------------------------------


def _weights(schedule: Schedule, programs: Programs) -> Iterator[str]:
    """Forward and backward passes see one version, which exists, and is as old as registered."""
    staleness = schedule.order.staleness
    shape = schedule.stages, schedule.microbatches
    for rank, program in enumerate(programs):
        updates: Counter[int] = Counter()
        seen: dict[tuple[int, int], int] = {}
        for task in program:
            chunk, m = task.chunk, task.microbatch
            if task.is_message:
                continue
            if task.kind == "U":
                age = updates[chunk] - seen.get((chunk, m), 0)
                right = staleness(m, rank, *shape, **schedule.parameters)
                if age != right:
                    yield f"rank {rank}: {task} is made {age} updates late, not {right}"
                updates[chunk] += 1
            elif task.version > updates[chunk]:
                yield f"rank {rank} runs {task} with weights of update {task.version}, too early"
            elif seen.setdefault((chunk, m), task.version) != task.version:
                yield (
                    f"rank {rank} runs {task} with weights of update {task.version}, and F with "
                    f"those of update {seen[chunk, m]}"
                )


# --- numbers --------------------------------------------------------------------------------------


def _registered(verdict: Verdict) -> Iterator[str]:
    """Counts are those of the catalogue."""
    schedule = verdict.schedule
    order, S, M = schedule.order, schedule.stages, schedule.microbatches
    named = dict(schedule.parameters)
    counts = {
        "held": (verdict.held, order.held),
        "recomputed": (verdict.recomputed, order.recomputed if schedule.recompute else None),
        "versions": (verdict.versions, order.versions),
    }
    for what, (found, number) in counts.items():
        for rank, count in enumerate(found if number is not None else ()):
            assert number is not None
            right = number(rank, S, M, **named)
            bound = order.held_is_bound and what != "versions"
            if count > right or (count < right and not bound):
                most = "at most " if bound else ""
                yield f"rank {rank}: {what} {count}, registered {most}{right}"
    if order.messages is not None and verdict.messages != order.messages(S, M, **named):
        yield f"{verdict.messages} messages, registered {order.messages(S, M, **named)}"


def _makespan(schedule: Schedule) -> Iterator[str]:
    chunks = schedule.order.chunks(schedule.parameters)
    right = schedule.makespan(Durations(*(chunks * slots for slots in SLOTS)))
    if right is not None:
        found = simulate(schedule, SLOTS).makespan
        if found != right:
            yield f"the step takes {found} slots, registered {right}"
