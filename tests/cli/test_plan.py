"""``mpicoll plan``: what is printed and written, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from clouds import write_samples

from mpicoll.base.files import parse_toml
from mpicoll.simulate.costs import INTER, INTRA, CostModel, Costs, Piece
from mpicoll.train import Config
from mpicoll.train.planner import profile
from mpicoll.tuning import cost_files

pytest.importorskip("pydantic")


@pytest.fixture(autouse=True)
def _plain(no_launcher, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def words(tmp_path):
    """A small training; its layers as fast as is said."""
    write_samples(tmp_path / "data.npz")
    return ("plan", tmp_path / "data.npz", "--model", "mlp", "--hidden", "32,32", "--rate", "1e9")


def test_a_plan_is_printed_and_explained(command, words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    found = command(*words, "-P", "4", "--explain")
    assert found.status == 0, found.err
    first, second, *lines = found.out.splitlines()
    assert first.startswith("plan: data=") and " ms a step, the shortest of the space" in second
    assert any("why not" in line for line in lines[:4])
    assert any(
        line.startswith("space: ") and " candidates and their cuts, " in line for line in lines
    )
    assert max(map(len, found.out.splitlines())) <= 80
    assert "is faster" in found.out or "The fullest rank needs" in found.out
    assert "--costs" in found.err


def test_a_plan_is_facts_and_a_file(command, words, tmp_path):
    found = command(*words, "-P", "4", "--json", "-o", tmp_path / "plan.toml")
    assert found.status == 0, found.err
    facts = json.loads(found.out)
    assert facts["fits"] and facts["gap"] == 0 and facts["space"]["candidates"] > 50
    plan = facts["plan"]
    assert plan["data"] * plan["pipe"] * plan["tensor"] == 4
    assert sum(plan["shares"].values()) == pytest.approx(1)
    assert all(other["seconds"] >= plan["seconds"] and other["why"] for other in facts["others"])
    written = parse_toml((tmp_path / "plan.toml").read_text())
    assert facts["config"].items() <= written.items()
    assert written["hidden"] == [32, 32] and written["model"] == "mlp"


@pytest.mark.long
def test_a_slow_network_changes_the_plan(command, words):
    def plan(*more):
        found = command(*words, "-P", "8", "--nodes", "4x2", "--json", *more)
        assert found.status == 0, found.err
        return json.loads(found.out)["plan"]

    fast = plan("--inter-alpha", "1us", "--inter-beta", "100ps")
    slow = plan("--inter-alpha", "10ms", "--inter-beta", "100ns")
    named = plan("--network", "10GbE")
    assert fast["seconds"] < named["seconds"] < slow["seconds"]


def test_machines_that_are_not_there_are_planned_for_by_a_model_file(command, words, tmp_path):
    """-P 8 --nodes 4x2, with links between nodes from a file that `mpicoll fit` writes."""

    def plan(alpha):
        links = {INTRA: (Piece(None, 1e-6, 1e-10),), INTER: (Piece(None, alpha, 1e-9),)}
        cost_files.write(tmp_path / "model.json", CostModel(Costs(links, gamma=1e-10, call=1e-6)))
        more = ("-P", "8", "--nodes", "4x2", "--costs", tmp_path / "model.json", "--json")
        found = command(*words, *more)
        assert found.status == 0, found.err
        assert "no model of this machine" not in found.err
        return json.loads(found.out)

    near, far = plan(1e-6), plan(1e-2)
    assert near["plan"]["seconds"] < far["plan"]["seconds"]
    assert far["plan"]["tensor"] * far["plan"]["pipe"] * far["plan"]["data"] == 8


def test_what_does_not_fit_is_refused_with_what_would_fit(command, words):
    found = command(*words, "-P", "2", "--memory", "4K", "--json")
    assert found.status == 1
    assert "no plan fits into 4.1 kB of each of 2 ranks; least is needed by data=" in found.err
    facts = json.loads(found.out)
    assert not facts["fits"] and facts["need"]["bytes"] > 4096
    assert facts["remedies"][0].startswith("--memory ")
    enough = command(*words, "-P", "2", *facts["remedies"][0].split())
    assert enough.status == 0, enough.err


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (
            ("-P", "4", "--nodes", "3x2"),
            "--nodes 3x2 has 6 ranks, and the plan is for 4: give ",
        ),
        (("-P", "4", "--nodes", "four"), "--nodes 'four': give nodes and ranks of each, as 4x4"),
        (("-P", "4", "--nodes", "2x2"), "nothing says what messages between nodes cost"),
        ((), "nothing says for how many ranks to plan: give them, as -P 16"),
        (("-P", "2", "-o", "plan.txt"), "-o plan.txt: give a file whose name ends with .toml"),
        (("-P", "2", "--profile", "gone.json"), "--profile and --rate both say"),
        (("--measure", "layers.json"), "--measure makes a profile: leave --profile and --rate out"),
        (("-P", "2", "--memory", "much"), "'much' is not a size"),
        (("-P", "2", "--network", "10GbE"), "--network needs --nodes, as 4x4"),
    ],
)
def test_what_makes_no_sense_is_refused(command, words, more, problem):
    found = command(*words, *more)
    assert found.status == 2
    assert problem in found.err


def test_ranks_measure_and_are_planned_for(mpirun, command, words, tmp_path):
    *given, _, _ = words
    path = tmp_path / "layers.json"
    done = mpirun(2, "-m", "mpicoll", *given, "--measure", path)
    assert done.status == 0, done.err
    assert done.out.count("plan: data=") == 1
    found = profile.read(path)
    assert found.about["ranks"] == 2
    assert [times.samples for times in found.layers[0].times] == [1, 4, 16, 64]
    again = command(*given, "--profile", path)
    assert again.status == 0, again.err
    assert again.out.splitlines()[0] == done.out.splitlines()[0]
    other = command(*given, "--hidden", "8", "--profile", path)
    assert other.status == 2 and "the profile has 5 layers and the model 3" in other.err


@pytest.mark.parametrize("option", ["--mesh pipe=2", "--strategy local_sgd", "--recompute"])
def test_what_a_plan_decides_is_not_given(command, words, option):
    found = command(*words, "-P", "4", *option.split())
    assert found.status == 2
    assert f"{option.split()[0]} " in found.err and "a plan decides this; leave it out" in found.err


@pytest.mark.parametrize(
    ("options", "samples"),
    [("--accumulate 4", 256), ("--batch-per-rank 8", 32), ("--wire topk:0.1", 64)],
)
def test_the_run_takes_its_plan_with_other_options(command, words, tmp_path, options, samples):
    path = tmp_path / "plan.toml"
    found = command(*words, "-P", "4", *options.split(), "-o", path)
    assert found.status == 0, found.err
    config = Config(**parse_toml(path.read_text()))
    assert config.global_batch(4) * config.accumulate == samples


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--rate 1 --hidden 999999", "a step takes "),
        ("--rate inf", "--rate inf: give a finite number, such as 1e10"),
        ("--rate nan", "invalid value for '--rate': Input should be greater than or equal to 1"),
        ("--nodes 2x2 --inter-alpha 1e300s --inter-beta 0", "'1e300s' is longer than 1,000,000 s"),
        ("--nodes 2x2 --inter-alpha 1e400us --inter-beta 0", "'1e400us' is longer than 1,000,000 "),
        ("--nodes 2x2 --inter-alpha 0 --inter-beta 1e999999999s", "is longer than 1,000,000 sec"),
        ("--nodes 2x2 --inter-alpha -1us --inter-beta 0", "'-1us' is not a time"),
        ("--nodes 2x2 --network Token-Ring", "Token-Ring"),
        ("--nodes 0x4", "--nodes '0x4': give nodes and ranks of each, as 4x4"),
        ("--batch 241", "batches of 241 samples, and data has 240: give a batch of at most 240"),
        ("--batch-per-rank 61", "batches of 244 samples, and data has 240"),
        ("--workers 3", "3 worker(s) and 0 rank(s) that only serve are 3, but 4 were started"),
        ("--data-servers 4", "4 data server(s) on 4 rank(s) leave no worker"),
        ("--survive --checkpoint run.ckpt --spares 4", "4 spare rank(s) of 4 leave none to train"),
        ("--device gpu", "--device gpu: layers are measured on processors; leave it out"),
        ("--memory 2000T", "is larger than the limit"),
        ("--memory -1", "'-1' is not a size"),
    ],
)
def test_what_no_run_takes_is_refused(command, words, options, problem):
    found = command(*words, "-P", "4", *options.split())
    assert found.status == 2, found.out
    assert problem in found.err


def test_ranks_that_only_serve_are_started_and_not_planned_for(command, words, tmp_path):
    path = tmp_path / "plan.toml"
    found = command(*words, "-P", "4", "--data-servers", "1", "--json", "-o", path)
    assert found.status == 0, found.err
    plan = json.loads(found.out)["plan"]
    assert (plan["data"], plan["pipe"], plan["tensor"]) == (3, 1, 1)  # servers know no mesh
    text = path.read_text()
    assert "mpirun -n 4 mpicoll train --config plan.toml" in text
    assert Config(**parse_toml(text)).worker_count(4) == 3


def test_the_batch_norm_of_a_global_batch_has_no_mesh(command, tmp_path):
    """As the run, which normalises each microbatch of a mesh by itself."""
    from mpicoll.train.data import load
    from mpicoll.train.driver.named import make_model
    from mpicoll.train.planner.accepted import takes
    from mpicoll.train.planner.space import candidates

    images = np.zeros((64, 8, 8, 1), np.float32)
    arrays = {"train_inputs": images, "train_labels": np.arange(64) % 4}
    np.savez(tmp_path / "images.npz", **arrays, test_inputs=images, test_labels=np.arange(64) % 4)
    options = {"dataset": str(tmp_path / "images.npz"), "model": "resnet", "channels": (8,)}
    meshes = {}
    for norm in ("global", "local"):
        config = Config(**options, norm=norm)
        model = make_model(config, load(config.dataset))
        every = candidates(4, 64, len(model.layers))
        given = {**options, "norm": norm}
        meshes[norm] = {c.mesh for c in every if takes(given, model, 64, c, 64)}
    assert meshes["global"] == {"data=4,pipe=1,tensor=1"}
    assert {"data=2,pipe=2,tensor=1", "data=1,pipe=1,tensor=4"} < meshes["local"]


def test_invariant_takes_plans_with_as_many_parts(command, words):
    found = command(*words, "-P", "2", "--invariant=4", "--json", "--batch", "8")
    assert found.status == 0, found.err
    facts = json.loads(found.out)
    assert facts["space"]["candidates"] > 4
    for plan in (facts["plan"], *facts["others"]):
        assert plan["tensor"] == 1
        assert plan["pipe"] == 1 or plan["data"] * plan["microbatches"] == 4
    more = command(*words, "-P", "7", "--invariant=4", "--batch", "8")
    assert more.status == 2 and "no mesh of 7 ranks can share" in more.err


@pytest.mark.parametrize("memory", [(), ("--memory", "1G")])
def test_more_ranks_than_can_share_anything(command, words, memory):
    found = command(*words, "-P", "97", *memory)
    assert found.status == 2
    assert "no mesh of 97 ranks can share 5 layers and batches of 64 samples" in found.err


def test_more_ranks_of_which_there_is_no_mesh_are_no_remedy(command, words):
    found = command(*words, "-P", "31", "--batch", "1", "--memory", "1K")
    assert found.status == 1, found.err
    assert "no plan fits into" in found.err and "-P " not in found.err
