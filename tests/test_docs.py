"""The documentation says what is there, and what it shows runs."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import os
import re
import subprocess
import sys
import textwrap
from functools import cache
from itertools import pairwise
from pathlib import Path

import launch
import pytest

import mpicoll
from mpicoll import algorithms
from mpicoll.base.files import parse_toml
from mpicoll.registry import find
from mpicoll.schedule.collectives import COLLECTIVES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def page(name):
    return (DOCS / f"{name}.rst").read_text()


def blocks(text, language):
    """Caption and content of the code blocks of a language."""
    found = re.finditer(
        rf"^\.\. code-block:: {language}\n(?:   :caption: (.*)\n)?\n((?:   .*\n|\n)+)", text, re.M
    )
    return [(block[1], textwrap.dedent(block[2])) for block in found]


def module(name):
    """A module of docs/, which is no package."""
    found = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    loaded = importlib.util.module_from_spec(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)  # for what they share
        found.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def catalogue():
    return module("catalogue")


def test_every_page_has_a_title():
    for path in DOCS.glob("*.rst"):
        title, line, *_ = path.read_text(encoding="utf-8").splitlines()
        assert title and line == "=" * len(title), path.name


def test_the_home_page_has_six_groups_and_every_page_is_in_one():
    text = (DOCS / "index.rst").read_text()
    shown = text.partition(".. toctree::")[0]
    groups = re.findall(r"^(.+)\n-{3,}$", shown, re.MULTILINE)
    assert groups == [
        "Ten lines",
        *("Start", "Choose and tune", "Measure and model", "Train", "Clusters and GPUs"),
        "Reference",
    ]
    listed = set(re.findall(r"^\* :doc:`(\w+)`", shown, re.MULTILINE))
    assert listed == {page.stem for page in DOCS.glob("*.rst")} - {"index"}


def test_pages_need_nothing_from_elsewhere():
    """Sphinx shows formulas by a script that browsers would fetch."""
    for path in DOCS.glob("*.rst"):
        text = path.read_text(encoding="utf-8")
        assert ".. math::" not in text and ":math:" not in text, path.name


# --- environment ----------------------------------------------------------------------------------


@cache
def variables_read():
    """Every variable that mpicoll, or the mpirun of make setup, reads."""
    found = {f"MPICOLL_{collective.upper()}" for collective in COLLECTIVES}
    for path in (ROOT / "mpicoll").rglob("*.py*"):
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and re.fullmatch(r"MPICOLL_\w+", str(node.value)):
                    found.add(node.value)
        elif path.suffix == ".pyx":
            found.update(re.findall(r"""["'](MPICOLL_\w+)["']""", path.read_text()))
    return found | set(re.findall(r"\$\{(MPICOLL_\w+)", (ROOT / "tools/mpirun.sh").read_text()))


def test_every_variable_is_documented_and_no_other():
    read = variables_read()
    assert {"MPICOLL_TIMEOUT", "MPICOLL_SIMD", "MPICOLL_SHARE_CORES"} <= read
    assert set(re.findall(r"MPICOLL_\w+", page("environment"))) == read


def test_pages_name_variables_that_exist():
    for path in DOCS.glob("*.rst"):
        assert set(re.findall(r"MPICOLL_\w+", path.read_text())) <= variables_read(), path.name


# --- public names ---------------------------------------------------------------------------------


def test_every_public_name_is_documented():
    documented = set(re.findall(r"^\.\. auto\w+:: mpicoll\.(\w+)$", page("api"), re.M))
    assert set(mpicoll.__all__) - {"__version__"} <= documented


def test_every_collective_is_documented():
    from mpicoll.comm.blocking import Blocking

    documented = set(
        re.findall(r"^\.\. automethod:: mpicoll\.Intracomm\.(\w+)$", page("api"), re.M)
    )
    assert {name for name in vars(Blocking) if name[0].isupper()} <= set(documented)


# --- architecture ---------------------------------------------------------------------------------


def test_the_walks_go_through_files_and_names_that_exist():
    named = re.findall(r"``([\w/]+\.(?:pyx?|cu))``(?:\s+\(``(\w+)``\))?", page("architecture"))
    assert len(named) > 40
    for path, name in named:
        file = ROOT / ("" if path.startswith("tests/") else "mpicoll") / path
        assert file.exists(), path
        defined = rf"\b(c?p?def|class)( \w+)* {name}\b"  # in Cython a type may stand between
        assert re.search(defined, file.read_text()) or not name, (path, name)


def test_the_map_has_every_room_and_leads_to_all_that_it_imports():
    rooms = module("rooms")
    found, shown = rooms.arrows(), rooms.reduced(rooms.arrows())
    assert {"comm", "engine", "schedule"} <= set(found)
    for room, targets in found.items():
        reached = set()
        left = set(shown[room])
        while left:
            target = left.pop()
            reached.add(target)
            left |= shown[target] - reached
        assert targets <= reached and shown[room] <= targets, room
    picture = rooms.svg()
    assert all(f'id="rooms-{room}"' in picture for room in found)
    assert picture.count("marker-end") <= sum(map(len, shown.values()))
    assert all(rooms.said(room) for room in found)


# --- what is generated ----------------------------------------------------------------------------


def test_every_algorithm_has_a_section_in_the_order_of_the_registry(catalogue):
    pages = catalogue.pages()
    contents = pages["contents.inc"]
    listed = re.findall(r"^   generated/(\w+)$", contents, re.M)
    assert listed == list(COLLECTIVES)
    for collective in listed:
        text = pages[f"{collective}.rst"]
        assert re.findall(r"^(\w+)\n-+$", text, re.M) == list(algorithms.names(collective))
        for name in algorithms.names(collective):
            entry = find(collective, name)
            assert entry.summary in text and entry.reference in text
            assert f"`{name} <{collective}-{name}>`" in contents
            assert catalogue.drawing(entry) in text


def test_the_counts_of_a_page_are_the_registered_ones(catalogue):
    ring = catalogue.pages()["allreduce.rst"].split("\nring\n----\n")[1].split(".. _allreduce")[0]
    rows = [
        [cell.strip() for cell in re.split(r"\n     - ", row)]
        for row in ring.split(":header-rows: 1")[1].split("   * - ")[1:]
    ]
    assert rows[0][:2] == ["P", "rounds"]
    assert rows[2] == ["4", "6", "6", "24", "24", "6", "1", "6α + 3/2 nβ + 3/4 nγ"]
    assert [row[0] for row in rows[1:]] == ["2", "4", "5", "8", "64"]
    assert rows[3][-1] == "—"  # the formula is for powers of two


def test_a_hierarchy_is_drawn_on_nodes(catalogue):
    entry = find("allreduce", "hierarchical")
    assert catalogue.shown(entry) == {"nodes": (0, 0, 1, 1)}
    command = "mpicoll show allreduce hierarchical -P 4 --set nodes=0,0,1,1 --svg FILE"
    assert f"``{command}``" in catalogue.pages()["allreduce.rst"]
    assert catalogue.shown(find("allreduce", "ring")) == {}


def test_what_does_not_serve_a_number_of_ranks_says_so(catalogue):
    text = catalogue.pages()["allgather.rst"].split("\nneighbor_exchange\n")[1]
    assert re.search(r"\* - 5\n( +- not served\n){7}", text)


@pytest.mark.parametrize("entry", algorithms.catalogue(), ids=lambda e: f"{e.collective}-{e.name}")
def test_formulas_are_linear_in_alpha_beta_gamma(entry):
    """So that a page can show their factors."""
    for size in (2, 8, 64):
        units = [
            entry.textbook_time(size, 1.0, *unit) for unit in ((1, 0, 0), (0, 1, 0), (0, 0, 1))
        ]
        whole = entry.textbook_time(size, 5.0, 2.0, 3.0, 7.0)
        assert whole == pytest.approx(2 * units[0] + 5 * 3 * units[1] + 5 * 7 * units[2])


def test_the_reference_of_the_command_has_every_subcommand_and_option():
    text = module("command").reference()
    done = run([sys.executable, "-m", "mpicoll", "--help"])
    named = re.findall(r"^mpicoll (\w+)\n-+$", text, re.M)
    assert named and all(name in done.stdout for name in named)
    assert {"list", "show", "verify", "simulate", "bench", "train", "doctor"} <= set(named)
    for option in ("--svg FILE", "--alpha TIME", "-J, --output-file FILE", "--epochs"):
        assert f"``{option}" in text


def test_the_page_of_pipelines_has_every_order(tmp_path):
    from mpicoll.train.step import find, names

    figures = module("pipeline_figures")
    parts = figures.pages()
    for about, tables in (("pipelines", parts), ("meshes", module("mesh_tables").pages())):
        included = re.findall(r"include:: generated/(\S+)", page(about))
        assert sorted(included) == sorted(tables)
    charts, table = parts["pipeline_charts.inc"], parts["pipeline_orders.inc"]
    assert re.findall(r"^(\w+)\n~+$", charts, re.M) == list(names())
    figures.STAGES, figures.MICROBATCHES = 2, 2  # drawn sooner
    assert re.findall(r"figure:: generated/(\S+)", charts) == list(figures.draw(tmp_path))
    assert all((tmp_path / chart).read_text().startswith("<?xml") for chart in figures.charts())
    for order in map(find, names()):
        assert order.summary in charts and order.reference in charts and order.formula in table
    row = table.split("<order-1f1b>")[1]
    assert re.search(r"- \(M\+S−1\)·\(F\+B\)\n +- everywhere\n +- 4, 3, 2, 1\n", row)


def test_the_page_of_plans_shows_what_was_recorded():
    figures = module("plan_figures")
    parts = figures.pages()
    assert re.findall(r"include:: generated/(\S+)", page("planner")) == list(parts)
    (text,) = parts.values()
    for line in module("training_figures").lines("plans"):
        assert f"* - {line['plan']}\n" in text
    assert "% in the median" in text


def test_the_page_of_ways_to_train_shows_what_was_recorded(tmp_path):
    figures, text = module("inter_intra_figures"), page("inter_intra")
    parts = figures.pages()
    assert re.findall(r"include:: generated/(\S+)", text) == list(parts)
    assert re.findall(r"figure:: generated/(\S+)", text) == figures.draw(tmp_path)
    for name in ("node", "network"):
        assert parts[f"inter_intra_{name}.inc"].count("* - ") == 1 + 16
    sent = parts["inter_intra_sent.inc"]
    assert len(re.findall(r"- equal$", sent, re.M)) == 16
    assert re.search(
        r"up to \d+ Mbit/s, tensor parallelism from \d+", parts["inter_intra_crossing.inc"]
    )


def test_the_pages_of_sharding_show_what_was_recorded():
    parts = module("sharding_figures").pages()
    shown = [re.findall(r"include:: generated/(\S+)", page(name)) for name in ("sharded", "tensor")]
    assert shown == [["fsdp_steps.inc"], ["tensor_steps.inc"]]
    found = module("training_figures").lines("sharding")
    assert {line["case"] for line in found} == {"fsdp", "tensor"}
    for size in {line["size"] for line in found if line["case"] == "tensor"}:
        assert f"* - {size}\n" in parts["tensor_steps.inc"]
    assert all("95 % intervals" in text for text in parts.values())


def test_the_picture_of_growth():
    growth = module("growth")
    sizes = [1 << k for k in range(1, 7)]
    assert growth.steps("ring", sizes) == {size: 2 * (size - 1) for size in sizes}
    tree = [*growth.steps("double_binary_tree", sizes).values()]
    assert all(0 < after - before <= 5 for before, after in pairwise(tree))
    assert growth.PICTURE.name in page("simulation") and growth.PICTURE.exists()


def test_the_pictures_of_the_home_page(tmp_path):
    home = module("home")
    shown = re.findall(r"figure:: generated/(\S+)", page("index"))
    assert list(home.draw(tmp_path)) == shown
    ring, speed = ((tmp_path / name).read_text() for name in shown)
    titles = re.findall(r"<!-- (step \d: \w+) -->", ring)
    assert titles == [f"step {n}: {'add' if n < 4 else 'copy'}" for n in range(1, 7)]
    points = sum(len(home.speed_ups(name)) for name in home.SERIES)
    assert points > 40 and speed.count("<use") >= points
    # The README's is kept: it shows as many points, and the same lines.
    kept = home.PICTURE.read_text()
    assert kept.count("<use") == speed.count("<use")
    assert all(f"<!-- {title} -->" in kept for title in home.SERIES.values())
    assert f"(docs/{home.PICTURE.name})" in (ROOT / "README.md").read_text()


# --- what is shown runs ---------------------------------------------------------------------------


def run(arguments, **environment):
    return subprocess.run(
        arguments,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize("name", ["schedules", "pipelines"])
def test_the_example_of_schedules(name):
    """In a process of its own: it registers an algorithm, or an order."""
    assert len(doctest.DocTestParser().get_examples(page(name))) > 15
    done = run([sys.executable, "-m", "doctest", str(DOCS / f"{name}.rst")], PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_program_of_the_guide(mpirun, tmp_path):
    program = "\n".join(code for _, code in blocks(page("guide"), "python"))
    assert program.count("comm.") > 15 and program.count("assert") > 5
    path = tmp_path / "program.py"
    path.write_text(program)
    done = mpirun(4, "-m", "mpi4py", path)
    assert done.status == 0, done.err


@pytest.mark.parametrize(
    ("about", "name"),
    [
        ("training", "lines.py"),
        ("training", "own_rate.py"),
        pytest.param("train_models", "layers.py", marks=pytest.mark.long),
        ("train_models", "measure.py"),
        pytest.param("train_models", "torch_layer.py", marks=pytest.mark.long),
        ("checkpoints", "trained.py"),
        ("parameter_servers", "update.py"),
        ("train_loops", "own.py"),
        ("train_loops", "decoder.py"),
        ("train_loops", "pipeline.py"),
        ("tensor", "tensor.py"),
        ("sharded", "fully_sharded.py"),
    ],
)
def test_the_programs_of_training(about, name, mpirun, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where they keep their files
    if name.startswith("torch"):
        pytest.importorskip("torch", reason="PyTorch is not installed")
    path = tmp_path / name
    path.write_text(dict(blocks(page(about), "python"))[name])
    done = mpirun(2, "-m", "mpi4py", path)
    assert done.status == 0, done.err
    if name == "lines.py":  # rank 0 prints what the command does, and the other rank nothing
        assert done.out.count("train mnist5k: mlp 784-64-10 in float32, 2 ranks") == 1
        assert done.out.count("s of steps") == 1


@pytest.mark.skipif(
    "Open MPI v5" not in launch._library(), reason="all ranks end with one, by this library"
)
def test_the_program_of_survival(mpirun, tmp_path):
    path = tmp_path / "survive.py"
    path.write_text(dict(blocks(page("survival"), "python"))["survive.py"])
    shown = next(text for _, text in blocks(page("survival"), "console") if "survive.py" in text)
    command, line = shown.strip().splitlines()
    assert command == "$ mpirun --with-ft ulfm -n 4 python survive.py"
    done = mpirun(4, path, options=("--with-ft", "ulfm"))
    # Of its last call the dead one may have heard the end, and the others not.
    found = sorted(done.out.replace("call 49 ", "call 50 ").splitlines())
    assert found == [line.replace("rank 0 of", f"rank {rank} of") for rank in range(3)], done.err


@pytest.mark.skipif(
    "Open MPI v5" not in launch._library(), reason="all ranks end with one, by this library"
)
def test_the_program_of_training_that_outlives_its_ranks(mpirun, tmp_path):
    path = tmp_path / "outliving.py"
    text = dict(blocks(page("train_survival"), "python"))["outliving.py"]
    # Rank 1 dies in the twentieth step.
    death = "on_step=lambda s: comm.rank == 1 and s.number == 20 and os.kill(os.getpid(), 9)"
    path.write_text("import os\n" + text.replace("quiet=True", f"quiet=True, {death}"))
    done = mpirun(3, path, options=("--with-ft", "ulfm"))
    assert done.out.splitlines() == ["(1,) died after step 20"] * 2, done.err


@pytest.mark.parametrize(
    ("about", "name", "ranks"),
    [
        ("hyperparameters", "ask_and_tell.py", 1),
        ("exits", "exits.py", 2),
        ("meshes", "mesh.py", 2),
    ],
)
def test_the_programs_of_searches_exits_and_meshes(
    about, name, ranks, mpirun, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # where they keep their files
    path = tmp_path / name
    path.write_text(dict(blocks(page(about), "python"))[name])
    done = mpirun(ranks, "-m", "mpi4py", path)
    assert done.status == 0, done.err


def test_the_space_of_the_page_is_one():
    from mpicoll.train.search import Space

    (text,) = (
        text for name, text in blocks(page("hyperparameters"), "toml") if name == "space.toml"
    )
    assert Space.of(parse_toml(text)).grid_size() == 5 * 3 * 3 * 3


@pytest.mark.parametrize("name", ["hang.py", "differ.py"])
def test_a_program_that_is_wrong(name, mpirun, tmp_path):
    programs = dict(blocks(page("environment"), "python"))
    path = tmp_path / name
    path.write_text(programs[name])
    (shown,) = (text for _, text in blocks(page("environment"), "console") if name in text)
    command, message = shown.strip().splitlines()
    line = rf"\$ (\w+)=(\S+) mpirun -n (\d) python -m mpi4py {name}"
    variable, value, ranks = re.fullmatch(line, command).groups()
    done = mpirun(int(ranks), "-m", "mpi4py", path, environment={variable: value})
    assert done.status != 0
    assert message in done.err


def test_the_pictures_of_training_show_what_was_recorded(tmp_path):
    figures = module("training_figures")
    pages = page("parameter_servers") + page("train_survival")
    shown = re.findall(r"(?:image|figure):: generated/(\S+)", pages)
    assert sorted(figures.draw(tmp_path)) == sorted(shown)
    pictures = {path.stem: path.read_text() for path in tmp_path.iterdir()}
    # Each point is a mark: of the experiment with asynchronous updates, one for each line.
    assert pictures["training-async"].count("<use") >= len(figures.lines("async"))
    for line in figures.lines("async"):
        assert f"<!-- {line['workers']} worker" in pictures["training-async"]
    assert "<!-- P = 4, s = 3 -->" in pictures["training-ssp-bound"]
