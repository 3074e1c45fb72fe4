"""How those that are left after a death put the state of the run together again.

Each tells what it holds: after which step, and which parts of which vectors. The last step of which
everything is there is the one to go on from. In lockstep ranks are at most one step apart, so at
most the step that was under way is made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.ranks.workers import Workers
from mpicoll.train.records import Epoch, Step
from mpicoll.train.strategies.kept import Held
from mpicoll.train.strategies.training import Training


class Span(NamedTuple):
    """A part of a vector that a rank holds: first element, the one after its last, and the rank."""

    start: int
    end: int
    rank: int


@dataclass(frozen=True)
class Offer:
    """What a rank holds after one step, without the values.

    Attributes:
        rank: The rank.
        number: Steps made then.
        facts: As of `Held`.
        spans: Parts of each vector, by what it is.
    """

    rank: int
    number: int
    facts: Mapping[str, Any]
    spans: Mapping[str, Sequence[Span]]

    @property
    def progress(self) -> tuple[int, int]:
        """How far the run was: steps made, and epochs measured."""
        return self.number, len(self.facts["history"])


@dataclass(frozen=True)
class Source:
    """Where the state to go on from is.

    Attributes:
        number: Steps made then.
        giver: Rank whose facts are taken.
        facts: Those.
        cover: Spans that make up each vector, by what it is.
    """

    number: int
    giver: int
    facts: Mapping[str, Any]
    cover: Mapping[str, Sequence[Span]]


def offers(rank: int, held: Sequence[Held]) -> list[Offer]:
    """What a rank says of what it holds."""
    found = []
    for each in held:
        spans: dict[str, list[Span]] = {}
        for kind, start, values in each.pieces:
            spans.setdefault(kind, []).append(Span(start, start + values.size, rank))
        found.append(Offer(rank, each.number, each.facts, spans))
    return found


def choose(everyone: Sequence[Offer], lengths: Mapping[str, int | None]) -> Source | None:
    """The last step of which all of some vectors are there; None if there is none.

    Args:
        everyone: What all ranks hold.
        lengths: Of each vector; None of one that depends on the number of ranks then.
    """
    for number in sorted({offer.number for offer in everyone}, reverse=True):
        those = [offer for offer in everyone if offer.number == number]
        cover = {
            kind: _cover(those, kind, _length(those, kind) if length is None else length)
            for kind, length in lengths.items()
        }
        if all(spans is not None for spans in cover.values()):
            best = max(those, key=lambda offer: (offer.progress, -offer.rank))
            found = {kind: spans for kind, spans in cover.items() if spans is not None}
            return Source(number, best.rank, best.facts, found)
    return None


def _length(those: Sequence[Offer], kind: str) -> int:
    return max((span.end for offer in those for span in offer.spans.get(kind, ())), default=0)


def _cover(those: Sequence[Offer], kind: str, length: int) -> list[Span] | None:
    """Spans without overlap from 0 to a length; None if a part is nowhere."""
    left = sorted(span for offer in those for span in offer.spans.get(kind, ()))
    found, reached = [], 0
    while reached < length:
        fitting = [span for span in left if span.start <= reached < span.end]
        if not fitting:
            return None
        best = max(fitting, key=lambda span: (span.end, -span.rank))
        found.append(Span(reached, best.end, best.rank))
        reached = best.end
    return found


def recover(
    workers: Workers, training: Training | None, before: Training | None
) -> tuple[Source | None, list[Step | Epoch]]:
    """Give a training what ranks held before some died; collective.

    Args:
        workers: The ranks that are left; those that sleep among them, where they may hold a part
            that nobody else has.
        training: What goes on, made for the ranks that train; None on others.
        before: What this rank had; None if it slept.

    Returns:
        Where the state comes from, None if it is gone; and what this rank has not been told of.
    """
    held = [] if before is None else before.held()
    form = None if training is None else (training.lengths, training.weights.vector.dtype)
    told = workers.gather((offers(workers.rank, held), form))
    lengths, dtype = next(theirs for _, theirs in told if theirs is not None)
    source = choose([offer for theirs, _ in told for offer in theirs], lengths)
    if source is None:
        return None, []
    own = [each for each in held if each.number == source.number]
    apart = training is not None and training.apart
    if apart:
        # Each goes on with its own parameters, wherever it was.
        own = held[:1]
    everywhere = all(workers.gather(bool(held))) if apart else False
    for kind, spans in source.cover.items():
        wide = kind.startswith("buffers")
        whole = np.empty(spans[-1].end if spans else 0, np.float64 if wide else dtype)
        if not everywhere:
            for span in spans:
                part = whole[span.start : span.end]
                if span.rank == workers.rank:
                    part[...] = _values(own, kind, span)
                workers.broadcast(part, span.rank)
        if apart and own:
            whole = _values(own, kind, Span(0, whole.size, workers.rank))
        if training is not None:
            training.put(kind, whole)
    if training is not None:
        training.go_on(source.facts)
    return source, _missed(before, source)


def _values(own: Sequence[Held], kind: str, span: Span) -> Array:
    """The values of a span that this rank holds."""
    for each in own:
        for name, start, values in each.pieces:
            if name == kind and start <= span.start and span.end <= start + values.size:
                return values[span.start - start : span.end - start]
    raise LookupError(f"{kind} {span}")


def _missed(before: Training | None, source: Source) -> list[Step | Epoch]:
    """Records of what others have done before the death, and this rank has not."""
    if before is None:
        return []
    facts = source.facts
    last, missed = facts["last"], list[Step | Epoch]()
    if last is not None and last.number > before.told:
        missed.append(last)
    missed.extend(facts["history"][len(before.history) :])
    return missed
