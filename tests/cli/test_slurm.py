"""What `mpicoll slurm submit` would submit, and what it refuses; tests/slurm submits for real."""

import os
import shlex
import subprocess

import pytest

from mpicoll.cli import batch
from mpicoll.cli.commands import doctor

SCRIPTS = batch.SCRIPTS


@pytest.fixture
def site(tmp_path):
    """Settings of a site: a file in bash, with lists and names that have blanks."""
    file = tmp_path / "my site.env"
    file.write_text(
        f"SCRIPTS={SCRIPTS}\nSHARED='{tmp_path}/all runs'\n"
        "OPTIONS=(--partition=main '--comment=two words')\nGPU_OPTIONS=(--partition=gpu)\n"
        "prepare() { exit 7; }\necho noise\n"
    )
    return file


def shown(command, site, *words):
    """The sbatch commands of a dry run, as words, and the scripts that follow."""
    done = command("slurm", "submit", *words[:1], "--site", site, "--dry-run", *words[1:])
    assert done.status == 0, done.err
    commands, _, scripts = done.out.partition("\n# ")
    return [shlex.split(line) for line in commands.splitlines() if line], scripts


def test_a_sweep_is_an_array_for_each_number_of_nodes(command, site, tmp_path):
    words = ("-N", "1,4", "--per-node", "1,2,8", "--launches", "5", "--at-once", "2", "-t", "30")
    jobs, scripts = shown(command, site, "sweep", *words, "--", "allreduce", "-s", "8,1M")
    assert len(jobs) == 2
    for nodes, job in zip((1, 4), jobs, strict=True):
        assert job == [
            *("sbatch", "--parsable", "--job-name=mpicoll-sweep", f"--nodes={nodes}"),
            *("--ntasks-per-node=8", "--array=0-14%2"),
            f"--output={tmp_path}/all runs/sweep/nodes{nodes}-%a-%A.out",
            *("--partition=main", "--comment=two words", "--time=30"),
            *(str(SCRIPTS / "sweep.sbatch"), str(site), "sweep", "1,2,8"),
            *("allreduce", "-s", "8,1M"),
        ]
    assert scripts == f"{SCRIPTS / 'sweep.sbatch'}\n{(SCRIPTS / 'sweep.sbatch').read_text()}\n"
    assert not (tmp_path / "all runs").exists()


def test_a_report_waits_for_all_of_the_sweep(command, site):
    jobs, scripts = shown(
        command, site, "gpu-sweep", "--nodes=1,2", "--per-node=4", "--report", "--", "bcast"
    )
    assert len(jobs) == 3
    assert {"--gpus-per-node=4", "--partition=gpu", "--array=0-0"} <= set(jobs[0])
    assert "--dependency=afterok:JOB:JOB" in jobs[2]
    assert jobs[2][-3:] == [str(SCRIPTS / "report.sbatch"), str(site), "gpu-sweep"]
    assert scripts.count("#!/bin/bash") == 2


def test_a_chain_of_trainings_is_never_queued_again(command, site):
    words = ("--name", "a", "--chain", "3", "-N", "2", "--option=--qos=long", "mnist5k")
    jobs, _ = shown(command, site, "train", *words)
    assert len(jobs) == 3 and jobs[0] == jobs[1] == jobs[2]
    assert {"--dependency=singleton", "--no-requeue", "--job-name=mpicoll-a"} <= set(jobs[0])
    assert "--qos=long" in jobs[0] and jobs[0][-1] == "mnist5k"
    (single,), _ = shown(command, site, "gpu-train", "--per-node", "8")
    assert "--gpus-per-node=8" in single and "--no-requeue" not in single


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("foo",), "unknown kind of job 'foo'; choose one of sweep, train, search, run, gpu-sweep"),
        (("train", "--name=a/b"), "--name 'a/b' is no name of a folder; write letters"),
        (("train", "--nodes=1,2"), "--nodes 1,2 is for a sweep; give one number"),
        (("train", "--launches=2"), "--launches and --at-once are for a sweep; leave them out"),
        (("run",), "run needs a program; write it after --, as -- python app.py"),
        (("search",), "a search needs a space; write its file after --, as -- space.toml"),
        (("run", "--chain=2", "python"), "--chain 2 is for a training or a search; leave it out"),
        (("train", "--report"), "--report follows a sweep; leave it out of train"),
        (("sweep",), "a sweep needs a collective; write it after --, as -- allreduce"),
        (
            ("sweep", "--chain=2", "bcast"),
            "--chain 2 is for a training or a search; a sweep has --launches",
        ),
        (("sweep", "--per-node=x", "bcast"), "--per-node 'x': 'x' is neither a number nor a range"),
    ],
)
def test_what_does_not_fit_together_is_refused(command, site, words, message):
    done = command("slurm", "submit", "--site", site, "--dry-run", *words)
    assert done.status == 2
    assert message in done.err


def test_a_program_of_ones_own_is_a_job(command, site):
    program = ("python", "my app.py", "--steps", "5")
    words = ("--name", "a", "-N", "2", "--per-node", "8", "--", *program)
    (job,), scripts = shown(command, site, "run", *words)
    assert {"--nodes=2", "--ntasks-per-node=8"} <= set(job)
    assert job[-5:] == ["a", "python", "my app.py", "--steps", "5"]
    assert "--gpus-per-node=8" not in job and "#SBATCH --no-requeue" in scripts
    (job,), scripts = shown(command, site, "gpu-run", *words)
    assert "--gpus-per-node=8" in job and "one-gpu.sh" in scripts


@pytest.mark.parametrize(
    ("kind", "begin"),
    [
        ("run", ["-n", "6", "--map-by", "ppr:3:node", "--bind-to", "none"]),
        (
            "gpu-run",
            ["-n", "4", "--map-by", "ppr:2:node", "--bind-to", "none", str(SCRIPTS / "one-gpu.sh")],
        ),
    ],
)
def test_a_job_starts_the_program_by_the_launcher_of_the_site(tmp_path, kind, begin):
    """The script itself, where a launcher that says what it was given stands for mpirun."""
    launcher = tmp_path / "mpirun"
    launcher.write_text(
        '#!/bin/bash\n[[ $1 = --version ]] && echo "mpirun (Open MPI) 5" && exit\n'
        "printf '%s\\n' \"$@\"\n"
    )
    launcher.chmod(0o755)
    file = tmp_path / "site.env"
    file.write_text(
        f"SCRIPTS={SCRIPTS}\nSHARED={tmp_path}/runs\nLOCAL={tmp_path}\nLAUNCHER=mpirun\nBIND=none\n"
        f'prepare() {{ export PATH={tmp_path}:"$PATH"; }}\n'
    )
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "h[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    job |= {"SLURM_NTASKS_PER_NODE": "3", "SLURM_GPUS_ON_NODE": "2"}
    done = subprocess.run(
        ["bash", SCRIPTS / f"{kind}.sbatch", file, "mine", "python", "my app.py"],
        env={**os.environ, **job},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [*begin, "python", "my app.py"]
    assert (tmp_path / "runs" / "mine").is_dir()


@pytest.mark.parametrize(
    ("kind", "words", "epochs", "status", "said"),
    [
        ("search", ["--method", "asha"], 3, 0, "finished"),
        ("search", ["--survive"], 3, 0, "finished"),
        ("train", [], 3, 0, "finished"),
        ("search", [], 3, 75, "queued again"),
        ("search", [], 3, 1, "it ended with an error: not queued again"),
        ("search", [], 3, 9, "the ranks were lost (exit status 9)"),
    ],
)
def test_a_job_goes_on_until_it_is_finished(tmp_path, kind, words, epochs, status, said):
    """The script itself, where a launcher that ends as it is told to stands for mpirun."""
    tools = {
        "mpirun": '[[ $1 = --version ]] && echo "mpirun (Open MPI) 5" && exit\n'
        f"printf '%s\\n' \"$@\" >{tmp_path}/started; echo '{{}}'; exit {status}\n",
        "squeue": "echo RUNNING\n",
        "scancel": "exit\n",
        "scontrol": f'echo "$@" >>{tmp_path}/queued\n',
    }
    for name, text in tools.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}")
        (tmp_path / name).chmod(0o755)
    file, run = tmp_path / "site.env", tmp_path / "runs" / "mine"
    file.write_text(
        f"SCRIPTS={SCRIPTS}\nSHARED={tmp_path}/runs\nLOCAL={tmp_path}\nLAUNCHER=mpirun\nBIND=none\n"
        f'RESTARTS=5\nprepare() {{ export PATH={tmp_path}:"$PATH"; }}\n'
    )
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "h[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    job |= {"SLURM_NTASKS_PER_NODE": "3", "SLURM_JOB_NAME": "mine", "SLURM_JOB_USER": "me"}
    (run / "search").mkdir(parents=True)
    trials = run / "search" / "trials.jsonl"
    trials.write_text('{"event":"search"}\n' + '{"event":"epoch"}\n' * epochs)

    def start():
        script = ["bash", SCRIPTS / f"{kind}.sbatch", file, "mine", "my space.toml", *words]
        environment = {**os.environ, **job}
        return subprocess.run(
            script, env=environment, capture_output=True, encoding="utf-8", check=False
        )

    done = start()
    assert said in done.stderr
    assert done.returncode == (1 if status == 1 else 0)
    started = (tmp_path / "started").read_text().splitlines()
    at = started.index("mpicoll")
    assert ("--with-ft" in started[:at]) == ("--survive" in words)
    assert started[at : at + 3 + len(words)] == ["mpicoll", kind, "my space.toml", *words]
    mine = ["--output", f"{run}/search", "--resume", "--json"]
    assert started[at + 3 + len(words) :][: len(mine)] == (
        mine
        if kind == "search"
        else ["--checkpoint", f"{run}/checkpoints", "--metrics", f"{run}/metrics"]
    )
    assert (run / "result.json").exists() == (status == 0)
    assert (tmp_path / "queued").exists() == (status in (75, 9))
    if status == 9:
        trials.write_text(trials.read_text() + '{"event":"epoch"}\n')
        assert start().returncode == 0  # it has come further
        done = start()
        assert done.returncode == 9
        assert "the ranks were lost twice after epoch 4 (exit status 9)" in done.stderr


def test_a_search_is_submitted_as_a_training_is(command, site):
    words = (
        "--name",
        "a",
        "--chain",
        "2",
        "-N",
        "2",
        "--per-node",
        "8",
        "--",
        "space.toml",
        "--eta",
        "2",
    )
    jobs, scripts = shown(command, site, "search", *words)
    assert len(jobs) == 2
    assert {"--dependency=singleton", "--nodes=2", "--ntasks-per-node=8"} <= set(jobs[0])
    assert jobs[0][-5:] == [str(site), "a", "space.toml", "--eta", "2"]
    assert '\nsearch "$SLURM_NTASKS_PER_NODE" mpicoll search "${@:3}"\n' in scripts
    (job,), _ = shown(command, site, "gpu-search", "--per-node", "4", "--", "space.toml")
    assert "--gpus-per-node=4" in job


def test_a_dry_run_fails_before_it_prints(command, site, tmp_path):
    text = site.read_text().replace(str(SCRIPTS), str(tmp_path / "nowhere"))
    site.write_text(text)
    done = command("slurm", "submit", "train", "--site", site, "--dry-run", "--", "mnist5k")
    assert done.status == 2 and done.out == ""
    assert "nowhere/train.sbatch cannot be read: No such file or directory; write" in done.err


def test_scripts_are_written_where_the_site_wants_them(command, tmp_path):
    folder = tmp_path / "my scripts"
    done = command("slurm", "init", folder)
    assert done.status == 0 and "site.env: edit it" in done.out
    assert os.access(folder / "one-gpu.sh", os.X_OK) and not os.access(folder / "site.env", os.X_OK)
    assert {path.name for path in SCRIPTS.iterdir()} < {path.name for path in folder.iterdir()}
    settings = batch.site(folder / "site.env")
    assert settings.scripts == folder
    jobs, _ = shown(command, folder / "site.env", "run", "--", "python", "app.py")
    assert str(folder / "run.sbatch") in jobs[0]
    (folder / "site.env").write_text("mine\n")
    done = command("slurm", "init", folder)
    assert "site.env: kept" in done.out and (folder / "site.env").read_text() == "mine\n"


def test_settings_that_cannot_be_read_are_named(command, tmp_path):
    done = command("slurm", "submit", "train", "--site", tmp_path / "none.env")
    assert done.status == 2 and "none.env is no file; write it by `mpicoll slurm init`" in done.err
    file = tmp_path / "short.env"
    file.write_text("SCRIPTS=/x\n")
    done = command("slurm", "submit", "train", "--site", file)
    assert done.status == 2
    assert "short.env cannot be read: " in done.err and "SHARED: unbound variable" in done.err


def test_without_sbatch_the_command_says_so(command, site, monkeypatch):
    monkeypatch.setattr(batch.subprocess, "run", refuse)
    with pytest.raises(batch.UsageError, match="there is no sbatch here; submit where SLURM is"):
        batch.submit(["sbatch"])


def refuse(*arguments, **options):
    raise FileNotFoundError


def test_the_example_has_every_setting_that_the_scripts_read():
    example = SCRIPTS / "site.env.example"
    settings = batch.site(example)
    assert settings.options == ("--partition=compute", "--account=project")
    assert settings.scripts.name == "slurm"
    common = "".join(path.read_text() for path in SCRIPTS.glob("*.sh"))
    for name in ("SHARED", "LOCAL", "LAUNCHER", "SRUN_MPI", "BIND", "RESTARTS"):
        assert f"${name}" in common or f"{name}))" in common
        assert f"\n{name}=" in example.read_text()


@pytest.mark.parametrize("script", sorted(SCRIPTS.iterdir()), ids=lambda path: path.name)
def test_scripts_are_bash(script):
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert script.read_text().count("\n") < 130


@pytest.mark.parametrize(
    ("visible", "number", "seen"),
    [("0,1", 1, "0,1"), ("GPU-a,GPU-b", 0, "GPU-a,GPU-b"), ("MIG-a,MIG-b", 1, "MIG-b")],
)
def test_a_rank_sees_all_gpus_of_its_node_but_one_part_of_a_divided_one(visible, number, seen):
    assert with_gpus(visible, number).stdout == f"{seen}\n"


@pytest.mark.parametrize(("visible", "number"), [("0,1", 2), ("MIG-a", 1), ("", 0)])
def test_more_ranks_than_gpus_are_refused(visible, number):
    done = with_gpus(visible, number)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"rank {number} of " in done.stderr
    assert f"has no GPU of CUDA_VISIBLE_DEVICES={visible}: start" in done.stderr


def with_gpus(visible, number):
    """What a rank of this number on its node finds that sees these GPUs."""
    words = [SCRIPTS / "one-gpu.sh", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    ours = {"PATH": os.environ["PATH"], "SLURM_LOCALID": str(number)}
    environment = {**ours, "CUDA_VISIBLE_DEVICES": visible}
    return subprocess.run(words, capture_output=True, text=True, env=environment)


def rank(number, host, cores, threads):
    return {"rank": number, "host": host, "cores": cores, "blas_threads": threads}


def test_doctor_shows_ranks_that_are_alike_in_one_line():
    ranks = [
        rank(0, "a", [0, 1, 2, 3], 1),
        rank(1, "a", [0, 1, 2, 3], 1),
        rank(2, "a", [4], 1),
        rank(3, "b", [0, 2, 3], None),
    ]
    assert doctor._layout(ranks) == [
        ("ranks 0-1", "a, cores 0-3, BLAS threads 1"),
        ("rank 2", "a, core 4, BLAS threads 1"),
        ("rank 3", "b, cores 0,2-3, BLAS threads unknown"),
    ]
    assert doctor._hosts(ranks) == [
        {"host": "a", "ranks": 3, "cores": 5},
        {"host": "b", "ranks": 1, "cores": 3},
    ]


def test_doctor_warns_of_more_threads_than_cores():
    ranks = [rank(0, "a", [0], 1), rank(1, "a", [1], 8), rank(2, "b", [0, 1], 3)]
    (warning,) = doctor._thread_warnings(ranks)
    assert warning == (
        "2 ranks, the first is rank 1 on a, would use 8 BLAS threads on 1 core; set "
        "OMP_NUM_THREADS=1"
    )
    assert doctor._thread_warnings(ranks[:1]) == []


@pytest.mark.parametrize(
    ("version", "launcher", "words", "expected"),
    [
        ("Open MPI 5", "mpirun", "digits --survive", "mpirun --with-ft ulfm --mca mpi_ft_detector"),
        ("Open MPI 5", "mpirun", "digits", "mpirun -n 4\n"),
        ("Open MPI 5", "srun", "digits --survive", "--survive needs mpirun of Open MPI 5: set"),
        ("HYDRA", "mpirun", "digits --survive", "--survive needs mpirun of Open MPI 5: set"),
    ],
)
def test_ranks_outlive_each_other_where_it_is_asked_for(version, launcher, words, expected):
    common, text = ((SCRIPTS / f"{name}.sh").read_text() for name in ("common", "resumable"))
    asks = next(line for line in common.splitlines() if line.startswith("is_open_mpi() {"))
    function = text[text.index("outlive() {") : text.index("\n}\n", text.index("outlive() {")) + 3]
    script = f"""
        say() {{ echo "$*"; }}
        mpirun() {{ echo {version}; }}
        LAUNCHER={launcher} launch=({launcher} -n 4)
        {asks}
        {function}
        outlive mpicoll train {words}
        echo "${{launch[*]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.startswith(expected)
    assert done.returncode == (2 if "needs" in expected else 0)
