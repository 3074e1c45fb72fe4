"""Trainings as batch jobs: stopped by whatever stops jobs, they end with the weights of one that
nothing stopped, to the bit."""

import json

import launch
import pytest
from slurm import lab

from mpicoll.train.driver import checkpoints

DATA = f"{lab.SHARED}/data.npz"
WORDS = (DATA, "--model=mlp", "--hidden=8", "--batch=4", "--epochs=20", "--check-every=0")
STEPS = 20 * 60
PLACE = {"nodes": "2", "per_node": "2"}

OPEN_MPI = launch._library().startswith("Open MPI")
SRUN_MPI = "pmix" if OPEN_MPI else "pmi2"
LAUNCHERS = ["mpirun", "srun"]


@pytest.fixture(scope="module")
def undisturbed(cluster):
    """The arrays at the end of a training that nothing stopped, on the same ranks."""
    (job,) = cluster.submit("train", "undisturbed", *WORDS, **PLACE)
    assert cluster.ended(job) == ["COMPLETED"], cluster.said("undisturbed")
    return arrays(cluster, "undisturbed")


def arrays(slurm, name, ranks=4):
    """What the last checkpoint of a finished run on so many ranks holds."""
    facts = json.loads((slurm.shared / name / "result.json").read_text())
    assert facts["steps"] == STEPS and facts["stopped"] == "epochs"
    assert facts["ranks"] == ranks
    found, manifest = checkpoints.load(checkpoints.find(slurm.shared / name / "checkpoints"))
    assert manifest["epoch"] == 21
    return found


def check_equal(slurm, name, expected, ranks=4):
    found = arrays(slurm, name, ranks)
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert found[key].tobytes() == values.tobytes(), key


def steps(slurm, name):
    """Steps that a run has made, those made twice counted twice."""
    path = slurm.shared / name / "metrics" / "rank-0.jsonl"
    return path.read_text().count('"step"') if path.exists() else 0


def underway(slurm, name, job, more=10):
    """Wait until a job has made some steps."""
    before = steps(slurm, name)
    lab.wait(lambda: steps(slurm, name) >= before + more)
    assert slurm.state(job) == "RUNNING"


@pytest.mark.parametrize("launcher", ["mpirun", pytest.param("srun", marks=pytest.mark.long)])
def test_a_signal_makes_a_checkpoint_and_the_job_goes_on_from_it(slurm, undisturbed, launcher):
    name = f"signal-{launcher}"
    site = slurm.site(f"{launcher}.env", LAUNCHER=launcher, SRUN_MPI=SRUN_MPI)
    (job,) = slurm.submit("train", name, *WORDS, site=site, **PLACE)
    underway(slurm, name, job)
    slurm.do("scancel", "--batch", "--signal=USR1", job)  # as SLURM before the time is over
    lab.at_once(slurm, job)
    _, manifest = checkpoints.load(checkpoints.find(slurm.shared / name / "checkpoints"))
    assert 0 < manifest["position"] or manifest["epoch"] < 21  # in the middle
    assert slurm.ended(job) == ["COMPLETED"], slurm.said(name)
    said = slurm.said(name)
    assert "stopped by a signal after step" in said
    assert said.index("started again 0 times") < said.index("started again 1 times")
    assert slurm.facts(job)["Restarts"] == "1"
    check_equal(slurm, name, undisturbed)


@pytest.mark.long
def test_the_signal_comes_before_the_time_is_over_and_restarts_are_counted(slurm):
    """Limits are whole minutes, and SLURM looks every half a minute; ranks need time to begin."""
    site = slurm.site("once.env", RESTARTS="1")
    endless = [*WORDS, "--epochs=100000"]
    early = {"time": "1", "option": "--signal=B:USR1@30"}
    (job,) = slurm.submit("train", "limit", *endless, site=site, **early, **PLACE)
    underway(slurm, "limit", job)
    lab.at_once(slurm, job)
    assert slurm.ended(job) == ["FAILED"]
    said = slurm.said("limit")
    assert said.count("stopped by a signal after step") == 2
    assert "started again 1 times, and RESTARTS allows no more: not queued again" in said
    assert slurm.facts(job)["Restarts"] == "1" and slurm.facts(job)["ExitCode"] == "75:0"


@pytest.mark.long
def test_another_number_of_ranks_goes_on_to_the_same_bits(slurm):
    """Four ranks begin, and two on one node, submitted anew, end what they began."""
    words = (*WORDS, "--invariant=4")
    (job,) = slurm.submit("train", "invariant", *words, **PLACE)
    assert slurm.ended(job) == ["COMPLETED"], slurm.said("invariant")
    (job,) = slurm.submit("train", "fewer", *words, option="--no-requeue", **PLACE)
    underway(slurm, "fewer", job)
    slurm.do("scancel", "--batch", "--signal=USR1", job)
    assert slurm.ended(job) == ["FAILED"]
    (job,) = slurm.submit("train", "fewer", *words, nodes="1", per_node="2")
    assert slurm.ended(job) == ["COMPLETED"], slurm.said("fewer")
    check_equal(slurm, "fewer", arrays(slurm, "invariant"), ranks=2)


@pytest.mark.long
def test_a_chain_goes_on_where_jobs_are_not_queued_again(slurm, undisturbed):
    jobs = slurm.submit("train", "chain", *WORDS, chain="3", **PLACE)
    assert len(jobs) == 3
    underway(slurm, "chain", jobs[0])
    assert slurm.state(jobs[1]) == "PENDING"
    slurm.do("scancel", "--batch", "--signal=USR1", jobs[0])
    assert slurm.ended(*jobs) == ["FAILED", "COMPLETED", "CANCELLED"], slurm.said("chain")
    assert slurm.facts(jobs[0])["ExitCode"] == "75:0"
    assert "cannot be queued again: the next job of a chain" in slurm.said("chain")
    check_equal(slurm, "chain", undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("mode", ["requeue", "cancel"])
def test_what_is_preempted_goes_on(slurm, undisturbed, mode, launcher):
    """Also where PreemptMode is CANCEL: the job is queued again by itself in its time of grace."""
    name = f"preempted-{mode}-{launcher}"
    site = slurm.site(
        "preempted.env", LAUNCHER=launcher, SRUN_MPI=SRUN_MPI, OPTIONS=f"(--partition={mode})"
    )
    whole = {"option": "--exclusive"}
    (job,) = slurm.submit("train", name, *WORDS, site=site, **whole, **PLACE)
    underway(slurm, name, job)
    nodes = slurm.facts(job)["NodeList"]
    urgent = ["--partition=urgent", f"--nodelist={nodes}", "--exclusive", "--output=/dev/null"]
    other = slurm.do("sbatch", "--parsable", *urgent, "--wrap=true").strip()
    assert slurm.ended(other) == ["COMPLETED"]
    assert slurm.ended(job) == ["COMPLETED"], slurm.said(name)
    assert slurm.facts(job)["Restarts"] == "1"
    check_equal(slurm, name, undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_node_that_is_lost_is_survived(slurm, undisturbed, launcher):
    name = f"down-{launcher}"
    site = slurm.site("down.env", LAUNCHER=launcher, SRUN_MPI=SRUN_MPI)
    (job,) = slurm.submit("train", name, *WORDS, site=site, **PLACE)
    underway(slurm, name, job, more=150)  # beyond the first checkpoint
    lost = slurm.facts(job)["NodeList"].removeprefix("h[").removesuffix("]")[-1]
    slurm.do("scontrol", "update", f"NodeName=h{lost}", "State=DOWN", "Reason=test")
    try:
        assert slurm.ended(job) == ["COMPLETED"], slurm.said(name)
        assert lost not in slurm.facts(job)["NodeList"]
    finally:
        slurm.do("scontrol", "update", f"NodeName=h{lost}", "State=RESUME")
    assert slurm.facts(job)["Restarts"] == "1"
    check_equal(slurm, name, undisturbed)


@pytest.mark.long
def test_ranks_that_are_lost_twice_at_the_same_place_end_the_job(slurm):
    """A rank that is killed each time, as where memory is short: no reason to try for ever."""
    (job,) = slurm.submit("train", "lost", *WORDS, "--checkpoint-every=1000000", **PLACE)
    for turn in range(2):
        underway(slurm, "lost", job)
        kill = "kill -KILL $(pgrep -f '[m]etrics /mnt/shared/lost' | tail -n 1)"
        slurm.do("sh", "-c", kill)
        if turn == 0:
            lab.at_once(slurm, job)
            lab.wait(lambda: slurm.state(job) == "RUNNING")
    assert slurm.ended(job) == ["FAILED"]
    said = slurm.said("lost")
    assert "the ranks were lost (exit status" in said
    assert "the ranks were lost twice after checkpoint none" in said


@pytest.mark.long
@pytest.mark.skipif(not OPEN_MPI, reason="all ranks end with one, by this library")
def test_a_process_that_dies_costs_a_surviving_training_no_restart(slurm):
    """The other three go on, and end with the bits of a run that nothing disturbed."""
    words = (*WORDS, "--survive", "--invariant=4")
    (job,) = slurm.submit("train", "whole", *words, **PLACE)
    assert slurm.ended(job) == ["COMPLETED"], slurm.said("whole")
    (job,) = slurm.submit("train", "survivors", *words, **PLACE)
    underway(slurm, "survivors", job)
    slurm.do("sh", "-c", "kill -KILL $(pgrep -f '[m]etrics /mnt/shared/survivors' | tail -n 1)")
    assert slurm.ended(job) == ["COMPLETED"], slurm.said("survivors")
    assert slurm.facts(job)["Restarts"] == "0"
    assert "lost 1 rank: " in slurm.said("survivors")
    facts = json.loads((slurm.shared / "survivors" / "result.json").read_text())
    (lost,) = facts["lost"]
    assert len(lost["ranks"]) == 1 and lost["left"] == 3
    check_equal(slurm, "survivors", arrays(slurm, "whole"))


def test_an_error_of_the_training_ends_the_job(slurm):
    (job,) = slurm.submit("train", "error", f"{lab.SHARED}/none.npz", **PLACE)
    assert slurm.ended(job) == ["FAILED"]
    assert slurm.facts(job)["Restarts"] == "0"
    said = slurm.said("error")
    assert "none.npz" in said and "ended with an error: not queued again" in said
    assert not (slurm.shared / "error" / "result.json").exists()


def test_what_is_cancelled_is_gone(slurm):
    """Not queued again, although its ranks had time for a checkpoint; `slurm` looks for traces."""
    (job,) = slurm.submit("train", "cancelled", *WORDS, **PLACE)
    underway(slurm, "cancelled", job)
    assert slurm.processes()
    slurm.do("scancel", job)
    assert slurm.ended(job) == ["CANCELLED"]
    lab.wait(lambda: not slurm.processes(), 30)
    assert slurm.facts(job)["Restarts"] == "0"
