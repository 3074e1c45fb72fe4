"""Where the compiled engine cannot run, and what is said then."""

import subprocess
import sys

from mpi4py import MPI

from mpicoll.engine import transport

LIBRARY = MPI.Get_library_version()


def engine(monkeypatch, built_for="", library=LIBRARY):
    monkeypatch.setattr(transport, "_PROBLEM", "")
    monkeypatch.setattr(transport, "BUILT_FOR", built_for, raising=False)
    monkeypatch.setattr(transport, "library", lambda: library, raising=False)


def test_an_engine_of_this_library(monkeypatch):
    engine(monkeypatch, library=LIBRARY + "\0")
    assert transport.engine_problem() == ""


def test_an_engine_built_for_another_library(monkeypatch):
    engine(monkeypatch, built_for="Elsewhere MPI")
    assert transport.engine_problem().startswith("it is built for Elsewhere MPI, and this is ")


def test_an_engine_that_the_loader_has_linked_with_another_library(monkeypatch):
    engine(monkeypatch, library="Elsewhere MPI v7, package: none")
    assert transport.engine_problem().startswith(
        "it is linked with Elsewhere MPI v7, and mpi4py with"
    )
    assert "LD_LIBRARY_PATH" in transport.engine_problem()


def test_an_engine_that_cannot_be_loaded():
    code = """
import sys

class Finder:
    def find_spec(name, path, target=None):
        if name == "mpicoll.engine._transport":
            raise ValueError("mpi4py.MPI.Datatype size changed")

sys.meta_path.insert(0, Finder)
from mpicoll.engine import transport
print(transport.engine_problem())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("it cannot be loaded (mpi4py.MPI.Datatype size changed): ")
