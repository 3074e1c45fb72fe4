"""Algorithms from outside mpicoll, for one test each."""

import contextlib
import sys
import tempfile

from mpicoll import registry
from mpicoll.base import extensions


@contextlib.contextmanager
def forgotten():
    """What is registered and imported within is forgotten afterwards."""
    entries, modules = dict(registry._CATALOGUE), set(sys.modules)
    loaded, asked, path = set(extensions._loaded), extensions._asked, list(sys.path)
    try:
        yield
    finally:
        registry._CATALOGUE.clear()
        registry._CATALOGUE.update(entries)
        extensions._loaded.clear()
        extensions._loaded.update(loaded)
        extensions._asked = asked
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(tempfile.gettempdir()):
                del sys.modules[name]


#: A broadcast that is registered by whoever imports this.
MODULE = """
from mpicoll import Recv, Send
from mpicoll.registry import register

def around(rank, size, root):
    '''Each rank passes the vector to the next one.'''
    if rank != root:
        yield Recv((rank - 1) % size, 0)
    if (rank + 1 - root) % size:
        yield Send((rank + 1) % size, 0)

register("bcast", "around", around)
"""
