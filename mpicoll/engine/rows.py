"""What is reduced, received row by row: for rounds that there is too little space for.

A row is one piece of every sender: piece p, then piece p + 1.  Within a row, if need be, what comes
of some senders is folded into an accumulator before the next ones send.  The fold is the same
expression all the same.
"""

from __future__ import annotations

from typing import NamedTuple

from mpicoll.engine.plan import Fold, Phase, PlannedMessage, merged
from mpicoll.engine.spans import Arena, Span, cut_out, sub


class Rows(NamedTuple):
    """How the rows of a round are planned.

    Attributes:
        rank: who receives.
        ratio: bytes of an element in the accumulator for one of its own.
        piece: bytes of the longest message.
        arena: where there is space, and ``budget`` how much, in bytes.
    """

    rank: int
    ratio: int
    piece: int
    arena: Arena
    budget: int

    def phases(
        self, opening: Phase, peers: list[int], targets: list[Span], owns: list[Span]
    ) -> list[Phase]:
        """The phases of a round.

        Args:
            opening: what else the round does.
            peers: who sends what is reduced, all of them the same blocks.
            targets, owns: where these are written, and where this rank has its own.
        """
        total = sum(target.length for target in targets)
        order = sorted([*peers, self.rank])
        phases = [opening._replace(stores=(), last=False)]
        mark = self.arena.next
        for lo in range(0, total, self.piece):
            length = min(self.piece, total - lo)
            self.arena.next = mark
            there, own = cut_out(targets, lo, length), cut_out(owns, lo, length)
            phases += self._row(order, there, own, length)
        # What was received aside may have to wait for the sends, so it is stored last.
        return [*phases[:-1], phases[-1]._replace(stores=opening.stores, last=True)]

    def _row(
        self, order: list[int], targets: list[Span], owns: list[Span], length: int
    ) -> list[Phase]:
        """One piece of every sender, as many senders at a time as there is space for."""
        arena, ratio = self.arena, self.ratio
        together = max((self.budget - ratio * length) // length, 1)
        groups = [order[i : i + together] for i in range(0, len(order), together)]
        accumulator = arena.take(ratio * length) if len(groups) > 1 else None
        mark = arena.next
        phases = []
        for number, group in enumerate(groups):
            arena.next = mark
            landings = {peer: arena.take(length) for peer in group if peer != self.rank}
            folds = []
            for index, target in enumerate(targets):
                start = sum(t.length for t in targets[:index])
                operands = [
                    owns[index] if peer == self.rank else sub(landings[peer], start, target.length)
                    for peer in group
                ]
                first, final = number == 0, number == len(groups) - 1
                if accumulator is not None:
                    partial = sub(accumulator, ratio * start, ratio * target.length)
                    operands = operands if first else [partial, *operands]
                    target = target if final else partial
                folds.append(Fold(target, tuple(operands), not first, not final))
            receives = tuple(PlannedMessage(peer, landing) for peer, landing in landings.items())
            phases.append(Phase((), receives, (), (), merged(folds), False))
        return phases
