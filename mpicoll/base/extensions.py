"""Modules from outside mpicoll that register algorithms when they are imported.

``MPICOLL_IMPORT`` names some, as does ``--import`` on the command line; installed packages name
theirs in the entry point group ``mpicoll.algorithms``.  They are imported when an algorithm is
asked for that mpicoll does not have, or when all are listed.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from importlib.util import module_from_spec, spec_from_file_location

VARIABLE = "MPICOLL_IMPORT"
#: Put together, since nothing is imported by it.
GROUP = f"{__name__.partition('.')[0]}.algorithms"

#: Names that have been loaded.
_loaded: set[str] = set()
#: Whether installed packages have been asked; they are once.
_asked = False


def named(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """What the environment names: modules and files, with commas between them."""
    return tuple(filter(None, (word.strip() for word in environment.get(VARIABLE, "").split(","))))


def load_all() -> None:
    """Load what the environment names and what is installed, if that has not been done.

    An installed package that cannot be loaded is warned of and left out.

    Raises:
        ValueError: see :func:`load`.
    """
    global _asked
    load(named())
    if _asked:
        return
    _asked = True  # what is loaded may ask for algorithms itself
    from importlib.metadata import entry_points  # takes long

    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            warnings.warn(
                f"the algorithms {entry.name} ({entry.value}), which are installed, cannot be "
                f"loaded: {_reason(error)}",
                stacklevel=2,
            )


def load(names: Iterable[str]) -> None:
    """Import modules, and Python files, whose names end with ``.py``.

    Modules are looked for in the current folder last.

    Raises:
        ValueError: there is none of a name, or it fails; the message names it, and where.
    """
    for name in names:
        if name in _loaded:
            continue
        _loaded.add(name)  # what is loaded may ask for algorithms itself
        try:
            _import(name)
        except BaseException as error:
            _loaded.discard(name)
            if not isinstance(error, Exception):
                raise
            raise ValueError(f"{name} cannot be imported: {_reason(error)}") from error


def _import(name: str) -> None:
    if not name.endswith(".py"):
        here = os.getcwd()
        if here not in sys.path:
            sys.path.append(here)
        importlib.import_module(name)
        return
    from pathlib import Path  # seldom needed

    path = Path(name).resolve()
    if not path.is_file():
        raise ImportError(f"there is no file {name}")
    known = sys.modules.get(path.stem)
    if known is not None:
        if getattr(known, "__file__", None) == str(path):
            return
        raise ImportError(f"a module {path.stem} is loaded already; give the file another name")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # it ends with .py
    module = sys.modules[path.stem] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise


def _reason(error: Exception) -> str:
    """What went wrong, and the place in the file where it did."""
    if isinstance(error, ImportError) and not error.__cause__:
        return f"{error}; give a module that Python finds, or a file, as mycoll.py"
    import traceback  # seldom needed

    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(last.filename)}, line {last.lineno}"
    return f"{type(error).__name__}: {error} ({place})"
