"""The command that fits, predicts, explains, tunes and compares: what it prints and refuses."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from synthetic import launched, write

from mpicoll.bench import records
from mpicoll.cli import main
from mpicoll.simulate.costs import CostModel, Costs, Piece
from mpicoll.tuning import cost_files, rule_files

pytest.importorskip("scipy")
pytest.importorskip("pydantic")
pytestmark = pytest.mark.usefixtures("no_launcher")

COSTS = Costs({"intra": (Piece(None, 2e-6, 1e-10),)}, gamma=5e-11, call=1e-6)
MEASURED = {"allreduce": ["ring", "recursive_doubling", "native"], "allgather": ["ring"]}


@pytest.fixture
def refused(command):
    """Run a command that must be refused; the one line that says why."""

    def run(*words):
        done = command(*words)
        assert (done.status, done.out) == (2, "")
        (line,) = [line for line in done.err.splitlines() if "warning" not in line]
        return line.removeprefix("mpicoll: error: ")

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    sizes = tuple(8 << i for i in range(0, 20, 3))
    given = {"sizes": sizes, "repetitions": 7}
    write(path / "runs.jsonl", launched(COSTS, MEASURED, launches=2, **given))
    assert main(["fit", str(path / "runs.jsonl"), "-o", str(path / "model.json")]) == 0
    some = {**given, "ranks": (4,), "sizes": sizes[:3], "launches": 7}
    write(path / "a.jsonl", launched(COSTS, MEASURED, name="a", seed=1, **some))
    write(path / "b.jsonl", launched(COSTS, MEASURED, name="b", seed=2, **some))
    slower = {("allreduce", "ring"): 1.1}
    write(path / "c.jsonl", launched(COSTS, MEASURED, name="c", seed=3, slower=slower, **some))
    return path


# --- fit ------------------------------------------------------------------------------------------


def test_fit_prints_what_it_found(command, folder, tmp_path):
    done = command("fit", folder / "runs.jsonl", "-o", tmp_path / "m.json")
    assert done.status == 0
    for words in (
        "2 launches, P = 2, 4, 8; MPI library Some MPI 1.0, processor some",
        "condition number",
        "beta intra",
        "not identified: rounds and messages, or calls, grow alike",
        "sizes left out, own costs",
        "ranks left out, general costs",
        "noise floor, the spread of identical launches: ",
        "recursive_doubling  ring",
        "always native",
        f"written to {tmp_path / 'm.json'}",
    ):
        assert words in done.out, words
    assert "curve: the schedule is unknown" in done.out
    model = cost_files.read(tmp_path / "m.json")
    assert model.general.links["intra"][-1].beta == pytest.approx(1e-10, rel=0.1)
    assert set(model.curves["allreduce"]) == {"native"}
    assert len(model.evidence["allreduce"]["ring"].replicates) == 80


def test_fit_json(command, folder, tmp_path):
    done = command("fit", folder / "runs.jsonl", "-o", tmp_path / "m.json", "--json")
    facts = json.loads(done.out)
    assert facts["general"]["call"] == pytest.approx(1e-6, rel=0.2)
    assert set(facts["refused"]) >= {"step"} and facts["condition"] > 1
    assert facts["regret"]["measurements"]["n"] > 10
    assert facts["crossovers"][0]["place"]["collective"] == "allreduce"


def test_a_torn_last_line_is_dropped_with_a_warning(command, folder, tmp_path):
    text = (folder / "a.jsonl").read_text()
    (tmp_path / "torn.jsonl").write_text(text[:-40])
    done = command("fit", tmp_path / "torn.jsonl", "-o", tmp_path / "m.json")
    assert done.status == 0
    assert "mpicoll: warning: " in done.err and "dropped: not complete JSON" in done.err


@pytest.fixture
def spoiled(folder, tmp_path):
    """Launches, of which one has a point with wrong results."""
    runs = records.read(folder / "a.jsonl")
    bad = runs[-1].points[0]
    runs[-1].points[0] = replace(bad, wrong=3, problem="rank 1, index 0: want 1.0, got 2.0")
    return write(tmp_path / "spoiled.jsonl", runs)


@pytest.mark.parametrize("name", ["fit", "tune", "compare", "compared", "report", "no-model"])
def test_wrong_results_are_never_green(command, folder, spoiled, tmp_path, name):
    out = tmp_path / "out"
    words = {
        "fit": ("fit", spoiled, "-o", out),
        "tune": ("tune", spoiled, "-o", out),
        "compare": ("compare", folder / "b.jsonl", spoiled),
        "compared": ("compare", spoiled, folder / "b.jsonl", "--json"),
        "report": ("report", spoiled, "-o", out),
        "no-model": ("report", spoiled, "-o", out, "--no-model"),
    }[name]
    done = command(*words)
    assert done.status == 1
    said = "error: allreduce ring, 8 bytes: 3 wrong elements, the first at rank 1, index 0: want"
    assert done.err.count(said) == 1
    if name.startswith("compare"):
        assert "1 point left out: their results were wrong" in done.err
    elif name == "no-model":
        assert "the results have 3 wrong elements" in out.read_text(encoding="utf-8")


def test_points_with_more_ranks_than_cores_are_not_performance(command, refused, tmp_path):
    runs = launched(COSTS, {"allgather": ["ring"]}, launches=1, sizes=(8, 64, 512))
    for run in runs:
        run.points = [type(p)(**{**vars(p), "oversubscribed": True}) for p in run.points]
    path = write(tmp_path / "over.jsonl", runs)
    assert "--oversubscribed uses them" in refused("fit", path, "-o", tmp_path / "m.json")
    done = command("fit", path, "-o", tmp_path / "m.json", "--oversubscribed")
    assert done.status == 0 and "a single launch" in done.err


def test_runs_of_different_machines(command, refused, folder, tmp_path):
    other = launched(COSTS, MEASURED, launches=1, name="other", sizes=(8, 4096), ranks=(2, 4))
    other[0].facts["processor"] = "another"
    path = write(tmp_path / "other.jsonl", other)
    words = ("fit", folder / "runs.jsonl", path, "-o", tmp_path / "m.json")
    assert "--mix" in refused(*words)
    assert not (tmp_path / "m.json").exists()
    assert command(*words, "--mix").status == 0


@pytest.mark.parametrize("content", ["", "no JSON\n", '{"record": "run", "run": "r"}\n'])
def test_a_file_without_points(refused, tmp_path, content):
    (tmp_path / "none.jsonl").write_text(content)
    for words in (("fit",), ("tune",), ("compare", tmp_path / "none.jsonl")):
        message = refused(*words, tmp_path / "none.jsonl")
        assert "none.jsonl holds no measured point" in message


def test_what_cannot_be_told(refused, tmp_path):
    runs = launched(COSTS, {"allgather": ["ring"]}, launches=1, sizes=(64,), ranks=(4,))
    path = write(tmp_path / "one.jsonl", runs)
    message = refused("fit", path, "-o", tmp_path / "m.json")
    assert "beta intra not identified" in message and "measure at least two sizes" in message


def test_no_room_for_the_result(command, folder, tmp_path):
    done = command("fit", folder / "runs.jsonl", "-o", tmp_path / "no" / "m.json")
    assert done.status == 1
    assert "No such file or directory" in done.err and len(done.err.splitlines()) == 1


# --- predict and explain --------------------------------------------------------------------------


def test_predict(command, folder):
    words = (
        "predict",
        "allreduce",
        "ring",
        "-P",
        "4,8",
        "-s",
        "4K,1M",
        "-m",
        folder / "model.json",
    )
    found = json.loads(command(*words, "--json").out)
    assert [(p["ranks"], p["nbytes"]) for p in found] == [
        (4, 4096), (4, 1 << 20), (8, 4096), (8, 1 << 20),
    ]  # fmt: skip
    for p in found:
        exact = 1e-6 + 2 * (p["ranks"] - 1) * 2e-6
        exact += (p["ranks"] - 1) / p["ranks"] * p["nbytes"] * 2.5e-10
        assert p["seconds"] == pytest.approx(exact, rel=0.05)
        assert p["low"] <= p["seconds"] <= p["high"]
        assert p["source"] == "own parameters"
    assert "6 messages, 1572864 bytes and 6 rounds" in command(*words).out


def test_outside_of_what_was_measured_is_a_warning(command, folder):
    given = ("-P", "64", "-s", "1G", "-m", folder / "model.json")
    done = command("predict", "allreduce", "ring", *given)
    assert done.status == 0
    assert "warning: P = 64 is outside of what was measured, P = 2, 4, 8" in done.err
    assert "warning: a size of 1073741824 bytes is outside" in done.err


def test_explain_ranks(command, folder):
    words = ("explain", "allreduce", "-P", "8", "-s", "256K", "-m", folder / "model.json")
    found = json.loads(command(*words, "--json").out)
    ranking = found["ranking"]
    assert ranking[0]["choice"] == "ring"
    assert [p["seconds"] for p in ranking] == sorted(p["seconds"] for p in ranking)
    more = json.loads(command(*words, "--all", "--json").out)["ranking"]
    assert {"general parameters", "own parameters"} < {p["source"] for p in more}
    done = command(*words)
    assert "% latency" in done.out or "% transfer" in done.out
    assert "general parameters" in command("explain", "bcast", "-m", folder / "model.json").out


def test_explain_says_why(command, folder):
    words = ("explain", "-P", "8", "-m", folder / "model.json", "--json")
    found = json.loads(command(*words, "Allreduce", "-s", "64K").out)
    first, second = found["ranking"][:2]
    assert {first["choice"], second["choice"]} <= {"ring", "recursive_doubling"}
    terms = found["why"].removeprefix(f"{first['choice']} comes before {second['choice']}: ")
    told = [term.split(" us against ") for term in terms.split(", ")]
    assert len(told) == 3  # the largest of four
    for mine, theirs in told:
        name, value = mine.rsplit(" ", 1)
        assert float(value) == pytest.approx(first["parts"][name] * 1e6, rel=1e-3)
        assert float(theirs.removesuffix(" us")) == pytest.approx(
            second["parts"][name] * 1e6, rel=1e-3
        )
    largest = [max(first["parts"][n], second["parts"][n]) for n in first["parts"]]
    assert max(largest) == max(
        first["parts"][told[0][0].rsplit(" ", 1)[0]], second["parts"][told[0][0].rsplit(" ", 1)[0]]
    )
    # Of the library's own collective nothing is known but its times.
    unknown = json.loads(command(*words, "all-reduce", "-s", "1M").out)
    first, second = (p["choice"] for p in unknown["ranking"][:2])
    if "native" in (first, second):
        assert unknown["why"].startswith(f"why {first} comes before {second} is not known: native")


@pytest.mark.parametrize(
    "spelling", ["allreduce", "Allreduce", "ALL_REDUCE", "MPI_Iallreduce", "Allreduce_init"]
)
def test_any_spelling(command, folder, spelling):
    given = ("ring", "-P", "4", "-s", "4K", "-m", folder / "model.json", "--json")
    (found,) = json.loads(command("predict", spelling, *given).out)
    assert found["collective"] == "allreduce"


def test_explain_without_a_model(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    done = command("explain", "Reduce-Scatter", "-P", "8", "-s", "256K")
    assert done.status == 0
    first, runs, why, *_ = done.out.splitlines()
    assert first.startswith("no model of this machine: costs are those of another one (MPI library")
    assert runs == "without algorithm= runs parameter_server (built-in table)"
    assert " comes before " in why
    assert "native" in done.out
    found = json.loads(command("explain", "scan", "-P", "5", "--json").out)
    assert found["runs"] == {"choice": "recursive_doubling", "source": "built-in table"}


def test_one_algorithm_is_held_against_none(command, folder, tmp_path):
    runs = launched(COSTS, {"bcast": ["linear"]}, ranks=(2, 4), repetitions=5)
    write(tmp_path / "one.jsonl", runs)
    command("fit", tmp_path / "one.jsonl", "-o", tmp_path / "one.json")
    done = command("explain", "bcast", "-P", "4", "-m", tmp_path / "one.json")
    assert "linear is the only one of " in done.out and "rank them unmeasured by --all" in done.out
    assert "only one" not in command("explain", "bcast", "--all", "-m", tmp_path / "one.json").out


# --- links between nodes --------------------------------------------------------------------------

NO_LINK = "mpicoll: warning: no link between nodes was measured; it is taken to be as fast as one"


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "allreduce", "ring", "-m"),
        ("explain", "allreduce", "--all", "-m"),
        ("simulate", "allreduce", "ring", "--model"),
    ],
)
def test_a_model_of_one_node_asked_for_several(command, folder, words):
    given = (*words, folder / "model.json", "-P", "8", "-s", "64K")
    assert NO_LINK not in command(*given).err
    assert NO_LINK not in command(*given, "--per-node", "8").err or words[0] == "simulate"
    done = command(*given, "--per-node", "2")
    assert done.status == 0 and done.err.count(NO_LINK) == 1
    assert "give --inter-alpha and --inter-beta, or a network by --network: 10GbE, " in done.err

    def seconds(*more):
        found = json.loads(command(*given, "--per-node", "2", *more, "--json").out)
        found = found["ranking"] if words[0] == "explain" else found
        if words[0] == "simulate":
            return found["cases"][0]["time"]
        return next(p for p in found if p["choice"] == "ring")["seconds"]

    within = seconds()
    for more in (("--network", "25gbe"), ("--inter-alpha", "46us", "--inter-beta", "336.84ps")):
        done = command(*given, "--per-node", "2", *more)
        assert NO_LINK not in done.err
        assert seconds(*more) > 5 * within
    assert seconds("--network", "25GbE") == pytest.approx(
        seconds("--inter-alpha", "46us", "--inter-beta", "336.84ps"), rel=1e-3
    )
    assert seconds("--network", "25GbE", "--inter-alpha", "1us") < seconds("--network", "25GbE")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--network", "25GbE"), "--network needs --per-node, the ranks of a node"),
        (("--network", "token ring", "--per-node", "2"), "unknown network 'token ring': known are"),
        (("--inter-alpha", "1us", "--per-node", "2"), "give --inter-beta too, or a --network"),
        (("--inter-beta", "x", "--per-node", "2"), "--inter-beta 'x' is not a time"),
    ],
)
def test_links_that_make_no_sense(refused, folder, words, message):
    given = ("predict", "allreduce", "ring", "-P", "8", "-m", folder / "model.json")
    assert message in refused(*given, *words)


def test_an_estimate_outside_of_its_interval_is_a_fault(command, folder, tmp_path, monkeypatch):
    from mpicoll.cli import measured
    from mpicoll.model.build import Found

    model = cost_files.read(folder / "model.json")
    assert not model.general_evidence.strays(model.general)

    def fitted(general):
        found = Found(replace(model, general=general), (), {}, None, ())
        monkeypatch.setattr(measured, "fitted", lambda *given: found)
        return command("fit", folder / "runs.jsonl", "-o", tmp_path / "m.json")

    done = fitted(model.general)
    assert done.status == 0 and "outside of its own interval" not in done.err
    done = fitted(replace(model.general, call=1e-3))
    assert done.status == 1
    (line,) = [line for line in done.err.splitlines() if "error" in line]
    assert line.startswith("mpicoll: error: call is 0.001, outside of its own interval, ")
    assert line.endswith("the fit is not to be trusted; measure more launches and sizes")


def test_two_links_need_nodes(command, refused, tmp_path):
    links = {"intra": (Piece(None, 1e-6, 1e-10),), "inter": (Piece(None, 1e-5, 1e-9),)}
    cost_files.write(tmp_path / "m.json", CostModel(Costs(links)))
    given = ("-P", "4", "-s", "4K", "-m", tmp_path / "m.json")
    assert "--per-node" in refused("predict", "allreduce", "ring", *given)
    assert "--per-node" in refused("explain", "allreduce", *given)
    words = ("predict", "allgather", "ring", *given, "--json", "--per-node")
    (near,), (far,) = (json.loads(command(*words, n).out) for n in ("4", "1"))
    assert (near["seconds"], far["seconds"]) == pytest.approx((3.3072e-6, 3.3072e-5), rel=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "allreduce", "rong"], "unknown algorithm 'rong' for allreduce"),
        (["predict", "allreduse", "ring"], "unknown collective 'allreduse'"),
        (["predict", "allreduce", "ring", "-s", "4X"], "'4X' is not a size"),
        (["predict", "allreduce", "ring", "--set", "k=1"], "has no parameter 'k'"),
        (["predict", "allgather", "neighbor_exchange", "-P", "3"], "even number of ranks, not 3"),
        (["predict", "bcast", "native"], "bcast native was not measured"),
        (["predict", "allreduce", "native", "-P", "64"], "measure it there"),
        (["explain", "allreduce", "-s", "fast"], "'fast' is not a size"),
        (["explain", "nothing"], "unknown collective 'nothing'"),
    ],
)
def test_refusals(refused, folder, words, message):
    assert message in refused(*words, "-m", folder / "model.json")


def test_what_is_no_model(refused, folder, tmp_path):
    given = ("predict", "allreduce", "ring", "-m")
    assert "gone.json': No such file" in refused(*given, tmp_path / "gone.json")
    assert "a file that `mpicoll fit` wrote" in refused(*given, folder / "runs.jsonl")


# --- tune -----------------------------------------------------------------------------------------


def test_tune_writes_what_a_communicator_reads(command, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    done = command("tune", folder / "runs.jsonl", "-o", tmp_path / "tuning.json")
    assert done.status == 0 and f"set MPICOLL_TUNING={tmp_path}/tuning.json" in done.out
    assert "regret on other launches than those that chose" in done.out
    table = rule_files.load(str(tmp_path / "tuning.json"))
    assert {rule.ranks for rule in table["allreduce"]} == {2, 4, 8}
    for words in ("time [us]", "native [us]", "gain [%]", "significant", "native not measured"):
        assert words in done.out
    about = json.loads((tmp_path / "tuning.json").read_text())["about"]
    assert len(about["evidence"]) == sum(map(len, table.values()))


def test_tune_says_what_one_launch_and_shared_cores_are(command, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    given = {"sizes": (64, 4096, 1 << 18), "ranks": (4,), "repetitions": 5, "launches": 1}
    runs = launched(COSTS, {"allreduce": ["ring", "native"]}, **given)
    done = command("tune", write(tmp_path / "one.jsonl", runs), "-o", tmp_path / "t.json")
    assert "no: one launch" in done.out and "one launch: the variation between launches" in done.out
    for run in runs:
        run.points = [replace(point, oversubscribed=True) for point in run.points]
    path = write(tmp_path / "crowded.jsonl", runs)
    done = command("tune", path, "-o", tmp_path / "t.json", "--oversubscribed")
    assert "no: more ranks than cores" in done.out and "how ranks share cores" in done.out


def test_tune_without_anything(refused):
    assert refused("tune") == "nothing to tune; give files of `mpicoll bench -J`, or --search"


def test_tune_exports(command, refused, folder, tmp_path):
    given = ("tune", folder / "runs.jsonl", "--export")
    done = command(*given, "ompi", "-o", tmp_path / "rules")
    assert "OMPI_MCA_coll_tuned_dynamic_rules_filename=" in done.out
    assert (tmp_path / "rules").read_text().startswith("2  # collectives\n0  # allgather\n")
    done = command(*given, "mpich", "-o", tmp_path / "mpich.json")
    assert "give the file that it has otherwise" in done.err
    base = tmp_path / "mpich.json"
    (tmp_path / "base.json").write_text(json.dumps({"collective=scan": {"algorithm=x": {}}}))
    done = command(*given, "mpich", "-o", base, "--base", tmp_path / "base.json")
    assert done.err == ""
    assert set(json.loads(base.read_text())) == {
        "collective=scan", "collective=allreduce", "collective=allgather",
    }  # fmt: skip
    assert "choose one of ompi, mpich" in refused(*given, "nccl")
    assert "drop it" in refused(*given, "ompi", "--base", base)
    assert "is no JSON" in refused(*given, "mpich", "--base", folder / "runs.jsonl")
    (tmp_path / "base.json").write_text('{"rules": {}}')
    assert "no file of MPICH's" in refused(*given, "mpich", "--base", tmp_path / "base.json")


# --- compare --------------------------------------------------------------------------------------


def test_compare(command, folder):
    same = command("compare", folder / "a.jsonl", folder / "b.jsonl")
    assert same.status == 0 and "slower" not in same.out
    assert "7 pairs of launches" in same.out and "--all shows them" in same.out
    slower = command("compare", folder / "a.jsonl", folder / "c.jsonl")
    assert slower.status == 1
    (row,) = [line for line in slower.out.splitlines() if " all " in line and "slower" in line]
    assert row.split()[:4] == ["allreduce", "ring", "4", "all"]
    facts = json.loads(command("compare", folder / "c.jsonl", folder / "a.jsonl", "--json").out)
    assert not facts["slower"] and facts["launches"] == 7
    verdicts = {row["verdict"] for row in facts["rows"] if row["choice"] == "ring"}
    assert "faster" in verdicts


def test_sides_of_different_machines(command, refused, folder, tmp_path):
    given = {"sizes": (8, 64), "ranks": (4,), "launches": 7, "repetitions": 5}
    runs = launched(COSTS, MEASURED, name="other", **given)
    for run in runs:
        run.facts["mpi"] = "Another MPI 2.0"
    words = ("compare", folder / "a.jsonl", write(tmp_path / "other.jsonl", runs))
    assert "MPI library 'Some MPI 1.0' and 'Another MPI 2.0'; --mix" in refused(*words)
    assert command(*words, "--mix").status == 0


def test_compare_with_few_launches(command, folder):
    done = command("compare", folder / "runs.jsonl", folder / "a.jsonl")
    assert done.status == 2
    assert "no verdict: it takes 7 launches a side, not 2" in done.err
    assert "B / A" in done.out


@pytest.mark.parametrize("effect", ["-1", "nan", "1"])
def test_compare_refuses(refused, folder, effect):
    words = ("compare", folder / "a.jsonl", folder / "b.jsonl", "--effect", effect)
    assert "is out of range; give 0 up to 1" in refused(*words)


# --- an MPI library -------------------------------------------------------------------------------

CALLS = """
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
said = []
for count in (1, 1000):
    found = np.zeros(count)
    try:
        comm.Allreduce(np.ones(count), found)
        said.append("right" if (found == comm.size).all() else "wrong")
    except MPI.Exception:
        said.append("refused")
if comm.rank == 0:
    print(*said)
"""


def test_open_mpi_does_what_its_file_says(mpirun, tmp_path):
    version = [sys.executable, "-c", "from mpi4py import MPI; print(MPI.Get_library_version())"]
    if "Open MPI" not in subprocess.run(version, capture_output=True, text=True).stdout:
        pytest.skip("the MPI library is not Open MPI")
    runs = launched(COSTS, {"allreduce": ["ring", "recursive_doubling"]}, launches=1, ranks=(2, 3))
    assert main(["tune", str(write(tmp_path / "r.jsonl", runs)), "--export", "ompi", "-o",
                 str(tmp_path / "rules")]) == 0  # fmt: skip
    rules = (tmp_path / "rules").read_text()
    (tmp_path / "calls.py").write_text(CALLS)
    # An algorithm that there is not shows which line serves a call.
    only = "1\n2\n2\n2\n1\n0 3 0 0\n3\n2\n0 3 0 0\n4000 99 0 0\n"
    for text, ranks, said in ((rules, 3, "right right"), (only, 2, "right right"),
                              (only, 3, "right refused")):  # fmt: skip
        (tmp_path / "rules").write_text(text)
        environment = {
            "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
            "OMPI_MCA_coll_tuned_dynamic_rules_filename": str(tmp_path / "rules"),
        }
        done = mpirun(ranks, tmp_path / "calls.py", environment=environment)
        assert done.out.strip() == said, done.err
