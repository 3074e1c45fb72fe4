"""The rooms of mpicoll have one order, imports point downwards in it, and there is no circle."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

from layers import (
    DOORS,
    NOT_PURE,
    ORDER,
    PURE,
    ROOT,
    Graph,
    circles,
    computes_imports,
    file_name,
    graph,
    impure,
    package,
    sources,
    upward,
    without_floor,
)

PACKAGE = ROOT / "mpicoll"

#: Files that may import by a name they compute: what ``_HOMES`` lists, what users have to install,
#: the strategy that a run names, what a module stands for, users' modules of algorithms.
COMPUTED = {
    "mpicoll.__init__",
    "mpicoll.train.__init__",
    "mpicoll.base.extensions",
    "mpicoll.base.later",
    "mpicoll.train.registry",
    "mpicoll.train.search.__init__",
    "mpicoll.cli.app",
    "mpicoll.cli.measured",
}


def test_every_module_has_a_floor():
    assert not without_floor(sources(), ORDER)


def test_imports_point_downwards():
    assert not upward(package(), ORDER)


def test_there_is_no_circle():
    assert not circles(package())


def test_every_door_is_one():
    found = graph(sources())
    assert all(target in found[file] for file, target in DOORS)


def test_what_is_imported_is_written_down():
    assert {file_name(p) for p, text in sources().items() if computes_imports(p, text)} <= COMPUTED


def test_pure_rooms_need_the_standard_library_alone():
    assert not impure(sources(), PURE, NOT_PURE)


def test_every_room_says_in_one_sentence_what_it_holds():
    for path in PACKAGE.rglob("__init__.py"):
        first = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
        assert re.fullmatch(r"[^.]+(\.\w[^.]*)*\.", first), path


def test_what_is_compiled_is_of_the_sources_as_they_are():
    for built in PACKAGE.rglob("*.so"):
        source = built.with_name(f"{built.name.split('.')[0]}.py")
        if source.exists():
            assert built.stat().st_mtime >= source.stat().st_mtime, f"{source} changed: make setup"


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_mpicoll_starts_nothing():
    python(
        f"import importlib, sys\nfor name in {PURE}: importlib.import_module(name)\n"
        "assert not {'mpi4py', 'numpy'} & set(sys.modules)\n"
        "import mpicoll.local\n"
        "assert 'mpi4py.MPI' not in sys.modules\n"
        "assert not {'cupy', 'torch', 'matplotlib', 'typer', 'rich'} & set(sys.modules)\n"
    )


def test_a_first_call_loads_nothing_that_few_need():
    few = ["comm.device", "files.schedule_files", "runtime.recovery", "runtime.relay"]
    python(
        "import sys\nimport numpy\nfrom mpi4py import MPI\nimport mpicoll\n"
        "comm = mpicoll.Intracomm(MPI.COMM_SELF)\n"
        "comm.Allreduce(numpy.ones(2), numpy.zeros(2))\n"
        "comm.Iallreduce(numpy.ones(2), numpy.zeros(2)).Wait()\n"
        f"loaded = [name for name in {few} if 'mpicoll.' + name in sys.modules]\n"
        "assert not loaded, loaded\n"
    )


def test_every_documented_name_can_be_imported():
    """Without ranks; torch and jax need not be installed."""
    pages = "".join(path.read_text() for path in ROOT.glob("docs/*.rst"))
    shown = re.findall(r"^\.\. auto\w+:: (mpicoll[\w.]*).*\n(?: +:members: *(.*))?", pages, re.M)
    names = [name for name, _ in shown]
    names += [f"{name}.{member}" for name, some in shown for member in some.split(", ") if member]
    assert len(names) > 120
    python(
        "import mpi4py, pkgutil, sys, unittest.mock\n"
        "mpi4py.rc.initialize = mpi4py.rc.finalize = False\n"
        "sys.modules['torch'] = unittest.mock.MagicMock()\n"
        "sys.modules['jax'] = unittest.mock.MagicMock()\n"
        f"for name in {names}: pkgutil.resolve_name(name)\n"
        "import mpicoll\n"
        "for name in mpicoll.__all__: getattr(mpicoll, name)\n"
    )


def may_be_imported(name: str) -> bool:
    """By the rule of docs/architecture.rst: a name of mpicoll, of a file at its top, or of a room;
    in training likewise."""
    module, _, name = name.rpartition(".")
    if module.rpartition(".")[2][:1].isupper():  # a method
        module = module.rpartition(".")[0]
    path = ROOT / module.replace(".", "/")
    top = (
        module.rpartition(".")[0] in ("mpicoll", "mpicoll.train")
        and path.with_suffix(".py").exists()
    )
    return path.is_dir() or top


def test_programs_import_documented_names_from_the_top_or_from_a_room():
    pages = "".join(path.read_text() for path in ROOT.glob("docs/*.rst"))
    names = re.findall(r"^\.\. auto(?!module)\w+:: (mpicoll[\w.]*)", pages, re.M)
    assert {name for name in names if not may_be_imported(name)} == {
        "mpicoll.cuda.registered.Registered"  # what mpicoll.cuda.register returns
    }


# --- trees with faults in them --------------------------------------------------------------------

PLANTED = {
    "mpicoll": """
        cli
        comm
        base
    """
}
UPWARD = "mpicoll.base.low imports mpicoll.comm.high"


def planted(text: str, path: str = "mpicoll/base/low.py") -> Graph:
    tree = {"mpicoll/comm/__init__.py": "", "mpicoll/comm/high.py": "from mpicoll.base import low"}
    return graph({**tree, "mpicoll/base/__init__.py": "", path: text})


def test_a_tree_in_order():
    found = planted("import os\nfrom mpicoll.base import low")
    assert found["mpicoll.comm.high"] == {"mpicoll.base.low"}
    assert not upward(found, PLANTED) and not circles(found)


def test_an_import_upward_is_found_however_it_is_written():
    for text in (
        "import mpicoll.comm.high",
        "from mpicoll.comm import high",
        "from mpicoll.comm.high import name",
        "from ..comm import high as other",
        "def f():\n    from mpicoll.comm import high",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mpicoll.comm.high",
        "importlib.import_module('mpicoll.comm.high')",
        "importlib.import_module('..comm.high', __package__)",
        "pytest.importorskip('mpicoll.comm.high')",
    ):
        found = planted(text)
        assert upward(found, PLANTED) == [UPWARD], text
        assert circles(found) == [["mpicoll.base.low", "mpicoll.comm.high"]], text
    for text in (
        "cdef int f():\n    from mpicoll.comm cimport (  # a comment\n        high)",
        "from mpicoll.comm.high cimport name",
        "cimport mpicoll.comm.high",
        "import mpicoll.comm.high",
        "f = import_module('mpicoll.comm.high')",
    ):
        for suffix in ("pyx", "pxd"):
            assert upward(planted(text, f"mpicoll/base/low.{suffix}"), PLANTED) == [UPWARD], text


def test_rooms_of_one_floor_do_not_import_each_other():
    order = {"mpicoll": "comm base"}
    assert upward(planted("import mpicoll.comm.high"), order) == [
        UPWARD,
        "mpicoll.comm.high imports mpicoll.base.low",
    ]


def test_files_of_a_room_have_an_order():
    order = {"mpicoll.base": "first\nlow"}
    tree = {"mpicoll/base/low.py": "from mpicoll.base import first", "mpicoll/base/first.py": ""}
    assert upward(graph(tree), order) == ["mpicoll.base.low imports mpicoll.base.first"]
    assert not without_floor(tree, order)
    assert without_floor({**tree, "mpicoll/base/new.py": ""}, order) == {"mpicoll.base.new"}


def test_a_circle_through_several_files_is_found():
    tree = {f"mpicoll/{a}.py": f"from mpicoll.{b} import x" for a, b in ("ab", "bc", "ca", "dc")}
    assert circles(graph(tree)) == [["mpicoll.a", "mpicoll.b", "mpicoll.c"]]


def test_what_a_package_offers_is_taken_from_its_init():
    tree = {
        "mpicoll/a/__init__.py": "_HOMES = {'name': 'b', 'other': 'c.d'}",
        "mpicoll/a/b.py": "from mpicoll.a import c",
        "mpicoll/a/c/__init__.py": "",
        "mpicoll/a/c/d.py": "from mpicoll.a import name",
    }
    found = graph(tree)
    assert found["mpicoll.a.b"] == {"mpicoll.a.c.__init__"}
    assert circles(found) == [["mpicoll.a.__init__", "mpicoll.a.c.d"]]


def test_imports_that_are_computed_are_found():
    assert computes_imports("mpicoll/a.py", "import_module(f'mpicoll.{name}')")
    assert computes_imports("mpicoll/a.py", "__import__(name)")
    assert not computes_imports("mpicoll/a.py", "importlib.import_module('mpicoll.a')")


def test_numpy_is_found_behind_other_sources():
    tree = {
        "mpicoll/pure/a.py": "def f():\n    import mpicoll.b\nfrom mpicoll import c",
        "mpicoll/b.py": "import numpy",
        "mpicoll/c.py": "from mpicoll.d.e import x",
        "mpicoll/d/__init__.py": "",
        "mpicoll/d/e.py": "",
    }
    assert not impure(tree, ["mpicoll.pure"])
    for path in ("mpicoll/pure/a.py", "mpicoll/d/e.py", "mpicoll/d/__init__.py"):
        text = tree[path]
        assert impure(
            {**tree, path: f"{text}\ntry:\n    from mpi4py import MPI\nexcept OSError: 1"},
            ["mpicoll.pure"],
        )
