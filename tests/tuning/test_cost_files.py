"""Files of parameters: what is written is read back, and what is none is named."""

import json
import os
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.simulate.costs import CostModel, Costs, Curve, Errors, Evidence, Piece
from mpicoll.tuning import cost_files

pytest.importorskip("pydantic")

COSTS = Costs({"intra": (Piece(4096, 1e-6, 1e-10), Piece(None, 3e-6, 8e-11))}, 5e-11, 2e-6)
OWN = Costs(COSTS.links, COSTS.gamma, COSTS.call, factors={2: 1.04, 4: 0.9})
EVIDENCE = Evidence(
    (2, 4), 8, 1 << 20, 36, 3, 12.5, Errors(12, 0.02, 0.05, 0.2, -0.01), None,
    {"step": "measure linear"}, (COSTS, COSTS.with_numbers([1e-6, 0, 0, 1e-6, 2e-10, 3e-6, 1e-10])),
)  # fmt: skip
OF_OWN = replace(
    EVIDENCE, replicates=(OWN, OWN.with_numbers([1e-6, 0, 0, 1e-6, 2e-10, 3e-6, 1e-10])),
)  # fmt: skip
MODEL = CostModel(
    COSTS,
    {"allreduce": {"ring": OWN, "chain segments=4": COSTS}},
    {"allreduce": {"native": Curve({2: ((8, 1e-6, 9e-7, 1.1e-6), (64, 2e-6, 2e-6, 3e-6))})}},
    {"allreduce": {"ring": OF_OWN, "native": Evidence((2,), 8, 64, 2, 1)}},
    EVIDENCE,
    {"allreduce": [{"ranks": 2, "nbytes": 0, "algorithms": ["ring", "native"]}]},
    {"machine": {"processor": "some"}},
)


def test_a_model_is_read_back(tmp_path):
    cost_files.write(tmp_path / "m.json", MODEL)
    assert cost_files.read(tmp_path / "m.json") == MODEL
    assert os.listdir(tmp_path) == ["m.json"]


def test_links_are_all_that_a_set_needs(tmp_path):
    links = {"inter": [{"upto": None, "alpha": 1e-3, "beta": 0}]}
    text = json.dumps({"mpicoll": "model 1", "general": {"links": links}})
    (tmp_path / "m.json").write_text(text)
    model = cost_files.read(tmp_path / "m.json")
    assert model == CostModel(Costs({"inter": (Piece(None, 1e-3, 0.0),)}))
    assert model.costs("bcast", "ring", 4) == (model.general, False)
    assert model.general.piece(10, "intra").alpha == 1e-3


def test_an_older_file_stays_where_a_new_one_cannot_be_written(tmp_path, monkeypatch):
    cost_files.write(tmp_path / "m.json", MODEL)
    monkeypatch.setattr(os, "fsync", lambda descriptor: os.close(-1))
    with pytest.raises(OSError, match="Bad file descriptor"):
        cost_files.write(tmp_path / "m.json", CostModel(COSTS))
    assert os.listdir(tmp_path) == ["m.json"]
    assert cost_files.read(tmp_path / "m.json") == MODEL


def piece(**more):
    return {"upto": None, "alpha": 1.0, "beta": 1.0, **more}


@pytest.mark.parametrize(
    ("general", "message"),
    [
        ({}, r"general.links: Field required"),
        ({"links": {}}, r"general: links \[\] must be intra, inter or both"),
        ({"links": {"wire": [piece()]}}, r"links \['wire'\] must be"),
        ({"links": {"intra": []}}, "last piece of link intra must have no end"),
        ({"links": {"intra": [piece(upto=4)]}}, "must have no end"),
        ({"links": {"intra": [piece(upto=4), piece(upto=4), piece()]}}, r"not \[4, 4\]"),
        ({"links": {"intra": [piece(alpha=-1)]}}, "general.links.intra.0.alpha: .* greater"),
        ({"links": {"intra": [piece()]}, "gamma": "fast"}, "general.gamma: "),
        ({"links": {"intra": [piece()]}, "delta": 1}, "general.delta: Extra"),
    ],
)
def test_a_wrong_set_is_named(tmp_path, general, message):
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({"mpicoll": "model 1", "general": general}))
    with pytest.raises(ValueError, match=message) as caught:
        cost_files.read(path)
    assert str(path) in str(caught.value) and "`mpicoll fit`" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", '{"mpicoll": "tuning 1", "rules": {}}', "\xff"])
def test_what_is_no_model(tmp_path, text):
    (tmp_path / "none").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match="model '"):
        cost_files.read(tmp_path / "none")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"gone': No such file"):
        cost_files.read(tmp_path / "gone")


def test_without_pydantic(tmp_path, monkeypatch):
    cost_files.write(tmp_path / "m.json", MODEL)
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install mpicoll\[config\]"):
        cost_files.read(tmp_path / "m.json")


def test_a_curve_goes_through_its_points_and_straight_between():
    curve = Curve({2: ((8, 1.0, 0.5, 2.0), (32, 4.0, 4.0, 4.0)), 8: ((8, 16.0, 8.0, 32.0),)})
    assert curve.time(2, 8) == (1.0, 0.5, 2.0)
    assert curve.time(2, 16)[0] == pytest.approx(2.0)
    assert curve.time(4, 8) == pytest.approx((4.0, 2.0, 8.0))
    assert curve.time(2, 1) == (1.0, 0.5, 2.0)
    assert curve.time(2, 320)[0] == 40.0  # as the bytes grow
    for ranks in (1, 9):
        with pytest.raises(ValueError, match=r"P = 2, 8, which were measured.* measure it there"):
            curve.time(ranks, 8)


@given(st.lists(st.floats(0, 1e3), min_size=7, max_size=7))
def test_numbers_come_back(numbers):
    assert list(COSTS.with_numbers(numbers).numbers().values()) == numbers
    assert COSTS.with_numbers(list(COSTS.numbers().values())) == COSTS
