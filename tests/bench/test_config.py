"""Sweeps written down: read as the command line would be, and mistakes named."""

from pathlib import Path

import pytest

from mpicoll.bench.config import Sweep, load
from mpicoll.cli import app
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
    assert given["collectives"] == ["bcast", "reduce"]
    assert (given["size"], given["ranks"], given["iterations"]) == ("8,1K", "2,4", 7)
    assert (given["cold"], given["check"], given["skew"], given["budget"]) == (True, 0, 1.0, 2.5)
    assert given["set_"] == ["segments=4", "order=1,0"]
    # The command line comes first.
    given = parsed(path, "scan", "-n", "3", "-s", "64")
    assert (given["collectives"], given["iterations"], given["size"]) == (["scan"], 3, "64")


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
    assert set(given["collectives"]) <= {*VARIANTS, "all"}
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
