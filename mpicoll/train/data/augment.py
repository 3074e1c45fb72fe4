"""Images changed a little, in another way in each epoch.

Drawn from (seed, epoch, sample), never from the rank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpicoll.base.arrays import Array
from mpicoll.train.data import draws

#: Uses of random numbers, apart from those of layers.
_SHIFT, _FLIP = 1 << 32, (1 << 32) + 1


@dataclass(frozen=True)
class Augmentation:
    """What to do to images.

    Attributes:
        shift: Move each by so many pixels at most, up or down and left or right; zeros move in.
        flip: Mirror half of them, left to right.
    """

    shift: int = 0
    flip: bool = False

    def apply(
        self,
        inputs: Array,
        image: tuple[int, int, int],
        seed: int,
        epoch: int,
        samples: NDArray[np.int64],
    ) -> Array:
        """Changed copies of images.

        Args:
            inputs: Shape (samples, ...), each of as many values as an image.
            image: Height, width and channels.
            seed: Of the run.
            epoch: Number of the epoch.
            samples: Index of each in the training set.
        """
        height, width, _ = image
        pixels = inputs.reshape(len(inputs), *image)
        if self.shift:
            by = self.shift
            drawn = draws.uniform(seed, epoch, samples, _SHIFT, 2)
            starts = np.floor(drawn * (2 * by + 1)).astype(np.intp)
            padded = np.pad(pixels, ((0, 0), (by, by), (by, by), (0, 0)))
            rows = starts[:, :1] + np.arange(height)
            columns = starts[:, 1:] + np.arange(width)
            every = np.arange(len(pixels))[:, None, None]
            pixels = padded[every, rows[:, :, None], columns[:, None, :]]
        if self.flip:
            mirrored = draws.uniform(seed, epoch, samples, _FLIP, 1)[:, 0] < 0.5
            pixels = np.where(mirrored[:, None, None, None], pixels[:, :, ::-1], pixels)
        return pixels.reshape(inputs.shape)


def parse(text: str) -> Augmentation:
    """Read `shift:N`, `flip` or `shift:N,flip`.

    Raises:
        ValueError: It is none of these.
    """
    match = re.fullmatch(r"(?:shift:([1-9]\d{0,3}))?(,?)(flip)?", text)
    if not text or match is None or bool(match[2]) != bool(match[1] and match[3]):
        raise ValueError(
            f"unknown augmentation {text!r}: known are shift:N (pixels), flip and shift:N,flip"
        )
    return Augmentation(int(match[1] or 0), bool(match[3]))
