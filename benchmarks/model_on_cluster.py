"""How good the model is: on an emulated cluster, where alpha and beta are known, and on a machine.

A sweep in several launches, and a plain ping-pong before each of them, on hosts joined by a switch
that delays and limits (``tests/cluster``); then what ``mpicoll fit`` makes of the sweep beside what
the ping-pong says, beside what is wanted of a model, and beside the noise floor: how far identical
launches lie apart.  It needs root and iproute2::

    python benchmarks/model_on_cluster.py --hosts 4 --delay 1e-3 --rate 200e6 results/cluster-1ms

The same of this machine as it is, with a rank for each core, needs neither::

    python benchmarks/model_on_cluster.py --here results/here

A run that was stopped goes on where it was.  ``--launches 0`` judges what is there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import launch  # noqa: E402
from cluster import hosts  # noqa: E402

from mpicoll.bench import runs  # noqa: E402
from mpicoll.model.build import build  # noqa: E402
from mpicoll.model.cells import gather  # noqa: E402
from mpicoll.model.crossovers import Crossover  # noqa: E402
from mpicoll.simulate.costs import INTER, INTRA, Costs, Errors  # noqa: E402

SIZES = "8K,14K,26K,52K,80K,136K,240K,400K"
#: Messages of the ping-pong: several within each of the pieces that the sizes above make.
MESSAGES = (1, 512, 1024, 1536, 2048, 4096, 8192, 20480, 53248, 70000, 139264, 262144, 409600)
SWEEP = ("--start", "window", "-n", "5", "-w", "1", "--point-time", "1")
#: The same for ranks that share memory.
SIZES_HERE = "8,64,512,4K,16K,64K,256K,1M,4M"
MESSAGES_HERE = (1, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304)
SWEEP_HERE = ("--point-time", "0.1")
TURNS = 45
LIMIT = 3600.0  # seconds that a launch may take

#: What is wanted: errors in the median and the 90th percentile, regret in the mean and at worst.
LINK, SIZES_OUT, RANKS_OUT, REGRET, CROSSOVER = 0.10, (0.05, 0.15), (0.08, 0.20), (0.02, 0.25), 1.5


def measure(options: argparse.Namespace) -> None:
    """Append to the files of the directory."""
    count = ranks_of(options)
    python = [*launch.mpirun(), "-n", str(count), sys.executable]
    ranks = options.ranks or ",".join(str(ranks) for ranks in range(2, count + 1))
    usual, turns, messages = (
        (SWEEP_HERE, 200, MESSAGES_HERE) if options.here else (SWEEP, TURNS, MESSAGES)
    )
    sweep = [",".join(options.collectives), *usual, "-s", options.sizes, "--ranks", ranks]
    for number in range(options.launches):
        kept = ["--launch-id", str(number), "--resume", "-J", str(options.directory / "runs.jsonl")]
        pingpong = options.directory / f"pingpong-{number}.json"
        with place(options) as run:
            if not pingpong.exists():
                words = [*python, *map(str, (hosts.HERE / "pingpong.py", turns, *messages))]
                done = run(words, stdout=subprocess.PIPE, timeout=LIMIT)
                done.check_returncode()
                pingpong.write_text(done.stdout, encoding="utf-8")
            words = [*python, "-m", "mpicoll", "bench", *sweep, *kept]
            run(words, stdout=subprocess.DEVNULL, timeout=LIMIT).check_returncode()


def ranks_of(options: argparse.Namespace) -> int:
    """How many ranks are launched."""
    if options.here:
        return len(os.sched_getaffinity(0))
    return int(options.hosts * options.per_host)


@contextmanager
def place(options: argparse.Namespace) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs commands where it is measured."""
    if options.here:
        yield partial(subprocess.run, stdin=subprocess.DEVNULL, encoding="utf-8", check=False)
        return
    with hosts.Cluster(options.hosts, options.delay, options.rate, options.per_host) as cluster:
        yield cluster.run


def one_way(directory: Path, other: int) -> dict[int, float]:
    """Seconds of a message to a rank, by size: the median over the launches' medians."""
    medians: dict[int, list[float]] = {}
    for file in sorted(directory.glob("pingpong-*.json")):
        for size, times in json.loads(file.read_text(encoding="utf-8"))[str(other)].items():
            medians.setdefault(int(size), []).append(float(np.median(times)))
    return {size: float(np.median(values)) for size, values in medians.items()}


def line(times: dict[int, float]) -> tuple[float, float]:
    """Alpha and beta of some messages, by least squares of relative errors."""
    sizes, seconds = np.array(list(times)), np.array(list(times.values()))
    beta, alpha = np.polyfit(sizes, seconds, 1, w=1 / seconds)
    return float(alpha), float(beta)


def links(costs: Costs, kind: str, times: dict[int, float]) -> list[tuple[str, float, float]]:
    """What a fit and a ping-pong say of each piece of a link: name, fitted, measured."""
    found = []
    ends = [0, *(piece.upto or math.inf for piece in costs.links[kind])]
    for piece, (low, high) in zip(costs.links[kind], pairwise(ends), strict=True):
        mine = {size: seconds for size, seconds in times.items() if low < size <= high}
        where = "any size" if len(ends) == 2 else f"{low + 1:.0f} .. {high:.0f} bytes"
        if len(mine) > 1:
            alpha, beta = line(mine)
            found.append((f"alpha [us], {where}", 1e6 * (costs.step + piece.alpha), 1e6 * alpha))
            found.append((f"beta [ns/byte], {where}", 1e9 * piece.beta, 1e9 * beta))
    return found


def judge(options: argparse.Namespace) -> None:
    """Print what was found beside what is wanted, and beside the noise floor."""
    measured = [*runs.load([options.directory / "runs.jsonl"])]
    cells, left = gather(measured, oversubscribed=not options.here)
    result = build(measured, cells, left)
    about = result.model.about
    row = partial(line_of, result.noise)
    print(f"{about['launches']} launches; noise: how far identical ones lie apart")
    print(f"{'':60} {'found':>9} {'wanted':>7} {'noise':>7}")
    step = 1 if options.here else options.per_host
    for other in range(step, ranks_of(options), step):
        name = f"ranks 0-{other}" if options.here else f"h1-h{other // step + 1}"
        times = one_way(options.directory, other)
        kind = INTRA if options.here else INTER
        for what, fitted, plain in links(result.model.general, kind, times):
            row(f"{name} {what}", fitted / plain - 1, LINK, f"{fitted:.4g} : {plain:.4g}")
    for name, wanted in (("sizes_left_out", SIZES_OUT), ("ranks_left_out", RANKS_OUT)):
        if about[name] is None:
            print(f"{name}: too few were measured")
            continue
        errors = Errors(**about[name])
        row(f"{name}, median of {errors.n}", errors.median, wanted[0])
        row(f"{name}, p90", errors.p90, wanted[1], f"bias {100 * errors.bias:+.1f} %")
    for way, regret in result.regrets.items():
        row(f"regret of {way}, mean of {regret.n}", regret.mean, REGRET[0])
        row(f"regret of {way}, worst", regret.worst, REGRET[1], regret.where)
    for crossover in result.crossovers:
        print(f"  {words(crossover)}")
    told = [crossover for crossover in result.crossovers if crossover.told]
    for some, which in ((result.crossovers, "crossovers"), (told, "those that launches tell")):
        sizes = sum(crossover.factor <= CROSSOVER for crossover in some)
        alike = sum(crossover.factor_alike <= CROSSOVER for crossover in some)
        print(
            f"{which}: {sizes} of {len(some)} within a factor of {CROSSOVER}; {alike} where sizes "
            "that are alike count as one"
        )


def line_of(noise: float | None, name: str, value: float, wanted: float, more: str = "") -> None:
    verdict = "ok" if abs(value) <= wanted else "TOO LARGE"
    floor = "unknown" if noise is None else f"{100 * noise:.1f} %"
    print(f"{name:60} {100 * value:+7.1f} % {100 * wanted:5.0f} % {floor:>7}  {verdict:9} {more}")


def words(crossover: Crossover) -> str:
    def size(value: tuple[float, float, float] | None) -> str:
        return "none" if value is None else "{:.0f} ({:.0f} .. {:.0f})".format(*value)

    def alike(value: tuple[float, float] | None) -> str:
        return "nowhere" if value is None else "{:.0f} .. {:.0f}".format(*value)

    return (
        f"{crossover.place.collective} P = {crossover.place.ranks}: {crossover.before} to "
        f"{crossover.after} at {size(crossover.measured)}, predicted {size(crossover.predicted)}; "
        f"alike {alike(crossover.alike)}, predicted {alike(crossover.predicted_alike)}"
        f"{'' if crossover.told else '; not told by these launches'}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path, help="where the measurements are kept")
    parser.add_argument("--here", action="store_true", help="on this machine, without a cluster")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--per-host", type=int, default=1, help="ranks on each host")
    parser.add_argument("--delay", type=float, default=1e-3, help="seconds from host to host")
    parser.add_argument("--rate", type=float, default=200e6, help="bit/s of each link, each way")
    parser.add_argument("--launches", type=int, default=4, help="how many in all")
    parser.add_argument("--ranks", help="as 2,4,6; all if not given")
    parser.add_argument("--sizes", help="as mpicoll bench takes them")
    parser.add_argument(
        "--collectives", nargs="+", default=["allreduce", "bcast", "reduce_scatter", "allgather"]
    )
    options = parser.parse_args(argv)
    options.directory = options.directory.resolve()
    options.sizes = options.sizes or (SIZES_HERE if options.here else SIZES)
    if options.launches:
        if not options.here and (reason := hosts.missing()):
            parser.exit(2, f"{reason}\n")
        options.directory.mkdir(parents=True, exist_ok=True)
        measure(options)
    judge(options)


if __name__ == "__main__":
    main()
