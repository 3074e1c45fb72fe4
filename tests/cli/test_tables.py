"""Tables at the widths that terminals have: nothing is cut, whatever has to give way."""

import fcntl
import io
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from dataclasses import fields
from types import SimpleNamespace

import profile_lines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import TEXTS
from rich.cells import cell_len
from rich.console import Console
from synthetic import launched, write
from test_docs import page

pytest.importorskip("scipy")
pytest.importorskip("pydantic")

from mpicoll.base.wording import behind, longer
from mpicoll.bench import conclusion, table
from mpicoll.bench.records import Point
from mpicoll.cli import app, main, output, recorder
from mpicoll.cli.commands import profile, train
from mpicoll.cli.grid import laid_out
from mpicoll.profile.merged import Part, Profile
from mpicoll.simulate.costs import Costs, Piece
from mpicoll.train.options import Options
from mpicoll.train.search import SearchOptions, console

pytestmark = pytest.mark.usefixtures("no_launcher")

WIDTHS = (80, 100, 120, 200)
COSTS = Costs({"intra": (Piece(None, 2e-6, 1e-10),)}, gamma=5e-11, call=1e-6)
ALGORITHMS = ["ring", "recursive_halving_doubling", "double_binary_tree", "native"]
POINT = {"type": "float32", "redop": "sum", "root": -1, "batch": 1, "slowest": (0,), "first": 1e-3}
POINT |= {"run": "r", "wrong": 0, "problem": None, "stop": "time", "oversubscribed": False}


def point(algorithm, size, times, **more):
    more = {**POINT, "collective": "allreduce", "ranks": 4, "count": size // 4, **more}
    return Point(algorithm=algorithm, size=size, times=times, **more)


def around(seconds, spread=0.01):
    return tuple(seconds * (1 + spread * (number - 10) / 10) for number in range(21))


@pytest.fixture
def shown(monkeypatch, command):
    """Run a command at a width: the tables that it lays out, with how, and its output."""
    tables = []

    def keep(columns, rows, width, **how):
        tables.append((columns, rows, how))
        return laid_out(columns, rows, width, **how)

    monkeypatch.setattr("mpicoll.cli.grid.laid_out", keep)

    def run(width, *words):
        monkeypatch.setenv("COLUMNS", str(width))
        tables.clear()
        done = command(*words)
        return tables[:], done

    return run


def check(columns, rows, grid, width):
    """It is a table, whatever is not left out is there, each word whole; no line is too long."""
    assert any(line.startswith("─") for line in grid.lines)
    assert max(map(cell_len, grid.lines)) <= width
    found = set(" ".join(grid.lines).split())
    for place, head in enumerate(columns):
        if head not in grid.left_out:
            for text in (head, *(row[place] for row in rows)):
                assert set(text.split()) <= found, text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tables")
    measured = {"allreduce": ALGORITHMS, "reduce_scatter": ["ring", "native"]}
    given = {"sizes": tuple(8 << i for i in range(0, 20, 3)), "repetitions": 7}
    write(path / "runs.jsonl", launched(COSTS, measured, launches=2, **given))
    assert main(["fit", str(path / "runs.jsonl"), "-o", str(path / "model.json")]) == 0
    few = {**given, "ranks": (4,), "launches": 7}
    write(path / "a.jsonl", launched(COSTS, measured, name="a", seed=1, **few))
    slower = {("allreduce", "ring"): 1.3}
    write(path / "b.jsonl", launched(COSTS, measured, name="b", seed=2, slower=slower, **few))
    (path / "m.toml").write_text(TEXTS["4 + 2 + 1"])
    return path


COMMANDS = [
    ("list",),
    ("list", "allreduce"),
    ("explain", "allreduce", "-P", "64", "--all", "-m", "model.json"),
    ("predict", "allreduce", "ring", "-P", "2-8", "-m", "model.json"),
    ("fit", "runs.jsonl", "-o", "again.json"),
    ("tune", "runs.jsonl", "-o", "tuning.json"),
    ("compare", "a.jsonl", "b.jsonl", "--all"),
    ("simulate", "allreduce", "all", "-P", "2-9"),
    ("simulate", "allreduce", "ring", "--stragglers", "0.2", "--draws", "3"),
    ("simulate", "pipeline"),
    ("verify", "allreduce", "-P", "1-5,7,9,11,13"),
    ("verify", "pipeline", "-S", "2-4", "-M", "1-5"),
    ("show", "pipeline", "1f1b"),
    ("doctor",),
    ("synthesize", "allreduce", "--machine", "m.toml", "--evaluations", "12", "--trees", "2"),
    ("plan", "--model", "mlp", "--hidden", "32,16", "--rate", "1e9", "-P", "4"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_tables_fit_and_nothing_is_cut(shown, folder, monkeypatch, words):
    monkeypatch.chdir(folder)
    tables, done = shown(80, *words)
    assert tables, done.err
    for columns, rows, how in tables:
        for width in WIDTHS:
            check(columns, rows, laid_out(columns, rows, width, **how), width)
        assert set(how["right"]) | set(how["fold"]) | set(how["drop"]) <= {*columns, "module"}


def test_the_page_on_tuning_explains_every_column(shown, folder, monkeypatch):
    monkeypatch.chdir(folder)
    ((columns, _, _),), _ = shown(200, "tune", "runs.jsonl", "-o", "rules.json")
    for head in columns[1:]:
        assert f"``{head.partition(' [')[0]}``" in page("tuning"), head


def test_what_is_left_out_is_said(shown):
    _, done = shown(80, "simulate", "allreduce", "ring", "-P", "4")
    assert done.out.splitlines()[-1] == "(left out at 80 columns: method; --json has them)"
    _, done = shown(200, "simulate", "allreduce", "ring", "-P", "4")
    assert "left out" not in done.out


@pytest.mark.parametrize("words", [("explain", "allreduce"), ("simulate", "allreduce", "all")])
def test_the_fastest_comes_first_and_is_marked(shown, words):
    ((columns, rows, _),), _ = shown(200, *words)
    marks = [row[columns.index("slower by")] for row in rows]
    times = [float(row[columns.index("time [us]")]) for row in rows]
    assert marks[0] == "fastest"
    assert "fastest" not in marks[1:] or times[0] == times[marks[1:].index("fastest") + 1]
    assert times == sorted(times)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_of_a_sweep(monkeypatch, capsys, width, full):
    monkeypatch.setenv("COLUMNS", str(width))
    points = [
        point(name, size, around(seconds * size))
        for size in (8, 4096, 1 << 22)
        for name, seconds in (
            ("native", 4e-9 if size == 8 else 3e-9),
            ("recursive_halving_doubling", 2e-9),
            ("ring", 5e-9),
        )
    ]
    facts = {"mpi": "Some MPI", "mpicoll": "1", "ranks": 4, "settings": {"seed": 1}}
    facts["hosts"] = {"h": {"cores": [0, 1, 2, 3], "ranks": [0, 1, 2, 3]}}
    recorder._print(facts, points, full)
    lines = capsys.readouterr().out.splitlines()
    begin = next(place for place, line in enumerate(lines) if line.startswith("──"))
    body = lines[begin + 1 : begin + 10]
    assert max(map(len, lines[begin - 2 : begin + 10])) <= width
    assert [line.split()[0] for line in body] == ["8"] * 3 + ["4K"] * 3 + ["4M"] * 3
    assert ["fastest" in line for line in body] == [True, False, False] * 3
    for line, name in zip(body, ["recursive_halving_doubling", "native", "ring"] * 3, strict=True):
        assert name in line.split()
    assert lines[-3:] == [
        "best algorithm: recursive_halving_doubling (8 to 4M)",
        "gain over native: 1.65x on average, at most 2.00x (8); faster at 3 of 3 sizes",
        "noise: 95 % intervals of -+ 0.5 %, at most -+ 0.5 %, within this launch",
    ]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_of_a_profile(monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    algorithms = ("recursive_halving_doubling", "native")
    lines = [
        profile_lines.line(algorithm=name, file=f"some/where/{name}.py", size=1 << 20)
        for name in algorithms
    ]
    messages = dict.fromkeys(range(4), Part(1, 8, 0.5, None))
    about = ({0: 4.0}, frozenset([0]), lines, messages, [])
    found = Profile("name", {"command": ["app.py"]}, 4, *about, 60, 1e-6)
    profile._table(found, lines)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    joined = "".join(shown.split())
    for text in (*algorithms, "Allreduce", "1M", "waiting", "25.0"):
        assert text in joined
    for name in algorithms:
        assert f"{name}.py:1" in joined
    if width == max(WIDTHS):
        (heads,) = (line for line in shown.splitlines() if line.startswith("collective "))
        assert heads.split() in [line.split() for line in page("profile").splitlines()]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_of_a_search(width):
    values = {"lr": 0.123456789, "hidden": (128, 64), "weight_decay": 1.23456e-05}
    measures = {"accuracy": 0.98765, "loss": 0.012345}
    told = {"event": "told", "trial": 12, "epochs": 27, "score": 0.5, "failed": ""}
    asked = {"event": "asked", "trial": 12, "epochs": 27, "values": values}
    record = {**told, "validation": measures}
    last = SimpleNamespace(last=lambda: {12: 0.5})
    found = SimpleNamespace(records=[asked, record], method=last, seconds=3.0)
    job = SimpleNamespace(trial=12, epochs=27, values=values)
    now = SimpleNamespace(trials=found, running={0: job})
    out = io.StringIO()
    Console(file=out, width=width).print(console.table(now, SearchOptions()))
    shown = out.getvalue()
    assert max(map(cell_len, shown.splitlines())) <= width
    assert "\u2026" not in shown
    for text in ("0.1235", "1.235e-05", "128-64", "0.9877", "27", "group 0", "best 1"):
        assert text in shown, shown


def test_the_end_of_a_sweep():
    points = [
        *(point(name, 8, around(t)) for name, t in (("native", 1e-6), ("ring", 2e-6))),
        *(point(name, 64, around(t, 0.2)) for name, t in (("native", 1.1e-6), ("ring", 1e-6))),
    ]
    best, gain, noise = conclusion.conclusion(points)
    assert best == "best algorithm: native (8 to 64)"  # at 64 the noise hides that ring is faster
    assert gain == "gain over native: none at any of 2 sizes: all differences are within the noise"
    assert noise.startswith("noise: 95 % intervals of -+ ")
    alone = [point("ring", 8, (1e-6,), ranks=ranks, oversubscribed=True) for ranks in (2, 4)]
    lines = conclusion.conclusion(alone)
    assert lines[0] == "allreduce, P = 2, float32:"
    assert "native was not measured" in lines[2]
    assert lines[3] == (
        "noise: unknown, too few repetitions for an interval; more ranks than cores, so times do "
        "not compare algorithms"
    )
    assert len(lines) == 8
    assert conclusion.conclusion([]) == []
    some = [*points[2:], *(point(n, 8, around(t)) for n, t in (("native", 4e-6), ("ring", 1e-6)))]
    assert conclusion.conclusion(some)[1].endswith(
        "faster at 1 of 2 sizes; the others are within the noise and count as 1x"
    )


def test_how_much_longer():
    assert [longer(t, 2.0) for t in (2.0, 3.5, 19.9, 40.0)] == ["fastest", "+75 %", "+895 %", "20x"]
    assert longer(1.0, 0.0) == "-"
    assert behind([1.0, 3.0, 2.0, 5.0], "aabc") == ["fastest", "+200 %", "", ""]


def test_what_gives_way_in_which_order():
    columns = ("name", "time taken [us]", "minor", "text")
    rows = [("a_long_name", "12.5", "a_minor_cell", "some words that may be broken anywhere")]
    how = {"right": {"time taken [us]"}, "fold": ("text",), "drop": ("minor",)}

    def lines(width):
        return laid_out(columns, rows, width, **how).lines

    assert len(lines(90)) == 3
    assert lines(72)[:3] == [
        "              time",
        "             taken",
        "name          [us]  minor         text",
    ]
    assert lines(56)[-2:] == [
        "a_long_name   12.5  a_minor_cell  some words that may be",
        "                                  broken anywhere",
    ]
    left = laid_out(columns, rows, 42, **how)
    assert left.left_out == ["minor"]
    assert left.lines[-1].endswith("broken anywhere")
    assert lines(30) == [
        "a_long_name",
        "  time taken [us]  12.5",
        "  minor            a_minor_cell",
        "  text             some words",
        "                   that may be",
        "                   broken",
        "                   anywhere",
    ]


# Drawn from a list: letters one by one take hypothesis a minute where all modules are loaded.
WORDS = [
    "a",
    "0",
    "語",
    "ab",
    "0.x",
    "語b",
    "c語語",
    "1.25",
    "x" * 5,
    "語" * 4,
    "abc0.x",
    "b語" * 4,
    "c" * 9,
]
CELL = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)
ROWS = st.integers(2, 5).flatmap(lambda n: st.lists(st.tuples(*[CELL] * n), min_size=1, max_size=4))


@settings(max_examples=30)
@given(ROWS, st.data())
def test_any_table_fits_and_keeps_every_word(rows, data):
    heads = [f"h{place}" for place in range(len(rows[0]))]
    some = st.lists(st.sampled_from(heads[1:]), unique=True)
    width = data.draw(st.integers(60, 130))
    how = {name: data.draw(some) for name in ("right", "fold", "drop")}
    grid = laid_out(heads, rows, width, **how)
    assert max(map(cell_len, grid.lines)) <= width
    kept = [place for place, head in enumerate(heads) if head not in grid.left_out]
    words = [word for row in rows for place in kept for word in row[place].split()]
    found = [word for line in grid.lines for word in line.split() if not set(word) & set("h─")]
    assert sorted(found) == sorted(words)


def test_the_width_of_a_terminal_a_pipe_and_a_launcher(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    ask = [sys.executable, "-c", "from mpicoll.cli import output; print(output.width())"]
    rank = f"import subprocess; print(subprocess.run({ask}, capture_output=True, text=True).stdout)"
    launcher = [sys.executable, "-c", rank]
    ranked = {**os.environ, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 91, 0, 0))
    for words, environment in ((ask, None), (launcher, ranked)):
        piped = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=50)
        assert piped.stdout.split() == ["120"]
        subprocess.run(words, stdout=theirs, env=environment, timeout=50, check=True)
        assert os.read(ours, 100).split() == [b"91"]
    os.close(ours)
    os.close(theirs)


def test_json_has_what_a_table_leaves_out(shown):
    _, done = shown(80, "simulate", "allreduce", "ring", "--json")
    (case,) = json.loads(done.out)["cases"]
    assert {"how", "bytes_sent", "bytes_sent_max", "messages"} <= set(case)


def test_columns_that_are_left_out_exist():
    names = {column.name for column in (*table.COLUMNS, *table.MORE_COLUMNS)}
    assert set(table.MINOR) <= names
    assert output.width() > 0


# --- help -----------------------------------------------------------------------------------------

LONGEST = 56  # lines of a screen


@pytest.mark.parametrize("name", [*app.COMMANDS, "slurm submit", "slurm init"])
@pytest.mark.parametrize("width", [80, 100])
def test_help_fits_and_is_in_plain_words(monkeypatch, command, name, width):
    monkeypatch.setenv("COLUMNS", str(width))
    done = command(*name.split(), "--help")
    lines = done.out.splitlines()
    assert done.status == 0 and max(map(len, lines)) <= width
    screens = {"train": 2, "plan": 3}.get(name, 1)  # plan has the options of a training, too
    assert len(lines) <= LONGEST * screens * 100 // width
    assert "<" not in done.out.replace("<-", "")  # no name of a type of Python's


def test_the_options_of_a_training_are_in_groups(command):
    assert {field.name for field in fields(Options)} - {"dataset"} <= {*train.GROUP_OF}
    for name in ("train", "plan"):
        heads = [line.rstrip(":") for line in command(name, "--help").out.splitlines()]
        assert {*train.GROUPS} <= {*heads}, name


def test_an_option_has_one_letter_in_all_commands():
    letters: dict[str, set[str]] = {}
    for name in app.COMMANDS:
        loaded = app.load(name)
        for command in getattr(loaded, "commands", {"": loaded}).values():
            for parameter in command.params:
                short = [word for word in parameter.opts if word[:1] == "-" != word[1:2]]
                long = [word for word in parameter.opts if word.startswith("--")]
                for letter in short:
                    letters.setdefault(letter, set()).update(long)
    several = {letter: words for letter, words in letters.items() if len(words) != 1}
    assert not several
    assert {letters[letter].pop() for letter in ("-s", "-P", "-n", "-a")} == {
        *("--size", "--ranks", "--iterations", "--algorithms"),
    }
