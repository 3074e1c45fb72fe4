"""Core trees: right, in order, and better the longer they are changed."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("pydantic")

from machines import MACHINES

from mpicoll.files import schedule_files
from mpicoll.synthesis import core, forest
from mpicoll.synthesis.candidates import Made
from mpicoll.synthesis.core import Core, allowed, changed, in_order, programs

MACHINE = MACHINES["4 + 2 + 1"]


def found(collective, evaluations=20, root=None):
    gathers = collective == "allgather"
    blocks = forest.blocks(collective, 7)

    def cost(one):
        done = forest.finish(programs(one, gathers), blocks, 1000, MACHINE)
        return max(done), sum(done)

    return core.search(collective, MACHINE, 1000, root, cost, evaluations, 0), cost


def loaded(collective, one, tmp_path, root=None):
    blocks = forest.blocks(collective, 7)
    made = Made("", programs(one, collective == "allgather"), blocks)
    path = tmp_path / "core.json"
    path.write_bytes(made.file(collective, root, (), 1, 1, {}))
    return schedule_files.load(str(path), collective)  # verified


@pytest.mark.parametrize(
    ("collective", "root"),
    [("allreduce", None), ("allgather", None), ("bcast", 2), ("reduce", 6)],
)
def test_cores_are_right_before_and_after_changes(collective, root, tmp_path):
    dice = random.Random(1)
    cores, _ = found(collective, root=root)
    assert len(cores) == (1 if root is not None else 3)
    for one in cores:
        other = one
        for _ in range(12):
            tried = changed(other, dice)
            other = tried if allowed(tried, root) else other
        for each in (one, other):
            assert loaded(collective, each, tmp_path, root).only == 7


def test_a_core_in_another_order_is_told_and_refused(tmp_path):
    """All contributions arrive, but two ranks add in another order than two others."""
    alone = tuple(range(4)), tuple(range(4))
    wrong = Core((0, 3, 1, 2), *alone, tuple(range(4)))
    assert not in_order(wrong.core)
    blocks = Made("", programs(wrong), 1)
    path = tmp_path / "core.json"
    path.write_bytes(blocks.file("allreduce", None, (), 1, 1, {}))
    with pytest.raises(ValueError, match="computed otherwise than on other ranks"):
        schedule_files.load(str(path))


@pytest.mark.parametrize("ranks", [(0, 1, 2, 3), (3, 5), (2, 3, 0, 1), (0, 1, 3, 2), (6,)])
def test_cores_in_order(ranks):
    assert in_order(ranks)


def test_a_longer_search_is_never_worse():
    few, cost = found("allreduce", 3)
    many, _ = found("allreduce", 90)
    assert all(cost(b) <= cost(a) for a, b in zip(few, many, strict=True))
    assert many == found("allreduce", 90)[0]
