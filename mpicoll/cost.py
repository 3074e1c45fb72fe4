"""What a machine costs: the parameters that a fit finds and that predictions and simulations use.

A call costs ``call`` seconds once.  Each round in which a rank sends or receives costs it ``step``
seconds; a message of m bytes costs ``alpha + beta m`` on its link, where alpha and beta are those
of the first piece whose ``upto`` is at least m: protocols and caches change with the size of one
message, not with that of the whole vector.  Each byte reduced costs ``gamma`` seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["INTER", "INTRA", "CostModel", "Costs", "Piece"]

#: Link between ranks of one node, and link between nodes.
INTRA, INTER = "intra", "inter"


@dataclass(frozen=True)
class Piece:
    """Cost of messages of up to so many bytes.

    Attributes:
        upto: bytes of the longest message that it holds for; None for any.
        alpha: seconds per message.
        beta: seconds per byte.
    """

    upto: int | None
    alpha: float
    beta: float


@dataclass(frozen=True)
class Costs:
    """One set of parameters.

    Attributes:
        links: pieces of each kind of link, :data:`INTRA` or :data:`INTER`, shortest messages
            first; the last one has no end.
        gamma: seconds per byte reduced.
        call: seconds of every call, whatever it does.
        step: seconds of every round of a rank.
    """

    links: Mapping[str, tuple[Piece, ...]]
    gamma: float = 0.0
    call: float = 0.0
    step: float = 0.0

    def piece(self, nbytes: int, link: str = INTRA) -> Piece:
        """The piece that holds for a message; the other kind of link if this one is not known."""
        pieces = self.links[link] if link in self.links else next(iter(self.links.values()))
        return next(p for p in pieces if p.upto is None or nbytes <= p.upto)


@dataclass(frozen=True)
class CostModel:
    """Everything a fit found: one set for all algorithms, and one of its own for each measured.

    Attributes:
        general: serves algorithms that were not measured.
        own: by collective, then by the choice in words, as ``ring`` or ``chain segments=4``.
    """

    general: Costs
    own: Mapping[str, Mapping[str, Costs]] = field(default_factory=dict)

    def costs(self, collective: str, choice: str) -> tuple[Costs, bool]:
        """The parameters for a choice, and whether they are its own."""
        own = self.own.get(collective, {}).get(choice)
        return (self.general, False) if own is None else (own, True)
