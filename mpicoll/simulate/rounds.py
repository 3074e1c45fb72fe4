"""Clocks for many ranks at once: rounds of all ranks as NumPy arrays, swept one after the other.

For schedules of one channel in which a rank sends at most one message and receives at most one in a
round.  Then no two messages ever want the same port, so a message begins when both its ranks have
come to it; see :mod:`mpicoll.simulate.clock` for what it costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpicoll.schedule import Channel, Copy, RecvReduce, Round, Send
from mpicoll.schedule.memory import ScheduleError
from mpicoll.simulate.clock import Result
from mpicoll.simulate.costs import INTER, INTRA
from mpicoll.simulate.machine import Machine, Sizes

#: Times below this fit into NumPy's integers; longer ones are Python's, many times slower.
_FITS = 1 << 62

Array = Any


class SeveralMessagesError(ValueError):
    """A round of several messages each way, or a schedule of several channels."""


class Plain(NamedTuple):
    """A round with one message each way at most; a peer of -1 is none."""

    target: int
    source: int
    sent: int
    received: int
    reduced: int


def _plain(steps: Round, sizes: Sizes) -> Plain | None:
    """A round in numbers; None if it has no message."""
    target = source = -1
    sent = received = reduced = 0
    for step in steps:
        if isinstance(step, Copy):
            continue
        nbytes = sizes.of(step.block)
        if isinstance(step, Send):
            if target >= 0:
                raise SeveralMessagesError(f"several sends in a round: {steps[:3]} ...")
            target, sent = step.peer, nbytes
        else:
            if source >= 0:
                raise SeveralMessagesError(f"several receives in a round: {steps[:3]} ...")
            source, received = step.peer, nbytes
            reduced = nbytes if isinstance(step, RecvReduce) else 0
    return Plain(target, source, sent, received, reduced) if target >= 0 or source >= 0 else None


def plain_rounds(program: Sequence[Channel], sizes: Sizes) -> Iterator[Plain]:
    """The rounds of a rank that have messages, in numbers.

    Raises:
        SeveralMessagesError: several channels, or several messages one way in a round.
    """
    if len(program) != 1:
        raise SeveralMessagesError(f"a schedule of {len(program)} channels")
    for steps in program[0].rounds:
        found = _plain(steps, sizes)
        if found:
            yield found


class _Costs:
    """The machine's costs for arrays of messages."""

    def __init__(self, machine: Machine, ranks: int) -> None:
        self.machine = machine
        self.nodes = np.asarray(machine.nodes) if machine.nodes else None
        self.unit = machine.unit
        self.slowdown = np.array(machine.slowdowns(ranks)) if machine.slow else None
        kinds = [machine.pieces(kind) for kind in (INTRA, INTER)]
        self.limits = [np.array([p.upto for p in pieces[:-1]], "i8") for pieces in kinds]
        self.alphas = [np.array([int(p.alpha) for p in pieces]) for pieces in kinds]
        self.betas = [np.array([int(p.beta) for p in pieces]) for pieces in kinds]

    def most(self, nbytes: int) -> int:
        """No message of up to so many bytes takes longer, nor does the end of a round."""
        alpha = max(int(a.max()) for a in self.alphas)
        beta = max(int(b.max()) for b in self.betas) + self.machine.gamma
        slowest = int(self.slowdown.max()) if self.slowdown is not None else 1
        return (alpha + self.machine.step + beta * nbytes) * slowest

    def messages(self, senders: Array, receivers: Array, nbytes: Array, kind: type) -> Array:
        """How long messages take."""
        links = [(0, slice(None))]
        if self.nodes is not None:
            near = self.nodes[senders] == self.nodes[receivers]
            links = [(0, near), (1, ~near)]
        times: Array = np.empty(len(senders), kind)
        for link, chosen in links:
            lengths = nbytes[chosen]
            piece = np.searchsorted(self.limits[link], lengths)
            alpha, beta = self.alphas[link][piece], self.betas[link][piece]
            times[chosen] = alpha + beta.astype(kind) * lengths
        if self.slowdown is None:
            return times
        return times * np.maximum(self.slowdown[senders], self.slowdown[receivers]) // self.unit

    def after(self, ranks: Array, received: Array, reduced: Array, kind: type) -> Array:
        """How long ranks need at the end of a round, those that received something in it."""
        times = self.machine.step * received.astype(kind) + self.machine.gamma * reduced.astype(
            kind
        )
        return times if self.slowdown is None else times * self.slowdown[ranks] // self.unit


class _Rounds:
    """The round under way on each rank, in arrays."""

    def __init__(self, count: int) -> None:
        self.target, self.source = np.full(count, -1), np.full(count, -1)
        self.sent, self.received, self.reduced = (np.zeros(count, "i8") for _ in range(3))
        self.receives = np.zeros(count, bool)  # still so when the source is through

    def put(self, ranks: Array, found: Sequence[Plain]) -> None:
        """Ranks begin rounds."""
        if found:
            columns = np.array(found, "i8").T
            arrays = (self.target, self.source, self.sent, self.received, self.reduced)
            for array, column in zip(arrays, columns, strict=True):
                array[ranks] = column
            self.receives[ranks] = self.source[ranks] >= 0


def sweep(
    programs: Sequence[Sequence[Channel]],
    ranks: int,
    sizes: Sizes,
    machine: Machine,
    start: Sequence[int] = (),
) -> Result:
    """Times of all ranks, or of those that represent all ``ranks`` (see :mod:`.matching`).

    ``start``: when each rank begins.

    Raises:
        SeveralMessagesError: the schedule is not of the kind that this function is for.
        ScheduleError: something is left over (deadlock, unmatched messages).
    """
    count = len(programs)
    rounds = [plain_rounds(program, sizes) for program in programs]
    costs, now = _Costs(machine, ranks), _Rounds(count)
    kind: type = np.int64
    ready: Array = np.array(start or [0] * count, object)
    ready = ready if max(ready) >= _FITS else ready.astype(kind)
    end, sent = ready.copy(), np.zeros(count, "i8")
    messages = 0
    opened = np.arange(count)
    while True:
        following = [(rank, next(rounds[rank], None)) for rank in opened.tolist()]
        begun = np.array([rank for rank, found in following if found], "i8")
        now.put(begun, [found for _, found in following if found])
        if not len(begun):
            break
        end[begun] = ready[begun]
        # Messages of these rounds, and messages to them from rounds that are under way already.
        away = begun[now.target[begun] >= 0]
        into = begun[now.source[begun] >= 0]
        senders = np.unique(np.concatenate([away, now.source[into] % count]))
        senders = senders[now.target[senders] >= 0]
        distance = (now.target[senders] - senders) % ranks
        receivers = now.target[senders] % count
        meets = (now.source[receivers] >= 0) & (
            (receivers - now.source[receivers]) % ranks == distance
        )
        senders, receivers, distance = senders[meets], receivers[meets], distance[meets]
        nbytes = now.sent[senders]
        if np.any(nbytes != now.received[receivers]):
            raise ScheduleError("a rank sends other blocks than its peer expects")
        longest = int(nbytes.max(initial=0))
        if kind is np.int64 and int(ready.max()) + costs.most(longest) >= _FITS:
            kind, ready, end = object, ready.astype(object), end.astype(object)
        starts = np.maximum(ready[senders], ready[receivers])
        actual = (senders + distance) % ranks
        arrival = starts + costs.messages(senders, actual, nbytes, kind)
        end[senders] = np.maximum(end[senders], arrival)
        end[receivers] = np.maximum(end[receivers], arrival)
        sent[senders] += nbytes
        messages += len(senders)
        now.target[senders], now.source[receivers] = -1, -1
        touched = np.unique(np.concatenate([senders, receivers]))
        opened = touched[(now.target[touched] < 0) & (now.source[touched] < 0)]
        ready[opened] = end[opened] + costs.after(
            opened, now.receives[opened], now.reduced[opened], kind
        )
    stuck = np.flatnonzero((now.target >= 0) | (now.source >= 0))
    if len(stuck):
        raise ScheduleError(f"never complete: rounds of ranks {stuck[:8].tolist()}")
    return Result(tuple(ready.tolist()), tuple(sent.tolist()), messages)


def repeat(
    rounds: Sequence[Plain], times: int, machine: Machine, start: Sequence[int] = ()
) -> Result:
    """Times of all ranks after so many rounds, each rank's of the same peers and lengths.

    Costs grow by the same amount each round once all ranks are equally far apart in two rounds
    running; what is left then is added at once.

    Raises:
        ScheduleError: messages of a round do not meet.
    """
    count = len(rounds)
    costs, now, everyone = _Costs(machine, count), _Rounds(count), np.arange(count)
    now.put(everyone, rounds)
    senders = np.flatnonzero(now.target >= 0)
    receivers = now.target[senders]
    if np.any(now.source[receivers] != senders) or len(receivers) != np.sum(now.source >= 0):
        raise ScheduleError("rounds that repeat do not meet")
    longest = int(now.sent.max(initial=0))
    fits = max(start, default=0) + 2 * times * costs.most(longest) < _FITS
    kind: type = np.int64 if fits else object
    ready: Array = np.array(start or [0] * count, kind)
    # Who sends or receives nothing meets itself, at once.
    to, by = everyone.copy(), everyone.copy()
    to[senders], by[receivers] = receivers, senders
    takes: Array = np.zeros(count, kind)
    takes[senders] = costs.messages(senders, receivers, now.sent[senders], kind)
    after = costs.after(everyone, now.receives, now.reduced, kind)
    left = times
    while left:
        arrival = np.maximum(ready, ready[to]) + takes
        later = np.maximum(arrival, arrival[by]) + after
        left -= 1
        if left % 16 == 0 and left:
            grown = later - ready
            if (grown == grown[0]).all():
                later, left = later + left * grown, 0
        ready = later
    sent = now.sent * times
    return Result(tuple(ready.tolist()), tuple(sent.tolist()), len(senders) * times)
