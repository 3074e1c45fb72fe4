"""Metrics as JSON lines: each rank appends to a file of its own, one object a line, flushed.

    rank-0.jsonl:  {"event": "run", ...}    ranks, configuration, predicted seconds
                   {"event": "step", ...}   what `Step` holds
                   {"event": "clock", ...}  at `local` seconds this rank's clock was `ahead` of
                                            that of rank 0
                   {"event": "epoch", ...}  what `Epoch` holds

Files of the other ranks hold their steps and clocks. A run that goes on appends.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpicoll.train.config import Config
from mpicoll.train.records import Epoch, Step


class Metrics:
    """The file of a rank.

    Args:
        folder: Where the files are; made if need be.
        rank: This rank.
        size: Number of ranks.
        config: The run.
        predicted: Seconds of communication a step, by the fitted model.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(
        self, folder: Path, rank: int, size: int, config: Config, predicted: float | None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._first = rank == 0
        self._file = open(folder / f"rank-{rank}.jsonl", "a")  # noqa: SIM115 - open until closed
        if self._first:
            self._write("run", {"ranks": size, "config": asdict(config), "predicted": predicted})

    def add(self, record: Step | Epoch) -> None:
        """Add a record; of epochs, rank 0 alone does."""
        if isinstance(record, Step):
            self._write("step", asdict(record))
        elif self._first:
            self._write("epoch", {**asdict(record), "straggler": record.straggler})

    def add_clock(self, local: float, ahead: float) -> None:
        """Add a comparison of this rank's clock with that of rank 0."""
        self._write("clock", {"local": local, "ahead": ahead})

    def close(self) -> None:
        """Nothing more will come."""
        self._file.close()

    def _write(self, event: str, facts: dict[str, Any]) -> None:
        # JSON has no word for what is not a number.
        clean = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in facts.items()
        }
        self._file.write(json.dumps({"event": event, **clean}) + "\n")
        self._file.flush()
