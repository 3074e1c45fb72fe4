"""Gradients are cut into buckets, and each is summed while the next are still computed.

Buckets are numbered from the end of the vector: gradients of the last layers are known first. They
are started in this order on every rank, whatever the order in which a rank's gradients come, and
all of them in every step, also on a rank that failed: so no rank waits for another in vain.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.exchange.transfers import MakeTransfer, Transfer
from mpicoll.train.models.flat import Flat
from mpicoll.train.ranks.workers import Workers

_LEAST, _MOST = 64 * 1024, 25_000_000


def default_bucket(nbytes: int) -> int:
    """Bytes in a bucket for gradients of so many bytes: an eighth, 64 KiB at least, 25 MB at most.

    The upper bound is that of PyTorch's DistributedDataParallel (Li et al. 2020).
    """
    return max(_LEAST, min(_MOST, nbytes // 8))


def cut(length: int, elements: int) -> list[tuple[int, int]]:
    """Start and end of each bucket of at most so many elements, from the end of the vector."""
    return [(max(0, end - elements), end) for end in range(length, 0, -elements)]


class Exchange:
    """The buckets of a flat vector of gradients, and a short header beside them.

    Args:
        workers: The ranks.
        gradients: Named gradients in one vector.
        rows: Arrays that transfers sum, shape (..., elements); None for that vector.
        bucket: Bytes in a bucket, None for `default_bucket`.
        header: Number of float64 values that are summed over the ranks in the same exchange.
        make: Makes the transfer of a bucket.

    Attributes:
        header: Shape (header,); set before `finish`, summed afterwards.
        owned: Start and end of each part of the vector that this rank updates, ascending.
        exposed, hidden: Seconds of the last step that the exchange took by itself, from the end of
            the computation of gradients on and in `ready`; and in which buckets were under way
            while gradients were computed.
        calls: Seconds spent in `ready` since `begin`: starting a transfer may be a part of it, as
            where gradients have to leave a GPU first.
        computed, reduced: Moments of the last step: when all gradients were computed, and when the
            sums were there.
    """

    def __init__(
        self,
        workers: Workers,
        gradients: Flat,
        bucket: int | None,
        header: int,
        make: MakeTransfer,
        rows: Array | None = None,
    ) -> None:
        vector = gradients.vector
        elements = max(1, (bucket or default_bucket(vector.nbytes)) // vector.itemsize)
        self.bounds = cut(vector.size, elements)
        self._transfers: list[Transfer] = [
            make(workers, (vector if rows is None else rows)[..., s:e]) for s, e in self.bounds
        ]
        self._spans = gradients.spans
        self.header = np.zeros(header)
        self._header_plan = workers.plan_sum(self.header)
        self.owned = _merged(
            (start + transfer.own[0], start + transfer.own[1])
            for (start, _), transfer in zip(self.bounds, self._transfers, strict=True)
        )
        self.exposed = self.hidden = self.calls = 0.0
        self.computed = self.reduced = 0.0
        self.begin()

    def begin(self) -> None:
        """A new step: no gradient is there."""
        self._missing = [end - start for start, end in self.bounds]
        self._started = 0
        self._starts: list[float] = []
        self._ends: dict[int, float] = {}
        self._calls: list[tuple[float, float]] = []
        self.calls = 0.0

    def ready(self, name: str) -> None:
        """The gradient of this name is in place; start what is complete, move on what is started.

        A gradient that comes twice in a step, or not at all, is the caller's to refuse.
        """
        entered = time.perf_counter()
        first, last = self._spans[name]
        for number, (start, end) in enumerate(self.bounds):
            self._missing[number] -= max(0, min(end, last) - max(start, first))
        while self._started < len(self.bounds) and not self._missing[self._started]:
            self._start_next()
        self._poll()
        left = time.perf_counter()
        self._calls.append((entered, left))
        self.calls += left - entered

    def finish(self) -> None:
        """Start what is left, and wait for the sums of gradients and header."""
        computed = self.computed = time.perf_counter()
        while self._started < len(self.bounds):
            self._start_next()
        self._header_plan.Start()
        for number, transfer in enumerate(self._transfers):
            transfer.finish()
            self._ends.setdefault(number, time.perf_counter())
        self._header_plan.Wait()
        self.reduced = time.perf_counter()
        self.exposed = self.calls + self.reduced - computed
        meanwhile = [(start, min(end, computed)) for _, start, end in self.flights()]
        self.hidden = max(0.0, _covered([*self._calls, *meanwhile]) - self.calls)

    def flights(self) -> list[tuple[str, float, float]]:
        """Of the last step: each bucket, when it started, and when its sums were found."""
        return [(f"bucket {n}", start, self._ends[n]) for n, start in enumerate(self._starts)]

    def spans(
        self, began: float, shared: tuple[float, float]
    ) -> tuple[tuple[str, float, float], ...]:
        """What this rank has done since the step began, in seconds after that.

        Args:
            began: When it did.
            shared: From when to when it shared or mixed parameters, within the update.
        """
        moments = [
            ("compute", began, self.computed),
            ("exchange", self.computed, self.reduced),
            ("update", self.reduced, time.perf_counter()),
            ("share", *shared),
            *self.flights(),
        ]
        return tuple(
            (name, round(start - began, 7), round(end - began, 7)) for name, start, end in moments
        )

    def commit(self) -> None:
        """The step counts: transfers remember what it lost."""
        for transfer in self._transfers:
            transfer.commit()

    def residuals(self) -> Iterator[tuple[int, Array]]:
        """Where each bucket begins, and what narrow formats have lost of it on this rank so far.

        The arrays may be changed in place; there are none where nothing is lost.
        """
        for (start, _), transfer in zip(self.bounds, self._transfers, strict=True):
            residual = transfer.residual()
            if residual is not None:
                yield start, residual

    def free(self) -> None:
        """Free the plans; collective."""
        for transfer in self._transfers:
            transfer.free()
        self._header_plan.Free()

    def _start_next(self) -> None:
        self._starts.append(time.perf_counter())
        self._transfers[self._started].start()
        self._started += 1

    def _poll(self) -> None:
        for number in range(self._started):
            if number not in self._ends and self._transfers[number].poll():
                self._ends[number] = time.perf_counter()


def split(state: Mapping[str, Array], owned: list[tuple[int, int]]) -> list[dict[str, Array]]:
    """Views of an optimizer's arrays, which hold the owned parts one after the other."""
    views, start = [], 0
    for first, last in owned:
        end = start + last - first
        views.append({name: array[start:end] for name, array in state.items()})
        start = end
    return views


def _merged(spans: Any) -> list[tuple[int, int]]:
    """Spans in ascending order, without empty ones, adjacent ones joined."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if start == end:
            continue
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _covered(spans: Any) -> float:
    """Length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
