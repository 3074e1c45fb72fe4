"""Shares of a batch that follow how fast the ranks are."""

from __future__ import annotations

import numpy as np

from mpicoll.base.arrays import Array

#: Steps from one choice of shares to the next, and how much of what was known before stays.
_STEPS, _KEPT = 5, 0.5


class Balance:
    """Measures speeds in samples a second; the same on all ranks, where all are told the same.

    Args:
        size: Number of ranks.

    Attributes:
        speeds: Shape (size,), relative to each other.
    """

    def __init__(self, size: int) -> None:
        self.speeds: Array = np.ones(size)
        self._measured = False
        self._clear()

    def add(self, samples: Array, seconds: Array) -> bool:
        """A step was made; whether the speeds are others now.

        Args:
            samples: Shape (size,), samples of each rank.
            seconds: Shape (size,), that each computed.
        """
        self._samples += samples
        self._seconds += seconds
        self._steps += 1
        if self._steps < _STEPS:
            return False
        known = (self._samples > 0) & (self._seconds > 0)
        if known.any():
            found = np.where(known, self._samples / np.where(known, self._seconds, 1), 0)
            # Who had nothing to do may be as fast as it was.
            mean = found[known].mean() / self.speeds[known].mean()
            found = np.where(known, found, self.speeds * mean)
            found /= found.mean()
            kept = _KEPT if self._measured else 0.0
            self.speeds = kept * self.speeds + (1 - kept) * found
            self._measured = True
        self._clear()
        return True

    def _clear(self) -> None:
        self._samples = np.zeros(len(self.speeds))
        self._seconds = np.zeros(len(self.speeds))
        self._steps = 0
