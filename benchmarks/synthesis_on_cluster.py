"""Schedules made for an emulated cluster with a slow host, against the catalogue, on real ranks.

As root, on a machine that is quiet::

    python benchmarks/synthesis_on_cluster.py --launches 5 -o result.json

with the MPI library of this environment; the file keeps what is not measured again.

``mpicoll links`` describes the cluster.  The finalists are chosen in one launch (``mpicoll
synthesize --measure``) and measured in others, each beside the algorithm of the catalogue that was
fastest there, by turns in the same launch.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import mpi4py

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from cluster import hosts  # noqa: E402

mpi4py.rc.initialize = False
from mpi4py import MPI  # noqa: E402

DELAY, FAST, SLOW = 1e-3, 100e6, 25e6
#: Ranks of each host, and rates.
CASES = {
    "slow host": ([2, 2, 2, 2], [FAST, FAST, FAST, SLOW]),
    "4 + 2 + 1": ([4, 2, 1], [FAST, FAST, FAST]),
}

#: What measures the winner and the catalogue's best in a launch of its own.
AGAIN = """
import json, sys, mpicoll
from mpi4py import MPI
from mpicoll.bench.finalists import measure
comm = mpicoll.Intracomm(MPI.COMM_WORLD)
nbytes, choices = int(sys.argv[1]), sys.argv[2:]
for words in choices:
    if words.startswith("file:"):
        comm.load(words.split()[0][5:])
seconds = measure(comm, "allreduce", nbytes, choices)
if comm.rank == 0:
    print("TIMES", json.dumps(seconds), flush=True)
"""


def about(result: dict[str, Any]) -> list[Any]:
    """What a result is of."""
    return [result.get(name) for name in ("mpi", "case", "bytes")]


def mpirun(cluster: hosts.Cluster, ranks: int, *words: str) -> str:
    """What a launch prints."""
    launcher = [str(Path(sys.executable).with_name("mpirun")), "-n", str(ranks)]
    environment = {"PYTHONPATH": str(ROOT), "MPICOLL_FALLBACK": "silent"}
    done = cluster.run(
        [*launcher, sys.executable, *words],
        capture_output=True,
        timeout=900,
        environment=environment,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout


def measured(case: str, nbytes: int, launches: int, longest: str) -> dict[str, Any]:
    """One case at one size."""
    lengths, rates = CASES[case]
    ranks = sum(lengths)
    with hosts.Cluster(len(lengths), DELAY, rates, lengths) as cluster:
        shared = cluster.shared
        mpirun(cluster, ranks, "-m", "mpicoll", "links", "-o", "/mnt/shared/m.toml")
        (shared / "again.py").write_text(AGAIN, encoding="utf-8")
        chosen = json.loads(
            mpirun(
                cluster, ranks, "-m", "mpicoll", "synthesize", "allreduce",
                "--machine", "/mnt/shared/m.toml", "-s", str(nbytes), "--longest", longest,
                "--measure", "6", "-o", "/mnt/shared/ar.json", "--json",
            )
        )  # fmt: skip
        row = chosen["sizes"][0]
        best = row["choice"]
        times = []
        for _ in range(launches):
            told = mpirun(
                cluster, ranks, "/mnt/shared/again.py", str(nbytes), row["catalogue"], best
            )
            line = next(x for x in told.splitlines() if x.startswith("TIMES"))
            times.append(json.loads(line.removeprefix("TIMES")))
    catalogue, made = (median(t[i] for t in times) for i in (0, 1))
    return {
        "mpi": MPI.get_vendor()[0],
        "case": case,
        "bytes": nbytes,
        "bound": row["bound"],
        "catalogue": row["catalogue"],
        "choice": best,
        "catalogue_seconds": catalogue,
        "choice_seconds": made,
        "gain": catalogue / made,
        "over_the_bound": made / row["bound"] - 1,
        "launches": times,
        "finalists": chosen["finalists"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=[*CASES], default=[*CASES])
    parser.add_argument("--bytes", nargs="+", type=int, default=[512 << 10, 2 << 20])
    parser.add_argument("--longest", default="48K", help="longest message of a schedule")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if reason := hosts.missing():
        parser.exit(2, f"{reason}\n")
    found: list[dict[str, Any]] = []
    if options.output and options.output.exists():
        found = json.loads(options.output.read_text(encoding="utf-8"))
    for case in options.cases:
        for nbytes in options.bytes:
            result = measured(case, nbytes, options.launches, options.longest)
            found = [other for other in found if about(other) != about(result)] + [result]
            print(
                f"{case}, {nbytes} bytes: {1e3 * result['choice_seconds']:.0f} ms by "
                f"{result['choice']}, {1e3 * result['catalogue_seconds']:.0f} ms by "
                f"{result['catalogue']}, {result['gain']:.2f} times as fast, "
                f"{100 * result['over_the_bound']:.0f} % over the bound",
                flush=True,
            )
            if options.output:
                options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
