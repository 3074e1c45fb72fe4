"""A program before and after a change, whole runs in turn: what following an advice is worth.

    cd benchmarks; python programs.py --json results/programs.jsonl --name "app 1.2, 2 ranks" \
        "mpirun -n 2 python app.py" "mpirun -n 2 python app_on_mpicoll.py"

Pairs of runs follow each other, each in the other order than the pair before.  The first pair finds
cold caches and does not count.  Printed is the median of after / before in wall-clock time, below 1
where the change helps, with its 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import time
from datetime import datetime, timezone
from pathlib import Path

from mpicoll.base import processors
from mpicoll.bench import stats


def seconds(command: str) -> float:
    """Seconds that a command runs.

    Raises:
        subprocess.CalledProcessError: it fails; with what it has printed.
    """
    begin = time.perf_counter()
    subprocess.run(shlex.split(command), check=True, capture_output=True)
    return time.perf_counter() - begin


def pair(before: str, after: str, swapped: bool) -> dict[str, float]:
    """Seconds of both commands."""
    commands = {"before": before, "after": after}
    order = reversed(commands) if swapped else commands
    return {name: seconds(commands[name]) for name in order}


def main() -> None:
    """Measure, print, and append to a file: a line for the program, then one for each pair."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", help="command, in quotes; no shell reads it")
    parser.add_argument("after", help="the same with the change")
    parser.add_argument("--name", required=True, help="program and its data, MPI library, ranks")
    parser.add_argument("--pairs", type=int, default=11, help="8 at least, for an interval")
    parser.add_argument("--json", type=Path, help="file that lines are appended to")
    options = parser.parse_args()
    facts = {
        "program": options.name,
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "processor": processors.model_name(),
    }
    ratios, lines = [], [json.dumps(facts)]
    for number in range(1 + options.pairs):
        found = pair(options.before, options.after, swapped=number % 2 == 1)
        ratio = found["after"] / found["before"]
        counts = "" if number else "  (not counted)"
        print(f"{found['before']:8.2f} s {found['after']:8.2f} s {ratio:8.3f}{counts}", flush=True)
        if number:
            ratios.append(ratio)
            lines.append(json.dumps({name: found[name] for name in ("before", "after")}))
    summary = stats.summarise(ratios)
    print(f"after / before: {summary.median:.3f}, 95 % interval {summary.low} to {summary.high}")
    if options.json:
        with options.json.open("a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)


if __name__ == "__main__":
    main()
