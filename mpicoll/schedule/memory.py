"""The memory of a rank that runs a schedule, by cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from mpicoll.base.wording import plural
from mpicoll.schedule.steps import GIVEN, WORK

Value = TypeVar("Value")


class ScheduleError(ValueError):
    """A schedule that breaks the rules of :mod:`mpicoll.schedule`."""


def no_peer(step: object, rank: int, size: int) -> ScheduleError:
    """The error for a step whose peer is the rank itself, or no rank."""
    return ScheduleError(f"{step} of rank {rank} has no such peer among {plural(size, 'rank')}")


def unequal_copy(step: object, rank: int, how: str) -> ScheduleError:
    """The error for a copy between blocks that do not correspond."""
    return ScheduleError(f"{step} of rank {rank} copies to {how}")


class Cell(NamedTuple):
    """A segment of a block: what a rank's memory is addressed by."""

    space: str
    block: int
    segment: int


class Memory(Generic[Value]):
    """One rank's blocks, by cell.

    Values are never changed in place, so what was sent stays what it was.

    Args:
        given: the input's cells, in space ``given``.
        reads_through: an unwritten work block shows the input's.
        fold: the values of one fold, in order, to their result.
    """

    holds_values = True

    def __init__(
        self,
        given: dict[Cell, Value],
        reads_through: bool,
        fold: Callable[[list[Value]], Value],
    ) -> None:
        self.cells = dict(given)
        self.reads_through = reads_through
        self.fold = fold

    def load(self, cell: Cell) -> Value:
        """The value of a cell.

        Raises:
            ScheduleError: nothing has been written there.
        """
        value = self.cells.get(cell)
        if value is None and cell.space == WORK and self.reads_through:
            value = self.cells.get(Cell(GIVEN, cell.block, cell.segment))
        if value is None:
            raise ScheduleError(f"{cell.space} block {cell.block} is read but was never written")
        return value

    def result(self, cell: Cell) -> Value:
        """The value of a wanted cell at the end: one that no step wrote is copied from the input.

        Raises:
            ScheduleError: see :meth:`load`.
        """
        given = Cell(GIVEN, cell.block, cell.segment)
        return self.load(given if cell not in self.cells and given in self.cells else cell)

    def send(self, cells: Sequence[Cell]) -> list[Value]:
        """What a message of these cells carries."""
        return [self.load(cell) for cell in cells]

    def receive(self, values: list[Value], cells: Sequence[Cell]) -> None:
        """Store what a message carried."""
        self.cells.update(zip(cells, values, strict=True))

    def reduce(self, rank: int, cell: Cell, received: list[tuple[int, Value]]) -> None:
        """Fold received (sender, value) pairs with the cell's own value, in rank order."""
        received = [*received, (rank, self.load(cell))]
        received.sort(key=itemgetter(0))
        self.cells[cell] = self.fold([value for _, value in received])


class Blank(Memory[None]):
    """Memory without content, for schedules whose values do not matter."""

    holds_values = False

    def __init__(self) -> None:
        super().__init__({}, False, lambda values: None)
