"""What the literature says of pipelines, found again by the simulator that plans are made with."""

from __future__ import annotations

import pytest

from mpicoll.train.step import Durations, check, schedule, simulate

#: Forward pass, and a backward pass of twice the time, half of it for gradients of weights.
TIMES = Durations(forward=600, backward=1200, weight=600)


def idle_time(order: str, stages: int, microbatches: int, **parameters: int) -> int:
    """Idle time of a rank in a step."""
    found = schedule(order, stages, microbatches, **parameters)
    timing = simulate(found, TIMES.divided(found.chunks // stages))
    return timing.makespan - timing.busy[0]


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
def test_idle_share_of_gpipe(order: str, stages: int) -> None:
    for times in (1, 2, 4, 8, 16):
        count = times * stages
        idle = simulate(schedule(order, stages, count), TIMES).idle
        assert idle == pytest.approx((stages - 1) / (count + stages - 1))
        assert idle < 0.2 or times < 4


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_chunks_divide_the_idle_time(stages: int) -> None:
    whole = idle_time("1f1b", stages, 4 * stages)
    for chunks in (2, 3):
        assert idle_time("interleaved", stages, 4 * stages, chunks=chunks) * chunks == whole


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_zero_bubble_divides_it_by_three(stages: int) -> None:
    whole = idle_time("1f1b", stages, 4 * stages)
    assert idle_time("zb_h1", stages, 4 * stages) * 3 == whole


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_versions_of_pipedream(stages: int) -> None:
    found = check(schedule("pipedream", stages, 4 * stages))
    assert list(found.versions) == [stages - rank for rank in range(stages)]


@pytest.mark.parametrize("order", ["gpipe", "1f1b", "interleaved"])
def test_recomputation_takes_a_third_more(order: str) -> None:
    found = [schedule(order, 4, 64, recompute=recompute) for recompute in (False, True)]
    plain, again = (simulate(each, TIMES.divided(each.chunks // 4)) for each in found)
    assert sum(again.busy) * 3 == sum(plain.busy) * 4
    assert again.makespan / plain.makespan == pytest.approx(4 / 3, rel=0.02)
