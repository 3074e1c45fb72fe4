"""Choices that hold no noise: what is told apart, and what is put together."""

from itertools import pairwise

import numpy as np
import pytest
from synthetic import point

from mpicoll.bench.records import Run

pytest.importorskip("scipy")

from mpicoll.model import build, choose, export, verdicts
from mpicoll.model.cells import gather
from mpicoll.model.told import without_doubtful

SIZES = tuple(8 << i for i in range(0, 22, 2))


def planted(times, launches=4, between=0.02, seed=0, ranks=4, **more):
    """Runs on a machine where a call of each choice takes so long, but for noise.

    Args:
        times: seconds by choice, a function of the size.
        between: relative standard deviation of launches.
    """
    generator = np.random.default_rng(seed)
    runs = []
    for launch in range(launches):
        run = Run(f"r{seed}-{launch}", {})
        for name, seconds in times.items():
            for nbytes in SIZES:
                middle = seconds(nbytes) * np.exp(between * generator.standard_normal())
                measured = middle * np.exp(0.01 * generator.standard_normal(7))
                run.points.append(
                    point(run.name, "allreduce", name, ranks, nbytes, measured, **more)
                )
        runs.append(run)
    return gather(runs, oversubscribed=True)[0]


def usual(nbytes):
    return 1e-5 + nbytes * 1e-9


def rules(cells):
    return build.measured_rules(cells)["allreduce"]


@pytest.mark.parametrize("names", [("ring", "swing"), ("ring", "swing", "linear", "native")])
def test_equal_algorithms_make_one_rule_in_19_of_20_runs(names):
    cells = [planted(dict.fromkeys(names, usual), seed=seed) for seed in range(20)]
    assert sum(len(rules(each)) == 1 for each in cells) >= 19
    by_median = [
        choose.winners(choose.tables(each)[0].times(lambda cell: cell.seconds)) for each in cells
    ]
    changes = [sum(a != b for a, b in pairwise(row)) for row in by_median]
    assert np.mean(changes) > 3  # what would be written without the test


@pytest.mark.parametrize("launches", [2, 4, 8])
def test_a_crossing_that_is_there_is_told(launches):
    cells = planted(
        {"ring": lambda n: 3e-5 + n * 1e-10, "swing": lambda n: 1e-5 + n * 4e-10},
        launches=launches,
    )
    first, second = rules(cells)
    assert (first["algorithms"][0], second["algorithms"][0]) == ("swing", "ring")
    assert 2e-5 / 3e-10 / 2.5 < second["nbytes"] < 2e-5 / 3e-10 * 2.5


def test_a_small_gain_at_many_sizes_is_told_and_at_one_it_is_not():
    def faster_from(nbytes):
        return {"ring": usual, "swing": lambda n: usual(n) * (0.95 if n >= nbytes else 1.05)}

    many = rules(planted(faster_from(SIZES[5]), launches=6, between=0.015, seed=3))
    assert [rule["algorithms"][0] for rule in many] == ["ring", "swing"]
    one = rules(planted(faster_from(SIZES[10]), launches=3, between=0.03, seed=3))
    assert [rule["algorithms"][0] for rule in one] == ["ring"]


def test_what_was_measured_apart_stays_apart():
    """A choice cannot stand for sizes at which it was not measured."""
    cells = planted({"ring": usual, "swing": usual})
    low, high = SIZES[4], SIZES[5]
    kept = [c for c in cells if c.nbytes <= low or c.algorithm == "swing"]
    kept = [c for c in kept if c.nbytes >= high or c.algorithm == "ring"]
    assert [rule["algorithms"][0] for rule in rules(kept)] == ["ring", "swing"]


def sure(cells):
    return [verdicts.verdict(each) for each in choose.decisions(choose.tables(cells))]


def test_how_sure_a_rule_is():
    fast = {"ring": lambda n: usual(n) / 1.5, "native": usual}
    (found,) = sure(planted(fast))
    assert found.sure == verdicts.TOLD and found.gain.told
    assert found.gain.low < found.gain.share < found.gain.high
    assert found.gain.share == pytest.approx(0.5, abs=0.05)
    assert found.native[0] == pytest.approx(usual(8), rel=0.1)
    (found,) = sure(planted({"ring": lambda n: usual(n) / 1.01, "native": usual}, seed=1))
    assert found.sure in (verdicts.DOUBTFUL, verdicts.ITSELF)
    (found,) = sure(planted(fast, launches=1))
    assert found.sure == verdicts.ONE_LAUNCH and not found.gain.told
    (found,) = sure(planted(fast, oversubscribed=True))
    assert found.sure == verdicts.CROWDED and not found.gain.told
    (found,) = sure(planted({"ring": usual}))
    assert found.sure == verdicts.UNKNOWN and found.gain is None and found.native is None
    (found,) = sure(planted({"native": usual, "ring": lambda n: 2 * usual(n)}))
    assert found.sure == verdicts.ITSELF


@pytest.mark.parametrize("launches", [1, 4])
def test_what_is_exported_is_told(launches):
    """Nothing but a real gain replaces the library's own choice."""
    times = {
        "ring": lambda n: usual(n) * (0.6 if n > 1 << 12 else 0.99),
        "recursive_doubling": lambda n: usual(n) * 1.3,
        "native": usual,
    }
    cells = planted(times, launches=launches)
    (table,) = choose.tables(cells)
    kept = without_doubtful(table.comparisons, table.comparisons.segments())
    assert [s.choice for s in kept] == (["native"] if launches == 1 else ["native", "ring"])
    lines = [line for line in export.ompi(cells).splitlines() if "  # ring" in line]
    assert len(lines) == (launches > 1)
