"""Sweeps written down: read as the command line would be, and mistakes named."""

from dataclasses import fields
from pathlib import Path

import pytest

from mpicoll.bench.config import Sweep, load
from mpicoll.bench.options import Options
from mpicoll.cli import app, wanted
from mpicoll.cli.commands import bench
from mpicoll.schedule.methods import VARIANTS

READY = sorted((Path(__file__).parents[2] / "benchmarks" / "sweeps").glob("*.toml"))
BENCH = app.load("bench")


def parsed(path, *words):
    return BENCH.make_context("bench", ["--config", str(path), *words]).params


def test_options_are_written_as_on_the_command_line(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(
        'collectives = ["bcast", "reduce"]\nsize = [8, "1K"]\nranks = [2, 4]\niterations = 7\n'
        "cold = true\ncheck = false\nskew = 1\nbudget = 2.5\n"
        "[set]\nsegments = 4\norder = [1, 0]\n"
    )
    given = parsed(path)
    assert given["collectives"] == "bcast,reduce"
    assert (given["size"], given["ranks"], given["iterations"]) == ("8,1K", "2,4", 7)
    assert (given["cold"], given["check"], given["skew"], given["budget"]) == (True, 0, 1.0, 2.5)
    assert given["set_"] == ["segments=4", "order=1,0"]
    # The command line comes first.
    given = parsed(path, "scan", "-n", "3", "-s", "64")
    assert (given["collectives"], given["iterations"], given["size"]) == ("scan", 3, "64")


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ('minbytes = "64K"\nmaxbytes = "1M"', ("-s", "8,64"), (8, 64)),
        ("size = [8, 64]", ("-b", "1K", "-e", "2K"), (1024, 2048)),
        ("size = [8, 64]", (), (8, 64)),
        ("minbytes = 8", ("-e", "16"), (8, 16)),
    ],
)
def test_sizes_on_the_command_line_replace_those_of_the_file(tmp_path, text, words, expected):
    path = tmp_path / "a.toml"
    path.write_text(text)
    context = BENCH.make_context("bench", ["--config", str(path), "allreduce", *words])
    known = {field.name for field in fields(Options)}
    written = {name: value for name, value in context.params.items() if name in known}
    assert wanted.sizes(bench._sizes(Options(**written), context)) == expected


def test_a_sweep_that_does_not_reach_its_end_says_so(no_launcher, capsys):
    assert wanted.sizes(Options(maxbytes="1M", stepfactor=8))[-1] == 256 << 10
    said = capsys.readouterr().err
    assert "a factor of 8 from 8 does not reach 1M: the last size is 256K; give another -e" in said
    wanted.sizes(Options(minbytes="8", maxbytes="64", stepbytes="24"))
    assert "a step of 24 from 8 does not reach 64: the last size is 56" in capsys.readouterr().err
    assert wanted.sizes(Options(maxbytes="1M", stepfactor=2))[-1] == 1 << 20
    assert capsys.readouterr().err == ""
    assert wanted.sizes(Options(size="8,1K-64K")) == (8, 1024, 4096, 16384, 65536)


def test_every_key_is_an_option():
    """Of the same name; those that say where results go are for each launch anew."""
    options = {
        word[2:].replace("-", "_")
        for parameter in BENCH.params
        for word in (*parameter.opts, *parameter.secondary_opts)
        if word.startswith("--")
    }
    assert set(Sweep.model_fields) - {"collectives"} <= options


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_ready_sweeps_can_be_read(path):
    given = parsed(path)
    assert set(given["collectives"].split(",")) <= {*VARIANTS, "all"}
    assert path.name in path.read_text()


def test_there_are_ready_sweeps():
    assert len(READY) >= 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("minbyte = 8", "unknown key 'minbyte'; did you mean minbytes"),
        ("zebra = 8", "unknown key 'zebra'; known are collectives, size"),
        ('root = "one"', "root = 'one': input should be a valid integer"),
        ("budget = true", "budget = True: "),
        ("collectives = 3", "collectives = 3: input should be a valid list"),
        ("root = ", "is not TOML: "),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the message is looked at
        load(path)
    assert str(path) in str(raised.value)
    assert message in str(raised.value)
