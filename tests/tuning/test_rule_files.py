"""Tuning files: what is read, and what is said of one that cannot be."""

import json
import sys

import pytest

from mpicoll import tuning
from mpicoll.tuning import rule_files

pytest.importorskip("pydantic")


def write(path, rules, **more):
    path.write_text(json.dumps({"mpicoll": "tuning 1", "rules": rules, **more}))
    return str(path)


def test_a_file_comes_before_the_built_in_rules(tmp_path):
    path = write(
        tmp_path / "tuning.json",
        {
            "allreduce": [
                {"algorithms": ["native"]},
                {"nbytes": 1000, "ranks": 3, "algorithms": ["ring order=2,0,1", "swing"]},
            ]
        },
        about={"machine": "a cluster"},
    )
    table = tuning.combined(tuning.BUILTIN, rule_files.load(path))
    for near in (True, False):
        here = tuning.for_layout(table, near)
        assert tuning.choose("allreduce", 2, 1 << 30, here).algorithm == "native"
        choice = tuning.choose("allreduce", 3, 1000, here)
        assert choice.words == "ring order=2,0,1" and choice.source == f"tuning file {path}"
        assert not choice.asked
        fits = tuning.choose("allreduce", 4, 1000, here, lambda c: tuning.fits("allreduce", c, 4))
        assert fits.algorithm == "swing"
        assert tuning.choose("bcast", 2, 0, here).source == tuning.BUILTIN_SOURCE


def test_rules_for_a_layout(tmp_path):
    rules = {"bcast": [{"near": True, "algorithms": ["chain segments=4"]}]}
    table = rule_files.load(write(tmp_path / "t", rules))
    assert tuning.for_layout(table, False) == {"bcast": ()}
    assert tuning.choose("bcast", 2, 8, tuning.for_layout(table, True)).algorithm == "chain"


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"alreduce": []}, "unknown collective 'alreduce': known are allreduce"),
        ({"allreduce": [{"algorithms": ["rign"]}]}, "unknown algorithm 'rign'"),
        ({"allreduce": [{"algorithms": []}]}, r"rules.allreduce.0.algorithms: .* at least 1 item"),
        ({"allreduce": [{"algorithms": ["ring", "a b"]}]}, "'a b' must be a name"),
        ({"allreduce": [{"algorithms": [""]}]}, "unknown algorithm ''"),
        ({"allreduce": [{"nbytes": -1, "algorithms": ["ring"]}]}, "rules.allreduce.0.nbytes: "),
        ({"allreduce": [{"ranks": 0, "algorithms": ["ring"]}]}, "rules.allreduce.0.ranks: "),
        ({"allreduce": [{"bytes": 1, "algorithms": ["ring"]}]}, "rules.allreduce.0.bytes: Extra"),
        ({"allreduce": [{"near": "yes", "algorithms": ["ring"]}]}, "rules.allreduce.0.near: "),
    ],
)
def test_a_wrong_rule_is_named(tmp_path, rules, message):
    path = write(tmp_path / "wrong.json", rules)
    with pytest.raises(ValueError, match=message) as caught:
        rule_files.load(path)
    assert path in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", '{"mpicoll": "tuning 2", "rules": {}}', "\xff"])
def test_what_is_no_tuning_file(tmp_path, text):
    path = tmp_path / "none"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match="tuning file "):
        rule_files.load(str(path))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"tuning file .*gone.* No such file"):
        rule_files.load(str(tmp_path / "gone"))


def test_without_pydantic(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install mpicoll\[config\]"):
        rule_files.load(write(tmp_path / "t", {}))
