"""The vocabulary in which every collective algorithm of mpicoll is written.  Read this file first.

An *algorithm* is a generator ``schedule(rank, size, ...)`` that yields what one rank does.  It
names peers and blocks, never bytes, arrays or datatypes, so it depends on the rank, the number of
ranks and the algorithm's parameters alone.  Everything else (the verifier, the simulator, the
drawing, the in-process runner, the plan that runs over MPI) reads the same schedule.

**Step.**  One of four named tuples:

* ``Send(peer, block)``        send the blocks to ``peer``, as one message;
* ``Recv(peer, block)``        receive them from ``peer``, replacing what was there;
* ``RecvReduce(peer, block)``  receive them from ``peer`` and reduce them into what is there;
* ``Copy(src, dst)``           copy blocks on this rank.

A block argument is an int, a ``range`` or a tuple of these, each taken modulo the number of
blocks; ``()`` carries nothing (a barrier's message).  One step is one message: blocks that are not
adjacent in memory are packed.  A peer is never the rank itself.

**Buffers.**  Plain numbers name blocks of ``work``, which has the output's layout.  ``given(i)``
is block i of the input; it is never overwritten.  Where input and output have the same layout, a
work block that nothing has written yet *reads through* to the input.  A wanted block that no step
writes is copied from the input.  ``scratch(i)`` is extra space as long as block i.  With
``MPI.IN_PLACE`` input and work are the same memory, except where the output lies elsewhere
(reduce-scatter): there work is scratch space and the wanted block is copied out last.

**Round.**  A tuple of steps, or one bare step; an empty round is dropped.  First the copies run,
in the order written.  Then all sends and receives are posted together.  When all of them are
complete *on this rank*, the received blocks are stored and the folds are made, and the next round
begins.  A block may be sent and received in the same round: what is sent is the old value.  No two
steps of a round write the same block, except several ``RecvReduce``.  A runner short of space may
receive the messages of a round jointly, so no peer may need one of them to be received before it
(or a rank it waits for) sends another.

**Fold.**  What a round reduces into a block is one expression, evaluated from left to right: the
received values and the block's own value, in rank order of where they come from (the block's own
value at this rank's place; same peer: the order written).  It never depends on the order of
arrival.  So the bits of a result are a property of the schedule, and a non-commutative operator
keeps its order where the ranks behind each partial value lie on its sender's side.

**Channel.**  A sequence of rounds that makes progress by itself.  Messages between two ranks
match in the order posted *within* a channel, and channels never wait for one another.  A block
(and segment) that one channel writes is touched by no other.  All ranks have the same number of
channels, some perhaps empty.  A plain generator is a schedule of one channel.

**Combinators.**

* ``yield from a``, ``yield from b``     one after the other in one channel;
* ``channels(a, b, ...)``                side by side;
* ``then(a, b)``                         channel i of b after channel i of a;
* ``pipelined(schedule, k, window=W)``   the same schedule on each of k segments of every block,
  each segment with channels of its own.  Segment s opens when segment s - W is complete on this
  rank.  It is the outermost combinator, and the only segmentation there is;
* ``strands(a, b, ..., segments=k, window=W)``   the same for several schedules side by side, each
  on a part of every block of its own;
* ``within(schedule, ranks, blocks)``    the schedule of a group of ranks: group rank g is
  ``ranks[g]``, group block b is ``blocks[b]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, NoReturn, TypeAlias

__all__ = [
    "MAX_OPEN_CHANNELS",
    "Block",
    "Channel",
    "Channels",
    "Copy",
    "Location",
    "Recv",
    "RecvReduce",
    "Round",
    "Schedule",
    "Send",
    "Step",
    "as_channels",
    "blocks",
    "channels",
    "given",
    "number_of_blocks",
    "period",
    "pipelined",
    "scratch",
    "strands",
    "then",
    "within",
]

#: Channels of one rank that may be open at a time: message tags tell so many apart.
MAX_OPEN_CHANNELS = 256

#: Segments of a pipelined schedule: each is a program of its own, which takes memory and time.
MAX_SEGMENTS = 65536

WORK, GIVEN, SCRATCH = "work", "given", "scratch"


class Elsewhere(NamedTuple):
    """Blocks outside ``work``: what :func:`given` and :func:`scratch` return."""

    space: str
    block: Block


Block: TypeAlias = int | range | Elsewhere | tuple["Block", ...]


def given(block: Block) -> Elsewhere:
    """Name blocks of the input, in the input's layout."""
    return Elsewhere(GIVEN, block)


def scratch(block: Block) -> Elsewhere:
    """Name blocks of the scratch space; scratch block i is as long as block i (modulo)."""
    return Elsewhere(SCRATCH, block)


class Send(NamedTuple):
    """Send blocks to a peer, as one message."""

    peer: int
    block: Block


class Recv(NamedTuple):
    """Receive blocks from a peer, replacing what was there."""

    peer: int
    block: Block


class RecvReduce(NamedTuple):
    """Receive blocks from a peer and reduce them into what is there."""

    peer: int
    block: Block


class Copy(NamedTuple):
    """Copy blocks on this rank."""

    src: Block
    dst: Block


Step: TypeAlias = Send | Recv | RecvReduce | Copy
Round: TypeAlias = tuple[Step, ...]
Rounds: TypeAlias = Iterable[Step | Round]

STEPS = (Send, Recv, RecvReduce, Copy)
_KINDS = frozenset(STEPS)


class Channel(NamedTuple):
    """Rounds that make progress by themselves, on one segment of every block.

    ``segment`` of ``segments`` is open once every channel of segment ``segment - window`` of the
    same rank is complete.
    """

    rounds: Iterable[Round]
    segment: int = 0
    segments: int = 1
    window: int = 1


class Channels:
    """Channels side by side: what :func:`channels`, :func:`then` and :func:`pipelined` return."""

    def __init__(self, items: Sequence[Channel], outermost: bool = False) -> None:
        if not outermost and len(items) > MAX_OPEN_CHANNELS:
            raise ValueError(
                f"{len(items)} channels exceed the {MAX_OPEN_CHANNELS} that message tags tell "
                f"apart: let several blocks share a channel"
            )
        self.items = tuple(items)
        self.outermost = outermost

    def __iter__(self) -> NoReturn:
        raise TypeError(
            "a schedule of several channels cannot be iterated (no `yield from channels(...)`): "
            "combine it by then(), channels() or pipelined(), and read it by as_channels()"
        )


Schedule: TypeAlias = Rounds | Channels


def as_channels(schedule: Schedule) -> tuple[Channel, ...]:
    """The channels of a schedule; a plain generator is one channel.

    Rounds come out as non-empty tuples of steps, lazily.

    Raises:
        TypeError: (when the rounds are read) something yielded is no step and no tuple of steps.
    """
    if isinstance(schedule, Channels):
        return schedule.items
    return (Channel(_rounds(schedule)),)


def _rounds(schedule: Rounds) -> Iterator[Round]:
    for item in schedule:
        # A step is a tuple too, so it must be asked for first.
        steps = (item,) if isinstance(item, STEPS) else item
        # There may be millions: types are looked up, which is several times as fast as asking.
        if not isinstance(steps, tuple) or not _KINDS.issuperset(map(type, steps)):
            raise TypeError(f"a round is a step or a tuple of steps, not {item!r}")
        if steps:
            yield steps


def _inner_channels(schedule: Schedule, combinator: str) -> tuple[Channel, ...]:
    if isinstance(schedule, Channels) and schedule.outermost:
        raise TypeError(f"{combinator}() of a pipelined schedule: pipelined() must be outermost")
    return as_channels(schedule)


def channels(*schedules: Schedule) -> Channels:
    """Schedules side by side, each in channels of its own."""
    return Channels([c for s in schedules for c in _inner_channels(s, "channels")])


def then(first: Schedule, second: Schedule) -> Channels:
    """Channel i of ``second`` after channel i of ``first``.

    Raises:
        ValueError: the two have different numbers of channels.
    """
    a, b = _inner_channels(first, "then"), _inner_channels(second, "then")
    if len(a) != len(b):
        raise ValueError(f"then() joins equal numbers of channels, not {len(a)} and {len(b)}")
    return Channels([Channel(chain(x.rounds, y.rounds)) for x, y in zip(a, b, strict=True)])


def pipelined(schedule: Schedule, segments: int, window: int = 8) -> Channels:
    """The same schedule on each of ``segments`` segments of every block.

    At most ``window`` segments are under way on a rank at a time: segment k opens once segment
    k - window is complete, whatever the others do.

    Raises:
        ValueError: fewer than one segment or window, more segments than :data:`MAX_SEGMENTS`, or
            more open channels than tags tell apart.
    """
    return strands(schedule, segments=segments, window=window)


def strands(*schedules: Schedule, segments: int = 1, window: int = 8) -> Channels:
    """Schedules side by side, each on a part of its own of every block, in segments.

    Of k schedules, schedule i has the segments i, k + i, 2 k + i, ... of k times ``segments``.  At
    most ``window`` segments of each are under way on a rank at a time.

    Raises:
        ValueError: see :func:`pipelined`; or the schedules have different numbers of channels.
    """
    if segments < 1 or window < 1:
        raise ValueError(f"segments={segments} and window={window} must both be at least 1")
    count = len(schedules)
    if segments * count > MAX_SEGMENTS:
        of_each = f" of each of {count} strands" if count > 1 else ""
        raise ValueError(
            f"segments={segments}{of_each} must be at most {MAX_SEGMENTS // count}; choose fewer"
        )
    inner = [
        [tuple(channel.rounds) for channel in _inner_channels(schedule, "pipelined")]
        for schedule in schedules
    ]
    if len(set(map(len, inner))) > 1:
        raise ValueError(f"strands need equal numbers of channels, not {[*map(len, inner)]}")
    together = sum(map(len, inner))
    if min(window, segments) * together > MAX_OPEN_CHANNELS:
        raise ValueError(
            f"window={window} x {together} channels exceeds {MAX_OPEN_CHANNELS} open channels: "
            f"choose window <= {MAX_OPEN_CHANNELS // together}"
        )
    return Channels(
        [
            Channel(rounds, s * count + strand, segments * count, window * count)
            for s in range(segments)
            for strand, channels in enumerate(inner)
            for rounds in channels
        ],
        outermost=True,
    )


def period(*programs: Sequence[Channel]) -> int:
    """After how many segments the rounds of some ranks repeat: 1 where all segments are alike.

    Rounds are compared by identity, as :func:`strands` shares them, so what is alike by chance
    counts as different, and nothing that is different as alike.
    """
    segments = programs[0][0].segments if programs and programs[0] else 1
    return next(
        length
        for length in range(1, segments + 1)
        if segments % length == 0
        and all(_repeats(program, segments, length) for program in programs)
    )


def _repeats(program: Sequence[Channel], segments: int, length: int) -> bool:
    apart = len(program) // segments * length
    return all(
        one.rounds is other.rounds for one, other in zip(program, program[apart:], strict=False)
    )


def within(schedule: Schedule, ranks: Sequence[int], blocks: Sequence[Block]) -> Schedule:
    """The schedule of a group: group rank g is ``ranks[g]``, group block b is ``blocks[b]``.

    A plain generator stays one, for ``yield from within(...)``.
    """

    def block(b: Block) -> Block:
        if isinstance(b, int):
            return blocks[b % len(blocks)]
        if isinstance(b, Elsewhere):
            if b.space == SCRATCH:
                raise ValueError("scratch blocks belong to the whole schedule, not to a group")
            return Elsewhere(b.space, block(b.block))
        if isinstance(b, range) and isinstance(blocks, range) and b.step == 1:
            inside = 0 <= b.start <= b.stop <= len(blocks)
            return blocks[b.start : b.stop] if inside else tuple(blocks[i % len(blocks)] for i in b)
        return tuple(block(item) for item in b)

    def step(s: Step) -> Step:
        if isinstance(s, Copy):
            return Copy(block(s.src), block(s.dst))
        return type(s)(ranks[s.peer], block(s.block))

    def rounds(inner: Iterable[Round]) -> Iterator[Round]:
        return (tuple([step(s) for s in r]) for r in inner)

    inner = _inner_channels(schedule, "within")
    if isinstance(schedule, Channels):
        return Channels([Channel(rounds(channel.rounds)) for channel in inner])
    return rounds(inner[0].rounds)


class Location(NamedTuple):
    """One block of one space (``work``, ``given`` or ``scratch``) of a rank."""

    space: str
    block: int


@lru_cache(maxsize=1 << 16, typed=True)
def blocks(argument: Block, nblocks: int, nscratch: int = 0) -> tuple[Location, ...]:
    """The locations that a block argument names, in its order.

    Raises:
        TypeError: not an int, a range or a tuple of these.
        ValueError: it names a block of a space that has none.
    """
    found: list[Location] = []
    _collect(argument, WORK, {WORK: nblocks, GIVEN: nblocks, SCRATCH: nscratch}, found)
    return tuple(found)


def _collect(argument: Block, space: str, numbers: dict[str, int], found: list[Location]) -> None:
    if isinstance(argument, Elsewhere):
        _collect(argument.block, argument.space, numbers, found)
    elif isinstance(argument, (range, tuple)):
        for item in argument:
            _collect(item, space, numbers, found)
    elif not isinstance(argument, int):
        raise TypeError(f"a block is an int, a range or a tuple of these, not {argument!r}")
    elif not numbers[space]:
        raise ValueError(f"block {argument} of {space}, which has no blocks here")
    else:
        found.append(Location(space, argument % numbers[space]))


def number_of_blocks(argument: Block) -> int:
    """How many blocks an argument names, each as often as it is named."""
    if isinstance(argument, int):
        return 1
    if isinstance(argument, range):
        return len(argument)
    if isinstance(argument, Elsewhere):
        return number_of_blocks(argument.block)
    return sum(map(number_of_blocks, argument))
