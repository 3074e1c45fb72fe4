"""What measurements of a line say: a gain, none that is told, and what to write."""

import json

import pytest
from profile_lines import line

from mpicoll.bench.records import Point
from mpicoll.profile import replay, words
from mpicoll.profile.replay import Answer
from mpicoll.tuning import rule_files


def point(algorithm, middle, size=64, collective="allreduce", **parameters):
    """A point whose interval goes 10 % to both sides."""
    times = tuple(middle * (0.8 + 0.04 * n) for n in range(11))
    known = {"count": 8, "type": "float64", "redop": "sum", "root": -1, "ranks": 4, "batch": 1}
    known |= {"times": times, "slowest": (0,) * 11, "first": 1.0, "wrong": 0, "problem": None}
    known |= {"stop": "time", "oversubscribed": False, "parameters": parameters}
    return Point("run", collective, algorithm, size, **known)


def answer(now, best, **about):
    return Answer(line(**about), "", now, best)


def test_a_gain_is_a_share_of_the_time_in_which_nobody_waited():
    found = answer(point("native", 4.0), point("ring", 1.0))
    least, expected, most = found.gain
    assert expected == pytest.approx(0.75 * 0.75 / 4)
    assert 0 < least < expected < most < 0.1875
    assert "ring (1e+06 us) instead of native (4e+06 us): 14.1 % of the run" in words.verdict(found)


def test_intervals_that_overlap_tell_nothing():
    found = answer(point("native", 1.0), point("ring", 0.95))
    assert found.saved is None and found.gain is None
    assert words.verdict(found).endswith(": no significant difference from native (1e+06 us)")
    own = answer(point("native", 1.0), point("native", 1.0))
    assert words.verdict(own) == "native (1e+06 us) is the fastest that was measured"


def test_one_algorithm_for_all_sizes_is_a_variable(tmp_path):
    found = [answer(point("native", 4.0), point("ring", 1.0, segments=4))]
    assert replay.advice(found, tmp_path / "t") == ["MPICOLL_ALLREDUCE='ring segments=4'"]
    assert replay.advice([answer(point("native", 1.0), point("native", 1.0))], tmp_path) == []


def test_several_are_a_tuning_file(tmp_path):
    path = tmp_path / "tuning.json"
    found = [
        answer(point("native", 4.0, 1 << 20), point("ring", 1.0, 1 << 20)),
        answer(point("native", 1.0), point("linear", 0.99)),
    ]
    assert replay.advice(found, path) == [f"MPICOLL_TUNING={path}"]
    replay.write_rules(found, path)
    rules = json.loads(path.read_text())["rules"]["allreduce"]
    assert [(rule["nbytes"], rule["algorithms"]) for rule in rules] == [
        (64, ["native"]),
        (1 << 20, ["ring"]),
    ]
    pytest.importorskip("pydantic")
    assert rule_files.load(str(path))["allreduce"]
