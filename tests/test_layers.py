"""Imports point downwards only, and importing mpicoll starts nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mpicoll

PACKAGE = Path(mpicoll.__file__).parent

#: The layer of each module, from the ground up.
LAYERS = [
    {"schedule", "layout", "topology", "collectives", "registry"},
    {"algorithms"},
    {"matching", "verify", "simulate", "draw", "cost", "paths"}
    | {"clock", "_clock", "flat", "likeness", "machine", "ports", "sweep"},
    {
        "ops",
        "_kernels",
        "spans",
        "plan",
        "progress",
        "runner",
        "local",
        "buffers",
        "operands",
        "vectors",
    }
    | {
        "agree",
        "caller",
        "exact",
        "packing",
        "trace",
        "watch",
        "_engine",
        "_front",
        "_cuda",
        "_cuda_launch",
        "cuda",
        "libraries",
        "lowering",
        "shared",
    },
    {
        "blocking",
        "call",
        "comm",
        "completion",
        "cuda.zero_copy",
        "device_requests",
        "dispatch",
        "fused",
        "hooks",
        "lanes",
        "messages",
        "launcher",
        "native_requests",
        "nonblocking",
        "observe",
        "on_device",
        "passed",
        "persistent",
        "refusing",
        "relay",
        "requests",
        "state",
        "settings",
        "staging",
        "hints",
        "cost_file",
        "predict",
        "tuning_file",
        "windows",
        "tuning",
    },
    {"arrays", "cli", "bench", "model", "report", "train", "__main__", "__init__"},
]
LAYER = {module: number for number, modules in enumerate(LAYERS) for module in modules}

#: The ground needs nothing but the standard library.
PURE = (
    LAYERS[0]
    | LAYERS[1]
    | {"matching", "verify", "simulate"}
    | {"clock", "likeness", "machine", "ports"}
)

SOURCES = sorted(PACKAGE.rglob("*.py"))


def imports(path, everywhere):
    """Absolute names that a file imports; only those at module level unless ``everywhere``."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if everywhere else tree.body
    package = ["mpicoll", *path.relative_to(PACKAGE).parts[:-1]]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *([node.module] if node.module else [])]
            yield ".".join(base)
            yield from (".".join([*base, alias.name]) for alias in node.names)


def layered(parts):
    """The name under which a module has its layer: its own, else that of its package."""
    own = ".".join(parts[:2])
    return own if own in LAYER else parts[0]


def module_of(path):
    return layered(path.relative_to(PACKAGE).with_suffix("").parts)


def test_what_is_compiled_is_of_the_sources_as_they_are():
    for built in PACKAGE.glob("*.so"):
        source = PACKAGE / f"{built.name.split('.')[0]}.py"
        if source.exists():
            assert built.stat().st_mtime >= source.stat().st_mtime, f"{source} changed: make setup"


def test_every_module_has_a_layer():
    assert {module_of(path) for path in SOURCES} <= set(LAYER)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_downwards(path):
    here = LAYER[module_of(path)]
    for name in imports(path, everywhere=True):
        parts = name.split(".")
        if parts[0] == "mpicoll" and len(parts) > 1 and parts[1] in LAYER:
            assert LAYER[layered(parts[1:])] <= here, f"{path.name} imports {name}"


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if module_of(p) in PURE], ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_the_ground_needs_the_standard_library_only(path):
    for name in imports(path, everywhere=True):
        top = name.split(".")[0]
        assert top == "mpicoll" or top in sys.stdlib_module_names, f"{path.name} imports {name}"


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_importing_mpicoll_does_not_initialise_mpi():
    done = python(
        "import mpicoll, mpicoll.algorithms, mpicoll.verify, mpicoll.simulate, mpicoll.draw, sys\n"
        "assert 'mpi4py.MPI' not in sys.modules\n"
        "assert not {'cupy', 'torch', 'matplotlib', 'typer', 'rich'} & set(sys.modules)\n"
    )
    assert done.returncode == 0, done.stderr


def test_public_names():
    done = python("import mpicoll; print(*[n for n in mpicoll.__all__ if not hasattr(mpicoll, n)])")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
    assert {"Intracomm", "Send", "Recv", "RecvReduce", "Copy", "given", "scratch"} <= set(
        mpicoll.__all__
    )
