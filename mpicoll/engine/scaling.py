"""Plans of other lengths: what has been planned once is scaled, not planned again.

Where all blocks are equally long, and divide into equal segments, every length and offset of a plan
is a multiple of a segment's length.  So the plan of other blocks of this kind differs in these
numbers alone, as long as no message is cut and no space is short.
"""

from __future__ import annotations

from collections.abc import Hashable

from mpicoll.engine.plan import Plan, Shape
from mpicoll.engine.planning import SPACE, in_elements
from mpicoll.engine.spans import ALIGNMENT
from mpicoll.schedule.layout import Layout

#: Most temporary space, bytes, of a plan that is kept for others to be scaled from.
_KEPT = 1 << 20


def _block(layout: Layout) -> int:
    """Elements of each block, 0 where they differ, or do not lie one behind the other."""
    offsets, counts = layout
    if not counts:
        return 0
    count, blocks = counts[0], len(counts)
    if counts != (count,) * blocks or offsets != tuple(range(0, blocks * count, count or 1)):
        return 0
    return count


def pattern(shape: Shape) -> Hashable:
    """What shapes have in common whose plans differ in lengths alone; None: there are no others."""
    if shape.whole or shape.input != shape.output or not _block(shape.input):
        return None
    what = shape.collective, shape.algorithm, shape.parameters, shape.itemsize, shape.wide
    return *what, shape.rank, shape.size, shape.root, shape.in_place


class Scale:
    """A plan by which others go.

    Args:
        plan: one whose shape has a :func:`pattern`.
        piece: longest message, see :func:`mpicoll.engine.planning.build`.

    Attributes:
        part: bytes of a segment of a block; 0 where the plan is no measure for others.
    """

    def __init__(self, plan: Plan, piece: int) -> None:
        segments = plan.channels[0].segments if plan.channels else 1
        count, rest = divmod(_block(plan.shape.input), segments)
        part = 0 if rest else count * plan.shape.itemsize
        phases = [phase for channel in plan.channels for phase in channel.phases]
        messages = [message for phase in phases for message in (*phase.receives, *phase.sends)]
        longest = max((message.span.length for message in messages), default=0)
        piece = in_elements(piece, plan.shape.itemsize)
        # That depends on how much space there is.
        by_rows = any(fold.wide_first or fold.wide_target for p in phases for fold in p.folds)
        space = sum(plan.temporary)
        aligned = not space or part % ALIGNMENT == 0
        self._segments, self._longest, self._piece = segments, longest, piece
        self._space, self._most = space, SPACE // max(len(plan.temporary), 1)
        serves = aligned and not by_rows and longest < piece and space <= _KEPT
        self.part = part if serves else 0

    def part_of(self, shape: Shape) -> int:
        """Bytes of a segment of another shape of the pattern; 0 if that must be planned."""
        if not self.part:
            return 0
        count, rest = divmod(_block(shape.input), self._segments)
        part = count * shape.itemsize
        fits = self._longest * part <= self._piece * self.part
        fits = fits and self._space * part <= self._most * self.part
        return part if not rest and fits else 0
