"""What the README and CONTRIBUTING show is run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import launched

from mpicoll.bench.records import Writer
from mpicoll.simulate.costs import CostModel, Costs, Piece
from mpicoll.tuning import cost_files

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
BIN = Path(sys.prefix, "bin")


def fenced(text, language):
    """The content of the fenced blocks of a language, without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]


def commands(text):
    lines = [line for block in fenced(text, "console") for line in block.splitlines()]
    return [line[2:].split("  #")[0].strip() for line in lines if line.startswith("$ ")]


def run(arguments, folder):
    return subprocess.run(
        arguments,
        cwd=folder,
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


#: Those that take longest: training, and a thousand ranks.
LONG = re.compile("mpicoll train|-P 1024")
SHOWN = [command for command in commands(README) if not command.startswith("make")]


def test_the_readme_shows_commands():
    assert len(SHOWN) >= 7
    assert {command.split()[0] for command in SHOWN} == {"mpicoll", "mpirun"}


def measured(folder):
    """What the commands shown before have written."""
    costs = Costs({"intra": (Piece(None, 1e-6, 1e-10),)})
    ring = {"allreduce": ["ring"]}
    given = {"sizes": (8, 1024, 65536), "ranks": (2, 4), "repetitions": 5}
    for name, launches in (("sweep", 2), ("before", 7), ("after", 7)):
        with Writer(folder / f"{name}.jsonl") as writer:
            for made in launched(costs, ring, name=name, launches=launches, **given):
                writer.run(made.name, made.facts)
                for point in made.points:
                    writer.point(point)
    cost_files.write(folder / "model.json", CostModel(costs))


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=[pytest.mark.long] if LONG.search(command) else [])
        for command in SHOWN
    ],
)
def test_a_command_of_the_readme(command, tmp_path):
    reading = ("fit", "explain", "tune", "compare", "report")
    if any(f"mpicoll {word} " in command for word in reading):
        measured(tmp_path)
    done = run(shlex.split(command), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_readme_stays_short():
    assert len(README.splitlines()) <= 120


def test_make_commands_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"make ([a-z-]+)", "\n".join(commands(README) + commands(CONTRIBUTING)))
    assert named and set(named) <= targets


def test_the_program_of_the_readme(tmp_path):
    (program,) = (block for block in fenced(README, "python") if "Intracomm" in block)
    assert len(program.splitlines()) <= 12
    Path(tmp_path, "program.py").write_text(program)
    launch = "mpirun -n 4 python -m mpi4py program.py"
    assert launch in README
    done = run(shlex.split(launch), tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"^allreduce of 8388608 bytes on 4 ranks: \w+ \(built-in table", done.stdout, re.M
    )


def test_the_picture_of_the_readme_is_the_schedule():
    done = run(["mpicoll", "show", "allreduce", "ring", "-P", "4"], ROOT)
    for line in done.stdout.splitlines()[:9]:
        assert line.rstrip() in README


@pytest.fixture
def extended(tmp_path):
    """A copy of the package, to which the algorithm of CONTRIBUTING is added as it says."""
    (family,) = set(re.findall(r"this one at the end of\s+`(\w+\.py)`", CONTRIBUTING))
    shutil.copytree(
        ROOT / "mpicoll", tmp_path / "mpicoll", ignore=shutil.ignore_patterns("__pycache__", "*.c")
    )
    with Path(tmp_path, "mpicoll", "algorithms", family).open("a") as file:
        file.write("\n\n".join(["", *fenced(CONTRIBUTING, "python")]))
    return tmp_path


def test_the_algorithm_of_contributing(extended):
    code = re.sub(r'""".*?"""\n *', "", "".join(fenced(CONTRIBUTING, "python")), flags=re.DOTALL)
    assert len(code.splitlines()) <= 20
    shown = re.findall(r"`mpicoll ((?:verify|show) allgather neighbours [^`]*)`", CONTRIBUTING)
    assert len(shown) == 2
    for command in [*shown, "list allgather"]:
        done = run([sys.executable, "-m", "mpicoll", *shlex.split(command)], extended)
        assert done.returncode == 0, done.stderr
        assert "neighbours" in done.stdout


def test_the_algorithm_of_contributing_over_mpi(extended):
    (call,) = re.findall(r"`comm\.(Allgather\(.*?\))`", CONTRIBUTING)
    Path(extended, "program.py").write_text(
        "import numpy as np\nfrom mpi4py import MPI\nimport mpicoll\n"
        "comm = mpicoll.Intracomm(MPI.COMM_WORLD)\n"
        f"a, b = np.full(2, comm.rank), np.empty(6, int)\ncomm.{call}\n"
        "assert (b == [0, 0, 1, 1, 2, 2]).all()\n"
        "assert comm.stats().calls == {('allgather', 'neighbours'): 1}\n"
        "assert mpicoll.__file__.startswith(__file__.removesuffix('program.py'))\n"
    )
    done = run(shlex.split("mpirun -n 3 python -m mpi4py program.py"), extended)
    assert done.returncode == 0, done.stderr
