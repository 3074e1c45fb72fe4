"""Hyperparameter search: what to try, by which method, on which ranks, and what came of it.

    from mpicoll.train.search import SearchOptions, Space, search

    found = search(Space.read(path), SearchOptions(method="asha", trials=27), comm)

Names are loaded when first used, so that importing `options` alone loads no NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpicoll.train.search.loop import Found as Found
    from mpicoll.train.search.loop import search as search
    from mpicoll.train.search.methods import Job as Job
    from mpicoll.train.search.methods import Method as Method
    from mpicoll.train.search.methods import Population as Population
    from mpicoll.train.search.methods import Rungs as Rungs
    from mpicoll.train.search.methods import make_method as make_method
    from mpicoll.train.search.options import SearchOptions as SearchOptions
    from mpicoll.train.search.space import Space as Space

_HOMES = {
    "Found": "loop",
    "Job": "methods",
    "Method": "methods",
    "Population": "methods",
    "Rungs": "methods",
    "SearchOptions": "options",
    "Space": "space",
    "make_method": "methods",
    "search": "loop",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
