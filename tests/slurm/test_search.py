"""Searches as batch jobs: what stops them costs no trial, and none is trained twice."""

import json

import pytest
from slurm import lab

from mpicoll.train.search import methods, trials


@pytest.mark.long
def test_a_search_is_stopped_queued_again_and_loses_no_trial(slurm):
    space = f"{lab.SHARED}/space.toml"
    (slurm.shared / "space.toml").write_text(
        f'[run]\ndataset = "{lab.SHARED}/data.npz"\nmodel = "mlp"\nhidden = [8]\nepochs = 4\n'
        "batch = 4\n[space]\nlr = {log = [0.001, 0.1]}\n"
    )
    words = (space, "--method=asha", "--trials=60", "--eta=2")
    (job,) = slurm.submit("search", "rates", *words, nodes="2", per_node="2")
    path = slurm.shared / "rates" / "search" / trials.FILE
    lab.wait(lambda: path.exists() and path.read_text().count('"told"') > 3)
    slurm.do("scancel", "--batch", "--signal=USR1", job)  # as SLURM before the time is over
    lab.at_once(slurm, job)
    assert slurm.ended(job) == ["COMPLETED"], slurm.said("rates")
    said = slurm.said("rates")
    assert "stopped by a signal: --resume continues" in said
    assert said.index("started again 0 times") < said.index("started again 1 times")
    found = json.loads((slurm.shared / "rates" / "result.json").read_text())
    assert found["complete"]
    assert found["trials"] == 60
    records = trials.read(path)
    told = [(r["trial"], r["epochs"]) for r in records if r["event"] == "told"]
    asked = [(r["trial"], r["epochs"]) for r in records if r["event"] == "asked"]
    assert sorted(told) == sorted(asked)
    assert len(set(told)) == len(told)
    method = methods.make_method(*trials.machine(records))
    assert trials.replay(path, records, method) == len(asked)
