"""Algorithms of a user's own on the command line, as the documentation shows them."""

import json
import sys

import pytest
from test_docs import blocks, page

from mpicoll.base import extensions

pytestmark = pytest.mark.usefixtures("no_launcher")


@pytest.fixture(autouse=True)
def mycoll(monkeypatch, nothing_from_outside, tmp_path):
    """The file of the documentation's page, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mycoll.py").write_text(dict(blocks(page("own_algorithms"), "python"))["mycoll.py"])


def test_it_takes_twenty_lines(tmp_path):
    assert len((tmp_path / "mycoll.py").read_text().strip().splitlines()) <= 20


@pytest.mark.parametrize("name", ["mycoll", "mycoll.py"])
def test_every_command_knows_it(command, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "200")
    given = ("--import", name)
    listed = command("list", "Allreduce", *given).out
    assert " mycoll " in listed and "exchange" in listed and "power of two" in listed
    verified = command("verify", "allreduce", "exchange", "-P", "1-16", *given)
    assert verified.status == 0 and "5 of 5 cases right" in verified.out
    shown = verified.out.split("counted in the schedules of allreduce exchange:")[1]
    assert ["4", "2", "2", "8", "8", "2", "1"] in [line.split() for line in shown.splitlines()]
    (table,) = (text for _, text in blocks(page("own_algorithms"), "console") if "ranks" in text)
    assert {*table.strip().splitlines()} <= {*verified.out.splitlines()}
    assert "8 messages" in command("show", "allreduce", "exchange", "-P", "4", *given).out
    cases = json.loads(command("simulate", "allreduce", "all", "-P", "8", "--json", *given).out)[
        "cases"
    ]
    (mine,) = [case for case in cases if case["algorithm"] == "exchange"]
    (same,) = [case for case in cases if case["algorithm"] == "recursive_doubling"]
    assert mine["time"] == same["time"] and mine["formula"] is None
    refused = command("show", "allreduce", "exchange", "-P", "6", *given)
    assert "a power of two of ranks, not 6: take 8 ranks, or" in refused.err


def test_the_environment_and_the_documentation_know_it(command, monkeypatch):
    from test_docs import module

    monkeypatch.setenv(extensions.VARIABLE, "mycoll")
    facts = json.loads(command("list", "allreduce", "--json").out)
    (mine,) = [entry for entry in facts if entry["algorithm"] == "exchange"]
    assert mine["module"] == "mycoll" and mine["needs"] == ["power of two"]
    text = module("catalogue").pages()["allreduce.rst"]
    section = text.split("\nexchange\n--------\n")[1].split(".. _allreduce")[0]
    assert "``mycoll``" in section and "not served" in section
    row = section.split("   * - 8\n")[1].split("   * -")[0]
    assert [cell.strip(" -") for cell in row.strip().splitlines()] == [
        "3", "3", "24", "24", "3", "1", "—",
    ]  # fmt: skip


def test_without_it_nobody_knows_it(command):
    assert "unknown algorithm 'exchange'" in command("show", "allreduce", "exchange").err
    assert "mycoll" not in sys.modules


@pytest.mark.parametrize("words", [["list"], ["bench", "allreduce"], ["explain", "allreduce"]])
def test_a_module_that_is_not_there(command, words):
    done = command(*words, "--import", "gone")
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        "mpicoll: error: --import: gone cannot be imported: No module named 'gone'; give a module "
        "that Python finds, or a file, as mycoll.py\n"
    )


def test_what_is_wrong_with_it_is_told(command, tmp_path):
    text = (tmp_path / "mycoll.py").read_text().replace("rank ^ distance", "rank + distance")
    (tmp_path / "wrong.py").write_text(text)
    done = command("verify", "allreduce", "exchange", "-P", "2", "--import", "wrong.py")
    assert done.status == 1 and "of rank 1 has no such peer among 2 ranks" in done.out


def test_bench_and_a_program_run_it(mpirun, tmp_path):
    done = mpirun(
        2, "-m", "mpicoll", "bench", "allreduce", "-a", "exchange,native", "-s", "8,64K",
        *("-n", "5", "--import", "mycoll.py", "--format", "csv"),
    )  # fmt: skip
    assert done.status == 0, done.err
    assert done.out.count("exchange") == 2
    (tmp_path / "sum.py").write_text(dict(blocks(page("own_algorithms"), "python"))["sum.py"])
    done = mpirun(
        2, "-m", "mpi4py", tmp_path / "sum.py", environment={extensions.VARIABLE: "mycoll.py"}
    )
    assert done.status == 0, done.err
