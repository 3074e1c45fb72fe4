"""The pages for beginners are copied and run: files by their captions, commands in their order."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from test_docs import blocks, page

BIN = Path(sys.prefix, "bin")

PAGES = (
    *("first_program", "tutorial_mpi4py", "tutorial_ranks"),
    pytest.param("tutorial_torch", marks=pytest.mark.long),
)


def sessions(text):
    """Commands, each with the lines that the page shows below it."""
    found = []
    for _, block in blocks(text, "console"):
        for line in block.strip().splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.startswith("> "):
                found[-1] = (found[-1][0].removesuffix("\\") + line[2:], [])
            else:
                found[-1][1].append(line)
    return found


def run(command, folder):
    """A command of a page, with the variables that are set before it."""
    words = shlex.split(command)
    variables = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.timeout(600)  # several launches, on cores that others may use
@pytest.mark.parametrize("name", PAGES)
def test_a_page_for_beginners(name, tmp_path):
    if name == "tutorial_torch":
        pytest.importorskip("torch", reason="PyTorch is not installed")
    text = page(name)
    for caption, program in blocks(text, "python"):
        (tmp_path / caption).write_text(program)
    shown = sessions(text)
    assert shown
    for command, lines in shown:
        done = run(command, tmp_path)
        assert done.returncode == 0, done.stderr
        for line in lines:
            assert line in done.stdout, (command, done.stdout)


def test_the_tutorial_of_tuning_ends_with_its_file(tmp_path):
    text = page("tutorial_mpi4py")
    (command,) = (c for c, _ in sessions(text) if c.startswith("MPICOLL_TUNING"))
    assert command.split()[0] == "MPICOLL_TUNING=tuning.json"
    assert any(c.endswith("-o tuning.json") for c, _ in sessions(text))


def test_the_home_page_shows_the_program_of_the_readme():
    (readme,) = (
        block.split("```")[0]
        for block in (Path(__file__).parent.parent / "README.md").read_text().split("```python\n")
        if "Intracomm" in block.split("```")[0]
    )
    (home,) = (code for _, code in blocks(page("index"), "python"))
    assert home.strip() == readme.strip()
