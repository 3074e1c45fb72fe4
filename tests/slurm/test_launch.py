"""How ranks start within a job: on which nodes, with how many threads, by which launcher, on which
GPU; and what is said where launcher and library do not fit."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import launch
import pytest
from slurm import lab

OPEN_MPI = launch._library().startswith("Open MPI")
SRUN_MPI = "pmix" if OPEN_MPI else "pmi2"
WRONG = "none" if OPEN_MPI else "pmix"

#: A batch script that starts some words as the shipped ones do.
SCRIPT = """#!/bin/bash
. "$1" && . "$SCRIPTS/common.sh" "$2" || exit
launcher "$SLURM_NTASKS_PER_NODE"
"${launch[@]}" "${@:3}"
"""


@pytest.fixture
def started(slurm):
    """What the ranks of a job print, and its final state."""

    def run(name, *words, launcher="mpirun", srun_mpi=SRUN_MPI, options=()):
        site = slurm.site(f"{name}.env", LAUNCHER=launcher, SRUN_MPI=srun_mpi)
        (slurm.shared / "script.sh").write_text(SCRIPT)
        log = f"--output={lab.SHARED}/{name}.log"
        place = ["--nodes=2", "--ntasks-per-node=2", "--time=5", log, *options]
        script = [f"{lab.SHARED}/script.sh", site, name, *words]
        job = slurm.do("sbatch", "--parsable", *place, *script).strip()
        (state,) = slurm.ended(job)
        return state, (slurm.shared / f"{name}.log").read_text()

    return run


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_doctor_shows_where_ranks_are(started, launcher):
    state, text = started("doctor", "mpicoll", "doctor", "--json", launcher=launcher)
    assert state == "COMPLETED", text
    facts = json.loads(text[text.index("\n{") : text.rindex("}") + 1])
    assert facts["problems"] == [] and facts["launcher"]["processes"] == 4
    hosts = [rank["host"] for rank in facts["ranks"]]
    assert hosts == ["h1", "h1", "h2", "h2"]
    assert [rank["blas_threads"] for rank in facts["ranks"]] == [1] * 4
    assert all(rank["cores"] for rank in facts["ranks"])


@pytest.mark.parametrize("command", ["doctor", "train", "bench"])
def test_a_launcher_that_the_library_does_not_understand_is_found_out(slurm, started, command):
    """Every rank would believe that it is alone, and all would end well."""
    words = ["allreduce", "-b", "8", "-n", "1"] if command == "bench" else []
    state, text = started(
        f"wrong-{command}", "mpicoll", command, *words, launcher="srun", srun_mpi=WRONG
    )
    assert state == "FAILED"
    assert "started 4 processes, but each of them is rank 0 of 1" in text
    assert "choose srun's --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)" in text
    assert text.count("each of them is rank 0 of 1") == 1
    slurm.tidy()
    slurm.clear()  # ranks of Open MPI that are alone, two on a node, leave shared memory


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_threads_are_those_of_the_job(started, launcher):
    """srun alone would not know of sbatch's --cpus-per-task."""
    # PRRTE waits for ever, now and then, for programs that end at once.
    shown = "sleep 0.5; echo $OMP_NUM_THREADS $OPENBLAS_NUM_THREADS ${SLURM_CPUS_PER_TASK-none} end"
    options = ["--ntasks-per-node=1", "--cpus-per-task=2"]
    state, text = started("threads", "sh", "-c", shown, launcher=launcher, options=options)
    assert state == "COMPLETED", text
    assert re.findall(r"^(.*) end$", text, re.M) == ["2 2 2"] * 2


#: Prints which GPUs a rank sees, and which of them ``--device gpu`` gives it.
CHOOSE = f"""
import os, socket, sys
sys.path.insert(0, {str(lab.ROOT / "tests")!r})
import fake_cupy
sys.modules["cupy"] = cupy = fake_cupy.module()
from mpicoll.cli.session import use_gpu
use_gpu()
print(socket.gethostname(), os.environ["CUDA_VISIBLE_DEVICES"], *cupy.used, "end")
"""


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_each_rank_uses_a_gpu_of_its_own_and_sees_all(slurm, started, launcher):
    """GPUs that are hidden from a rank could not be reached from its own."""
    one = str(lab.ROOT / "mpicoll" / "cli" / "slurm" / "one-gpu.sh")
    options = ["--partition=gpu", "--gpus-per-node=2"]
    words = [one, sys.executable, "-c", CHOOSE]
    state, text = started("gpus", *words, launcher=launcher, options=options)
    assert state == "COMPLETED", text
    seen = re.findall(r"^(h\d) (\S+) (\d) end$", text, re.M)
    first, second = sorted({host for host, _, _ in seen})
    assert sorted(seen) == [(host, "0,1", gpu) for host in (first, second) for gpu in "01"]


def test_more_ranks_than_gpus_are_refused(started):
    one = str(lab.ROOT / "mpicoll" / "cli" / "slurm" / "one-gpu.sh")
    options = ["--partition=gpu", "--gpus-per-node=1"]
    state, text = started("few", one, "true", options=options)
    assert state == "FAILED"
    assert "has no GPU of CUDA_VISIBLE_DEVICES=0" in text and "--gpus-per-node" in text


def test_the_gpu_scripts_run(slurm):
    words = (f"{lab.SHARED}/data.npz", "--epochs=1", "--batch=60")
    (train,) = slurm.submit("gpu-train", "gpu-train", *words, nodes="2", per_node="2")
    (sweep,) = slurm.submit(
        "gpu-sweep",
        "gpu-sweep",
        "allreduce",
        "-a",
        "ring",
        "-b",
        "8",
        "-n",
        "2",
        nodes="2",
        per_node="2",
    )
    assert slurm.ended(train, sweep) == ["COMPLETED"] * 2, slurm.said("gpu-train")
    assert slurm.facts(train)["Partition"] == "gpu"
    assert "gres:gpu" in json.dumps(slurm.facts(train)).replace("gres/gpu", "gres:gpu")
    result = json.loads((slurm.shared / "gpu-train" / "result.json").read_text())
    assert result["ranks"] == 4 and result["steps"] == 4
    run = (slurm.shared / "gpu-sweep" / "nodes2-ranks2-launch0.jsonl").read_text().splitlines()[0]
    assert json.loads(run)["environment"]["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_without_slurm_or_settings_the_command_says_so(slurm):
    words = [sys.executable, "-m", "mpicoll", "slurm", "submit", "train", "--site", "nowhere.env"]
    done = slurm.run(words, capture_output=True)
    assert done.returncode == 2 and "nowhere.env is no file; write it by" in done.stderr
    refused = slurm.site("refused.env", OPTIONS="(--partition=none-such)")
    done = slurm.run([*words[:-1], refused], capture_output=True)
    assert done.returncode == 1 and "SLURM refuses the job: " in done.stderr


def test_nothing_stays_of_a_slurm_whose_maker_is_killed():
    """Whatever interrupts the tests: the kernel ends daemons and jobs."""
    job = ["--hosts=1", "--", "sh", "-c", "sbatch --wrap='sleep 99'; sleep 99"]
    maker = subprocess.Popen(
        [sys.executable, str(lab.HERE / "lab.py"), *job], stdout=subprocess.PIPE, text=True
    )
    try:
        assert maker.stdout.readline().startswith("Submitted batch job")
        family = inhabitants(maker.pid)
        assert len(family) > 4  # munged, slurmctld, slurmd, the shell
    finally:
        maker.kill()
        maker.communicate()
    lab.wait(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in family), 30)


def inhabitants(maker):
    """The processes of the cluster that a process has made: those with its numbers of processes."""
    children = Path(f"/proc/{maker}/task/{maker}/children").read_text().split()
    (inside,) = (
        os.readlink(f"/proc/{first}/ns/pid_for_children")
        for first in children
        if Path(f"/proc/{first}/comm").read_text() == "unshare\n"
    )
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            found += [entry.name] * (os.readlink(entry / "ns" / "pid") == inside)
    return found
