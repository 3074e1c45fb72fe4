"""Symbols in place of numbers: who has contributed to a value, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpicoll.schedule.collectives import Content
from mpicoll.schedule.memory import Cell, Memory, ScheduleError


class Symbol(NamedTuple):
    """A value: contributions of the ranks in the bit mask to an item.

    ``first .. last`` is the interval of ranks if they were combined in rank order, else None.
    ``expression`` is equal for equal expressions.
    """

    item: object
    ranks: int
    interval: tuple[int, int] | None
    expression: object


class Symbols:
    """Makes and folds symbols; equal expressions get equal numbers."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    def number(self, expression: object) -> int:
        return self._numbers.setdefault(expression, len(self._numbers))

    def contribution(self, content: Content) -> Symbol:
        """What one rank gives."""
        expression = self.number(("input", content.item, content.first))
        return Symbol(content.item, 1 << content.first, (content.first, content.first), expression)

    def fold(self, values: list[Symbol]) -> Symbol:
        item, ranks, interval, expression = values[0]
        expressions: list[object] = ["fold", expression]
        for value in values[1:]:
            if value.item != item:
                raise ScheduleError(f"blocks {item} and {value.item} are reduced together")
            if value.ranks & ranks:
                twice = [r for r in range(value.ranks.bit_length()) if value.ranks >> r & 1]
                raise ScheduleError(
                    f"block {item}: contributions of ranks {twice} are added to a sum "
                    f"that has some of them already"
                )
            ranks |= value.ranks
            last = value.interval
            if interval and last and interval[1] + 1 == last[0]:
                interval = interval[0], last[1]
            else:
                interval = None
            expressions.append(value.expression)
        return Symbol(item, ranks, interval, self.number(tuple(expressions)))


class SymbolMemory(Memory[Symbol]):
    """Memory that also checks that a value lies in a place of its own length.

    Blocks of a layout differ in length, so where input and output share a layout, what belongs to
    block i may only be stored in block i (or in scratch block i, modulo the number of blocks).
    """

    nblocks = 0

    def receive(self, values: list[Symbol], cells: Sequence[Cell]) -> None:
        for value, cell in zip(values, cells, strict=True):
            self.cells[cell] = value
            if self.reads_through and value.item != cell.block % self.nblocks:
                raise self._misplaced(cell)

    def reduce(self, rank: int, cell: Cell, received: list[tuple[int, Symbol]]) -> None:
        super().reduce(rank, cell, received)
        if self.reads_through and self.cells[cell].item != cell.block % self.nblocks:
            raise self._misplaced(cell)

    def _misplaced(self, cell: Cell) -> ScheduleError:
        return ScheduleError(
            f"block {self.cells[cell].item} is stored in {cell.space} block {cell.block}: "
            f"lengths may differ"
        )


class Arrivals(Memory[int]):
    """A barrier's memory: every message says which ranks its sender knows to have arrived."""

    def __init__(self, rank: int) -> None:
        super().__init__({}, False, lambda values: 0)
        self.known = 1 << rank

    def send(self, cells: Sequence[Cell]) -> list[int]:
        return [self.known]

    def receive(self, values: list[int], cells: Sequence[Cell]) -> None:
        for value in values:
            self.known |= value
