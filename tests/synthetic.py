"""Runs as ``mpicoll bench`` would have made them on a machine whose costs are known."""

import numpy as np

from mpicoll.bench.records import Point, Run, Writer
from mpicoll.simulate.costs import Costs
from mpicoll.simulate.critical_path import critical_path
from mpicoll.tuning import NATIVE

SIZES = tuple(8 << i for i in range(0, 22, 2))


def seconds(costs: Costs, collective, algorithm, ranks, nbytes, parameters=(), nodes=()):
    """The time of a call on the machine; the library's own takes half that of linear."""
    if algorithm == NATIVE:
        return seconds(costs, collective, "linear", ranks, nbytes, (), nodes) / 2
    return critical_path(collective, algorithm, ranks, nbytes, parameters, 0, nodes).seconds(costs)


def launched(
    costs,
    measured,
    *,
    ranks=(2, 4, 8),
    sizes=SIZES,
    launches=3,
    spread=0.01,
    between=0.01,
    repetitions=15,
    nodes=(),
    name="run",
    slower=None,
    seed=0,
):
    """Runs of some launches.

    Args:
        costs: the machine's.
        measured: algorithms by collective.
        spread, between: relative standard deviation of repetitions, and of launches.
        slower: factor by collective and algorithm.
    """
    generator = np.random.default_rng(seed)
    hosts: dict[str, dict] = {}
    for rank in range(max(ranks)):
        host = f"h{nodes[rank] if nodes else 0}"
        hosts.setdefault(host, {"ranks": [], "cores": [0, 1]})["ranks"].append(rank)
    facts = {"mpi": "Some MPI 1.0", "processor": "some", "mpicoll": "0", "hosts": hosts}
    runs = []
    for launch in range(launches):
        run = Run(f"{name}{launch}", {**facts, "ranks": max(ranks)})
        for collective, algorithms in measured.items():
            for algorithm in algorithms:
                for size in ranks:
                    for nbytes in sizes:
                        exact = (slower or {}).get((collective, algorithm), 1.0) * seconds(
                            costs, collective, algorithm, size, nbytes, (), nodes[:size]
                        )
                        middle = exact * np.exp(between * generator.standard_normal())
                        noise = np.exp(spread * generator.standard_normal(repetitions))
                        run.points.append(
                            point(run.name, collective, algorithm, size, nbytes, middle * noise)
                        )
        runs.append(run)
    return runs


def point(run, collective, algorithm, ranks, nbytes, times, **more):
    """A point."""
    given = {
        "run": run,
        "collective": collective,
        "algorithm": algorithm,
        "size": nbytes,
        "count": nbytes // 4,
        "type": "float32",
        "redop": "sum",
        "root": -1,
        "ranks": ranks,
        "batch": 1,
        "times": tuple(map(float, times)),
        "slowest": (0,) * len(times),
        "first": float(times[0]),
        "wrong": 0,
        "problem": None,
        "stop": "iterations",
        "oversubscribed": False,
    }
    return Point(**{**given, **more})


def write(path, runs):
    """A file of some runs."""
    with Writer(path) as writer:
        for run in runs:
            writer.run(run.name, run.facts)
            for each in run.points:
                writer.point(each)
    return path
