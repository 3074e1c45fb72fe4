"""Every text file is UTF-8, whatever the locale: no file is opened as text without that word."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    *(path for room in ("mpicoll", "benchmarks", "docs", "tools") for path in
      sorted((ROOT / room).rglob("*.py"))),
    ROOT / "setup.py",
]  # fmt: skip

_MODE = re.compile("[rwaxbt+]{1,3}")


def without_encoding(text):
    """Lines that open a text file, or a program's output as text, and do not say its encoding."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            given = {word.arg: word.value for word in node.keywords}
            if "encoding" not in given and _is_text(node, given):
                yield node.lineno


def _is_text(call, given):
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    of_module = isinstance(call.func, ast.Name) or ast.unparse(call.func).startswith(("io.", "os."))
    words = [value.value for value in call.args if isinstance(value, ast.Constant)]
    modes = [word for word in words if isinstance(word, str) and _MODE.fullmatch(word)]
    modes += [ast.literal_eval(given["mode"])] if "mode" in given else []
    if ast.unparse(call.func) == "os.open":
        return False
    if name in ("open", "fdopen") and of_module:
        return not any("b" in mode for mode in modes)
    # Of a path: the first argument is the mode. Others have methods of that name, too.
    if name == "open":
        return (not call.args and not given) or any("b" not in mode for mode in modes)
    if name in ("NamedTemporaryFile", "TemporaryFile"):
        return bool(modes) and not any("b" in mode for mode in modes)
    if name in ("read_text", "write_text", "TextIOWrapper"):
        return True
    return any(
        isinstance(given.get(word), ast.Constant) and given[word].value is True
        for word in ("text", "universal_newlines")
    )


@pytest.mark.parametrize("line", [
    "open(path)",
    "open(path, 'a')",
    "open(path, mode='w')",
    "os.fdopen(number, 'w')",
    "path.open()",
    "path.open('w')",
    "path.read_text()",
    "path.write_text(words)",
    "subprocess.run(words, text=True)",
    "tempfile.NamedTemporaryFile('w')",
])  # fmt: skip
def test_what_is_found(line):
    assert [*without_encoding(line)] == [1]
    assert not [*without_encoding(f"{line[:-1]}, encoding='utf-8')".replace("(, ", "("))]


@pytest.mark.parametrize("line", [
    "open(path, 'rb')",
    "os.open(path, os.O_RDONLY)",
    "path.open('ab')",
    "Area.open(state, device)",
    "archive.open(name)",
    "path.read_bytes()",
    "subprocess.run(words)",
])  # fmt: skip
def test_what_is_no_text(line):
    assert not [*without_encoding(line)]


def test_every_text_file_says_its_encoding():
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for path in FILES
        if (lines := [*without_encoding(path.read_text(encoding="utf-8"))])
    }
    assert found == {}
