"""The costs that come with mpicoll, for a machine of which nothing is known: one node, measured.

    python benchmarks/default_costs.py

Reads what benchmarks/vs_native.py has recorded (benchmarks/results/openmpi4-*.jsonl: 4, 8 and 16
ranks on 16 cores), fits what a call costs as `mpicoll fit` does, and writes
mpicoll/tuning/default_costs.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpicoll import tuning
from mpicoll.base import json_lines
from mpicoll.bench.records import Point, Run
from mpicoll.bench.runs import machine
from mpicoll.model.cells import gather
from mpicoll.model.fit import fit
from mpicoll.model.validate import validated
from mpicoll.tuning import NATIVE, cost_files

ROOT = Path(__file__).resolve().parent.parent
#: Fits to resampled measurements: enough for an interval, few enough for a small file.
REPLICATES = 10


def main() -> None:
    runs = [
        run
        for path in sorted(ROOT.glob("benchmarks/results/openmpi4-*.jsonl"))
        for run in _runs(path)
    ]
    cells, left = gather(runs)
    for line in left.words():
        print(line)
    model = validated(fit(cells, replicates=REPLICATES), cells)
    # An algorithm was measured only where it is the choice, which says little of it alone.
    curves = {c: {NATIVE: sets[NATIVE]} for c, sets in model.evidence.items() if NATIVE in sets}
    model = replace(model, own={}, evidence=curves)
    about = {**model.about, "machine": machine(runs[0].facts), "runs": [run.name for run in runs]}
    cost_files.write(ROOT / "mpicoll/tuning/default_costs.json", replace(model, about=about))
    for name, value in model.general.numbers().items():
        print(f"{name}: {value:.4g}")


def _runs(path: Path) -> Iterator[Run]:
    """The launches of a file."""
    lines: list[dict[str, Any]] = []
    json_lines.read(path, lines.append)
    for facts in lines:
        if "started" not in facts:
            continue
        run = Run(f"{path.stem} {facts['started']}", {**facts, "hosts": {}})
        for line in lines:
            if line.get("launch") == facts["started"] and not line["persistent"]:
                run.points += _points(run.name, facts["ranks"], line)
        yield run


def _points(run: str, ranks: int, line: Mapping[str, Any]) -> Iterator[Point]:
    """What mpicoll chose, and the library's own, of one size."""
    timed = {line["choice"]: line["mpicoll_us"], NATIVE: line["other_us"]}
    for words, microseconds in timed.items():
        choice = tuning.parse(line["collective"], words, "")
        yield Point(
            run=run,
            collective=line["collective"],
            algorithm=choice.algorithm,
            size=line["size"],
            count=line["size"] // 4,
            type=line["type"],
            redop="sum",
            root=0,
            ranks=ranks,
            batch=1,
            times=(microseconds * 1e-6,),
            slowest=(0,),
            first=0.0,
            wrong=sum(line["wrong"]),
            problem=None,
            stop="iterations",
            oversubscribed=False,
            parameters=dict(choice.parameters),
        )


if __name__ == "__main__":
    main()
