"""Sums over the ranks that layers need in the middle of a step, such as those of a batch norm.

All ranks compute the same layers, so they make the same sums in the same order. A rank that fails
takes part in the next one and says so in it; there the others give up, too. So no rank waits in
vain, and no message is sent only to ask.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.ranks.workers import Started, Workers


class PeerFailed(Exception):
    """Another rank has failed in this step, and will say how at its end."""


class LayerSums:
    """The sums of a step; a `mpicoll.train.data.batch.Sum`.

    Args:
        workers: The ranks; collective.
        lengths: Of the vectors of one batch, in order; equal on all ranks.

    Attributes:
        lengths: As given.
        seconds: Spent in the sums of the last step.
    """

    def __init__(self, workers: Workers, lengths: Sequence[int]) -> None:
        self.lengths = tuple(lengths)
        # Each vector travels behind the number of ranks that have failed.
        self._messages = {length: np.zeros(1 + length) for length in sorted(set(lengths))}
        self._plans = {
            length: workers.plan_sum(message, short=True)
            for length, message in self._messages.items()
        }
        self._made = self._wanted = 0
        self._telling: Started | None = None
        self.seconds = 0.0

    @contextmanager
    def step(self, batches: int) -> Iterator[None]:
        """Guard the computation of a step of so many batches, which may fail on some ranks only.

        Raises:
            ValueError: The model made fewer sums than it says.
        """
        self._made, self._wanted = 0, batches * len(self.lengths)
        self.seconds, self._telling = 0.0, None
        try:
            yield
            if self._made != self._wanted:
                raise ValueError(
                    f"the model made {self._made} of {self._wanted} sums in a step: let its sums() "
                    "say the lengths of all that it makes, in order"
                )
        except Exception:
            self.tell()
            if self._telling is not None:
                self._telling.Wait()
            raise

    def tell(self) -> None:
        """Tell those that will wait for this rank in the next sum that it has failed, if any will.

        That is begun here, and waited for at the end of `step`: until then this rank may do what
        others need before they reach that sum.
        """
        if self._made != self._wanted:
            self._telling = self._started(1, np.zeros(self._next))
            self._made = self._wanted

    def __call__(self, values: Array) -> None:
        """Replace a vector by its sum over the ranks.

        Raises:
            PeerFailed: A rank has failed; on all others.
            ValueError: This is not the sum that comes next.
        """
        if self._made == self._wanted or values.shape != (self._next,):
            awaited = "none" if self._made == self._wanted else f"one of shape ({self._next},)"
            raise ValueError(
                f"a sum of shape {values.shape} came where {awaited} is awaited: let the model's "
                "sums() say the lengths of all that it makes, in order"
            )
        started = time.perf_counter()
        message = self._messages[len(values)]
        self._started(0, values).Wait()
        self._made += 1
        self.seconds += time.perf_counter() - started
        if message[0]:
            self._made = self._wanted
            raise PeerFailed
        values[...] = message[1:]

    def free(self) -> None:
        """Free the plans; collective."""
        for plan in self._plans.values():
            plan.Free()

    @property
    def _next(self) -> int:
        """Length of the next sum."""
        return self.lengths[self._made % len(self.lengths)]

    def _started(self, failed: int, values: Array) -> Started:
        message, plan = self._messages[len(values)], self._plans[len(values)]
        message[0], message[1:] = failed, values
        plan.Start()
        return plan
