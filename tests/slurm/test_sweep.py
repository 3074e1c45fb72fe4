"""A sweep as arrays of jobs: its launches merge into one fit, and what is missing is measured."""

import json
import os

import pytest
from slurm import lab

from mpicoll.bench import records, runs

SWEEP = ("allreduce", "-a", "ring,recursive_doubling", "-s", "1K,4K,16K,64K", "-n", "3", "-w", "0")
LAYOUTS = [(nodes, ranks) for nodes in (1, 2) for ranks in (1, 2)]
POINTS = 2 * 4


def files(slurm, name, launches):
    return [
        slurm.shared / name / f"nodes{nodes}-ranks{ranks}-launch{launch}.jsonl"
        for nodes, ranks in LAYOUTS
        for launch in range(launches)
    ]


def submit(slurm, name, launches, **more):
    return slurm.submit(
        "sweep", name, *SWEEP, nodes="1,2", per_node="1,2", launches=str(launches), **more
    )


def over(slurm, name, *jobs):
    """Wait until arrays have ended; all tasks must have succeeded."""
    lab.wait(lambda: not slurm.do("squeue", "-h"), 240)
    shown = [slurm.do("scontrol", "--oneliner", "show", "job", job) for job in jobs]
    assert all("JobState=COMPLETED" in line for text in shown for line in text.splitlines()), (
        slurm.said(name)
    )


def check_complete(slurm, name, launches):
    found = runs.load(files(slurm, name, launches))
    per_file = {
        path: sum(len(run.points) for run in records.read(path))
        for path in files(slurm, name, launches)
    }
    assert set(per_file.values()) == {POINTS}
    for run in found:
        facts = run.facts
        nodes = slurm.do("scontrol", "show", "hostnames", facts["slurm"]["SLURM_JOB_NODELIST"])
        assert sorted(facts["hosts"]) == sorted(nodes.split())
        assert all(point.wrong == 0 for point in run.points)
    assert {run.facts["settings"]["launch"] for run in found} == set(range(launches))
    return found


def test_launches_of_a_sweep_merge_into_one_fit(slurm):
    *arrays, report = submit(slurm, "sweep", 1, report=True)
    assert len(arrays) == 2
    over(slurm, "sweep", *arrays, report)
    check_complete(slurm, "sweep", 1)
    model = json.loads((slurm.shared / "sweep" / "model.json").read_text())
    assert model["about"]["launches"] == 4
    assert set(model["general"]["links"]) == {"intra", "inter"}
    page = (slurm.shared / "sweep" / "report.html").read_text()
    assert "recursive_doubling" in page
    check_resubmission(slurm)


def check_resubmission(slurm):
    """Of a whole sweep nothing is measured again; what a file has lost is."""
    before = {path: path.read_bytes() for path in files(slurm, "sweep", 1)}
    cut = files(slurm, "sweep", 1)[2]
    os.truncate(cut, len(before[cut]) - 10)  # as a job that was killed leaves it
    over(slurm, "sweep", *submit(slurm, "sweep", 1))
    for path, content in before.items():
        if path != cut:
            assert path.read_bytes() == content
    assert slurm.said("sweep").count("points in ") == 4
    assert slurm.said("sweep").count(f"{POINTS} points in ") == 3
    with pytest.warns(UserWarning, match="dropped: not complete JSON"):
        found = records.read(cut)
    assert [len(run.points) for run in found] == [POINTS - 1, 1]


@pytest.mark.long
def test_a_sweep_in_several_allocations(slurm):
    over(slurm, "often", *submit(slurm, "often", 3, at_once="2"))
    found = check_complete(slurm, "often", 3)
    assert len({run.facts["slurm"]["SLURM_JOB_ID"] for run in found}) == 12
