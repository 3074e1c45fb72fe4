"""``mpicoll synthesize`` and the other commands on machine files and schedule files."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pydantic")
pytest.importorskip("scipy")

from machines import TEXTS

QUICK = ("--evaluations", "24", "--trees", "2,3")


@pytest.fixture
def machine(tmp_path):
    path = tmp_path / "m.toml"
    path.write_text(TEXTS["4 + 2 + 1"])
    return path


@pytest.fixture
def schedule(command, machine, tmp_path):
    path = tmp_path / "ar.json"
    words = ("--machine", machine, "-s", "256K", *QUICK, "--trees", "7", "-o", path)
    done = command("synthesize", "allreduce", *words)
    assert done.status == 0, done.err
    assert "predicted, not measured" in done.out
    assert "adapter of host 0, out" in done.out
    return path


def test_a_schedule_is_written_and_all_commands_take_it(command, schedule, machine):
    name = f"file:{schedule}"
    verified = command("verify", "allreduce", name)
    assert verified.status == 0
    assert "3 of 3 cases right" in verified.out
    assert "rank 6" in command("show", "allreduce", name).out
    facts = command("simulate", "allreduce", name, "--machine", machine, "-s", "256K", "--json")
    case = json.loads(facts.out)["cases"][0]
    assert case["time"] == pytest.approx(json.loads(schedule.read_text())["about"]["clock"])
    every = command("simulate", "allreduce", "all", "--machine", machine, "-s", "256K", "--json")
    assert case["time"] < min(c["time"] for c in json.loads(every.out)["cases"])


def test_the_same_words_write_the_same_bytes(command, machine, tmp_path):
    written = set()
    for number in range(2):
        path = tmp_path / f"{number}.json"
        words = ("--machine", machine, "-s", "256K", "--evaluations", "30", "--trees", "7")
        assert command("synthesize", "allreduce", *words, "-o", path).status == 0
        written.add(path.read_bytes())
    assert len(written) == 1


def test_a_range_of_sizes_and_the_facts(command, machine, tmp_path):
    words = ("--machine", machine, "-s", "4K-64K", *QUICK, "--json")
    facts = json.loads(command("synthesize", "bcast", "--root", "6", *words).out)
    assert [row["size"] for row in facts["sizes"]] == [4096, 16384, 65536]
    assert facts["bound"]["seconds_per_byte"] == pytest.approx(400e-12)
    assert facts["measured"] is False
    for row in facts["sizes"]:
        faster = row["made_time"] < row["catalogue_time"]
        assert row["choice"].startswith("file:") == faster


def test_where_the_catalogue_is_as_fast_no_file_is_written(command, tmp_path):
    (tmp_path / "m.toml").write_text(TEXTS["uniform"])
    path = tmp_path / "ar.json"
    words = ("--machine", tmp_path / "m.toml", "-s", "1K", "--evaluations", "10", "--trees", "1")
    done = command("synthesize", "allreduce", *words, "-o", path)
    assert "no file: an algorithm of the catalogue is as fast" in done.out
    assert not path.exists()


def test_a_model_is_a_machine_too(command, tmp_path):
    from mpicoll.simulate.costs import CostModel, Costs, Piece
    from mpicoll.tuning import cost_files

    links = {"intra": (Piece(None, 1e-6, 1e-10),), "inter": (Piece(None, 9e-6, 1e-9),)}
    cost_files.write(tmp_path / "model.json", CostModel(Costs(links)))
    words = ("--model", tmp_path / "model.json", "-P", "4", "--per-node", "2", "-s", "64K")
    done = command("synthesize", "allreduce", *words, "--evaluations", "12", "--trees", "2")
    assert done.status == 0, done.err
    assert "allreduce: trees take at least" in done.out


def test_a_picture_of_the_load(command, machine, tmp_path):
    pytest.importorskip("matplotlib")
    words = ("--machine", machine, "-s", "1M", *QUICK, "--plot", tmp_path / "load.svg")
    assert command("synthesize", "allreduce", *words).status == 0
    assert "<svg" in (tmp_path / "load.svg").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["allreduce"], "give the machine by --machine FILE, or by --model FILE and -P"),
        (["allreduce", "--machine", "none.toml"], "none.toml': No such file"),
        (["alltoall", "--machine", "M"], "not for alltoall"),
        (["allreduce", "--machine", "M", "-P", "3"], "-P and --per-node go with --model"),
        (["allreduce", "--machine", "M", "--trees", "0"], "0 is out of range"),
        (["allreduce", "--machine", "M", "-s", "64K-1K"], "swap them"),
        (["allreduce", "--machine", "M", "--rules", "r"], "--rules needs --measure"),
        (["bcast", "--machine", "M", "--root", "7"], "root=7 is not among the ranks 0 .. 6"),
    ],
)
def test_wrong_words(command, machine, words, told):
    done = command("synthesize", *[machine if word == "M" else word for word in words])
    assert done.status == 2
    assert told in done.err


def test_simulate_refuses_a_machine_and_costs(command, machine):
    done = command("simulate", "allreduce", "ring", "--machine", machine, "--alpha", "1us")
    assert done.status == 2
    assert "--machine and --alpha exclude each other" in done.err
    done = command("simulate", "allreduce", "ring", "--machine", machine, "-P", "4")
    assert "the machine has 7 ranks; leave -P out" in done.err


def test_a_broken_file_is_wrong_for_verify_and_refused_elsewhere(command, schedule):
    plain = json.loads(schedule.read_text())
    plain["programs"][0][0][0].pop()
    schedule.write_text(json.dumps(plain))
    done = command("verify", "allreduce", f"file:{schedule}")
    assert done.status == 1
    done = command("show", "allreduce", f"file:{schedule}")
    assert done.status == 2
    assert "is wrong: " in done.err
