"""Comparisons: identical code is not called different, slower code is."""

import numpy as np
import pytest
from synthetic import launched

from mpicoll.model.cells import gather
from mpicoll.model.compare import NONE, SLOWER, adjusted, compare
from mpicoll.simulate.costs import Costs, Piece

pytest.importorskip("scipy")

COSTS = Costs({"intra": (Piece(None, 1e-6, 1e-10),)}, call=1e-6)
MEASURED = {"allreduce": ["ring", "recursive_doubling"]}
SIZES = (64, 65536)


def side(seed, name, launches=7, between=0.02, **more):
    given = {"sizes": SIZES, "ranks": (4,), "repetitions": 9, "spread": 0.02, **more}
    runs = launched(
        COSTS, MEASURED, launches=launches, between=between, seed=seed, name=name, **given
    )
    return gather(runs)[0]


def called(seed, **second):
    """What is called different on two sides."""
    found = compare(side(2 * seed, "a"), side(2 * seed + 1, "b", **second))
    return {(row.choice, row.verdict) for row in found.rows if row.verdict != NONE}


def test_identical_code_is_not_called_different():
    assert sum(bool(called(seed)) for seed in range(100)) <= 5


def test_a_slowdown_is_found():
    slower = {("allreduce", "ring"): 1.1}
    found = [called(seed, slower=slower) for seed in range(100)]
    assert sum(("ring", SLOWER) in verdicts for verdicts in found) >= 90
    assert sum(any(choice != "ring" for choice, _ in verdicts) for verdicts in found) <= 5


def test_drift_that_both_sides_share_does_not_hide_a_slowdown():
    generator = np.random.default_rng(1)
    found = 0
    for _ in range(50):
        values = generator.normal(0, 0.01, (1, 2, 7)) + generator.normal(0, 0.1, 7)
        values[:, 1] += np.log(1.1)
        found += bool(adjusted(values)[0] <= 0.01)
    assert found >= 40


def test_a_launch_far_off_does_not_hide_a_slowdown():
    generator = np.random.default_rng(1)
    found = 0
    for _ in range(50):
        values = generator.normal(0, 0.01, (1, 2, 7))
        values[:, 1] += np.log(1.1)
        values[0, 0, 3] += np.log(6)
        found += bool(adjusted(values)[0] <= 0.01)
    assert found >= 40


def test_the_same_numbers_on_both_sides_differ_in_nothing():
    values = np.tile(np.random.default_rng(0).normal(0, 0.1, (3, 1, 7)), (1, 2, 1))
    assert adjusted(values) == pytest.approx(1.0)


def test_too_few_launches_give_no_verdict():
    found = compare(
        side(1, "a", launches=3),
        side(2, "b", launches=3, slower={("allreduce", "ring"): 2.0}),
    )
    assert found.launches == 3 and not found.slower
    (mean,) = [row for row in found.rows if row.choice == "ring" and row.nbytes is None]
    assert mean.verdict == NONE and mean.ratio == pytest.approx(2.0, rel=0.1)


def test_small_differences_get_no_verdict():
    slower = {("allreduce", "ring"): 1.01}
    quiet = {"between": 1e-4, "spread": 1e-4}
    first, second = side(1, "a", **quiet), side(2, "b", slower=slower, **quiet)
    assert not compare(first, second).slower
    assert compare(first, second, effect=0.005).slower


def test_points_of_one_side_are_counted():
    found = compare(side(1, "a"), side(2, "b", sizes=(64, 128)))
    assert found.alone == 4  # of each algorithm one on each side
    assert {row.nbytes for row in found.rows} == {64}
    with pytest.raises(ValueError, match="no point in common"):
        compare(side(1, "a"), side(2, "b", sizes=(128,)))


def test_many_launches():
    slower = {("allreduce", "ring"): 1.05}
    found = compare(side(1, "a", launches=12), side(2, "b", launches=12, slower=slower))
    assert found.slower and found.launches == 12
