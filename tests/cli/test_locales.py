"""The command where the locale is of 8 bits: files are UTF-8, the terminal has what it can show."""

import io
import json
import os
import subprocess
import sys

import pytest
from synthetic import launched

from mpicoll.bench.records import Writer
from mpicoll.cli import output
from mpicoll.simulate.costs import Costs, Piece

COSTS = Costs({"intra": (Piece(None, 2e-6, 1e-10),)}, gamma=5e-11, call=1e-6)
#: A machine whose name no 8-bit locale has.
NAME = "Zürich Σ·–"


@pytest.fixture
def in_locale(tmp_path):
    """Run the command in a process whose locale is of 8 bits: status, output and errors."""

    def run(*words, locale="C"):
        environment = {k: v for k, v in os.environ.items() if k != "LANG" and k[:3] != "LC_"}
        environment |= {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        done = subprocess.run(
            [sys.executable, "-m", "mpicoll", *map(str, words)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            timeout=120,
        )
        assert b"UnicodeEncodeError" not in done.stderr and b"Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def file(tmp_path):
    """Launches on that machine."""
    path = tmp_path / "runs.jsonl"
    runs = launched(COSTS, {"allreduce": ["ring", "native"]}, launches=2, sizes=(8, 512, 32768))
    with Writer(path) as writer:
        for run in runs:
            writer.run(run.name, {**run.facts, "processor": NAME})
            for point in run.points:
                writer.point(point)
    return path


def text_of(path):
    return path.read_bytes().decode("utf-8")


@pytest.mark.parametrize(
    ("words", "written", "text"),
    [
        ("report runs.jsonl -o a.html --no-model", "a.html", NAME),
        pytest.param(
            "report runs.jsonl -o a.html --figures f --no-model",
            "f/allreduce-4-float32-time.svg",
            "time [µs]",
            marks=pytest.mark.long,
        ),
        ("tune runs.jsonl -o a.json", "a.json", json.dumps(NAME)),
        ("show allreduce ring -P 3 --svg a.svg", "a.svg", "</svg>"),
    ],
)
@pytest.mark.usefixtures("file")
def test_pages_and_files_are_utf_8(in_locale, tmp_path, words, written, text):
    for name in ("scipy", "plotly", "matplotlib", "pydantic"):
        pytest.importorskip(name)
    status, said, _ = in_locale(*words.split())
    assert status == 0 and said.isascii()
    assert text in text_of(tmp_path / written)


@pytest.mark.usefixtures("file")
def test_texts_of_files_are_printed(in_locale, tmp_path):
    for name in ("scipy", "pydantic"):
        pytest.importorskip(name)
    status, said, _ = in_locale("fit", "runs.jsonl", "-o", "model.json")
    assert status == 0 and b"rich " in said
    assert json.loads(text_of(tmp_path / "model.json"))["about"]["machine"]["processor"] == NAME


def test_a_sweep_writes_its_page(mpirun, tmp_path):
    pytest.importorskip("plotly")
    words = (
        "bench",
        "allreduce",
        "-a",
        "ring",
        "-b",
        "8",
        "-n",
        "2",
        "--html",
        tmp_path / "a.html",
    )
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = mpirun(2, "-m", "mpicoll", *words, environment=environment)
    assert done.status == 0, done.err
    assert "Plotly" in text_of(tmp_path / "a.html")


@pytest.mark.parametrize("locale", ["C", pytest.param("en_US.ISO-8859-1", marks=pytest.mark.long)])
def test_tables_and_help_have_signs_that_can_be_shown(in_locale, locale):
    for words in (("list",), ("bench", "--help"), ("verify", "--help"), ("doctor",)):
        status, said, _ = in_locale(*words, locale=locale)
        assert status == 0
        assert said.isascii()


@pytest.mark.parametrize(
    ("encoding", "text", "printed"),
    [
        ("ascii", "für – Σ “x” · µs…", b'fur - ? "x" * us...'),
        ("latin-1", "für – µs", "für - µs".encode("latin-1")),
        ("ascii", "a\udcffb", b"a\xffb"),
        ("utf-8", "für – Σ a\udcffb", "für – Σ a".encode() + b"\xffb"),
    ],
)
def test_signs_that_a_terminal_lacks(monkeypatch, encoding, text, printed):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    output.spare_signs()
    output.text(text)
    stream.flush()
    assert stream.buffer.getvalue() == printed + b"\n"
