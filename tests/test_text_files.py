"""Files are written alike everywhere: texts in UTF-8 by name, figures as the umask wants them."""

import ast
import os
import stat
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [
    path
    for folder in ("mpicoll", "tools", "benchmarks", "docs")
    for path in sorted((ROOT / folder).rglob("*.py"))
] + [ROOT / "setup.py"]


def calls(text: str):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            yield node, name, {keyword.arg for keyword in node.keywords}


def without_encoding(text: str) -> list[int]:
    """Lines in which a file, or what a program says, is text in the encoding of the locale."""
    found = []
    for node, name, keywords in calls(text):
        texts = [a.value for a in node.args[:2] if isinstance(a, ast.Constant)]
        is_opened = name == "fdopen" or (name == "open" and isinstance(node.func, ast.Name))
        as_bytes = any(
            isinstance(mode, str) and set(mode) <= set("rwxab+") and "b" in mode for mode in texts
        )
        # Of a path: the first argument is the mode. Others have methods of that name, too.
        of_path = name == "open" and not is_opened and any(m in ("r", "w", "a") for m in texts[:1])
        of_program = keywords & {"text", "universal_newlines"}
        is_text = name in ("read_text", "write_text") or of_path or of_program
        if is_text or (is_opened and not as_bytes):
            found += [] if "encoding" in keywords else [node.lineno]
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_text_files_name_their_encoding(path):
    assert without_encoding(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("open(path)\nopen(path, 'w')\nopen(path, mode)", [1, 2, 3]),
        ("path.read_text()\npath.write_text(text)\npath.open('a')", [1, 2, 3]),
        ("run(words, text=True)\nrun(words, encoding='utf-8')\nrun(words)", [1]),
        ("open(path, 'wb')\nopen(path, encoding='utf-8')\nimage.open(path)", []),
    ],
)
def test_such_calls_are_found(text, lines):
    assert without_encoding(text) == lines


@pytest.mark.parametrize("name", ["a.svg", "a.png", "a"])
def test_figures_are_replaced_as_a_whole_with_the_umask(tmp_path, name):
    pytest.importorskip("matplotlib")
    from mpicoll import algorithms, draw
    from mpicoll.report import papers

    def both():
        draw.svg(tmp_path / f"draw-{name}", algorithms.find("allreduce", "ring"), 3)
        papers.by_ranks(tmp_path / f"scaling-{name}", {"ring": {2: 1.0, 4: 2.0}}, "t", "s")

    before = os.umask(0o077)
    try:
        both()
        both()
    finally:
        os.umask(before)
    assert sorted(os.listdir(tmp_path)) == [f"draw-{name}", f"scaling-{name}"]
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.stat().st_size > 1000
