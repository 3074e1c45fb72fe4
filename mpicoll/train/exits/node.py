"""One rank of a tier at work: it computes its part of each batch, and leaves out who is silent."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.exits import layout, letters
from mpicoll.train.exits.layout import Tier
from mpicoll.train.exits.letters import ANSWER, DONE, FEATURES, SCORES, Letter
from mpicoll.train.exits.stages import Stage
from mpicoll.train.models.exits import EarlyExits
from mpicoll.train.models.flat import Parameters
from mpicoll.train.ranks.mail import Mail

#: Of the patience: what is waited for ranks that were silent before, where nobody else answers.
_AGAIN = 0.1
#: Each tier is as many times as patient as the one below, which waits for those below itself.
_STEP = 3.0


class Fault(NamedTuple):
    """A simulated fault of a device.

    Attributes:
        silent: The device sends nothing from this batch on; None: it always answers.
        late: Seconds by which it is slower in each batch.
    """

    silent: int | None = None
    late: float = 0.0


class Left(NamedTuple):
    """Samples of one batch that leave at one tier.

    Attributes:
        samples: Their numbers.
        tier: Number of the tier.
        scores: Shape (samples, classes).
        seconds: Since the devices began with the batch.
    """

    samples: Array
    tier: int
    scores: Array
    seconds: float


@dataclass
class Account:
    """What a rank has done at one threshold.

    Attributes:
        left: What left on its decision.
        sent: Bytes sent, by what: `scores`, `features`, `heads` (of both), `answers` (down).
        late: Letters that came when they were not waited for any more.
    """

    left: list[Left] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)
    late: int = 0


class Node:
    """A rank.

    Args:
        model, parameters: The network, and its parameters and buffers by name.
        tiers: Of the system.
        mail: Messages between all ranks.
        samples: How many there are.
        batch: Samples that devices take at a time.
        seen: What a device sees of all samples; None on other ranks.
        clock: Seconds by the clock of rank 0.
        patience: Seconds that the tier above the devices waits for them.
        fault: What is wrong with this device.
    """

    def __init__(
        self,
        model: EarlyExits,
        parameters: Parameters,
        tiers: Sequence[Tier],
        mail: Mail,
        samples: int,
        batch: int,
        seen: Array | None,
        clock: Callable[[], float],
        patience: float,
        fault: Fault,
    ) -> None:
        self._tiers, self._mail, self._clock, self._fault = tiers, mail, clock, fault
        self._samples, self._batch, self._seen = samples, batch, seen
        self._tier = next(n for n, tier in enumerate(tiers) if mail.rank in tier.ranks)
        own = tiers[self._tier]
        self._group, self._part = divmod(mail.rank - own.ranks.start, own.parts)
        self._stage = Stage(model, parameters, self._tier, self._part, own.parts)
        self._is_last = self._tier == len(tiers) - 1
        self._dtype = next(iter(parameters.values())).dtype
        self._below: Stage | None = None
        if self._tier:
            below = tiers[self._tier - 1]
            self._below = Stage(model, parameters, self._tier - 1, 0, below.parts)
        self._patience = patience * _STEP ** (self._tier - 1)
        self._threshold = 0.0
        self._inbox: dict[tuple[int, int, int], Letter] = {}
        self._silent: set[int] = set()
        self._account = Account()

    def run(self, threshold: float) -> Account:
        """Let all samples through; what this rank has done."""
        self._threshold, self._account = threshold, Account()
        self._inbox.clear()
        self._silent.clear()
        for number in range(-(-self._samples // self._batch)):
            if self._groups(number)[self._tier] != self._group:
                continue
            if self._fault.silent is not None and number >= self._fault.silent:
                break
            if self._tier == 0:
                self._see(number)
            else:
                self._take(number)
        return self._account

    def _groups(self, number: int) -> list[int]:
        """The group of each tier through which a batch goes."""
        found = [number % self._tiers[0].groups]
        for below, tier in zip(self._tiers[:-1], self._tiers[1:], strict=True):
            found.append(found[-1] * tier.groups // below.groups)
        return found

    def _members(self, number: int, tier: int) -> range:
        """The ranks of a tier through which a batch goes."""
        return self._tiers[tier].members(self._groups(number)[tier])

    def _rows(self, number: int) -> slice:
        start = number * self._batch
        return slice(start, min(start + self._batch, self._samples))

    # --- what a rank does with a batch ---

    def _see(self, number: int) -> None:
        """A device: compute what it sees, and wait until the batch is through."""
        assert self._seen is not None
        began = self._clock()
        values = self._seen[self._rows(number)]
        if self._fault.late:
            time.sleep(self._fault.late)
        rows = np.ones(len(values), bool)
        if not self._go_on(number, rows, self._stage.features([values], [True]), began):
            self._await(DONE, number)

    def _take(self, number: int) -> None:
        """A tier above: decide for the group below, if that is this rank's, and go on."""
        below = self._tiers[self._tier - 1].parts
        if below > 1 and self._part == 0:
            self._decide(number)
        assert self._below is not None
        each = below // self._tiers[self._tier].parts
        mine = self._members(number, self._tier - 1)[self._part * each :][:each]
        shape, binary = self._below.feature_shape, self._below.binary
        rows, values, here, began = self._collected(mine, FEATURES, number, shape, binary)
        if rows is None:
            self._go_on(number, None, np.zeros((0, *shape), self._dtype), began)
        else:
            self._go_on(number, rows, self._stage.features(values, here), began)

    def _go_on(self, number: int, rows: Array | None, features: Array, began: float) -> bool:
        """Let samples leave at the exit of this tier, and send the others up.

        Returns:
            Whether this rank knows that none of the batch is left.
        """
        if self._is_last:
            if rows is not None:
                self._leave(number, self._tier, rows, features, began)
            if rows is None or rows.any():
                self._tell_devices(number, began)
            return True
        if self._tiers[self._tier].parts > 1:
            self._send_up(
                SCORES, number, rows, None if rows is None else self._stage.scores(features), began
            )
            answer = self._await(ANSWER, number)
            stay = answer.rows
        elif rows is None:
            stay = None
        else:
            stay = self._choose(number, self._tier, rows, self._stage.scores(features), began)
        is_through = rows is not None and stay is not None and not stay.any()
        if rows is None or stay is None:
            self._send_up(FEATURES, number, None, None, began)
        else:
            self._send_up(FEATURES, number, stay, features[stay[rows]], began)
        return is_through and self._tiers[self._tier].parts == 1

    def _decide(self, number: int) -> None:
        """Aggregate what the parts below say, and tell them which samples go on."""
        assert self._below is not None
        members = self._members(number, self._tier - 1)
        shape = self._below.score_shape
        rows, values, here, began = self._collected(members, SCORES, number, shape, False)
        stay = None
        if rows is not None:
            scores = self._below.decided(values, here)
            stay = self._choose(number, self._tier - 1, rows, scores, began)
        for member in members:
            self._send(member, ANSWER, Letter(number, stay, began))

    def _choose(self, number: int, tier: int, rows: Array, scores: Array, began: float) -> Array:
        """Which rows go on; the others leave. If none is left, devices are told."""
        leaving = layout.leaves(scores, self._threshold)
        gone, stay = np.zeros_like(rows), rows.copy()
        gone[rows] = leaving
        stay[rows] = ~leaving
        self._leave(number, tier, gone, scores[leaving], began)
        if self._tier and rows.any() and not stay.any():
            self._tell_devices(number, began)
        return stay

    def _leave(self, number: int, tier: int, rows: Array, scores: Array, began: float) -> None:
        if rows.any():
            numbers = self._rows(number).start + np.flatnonzero(rows)
            self._account.left.append(Left(numbers, tier, scores, self._clock() - began))

    # --- letters ---

    def _tell_devices(self, number: int, began: float) -> None:
        """None of a batch is left."""
        for member in self._members(number, 0):
            self._send(member, DONE, Letter(number, None, began))

    def _send_up(
        self, kind: int, number: int, rows: Array | None, values: Array | None, began: float
    ) -> None:
        """Send values to the rank above that is for them: scores to the one that decides."""
        above = self._members(number, self._tier + 1)
        place = self._part * len(above) // self._tiers[self._tier].parts
        rank = above[0] if kind == SCORES else above[place]
        binary = kind == FEATURES and self._stage.binary
        content = b"" if values is None else letters.encoded(values, binary)
        self._send(rank, kind, Letter(number, rows, began, content))

    def _send(self, rank: int, kind: int, letter: Letter) -> None:
        sent = self._account.sent
        if kind in (ANSWER, DONE):
            sent["answers"] += letter.overhead
        else:
            sent["scores" if kind == SCORES else "features"] += len(letter.values)
            sent["heads"] += letter.overhead
        self._mail.send(rank, letter.packed(), kind)

    def _await(self, kind: int, number: int) -> Letter:
        """A letter of the tier above, which always comes."""
        while True:
            for (rank, found, batch), letter in self._inbox.items():
                if (found, batch) == (kind, number):
                    del self._inbox[rank, found, batch]
                    return letter
            self._receive()

    def _receive(self, limit: float = float("inf")) -> bool:
        """Put the next letter into the inbox; whether one has come in time."""
        letter = self._mail.wait(limit)
        if letter is None:
            return False
        found = letters.unpacked(letter.content)
        self._inbox[letter.rank, letter.tag, found.batch] = found
        return True

    def _collected(
        self, ranks: Sequence[int], kind: int, number: int, shape: tuple[int, ...], binary: bool
    ) -> tuple[Array | None, list[Array], list[bool], float]:
        """What ranks below have sent of a batch.

        Returns:
            Rows, None where nobody knows of any; values of each rank, zeros where it is left out;
            which are not; when the devices began.
        """
        self._wait_for(ranks, kind, number)
        found = [self._inbox.pop((rank, kind, number), None) for rank in ranks]
        for place in [p for p in self._inbox if p[1] == kind and p[0] in ranks and p[2] < number]:
            del self._inbox[place]
            self._account.late += 1
        known = [letter for letter in found if letter is not None and letter.rows is not None]
        if not known:
            return (
                None,
                [],
                [],
                min((x.began for x in found if x is not None), default=self._clock()),
            )
        rows = known[0].rows
        assert rows is not None
        values, here = [], []
        for letter in found:
            there = letter is not None and letter.rows is not None
            here.append(there)
            if there and letter is not None:
                values.append(letters.decoded(letter.values, shape, self._dtype, binary))
            else:
                values.append(np.zeros((int(rows.sum()), *shape), self._dtype))
        return rows, values, here, min(letter.began for letter in known)

    def _wait_for(self, ranks: Sequence[int], kind: int, number: int) -> None:
        """Wait for letters; not for those of ranks that were silent before, if others answer."""
        # Features come when the first rank of this tier has decided: it waits for scores before.
        patience = self._patience * (2 if kind == FEATURES and self._part else 1)
        end = time.monotonic() + patience
        again = time.monotonic() + _AGAIN * patience
        while self._receive(0.0):
            pass
        while True:
            missing = [rank for rank in ranks if (rank, kind, number) not in self._inbox]
            self._silent -= set(ranks) - set(missing)
            hoped = [rank for rank in missing if rank not in self._silent]
            alone = len(missing) == len(ranks)
            if not missing or not (hoped or alone):
                return
            if not self._receive((end if hoped else again) - time.monotonic()):
                self._silent |= set(missing)
                return
