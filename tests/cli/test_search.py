"""The search for parameters: rounds on all ranks, points on disk, rules at the end."""

import pytest

from mpicoll.bench import records
from mpicoll.tuning import rule_files

pytest.importorskip("scipy")
pytest.importorskip("pydantic")


def test_a_search_measures_and_makes_rules(mpirun, tmp_path):
    words = ("-m", "mpicoll", "tune", "--search", "Bcast", "-s", "64,256K", "--oversubscribed")
    kept = ("-J", tmp_path / "points.jsonl", "-o", tmp_path / "tuning.json")
    done = mpirun(2, *words, *kept)
    assert done.status == 0, done.err
    (run,) = records.read(tmp_path / "points.jsonl")
    for nbytes in (64, 1 << 18):
        points = [p for p in run.points if p.size == nbytes]
        assert len(points) == 4 and sum(p.algorithm == "native" for p in points) == 1
        assert len({p.choice for p in points}) == 4
        # 16 or 17 choices have 4 calls, 9 or 8 of them 8 more, 5 or 4 16 more, 3 the last 32.
        assert {len(p.times) for p in points} in ({60}, {28}, {12})
        assert all(p.wrong == 0 and p.redop == "none" and p.ranks == 2 for p in points)
    assert "bcast 256K, P = 2: 3 choices, " in done.err
    table = rule_files.load(str(tmp_path / "tuning.json"))
    assert {rule.ranks for rule in table["bcast"]} == {2}
    assert "no: " in done.out and "MPICOLL_TUNING=" in done.out


def test_a_search_is_refused_once(mpirun):
    words = ("--search", "bcast", "-m", "gone.json", "--oversubscribed")
    done = mpirun(2, "-m", "mpicoll", "tune", *words)
    assert done.status != 0 and done.err.count("gone.json': No such file") == 1
