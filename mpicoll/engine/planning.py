"""From a schedule to a plan: blocks become bytes, and values get places.

What the schedule leaves open is settled here, the same way on both sides of a message:

* a work block lives in the output where the output has it, else in temporary space, and reads
  through to the input until something writes it;
* messages without content are dropped, unless they carry no blocks on purpose (a barrier's);
* blocks that are not adjacent are packed;
* messages longer than :data:`mpicoll.engine.plan.PIECE` are cut, so that no count nears 2^31 and
  receive space is bounded;
* what is reduced is received aside; where that would take more than :data:`SPACE`, row by row (see
  :mod:`mpicoll.engine.rows`).  Only a round that also sends what it reduces needs room for the
  whole block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mpicoll import algorithms
from mpicoll.engine.plan import (
    BLOCKS,
    INPUT,
    MESSAGES,
    OUTPUT,
    PIECE,
    Fold,
    Move,
    Phase,
    Plan,
    PlannedChannel,
    PlannedMessage,
    Shape,
    merged,
)
from mpicoll.engine.rows import Rows
from mpicoll.engine.spans import Arena, Span, joined, laid, overlap
from mpicoll.registry import Algorithm
from mpicoll.schedule import Block, Copy, Recv, RecvReduce, Round, Send, blocks, layout
from mpicoll.schedule.collectives import Place
from mpicoll.schedule.layout import Layout
from mpicoll.schedule.memory import Cell, no_peer, unequal_copy
from mpicoll.schedule.steps import GIVEN, WORK

#: Most receive space of a plan, bytes.
SPACE = 64 << 20


def build(shape: Shape, piece: int = PIECE, space: int = SPACE) -> Plan:
    """Plan one rank's part in a collective call.

    ``piece`` (the same on all ranks) and ``space`` are there for tests.

    Raises:
        ValueError: the shape names no known algorithm or parameter, or its layouts have another
            number of blocks than the algorithm.
        ScheduleError: the schedule has a step with an impossible peer, or a copy between blocks of
            different lengths.
    """
    algorithm = algorithms.find(shape.collective, shape.algorithm)
    nblocks = algorithm.blocks(shape.size)
    for cut in (shape.input, shape.output):
        if len(cut.counts) != nblocks:
            raise ValueError(
                f"{shape.collective} {shape.algorithm} has {nblocks} blocks for {shape.size} ranks,"
                f" not {len(cut.counts)}"
            )
    if shape.whole:  # a piece of every rank, and one more
        piece = min(piece, space // (shape.size + 1))
    return _Builder(shape, algorithm, nblocks, piece, space).plan()


def in_elements(piece: int, itemsize: int) -> int:
    """Bytes of the longest message, of whole elements."""
    return max(piece // itemsize, 1) * itemsize


class _Builder:
    """Translates one rank's schedule."""

    def __init__(
        self, shape: Shape, algorithm: Algorithm, nblocks: int, piece: int, space: int
    ) -> None:
        self.shape = shape
        self.algorithm = algorithm
        self.definition = algorithm.definition
        self.place = Place(shape.rank, shape.size, shape.root, nblocks)
        self.nblocks, self.nscratch = nblocks, algorithm.scratch(shape.size)
        self.piece = in_elements(piece, shape.itemsize)
        self.space = space
        self.segments = 1
        self.held = frozenset(self.definition.held(self.place))
        # In a scatter in place the root's own block simply stays where it is.
        stays = shape.in_place and self.definition.output_alone and self.definition.rooted
        self.wanted = frozenset(() if stays else self.definition.wanted(self.place))
        self.input_buffer = OUTPUT if shape.in_place and not stays else INPUT
        # In a reduce-scatter in place the output lies on top of input that is still needed.
        self.output_is_free = not (shape.in_place and self.definition.output_alone)
        self.fixed = Arena(BLOCKS)
        self.homes: dict[tuple[str, int], Span] = {}
        self.written: set[Cell] = set()
        self.before: list[Move] = []

    def plan(self) -> Plan:
        shape = self.shape
        parameters = dict(shape.parameters)
        program = self.algorithm.channels(shape.rank, shape.size, shape.root, parameters)
        first = program[0]
        self.segments = first.segments
        # Channels whose numbers differ by this much are never open together: they share space and
        # tags (Plan.most_open).
        together = min(first.window, first.segments) * (len(program) // first.segments)
        arenas = [Arena(MESSAGES + number) for number in range(together)]
        channels = []
        for number, channel in enumerate(program):
            arena = arenas[number % together]
            phases: list[Phase] = []
            for steps in channel.rounds:
                arena.rewind()
                phases += self._round(steps, channel.segment, arena, self.space // together)
            channels.append(
                PlannedChannel(tuple(phases), channel.segment, channel.segments, channel.window)
            )
        after = tuple(self._after())  # may still take space
        temporary = tuple(arena.end for arena in (self.fixed, *arenas))
        return Plan(shape, tuple(self.before), tuple(channels), after, temporary)

    # --- where blocks live -------------------------------------------------------------------

    def _block(self, cut: Layout, block: int, buffer: int, alone: bool) -> Span:
        offset = 0 if alone else cut.offsets[block]
        size = self.shape.itemsize
        return Span(buffer, offset * size, cut.counts[block] * size)

    def _input(self, block: int) -> Span:
        """Where the input has a block."""
        alone = self.definition.input_alone and not self.shape.in_place
        return self._block(self.shape.input, block, self.input_buffer, alone)

    def _output(self, block: int) -> Span:
        """Where the output has a block."""
        return self._block(self.shape.output, block, OUTPUT, self.definition.output_alone)

    def _home(self, space: str, index: int) -> Span:
        """Where a work or scratch block lives."""
        if space == WORK and index in self.wanted and self.output_is_free:
            return self._output(index)
        if (space, index) not in self.homes:
            count = self.shape.output.counts[index % self.nblocks]
            self.homes[space, index] = self.fixed.take(count * self.shape.itemsize)
        return self.homes[space, index]

    def _kept(self, index: int) -> Span:
        """An input block under its own name; what is in place is copied aside first."""
        given = self._input(index)
        if given.buffer == INPUT:
            return given
        if (GIVEN, index) not in self.homes:
            self.homes[GIVEN, index] = self.fixed.take(given.length)
            self.before.append(Move(self.homes[GIVEN, index], given))
        return self.homes[GIVEN, index]

    def _segment(self, span: Span, segment: int) -> Span:
        size = self.shape.itemsize
        offset, count = layout.part(span.length // size, self.segments, segment)
        return Span(span.buffer, span.offset + offset * size, count * size)

    def _target(self, cell: Cell) -> Span:
        """Where a cell is written."""
        return self._segment(self._home(cell.space, cell.block), cell.segment)

    def _source(self, cell: Cell) -> Span:
        """Where a cell is read."""
        if cell.space == GIVEN:
            return self._segment(self._kept(cell.block), cell.segment)
        unwritten = cell.space == WORK and cell not in self.written and cell.block in self.held
        if unwritten and self.definition.reads_through:
            return self._segment(self._input(cell.block), cell.segment)
        return self._target(cell)

    def _cells(self, argument: Block, segment: int) -> list[Cell]:
        places = blocks(argument, self.nblocks, self.nscratch)
        return [Cell(place.space, place.block, segment) for place in places]

    def _after(self) -> Iterator[Move]:
        """Bring wanted blocks to the output where they are not there yet."""
        for block in sorted(self.wanted):
            for segment in range(self.segments):
                cell = Cell(WORK, block, segment)
                target = self._segment(self._output(block), segment)
                if cell in self.written or self.definition.reads_through:
                    source = self._source(cell)
                else:
                    source = self._segment(self._input(block), segment)
                if target.length and target != source:
                    yield Move(target, source)

    # --- rounds ------------------------------------------------------------------------------

    def _round(self, steps: Round, segment: int, arena: Arena, budget: int) -> list[Phase]:
        moves: list[Move] = []
        for step in steps:
            if isinstance(step, Copy):
                moves += self._copied(step, segment, arena)
        sends: list[PlannedMessage] = []
        for step in steps:
            if not isinstance(step, Copy):
                self._check_peer(step)
            if isinstance(step, Send):
                cells = self._cells(step.block, segment)
                spans = joined(self._source(cell) for cell in cells)
                if spans or not cells:
                    sends += self._cut(step.peer, self._packed(spans, arena, moves))
        reduced = self._by_rows_of(steps, segment, sends, budget)
        receives: list[PlannedMessage] = []
        stores: list[Move] = []
        values: dict[Cell, list[tuple[int, Span]]] = {}
        # In the order written: that is how messages from one peer match.
        for step in steps:
            if isinstance(step, Recv):
                self._receive(step, segment, arena, sends, receives, stores)
            elif isinstance(step, RecvReduce) and not reduced:
                self._receive_aside(step, segment, arena, receives, values)
        folds = [
            Fold(self._target(cell), self._in_rank_order(received, self._source(cell)))
            for cell, received in values.items()
        ]
        opening = Phase(
            _filled(moves), tuple(receives), tuple(sends), tuple(stores), merged(folds), True
        )
        phases = [opening]
        if reduced:
            peers = [step.peer for step in steps if isinstance(step, RecvReduce)]
            ratio = self.shape.wide // self.shape.itemsize
            rows = Rows(self.shape.rank, ratio, self.piece, arena, budget)
            targets = [self._target(cell) for cell in reduced]
            owns = [self._source(cell) for cell in reduced]
            phases = rows.phases(opening, peers, targets, owns)
        for step in steps:
            if isinstance(step, (Recv, RecvReduce)):
                self.written.update(self._cells(step.block, segment))
        return [phase for phase in phases if any(phase[:5])]

    def _check_peer(self, step: Send | Recv | RecvReduce) -> None:
        """No message goes to the rank itself, nor to one that does not exist."""
        rank, size = self.shape.rank, self.shape.size
        if step.peer == rank or not 0 <= step.peer < size:
            raise no_peer(step, rank, size)

    def _copied(self, step: Copy, segment: int, arena: Arena) -> list[Move]:
        """The moves of a copy: all its blocks at once, so through other space if they overlap."""
        cells = self._cells(step.dst, segment)
        sources = [self._source(cell) for cell in self._cells(step.src, segment)]
        targets = [self._target(cell) for cell in cells]
        self.written.update(cells)
        if len(sources) != len(targets):
            raise unequal_copy(step, self.shape.rank, "another number of blocks")
        if any(t.length != s.length for t, s in zip(targets, sources, strict=True)):
            raise unequal_copy(step, self.shape.rank, "a block of another length")
        if not any(
            overlap(target, source)
            for number, target in enumerate(targets)
            for source in sources[number + 1 :]
        ):
            return [Move(t, s) for t, s in zip(targets, sources, strict=True)]
        aside = [arena.take(source.length) for source in sources]
        return [Move(a, s) for a, s in zip(aside, sources, strict=True)] + [
            Move(t, a) for t, a in zip(targets, aside, strict=True)
        ]

    def _packed(self, spans: list[Span], arena: Arena, moves: list[Move]) -> Span:
        """One span with the content of several."""
        if len(spans) == 1:
            return spans[0]
        packed = arena.take(sum(span.length for span in spans))
        moves += [Move(part, span) for part, span in zip(laid(packed, spans), spans, strict=True)]
        return packed

    def _cut(self, peer: int, span: Span) -> list[PlannedMessage]:
        """One message as pieces; an empty one stays one."""
        return [
            PlannedMessage(
                peer, Span(span.buffer, span.offset + lo, min(self.piece, span.length - lo))
            )
            for lo in range(0, max(span.length, 1), self.piece)
        ]

    def _receive(
        self,
        step: Recv,
        segment: int,
        arena: Arena,
        sends: list[PlannedMessage],
        receives: list[PlannedMessage],
        stores: list[Move],
    ) -> None:
        cells = self._cells(step.block, segment)
        spans = joined(self._target(cell) for cell in cells)
        if not spans and cells:
            return
        direct = len(spans) == 1 and not any(overlap(spans[0], m.span) for m in sends)
        landing = spans[0] if direct else arena.take(sum(span.length for span in spans))
        receives += self._cut(step.peer, landing)
        if not direct:
            stores += [Move(s, part) for part, s in zip(laid(landing, spans), spans, strict=True)]

    def _by_rows_of(
        self, steps: Round, segment: int, sends: list[PlannedMessage], budget: int
    ) -> list[Cell]:
        """The cells that a round reduces row by row; none if all can be received at once.

        Rows are for rounds that space is too short for, and that leave the choice: every sender
        sends one message, all of the same blocks, none of which this round sends.
        """
        reduces = [step for step in steps if isinstance(step, RecvReduce)]
        peers = [step.peer for step in steps if isinstance(step, (Recv, RecvReduce))]
        named = [self._cells(step.block, segment) for step in reduces]
        length = sum(self._target(cell).length for cells in named for cell in cells)
        if length <= budget or len(set(peers)) < len(peers):
            return []
        cells = named[0]
        if any(other != cells for other in named) or len(set(cells)) < len(cells):
            return []
        if any(overlap(self._target(cell), message.span) for cell in cells for message in sends):
            return []
        return cells

    def _receive_aside(
        self,
        step: RecvReduce,
        segment: int,
        arena: Arena,
        receives: list[PlannedMessage],
        values: dict[Cell, list[tuple[int, Span]]],
    ) -> None:
        cells = self._cells(step.block, segment)
        targets = [self._target(cell) for cell in cells]
        landing = arena.take(sum(target.length for target in targets))
        if landing.length or not cells:
            receives += self._cut(step.peer, landing)
        for cell, part in zip(cells, laid(landing, targets), strict=True):
            values.setdefault(cell, []).append((step.peer, part))

    def _in_rank_order(self, received: list[tuple[int, Span]], own: Span) -> tuple[Span, ...]:
        pairs = sorted([*received, (self.shape.rank, own)], key=lambda pair: pair[0])
        return tuple(span for _, span in pairs)


def _filled(moves: Iterable[Move]) -> tuple[Move, ...]:
    return tuple(m for m in moves if m.target.length and m.target != m.source)
