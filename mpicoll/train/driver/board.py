"""A run in TensorBoard: losses, rates and times of steps, measures of epochs."""

from __future__ import annotations

import math

from mpicoll.train.data import PARTS
from mpicoll.train.records import Epoch, Step


class Board:
    """Event files of a run, written by rank 0.

    Args:
        folder: Where they are; a run that goes on adds to them.
        step: Steps made; where it goes on, what has been written of later ones is hidden.

    Raises:
        ModuleNotFoundError: tensorboardX is missing.
        OSError: They cannot be written.
    """

    def __init__(self, folder: str, step: int = 0) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "tensorboard needs the package tensorboardX: pip install mpicoll[tensorboard], or "
                "leave it out"
            ) from None
        self._writer = SummaryWriter(folder, purge_step=step + 1 if step else None)
        self._step = step

    def add(self, record: Step | Epoch) -> None:
        """Add what a record says, at the number of its step."""
        if isinstance(record, Step):
            self._step = record.number
            values = {
                "step/loss": record.loss,
                "step/learning_rate": record.lr,
                **{
                    f"seconds/{name}": getattr(record, name)
                    for name in ("compute", "exposed", "hidden", "waiting")
                },
            }
        else:
            values = {
                "epoch/loss": record.loss,
                **{
                    f"epoch/{part}_{name}": value
                    for part in PARTS
                    for name, value in getattr(record, part).items()
                },
                "epoch/communication": record.communication,
                "epoch/seconds": record.seconds,
            }
        for name, value in values.items():
            if math.isfinite(value):
                self._writer.add_scalar(name, value, self._step)

    def close(self) -> None:
        """Nothing more will come."""
        self._writer.close()
