"""``mpicoll show|verify|simulate pipeline``: what is printed, and what is refused."""

from __future__ import annotations

import json

import pytest

from mpicoll.simulate.costs import CostModel, Costs, Piece
from mpicoll.train.step import names
from mpicoll.tuning import cost_files


@pytest.fixture(autouse=True)
def _plain(no_launcher, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")


def done(command, *words):
    found = command(*words)
    assert found.status == 0, found.err
    return found.out


def facts(command, *words):
    return json.loads(done(command, *words, "--json"))


def test_verify_says_what_is_right(command):
    out = done(command, "verify", "pipeline", "1f1b", "-S", "1-8", "-M", "1-16")
    rows = [line.split() for line in out.splitlines()]
    for ahead in ("ahead=0", "ahead=1"):
        assert ["1f1b", ahead, "1-8", "1-16", "128", "right"] in rows
    assert out.endswith("256 of 256 cases right\n")


def test_verify_goes_through_all_orders(command):
    cases = facts(command, "verify", "pipeline", "-S", "2", "-M", "4", "--recompute")["cases"]
    assert {case["order"] for case in cases} == set(names())
    assert all(case["ok"] and case["recompute"] for case in cases)


def test_verify_finds_a_deadlock(command):
    found = command(
        "verify", "pipeline", "interleaved", "-S", "5", "-M", "7,10", "--set", "chunks=2"
    )
    assert found.status == 1
    rows = [line.split() for line in found.out.splitlines()]
    assert ["interleaved", "chunks=2", "5", "7,", "10", "2", "1", "wrong"] in rows
    assert "interleaved chunks=2, S=5, M=7:\n  deadlock: rank 0 at " in found.out


def test_show_draws(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = done(command, "show", "pipeline", "zb_h1", "-S", "4", "-M", "8")
    assert out.startswith("zb_h1, S=4, M=8: 27 slots, 11.1 % idle\n\nslot")
    assert max(map(len, out.splitlines())) <= 80
    assert {"F0", "I7", "W7"} < set(out.split())
    assert "   0           3     4         1" in out


def test_show_gives_programs(command):
    found = facts(command, "show", "pipeline", "pipedream", "-S", "2", "-M", "2")
    assert found["chunks"] == [[0], [1]]
    assert found["ranks"][1][:4] == [
        {"task": "RECV_F", "edge": 1, "peer": 0, "microbatch": 0},
        {"task": "F", "chunk": 1, "version": 0, "microbatch": 0},
        {"task": "B", "chunk": 1, "version": 0, "microbatch": 0},
        {"task": "SEND_B", "edge": 1, "peer": 0, "microbatch": 0},
    ]


def test_show_writes_a_chart(command, tmp_path):
    pytest.importorskip("matplotlib")
    done(command, "show", "pipeline", "gpipe", "--svg", tmp_path / "a.svg")
    assert "<!-- gpipe, S=4, M=8 -->" in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_simulate_compares_all_orders(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = done(command, "simulate", "pipeline", "all", "-S", "8", "-M", "32", "--bytes", "0")
    assert max(map(len, out.splitlines())) <= 80
    named = [line.split()[0] for line in out.splitlines() if line.split()[0] in names()]
    assert sorted(named) == sorted(set(names()) - {"forward"})
    assert named[0] == "zb_v" and named[-1] == "naive"  # the fastest first
    free = facts(
        command, "simulate", "pipeline", "all", "-S", "8", "-M", "32", "--alpha", "0", "--beta", "0"
    )
    for case in free["cases"]:
        assert case["formula"] is None or case["time"] == pytest.approx(case["formula"])
    times = {case["order"]: case["time"] for case in free["cases"]}
    assert times["zb_h1"] < times["1f1b"] == times["gpipe"] < times["naive"]


def test_simulate_reads_fitted_costs_and_loads(command, tmp_path):
    pytest.importorskip("pydantic")
    general = Costs({"intra": (Piece(None, 5e-3, 1e-9),)})
    cost_files.write(tmp_path / "m.json", CostModel(general))
    words = ("simulate", "pipeline", "forward", "-S", "2", "-M", "1")
    words += ("--model", tmp_path / "m.json")
    (case,) = facts(command, *words, "--bytes", "1M", "--load", "1,3")["cases"]
    assert case["time"] == pytest.approx(1e-3 + 5e-3 + 1.048576e-3 + 3e-3)
    assert case["formula"] is None and case["bytes_sent"] == 1 << 20


def test_simulate_shows_what_running_ahead_is_worth(command):
    words = ("simulate", "pipeline", "1f1b", "-S", "4", "-M", "64", "--alpha", "1ms", "--beta", "0")
    plain, ahead = (
        facts(command, *words, "--set", f"ahead={ahead}")["cases"][0]["time"] for ahead in (0, 1)
    )
    assert plain - ahead == pytest.approx(64 * 2e-3 * 3 / 4, rel=0.1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["verify", "pipeline", "gpip"], "unknown order 'gpip': known are forward, naive"),
        (["verify", "pipeline", "-S", "0"], "-S '0': 0 is out of range"),
        (["verify", "pipeline", "--set", "ahead=1"], "--set needs one order"),
        (["show", "pipeline"], "missing argument 'ORDER'; see `mpicoll show pipeline --help`"),
        (["show", "pipeline", "gpipe", "-S", "2,3"], "-S '2,3': a drawing has one number"),
        (["show", "pipeline", "1f1b", "--set", "ahead=1,2"], "--set ahead: an order takes a whole"),
        (["show", "pipeline", "interleaved", "-S", "5", "-M", "7"], "; give a multiple of 5 micro"),
        (["simulate", "pipeline", "interleaved", "-S", "5", "-M", "7"], "deadlock: rank 0 at RECV"),
        (["simulate", "pipeline", "gpipe", "--forward", "x"], "--forward 'x' is not a time"),
        (["simulate", "pipeline", "--backward", "1ms", "--weight", "2ms"], "give less"),
        (["simulate", "pipeline", "--load", "1,2"], "--load '1,2' is for 2 ranks: give as many"),
        (["simulate", "pipeline", "--load", "1,0"], "--load '1,0' is no list of whole numbers"),
        (["simulate", "pipeline", "--bytes", "x"], "'x' is not a size"),
        (["simulate", "pipeline", "-S", "9999", "-M", "9999"], "are more than 2,097,152"),
        (["simulate", "pipeline", "--model", "no.json"], "model 'no.json': No such file"),
    ],
)
def test_refusals_name_value_and_remedy(command, words, message):
    found = command(*words)
    assert found.status == 2 and found.out == ""
    (line,) = found.err.splitlines()
    assert line.startswith("mpicoll: error: ") and message in line
