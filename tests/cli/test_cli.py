"""The command without MPI: what it prints, what it refuses, and what it does not touch."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll import __version__, algorithms, registry
from mpicoll.base import launcher
from mpicoll.cli import app, parse
from mpicoll.cli.errors import UsageError


@pytest.fixture(autouse=True)
def _plain(no_launcher, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def refused(command):
    """Run a command that must be refused; the one line that says why."""

    def run(*words):
        done = command(*words)
        assert done.status == 2
        assert done.out == ""
        (line,) = done.err.splitlines()
        assert line.startswith("mpicoll: error: ")
        return line.removeprefix("mpicoll: error: ")

    return run


def process(*words, **options):
    """The command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "mpicoll", *words],
        capture_output=True,
        text=True,
        timeout=50,
        **options,
    )


# -- list, verify, show, simulate ------------------------------------------------------------------


def test_list_names_every_algorithm(command):
    done = command("list")
    assert done.status == 0
    for entry in algorithms.catalogue():
        assert f"{entry.collective} " in done.out
        assert f" {entry.name} " in done.out
    assert command("list", "gather").out.count("linear") == 1


def test_list_json(command):
    entries = json.loads(command("list", "--json").out)
    assert [(e["collective"], e["algorithm"]) for e in entries] == [
        (a.collective, a.name) for a in algorithms.catalogue()
    ]
    tree = next(e for e in entries if e["algorithm"] == "double_binary_tree")
    assert set(tree["parameters"]) == {"segments", "window"}


def test_verify_finds_everything_right(command):
    done = command("verify", "-P", "1-5,8")
    assert done.status == 0
    assert "wrong" not in done.out
    assert "1-5, 8" in done.out


def test_verify_json_has_the_cases_run(command):
    done = command("verify", "bcast", "linear", "-P", "2-3", "--roots", "all", "--json")
    facts = json.loads(done.out)
    assert facts["ok"] is True
    assert [(c["size"], c["root"]) for c in facts["cases"]] == [
        (2, 0), (2, 1), (3, 0), (3, 1), (3, 2),
    ]  # fmt: skip
    assert all(c["ok"] and c["problems"] == [] for c in facts["cases"])


def test_verify_takes_parameters(command):
    words = ("verify", "allreduce", "double_binary_tree", "-P", "4", "--set", "segments=3")
    (case,) = json.loads(command(*words, "--json").out)["cases"]
    assert case["parameters"]["segments"] == 3


def test_an_order_of_ranks_is_a_parameter(command):
    given = ("allreduce", "ring", "--set", "order=2,0,1,3")
    done = command("verify", *given)
    assert done.status == 0
    assert "1 of 1 case right" in done.out  # of all numbers of ranks, that of the order
    drawn = command("show", *given, "-P", "4").out
    assert drawn.splitlines()[0] == "allreduce ring, P = 4, order=2,0,1,3"
    assert "[2]>1  +[3]<2   [0]>3  +[2]<0   [3]>0  +[1]<3   [1]>2  +[0]<1" in drawn
    found = json.loads(command("simulate", *given, "-P", "4", "--json").out)["cases"][0]
    assert found["parameters"] == {"order": [2, 0, 1, 3]}
    assert found["time"] == pytest.approx(found["formula"])


def test_the_nodes_of_ranks_are_a_parameter(command):
    given = ("allreduce", "hierarchical", "--set", "nodes=0,1,1,0")
    done = command("verify", *given, "--set", "segments=2")
    assert "1 of 1 case right" in done.out
    drawn = command("show", *given).out
    title = "allreduce hierarchical, P = 4, nodes=0,1,1,0, segments=1, window=8"
    assert drawn.splitlines()[0] == title
    assert "4 steps, 16 messages, 4 blocks" in drawn
    found = json.loads(command("simulate", *given, "--json").out)["cases"][0]
    assert found["parameters"]["nodes"] == [0, 1, 1, 0]
    assert found["time"] == pytest.approx(found["formula"])
    alone = command("verify", "allreduce", "hierarchical", "-P", "1", "--set", "nodes=0,")
    assert "1 of 1 case right" in alone.out


def test_verify_tries_several_placements(command):
    words = ("verify", "bcast", "hierarchical", "-P", "6", "--roots", "5", "--json")
    cases = json.loads(command(*words).out)["cases"]
    tried = [(c["parameters"]["nodes"], c["parameters"]["segments"]) for c in cases]
    assert tried == [
        ([0, 0, 0, 1, 1, 1], 1), ([0, 1, 2, 0, 1, 2], 2), ([], 5), ([0, 0, 0, 0, 0, 0], 1),
    ]  # fmt: skip


def test_verify_tries_fewer_segments_of_many_blocks(command):
    def tried(*words):
        cases = json.loads(command("verify", "allreduce", *words, "--json").out)["cases"]
        return [(c["size"], c["parameters"]["segments"]) for c in cases]

    assert tried("hierarchical", "-P", "17") == [(17, 1), (17, 2)]
    assert tried("hierarchical", "-P", "17", "--segments", "1,3,4") == [(17, 1), (17, 3), (17, 4)]
    assert tried("double_binary_tree", "-P", "17") == [(17, 1), (17, 2), (17, 5)]


def test_verify_all_is_the_default(command):
    everything = json.loads(command("verify", "--all", "-P", "3", "--json").out)
    assert everything == json.loads(command("verify", "-P", "3", "--json").out)
    named = {(c["collective"], c["algorithm"]) for c in everything["cases"]}
    assert named == {(a.collective, a.name) for a in algorithms.catalogue() if a.runs_on(3)}


def test_verify_tells_what_is_wrong(command, monkeypatch):
    right = algorithms.find("allgather", "ring")
    wrong = right._replace(messages=lambda P: 7)
    monkeypatch.setitem(registry._CATALOGUE, ("allgather", "ring"), wrong)
    done = command("verify", "allgather", "-P", "1-3")
    assert done.status == 1
    assert "allgather ring, P = 3:" in done.out
    assert "messages: 7 registered, 6 counted" in done.out
    facts = json.loads(command("verify", "allgather", "ring", "-P", "3", "--json").out)
    assert facts["ok"] is False
    assert facts["cases"][0]["problems"] == ["messages: 7 registered, 6 counted"]


def test_show_draws(command):
    done = command("show", "allreduce", "ring", "-P", "3")
    assert done.status == 0
    assert "allreduce ring, P = 3" in done.out
    assert "rank 2" in done.out


def test_show_json_has_every_step(command):
    shown = json.loads(command("show", "allgather", "ring", "-P", "3", "--json").out)
    assert (shown["size"], shown["blocks"], shown["root"]) == (3, 3, None)
    rounds = [channel["rounds"] for channel in shown["ranks"][1]]
    assert rounds == [
        [
            [
                {"step": "Send", "peer": 2, "block": [["work", 1]]},
                {"step": "Recv", "peer": 0, "block": [["work", 0]]},
            ],
            [
                {"step": "Send", "peer": 2, "block": [["work", 0]]},
                {"step": "Recv", "peer": 0, "block": [["work", 2]]},
            ],
        ]
    ]


def test_show_writes_svg(command, tmp_path):
    done = command("show", "bcast", "linear", "--svg", tmp_path / "a.svg")
    assert done.status == 0
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_show_names_a_file_that_cannot_be_written(command, tmp_path):
    done = command("show", "bcast", "linear", "--svg", tmp_path / "no" / "a.svg")
    assert done.status == 1
    assert done.err == f"mpicoll: error: {tmp_path}/no/a.svg: No such file or directory\n"


def test_simulate_agrees_with_the_formula(command):
    words = ("simulate", "allreduce", "ring", "-P", "4", "-s", "1M", "--alpha", "2us")
    facts = json.loads(command(*words, "--beta", "1e-10", "--gamma", "50ps", "--json").out)
    assert facts["model"] == {
        **{"alpha": 2e-6, "beta": 1e-10, "gamma": 5e-11, "step": 0, "call": 0},
        **{"ports": 1, "per_node": None},
    }
    (case,) = facts["cases"]
    assert case["time"] == pytest.approx(2 * 3 * (2e-6 + (1 << 18) * 1e-10) + 3 * (1 << 18) * 5e-11)
    assert case["time"] == pytest.approx(case["formula"])
    assert case["bound"] <= case["time"]
    assert case["bytes_sent"] == 2 * 3 << 20


def test_simulate_costs_below_a_picosecond_count(command):
    def time_of(beta):
        words = ("simulate", "bcast", "linear", "-P", "2", "-s", "1G", "--alpha", "0")
        return json.loads(command(*words, "--beta", beta, "--json").out)["cases"][0]["time"]

    assert time_of("2.5ps") == pytest.approx(2.5e-12 * (1 << 30))


def test_simulate_compares_all(command):
    done = command("simulate", "allreduce", "all", "-P", "2,4", "-s", "8,1M")
    assert done.status == 0
    for name in algorithms.names("allreduce"):
        assert done.out.count(f" {name} ") + done.out.count(f"\n{name} ") == 4


# -- refusals --------------------------------------------------------------------------------------

EVEN = (
    "allgather neighbor_exchange: it needs an even number of ranks, not 3: take 4 ranks, or "
    "another algorithm"
)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "nope"], "unknown collective 'nope': known are allreduce"),
        (["show", "allreduce", "nope"], "unknown algorithm 'nope' for allreduce: known are"),
        (["show", "allreduce", "ring", "-P", "2-4"], "a drawing has one number of ranks"),
        (["show", "bcast", "linear", "--root", "4"], "root=4 is not among the ranks 0 .. 3"),
        (["show", "allreduce", "ring", "--set", "k=2"], "has no parameter 'k'"),
        (["show", "allreduce", "ring", "--set", "k"], "write a name and a whole number"),
        (["show", "allreduce", "ring", "--set", "order=1,1"], "order=(1, 1) must be a sequence"),
        (["show", "bcast", "hierarchical", "--set", "nodes=1,0"], "nodes=(1, 0) is for 2 ranks"),
        (["show", "bcast", "hierarchical", "--set", "nodes=4"], "nodes=4 must be a sequence with"),
        (["show", "allreduce", "ring", "--set", "order=1,0"], "is for 2 ranks, not for 4"),
        (["simulate", "allreduce", "ring", "--set", "order=1,0"], "is for 2 ranks, not for"),
        (["simulate", "allgather", "neighbor_exchange", "-P", "3"], "even number of ranks, not 3"),
        (["verify", "allgather", "neighbor_exchange", "-P", "3"], EVEN),
        (["verify", "allgather", "neighbor_exchange", "-P", "3,5"], EVEN),
        (
            ["verify", "allreduce", "ring", "-P", "3", "--set", "order=1,0"],
            "for 2 ranks, not for 3",
        ),
        (["verify", "allreduce", "--all"], "exclude each other"),
        (["verify", "--set", "segments=2"], "--set needs one algorithm"),
        (["verify", "-P", "0"], "0 is out of range; give 1 to"),
        (["verify", "-P", "8-2"], "the range 8-2 is empty; write 2-8"),
        (["verify", "-P", "four"], "neither a number nor a range; write 1-33 or 2,4,8"),
        (["verify", "bcast", "-P", "2", "--roots", "7"], "give 0 to 1, last or all"),
        (["simulate", "allreduce", "ring", "-s", "1X"], "'1X' is not a size"),
        (["simulate", "allreduce", "ring", "--alpha", "fast"], "--alpha 'fast' is not a time"),
        (["simulate", "allreduce", "all", "--set", "segments=2"], "name it instead of all"),
        (["simulate", "allreduce", "ring", "--inter-alpha", "1us"], "alpha needs --per-node"),
        (["simulate", "allreduce", "ring", "--straggler", "3"], "'' is no factor of at least 1"),
        (["simulate", "allreduce", "ring", "--straggler", "x=2"], "write ranks and factors"),
        (["simulate", "allreduce", "ring", "--straggler", "4=2"], "rank 4 is slow, but is not"),
        (["simulate", "allreduce", "ring", "--factor", "0.5"], "'0.5' is no factor of at least 1"),
        (["simulate", "allreduce", "ring", "--model", "m", "--beta", "1ps"], "--beta exclude each"),
        (["simulate", "allreduce", "ring", "--model", "none.json"], "No such file"),
        (["simulate", "allreduce", "ring", "--plot", "a.xyz"], "xyz"),
        (["bench", "allreduce", "--format", "xml"], "choose one of nccl, osu, csv, json"),
        (["bench", "allreduces"], "unknown collective 'allreduces': bench measures allreduce, "),
        (["bench", "allreduce", "--start", "gun"], "choose one of barrier, window"),
        (["bench", "allreduce", "--skew", "1.5"], "give 0 (equal blocks) to 1"),
        (["bench", "allreduce", "--ranks", "2,x"], "--ranks '2,x': 'x' is neither a number nor"),
        (["bench", "allreduce", "--resume"], "--resume needs the file to go on with"),
        (["bench", "--config", "no.toml"], "--config no.toml: No such file or directory"),
        (["bench", "allreduce", "-a", "rung"], "known are binomial, double_binary_tree"),
        (["bench", "allreduce", "-a", "linear", "--set", "order=1,0"], "no parameter 'order'"),
        (["bench", "allreduce", "-b", "64", "-e", "8"], "first size 64 is larger than the last"),
        (["bench", "allreduce", "-s", "8,64", "-e", "1K"], "lists all sizes; drop -b"),
        (["bench", "allreduce", "-f", "2", "-i", "8"], "exclude each other"),
        (["bench", "allreduce", "-f", "0"], "a factor of 0 does not grow; give at least 2"),
        (["bench", "allreduce", "-f", "1"], "a factor of 1 does not grow; give at least 2"),
        (["bench", "allreduce", "-f", "0", "-i", "8"], "exclude each other"),
        (["bench", "allreduce", "-s", "8,64", "-f", "0"], "lists all sizes; drop -b"),
        (["bench", "allreduce", "-i", "0"], "a step of 0 bytes does not grow"),
        (["bench", "allreduce", "-e", ""], "'' is not a size"),
        (["bench", "allreduce", "-s", "8,"], "'' is not a size"),
        (["bench", "allreduce", "-i", "1", "-e", "1T"], "makes 1,099,511,627,769 sizes, and the"),
        (["bench", "allreduce", "-w", "1000000000"], "100000; see `mpicoll bench --help`"),
        (["bench", "allreduce", "--ranks", "1-16777216"], "has more than 65,536 numbers"),
        (["bench", "allreduce", "-s", "64-8"], "first size 64 is larger than the last"),
        (["bench", "allreduce", "--precision", "nan"], "--precision nan is out of range"),
        (["bench", "allreduce", "--budget", "0"], "give at least 0.001 s"),
        (["bench", "allreduce", "-n", "0"], "`mpicoll bench --help`"),
        (["bench"], "missing argument"),
        (["train", "cats"], "unknown dataset 'cats': known are digits, mnist5k"),
        (["train", "mnist5k", "--hidden", "a,b"], "--hidden 'a,b' is no list of sizes"),
        (["train", "mnist5k", "--groups", "*.bias:decay=0,b"], "'b' is no group of parameters"),
        (["frobnicate"], "no such command 'frobnicate'; see `mpicoll --help`"),
        (["lst"], "no such command 'lst'. Did you mean 'list'? See `mpicoll --help`"),
        (["list", "--frobnicate"], "no such option: --frobnicate"),
    ],
)
def test_refusals_name_value_and_remedy(refused, words, message):
    assert message in refused(*words)


def test_no_words_print_help(command):
    done = command()
    assert done.status == 2
    assert "verify" in done.out
    assert command("--help").status == 0
    assert command("bench", "-h").status == 0


@pytest.mark.parametrize("name", app.COMMANDS)
def test_the_list_of_subcommands_has_the_first_sentence_of_each(name):
    first = app.load(name).help.split("\n\n")[0]
    assert " ".join(first.split()) == app.COMMANDS[name][2]


def test_help_imports_no_subcommand():
    code = "import sys; from mpicoll.cli import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert "mpicoll.cli.app" in done.stdout
    assert "mpicoll.cli.commands." not in done.stdout


def test_version(command):
    assert command("--version").out == f"mpicoll {__version__}\n"


# -- reading the command line ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("4", (4,)), ("1-4", (1, 2, 3, 4)), ("8,2,4", (2, 4, 8)), ("1-3, 2-4 ,9", (1, 2, 3, 4, 9))],
)
def test_ranks(text, numbers):
    assert parse.ranks(text) == numbers


@given(st.sets(st.integers(1, 1 << 20), min_size=1, max_size=9))
def test_ranks_are_ascending_and_each_once(numbers):
    text = ",".join(map(str, numbers))
    assert parse.ranks(f"{text},{text}") == tuple(sorted(numbers))


@given(st.text(max_size=9))
def test_any_text_is_ranks_or_a_usage_error(text):
    try:
        found = parse.ranks(text)
    except UsageError as error:
        assert repr(text) in str(error)  # noqa: PT017 - both outcomes are right
    else:
        assert min(found) >= 1


@pytest.mark.parametrize(
    ("text", "size", "roots"),
    [("0,last", 1, (0,)), ("0,last", 4, (0, 3)), ("all", 3, (0, 1, 2)), ("1-2,9", 3, (1, 2))],
)
def test_roots(text, size, roots):
    assert parse.roots_of(parse.roots(text), size) == roots


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 10**18), ("1e-6", 10**12), ("1.5us", 15 * 10**11), ("80ps", 8 * 10**7), ("0", 0)],
)
def test_times(text, value):
    assert parse.attoseconds("--alpha", text) == value


# -- the process -----------------------------------------------------------------------------------

BLOCKED = """
import sys
for name in ("mpi4py", "mpi4py.MPI"):
    sys.modules[name] = None
from mpicoll.cli import main
status = main(sys.argv[1:])
loaded = [name for name in sys.modules if name.startswith("mpi4py") and sys.modules[name]]
sys.exit(f"loaded {loaded}" if loaded else status)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["verify", "-P", "1-4"],
        ["show", "allreduce", "double_binary_tree"],
        ["simulate", "allreduce", "all"],
    ],
)
def test_without_mpi(words):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *words], capture_output=True, text=True, timeout=50
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize("words", [["bench", "allreduce"], ["train", "mnist5k"]])
def test_without_mpi_the_others_say_what_to_install(words):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *words], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 2
    assert "install mpi4py and an MPI library" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_doctor_without_mpi_is_a_diagnosis():
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=50,
    )
    facts = json.loads(done.stdout)
    assert done.returncode == 1
    assert facts["mpi"] is None
    assert "install mpi4py" in facts["problems"][0]


def test_list_loads_nothing_heavy():
    code = (
        "import sys; from mpicoll.cli import main; main(['list', '--json']); "
        "heavy = {'numpy', 'mpi4py', 'plotly', 'matplotlib', 'scipy'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "variables",
    [
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
        {"PMI_RANK": "1", "PMI_SIZE": "2"},
        {"PMIX_RANK": "1"},
        {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
    ],
)
@pytest.mark.parametrize("words", [["list"], ["verify", "-P", "0"], ["frobnicate"], []])
def test_other_ranks_are_silent(words, variables):
    done = process(*words, env={**os.environ, **variables})
    assert (done.stdout, done.stderr) == ("", "")


def test_a_reader_that_leaves_is_no_error():
    code = f"{sys.executable} -m mpicoll verify --all -P 1-6 --json"
    done = subprocess.run(
        ["bash", "-c", f"{code} | head -n 1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.stdout == "{\n"
    assert done.stderr == ""
    assert done.returncode in (0, 141)


def _has_used(process, seconds):
    """Wait until a process has used so much time of a processor, however busy that is."""
    used = 0
    while used < seconds * os.sysconf("SC_CLK_TCK"):
        time.sleep(0.05)
        words = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        used = int(words[11]) + int(words[12])


def test_ctrl_c_ends_at_once_and_quietly():
    started = subprocess.Popen(
        [sys.executable, "-m", "mpicoll", "simulate", "allreduce", "ring", "-P", "2-4000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _has_used(started.pid, 1.2)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=20)
    assert (started.returncode, out, err) == (130, "", "")


def test_ctrl_c_that_comes_with_the_end_of_an_object_is_heard(monkeypatch):
    class Dropped:
        def __del__(self):
            raise KeyboardInterrupt

    def run(words):
        Dropped()
        for _ in range(1000):
            time.sleep(0.001)
        return 0

    command = sys.modules["mpicoll.cli.main"]
    monkeypatch.setattr(command, "_run", run)
    assert command.main(["list"]) == 130


# -- the launcher ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ("none", 0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, ("mpirun (Open MPI)", 2, 4)),
        ({"PMIX_RANK": "3"}, ("a PMIx launcher", 3, None)),
        # An allocation's shell and a batch script are no launched ranks.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, ("none", 0, 1)),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, ("srun", 5, 8)),
        # mpirun's daemons were started by srun, one a node.
        (
            {
                "OMPI_COMM_WORLD_RANK": "6",
                "OMPI_COMM_WORLD_SIZE": "8",
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": "1",
                "SLURM_STEP_NUM_TASKS": "2",
            },
            ("mpirun (Open MPI)", 6, 8),
        ),
        ({"PMI_RANK": "x", "PMI_SIZE": "2"}, ("none", 0, 1)),
    ],
)
def test_what_the_environment_says(variables, expected):
    assert launcher.launch(variables) == expected


def test_lone_ranks_are_explained():
    lone = launcher.mismatch(launcher.Launch("srun", 0, 4), 1)
    assert "srun started 4 processes" in lone
    assert "--mpi=pmix" in lone
    assert launcher.mismatch(launcher.Launch("srun", 0, 4), 4) is None
    assert launcher.mismatch(launcher.Launch("none", 0, 1), 1) is None
    assert launcher.mismatch(launcher.Launch("a PMIx launcher", 0, None), 1) is None
