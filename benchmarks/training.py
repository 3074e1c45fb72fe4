"""What the experiments with training share: where results go, and what ran beside them."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from mpicoll.base.json_lines import Appender, Attempt, new_run

_RUN = Attempt(new_run())
RESULTS = Path(__file__).resolve().parent / "results" / "training"


def write(name: str, facts: dict[str, Any]) -> None:
    """Add a line to a file of results, with the day, the processor's cores and the load."""
    beside = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }
    with Appender(RESULTS / f"{name}.jsonl") as file:
        file.append(_RUN, {**facts, **beside})
    print(json.dumps(facts), flush=True)
