"""``mpicoll simulate``: machines as they are written, and what is printed."""

from __future__ import annotations

import json
import re

import pytest

from mpicoll.simulate.costs import CostModel, Costs, Piece
from mpicoll.tuning import cost_files


def simulated(command, *words):
    done = command("simulate", *words, "--json")
    assert done.status == 0, done.err
    return json.loads(done.out)["cases"]


def test_simulate_knows_nodes_and_overheads(command):
    words = ("allgather", "ring", "-P", "8", "-s", "8K", "--alpha", "1us", "--beta", "0")
    (plain,) = simulated(command, *words)
    (cases,) = simulated(command, *words, "--step", "2us", "--call", "5us")
    assert cases["time"] == pytest.approx(plain["time"] + 7 * 2e-6 + 5e-6)
    assert cases["formula"] is None and plain["formula"] == pytest.approx(7e-6)
    (near,) = simulated(command, *words, "--per-node", "8", "--inter-alpha", "9us")
    (far,) = simulated(command, *words, "--per-node", "4", "--inter-alpha", "9us")
    assert near["time"] == pytest.approx(7e-6)
    assert far["time"] > 4 * near["time"]
    tree = ("bcast", "hierarchical", "-P", "8", "--per-node", "4")
    assert simulated(command, *tree)[0]["parameters"]["nodes"] == [0] * 4 + [1] * 4


def test_simulate_reads_fitted_costs(command, tmp_path):
    pytest.importorskip("pydantic")
    general = Costs({"intra": (Piece(512, 1e-6, 0.0), Piece(None, 7e-6, 0.0))}, call=1e-6)
    own = Costs({"intra": (Piece(None, 3e-6, 0.0),)})
    cost_files.write(tmp_path / "m.json", CostModel(general, {"allgather": {"ring": own}}))
    words = ("allgather", "all", "-P", "4", "-s", "2K,4K", "--model", tmp_path / "m.json")
    found = {(c["algorithm"], c["size"]): c for c in simulated(command, *words)}
    assert found["ring", 2048]["time"] == pytest.approx(9e-6)
    assert found["ring", 2048]["own_costs"]
    pairwise = [found["parameter_server", size] for size in (2048, 4096)]
    assert [c["time"] for c in pairwise] == pytest.approx([1e-6 + 3e-6, 1e-6 + 21e-6])
    assert not pairwise[0]["own_costs"]


def test_simulate_draws_stragglers(command):
    words = ("allgather", "ring", "-P", "4,32", "-s", "64", "--stragglers", "0.03", "--beta", "0")
    few, many = simulated(command, *words)
    assert simulated(command, *words) == [few, many]
    assert simulated(command, *words, "--seed", "1") != [few, many]
    # The more ranks, the fewer draws without any.
    undisturbed = [
        sum(time < 1.5e-6 * (case["P"] - 1) for time in case["draws"]) for case in (few, many)
    ]
    assert undisturbed[0] > undisturbed[1]
    assert few["time"] == pytest.approx(3e-6) and few["slowest"] == pytest.approx(6e-6)
    assert len(many["draws"]) == 20
    (slow,) = simulated(command, *words[:2], "-P", "4", "--beta", "0", "--straggler", "3=2.5")
    assert slow["time"] == pytest.approx(3 * 2.5e-6)


def test_simulate_leaves_out_what_would_take_too_long(command):
    words = ("reduce", "all", "-P", "4096", "-s", "8", "--straggler", "0=2")
    done = command("simulate", *words)
    assert done.status == 0
    assert "left out: reduce parameter_server on 4096 ranks has too many messages" in done.err
    assert "binomial" in done.out and "parameter" not in done.out


def test_simulate_plots(command, tmp_path):
    words = ("simulate", "allreduce", "ring", "-P", "2,8", "--plot")
    assert command(*words, tmp_path / "a.svg").status == 0
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_ticks_of_steps_are_whole(command, tmp_path):
    command("show", "bcast", "linear", "-P", "2", "--svg", tmp_path / "a.svg")
    labels = re.findall(r"<!-- (.*) -->", (tmp_path / "a.svg").read_text())
    assert "1" in labels and "0" in labels
    assert not [label for label in labels if re.fullmatch(r"\d+\.\d+", label)]
