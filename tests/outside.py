"""Algorithms from outside mpicoll, for one test each."""

import contextlib
import sys
import tempfile

from mpicoll import registry
from mpicoll.base import extensions
from mpicoll.registry import register


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


@contextlib.contextmanager
def registering(name):
    """Registers algorithms under one name; what ranks remember of them is forgotten, too."""
    from mpicoll.runtime import admission, agree

    def add(collective, schedule, **more):
        return register(collective, name, schedule, **more)

    try:
        with forgotten():
            yield add
    finally:
        for remembered in (admission.fault, agree.schedule_hash):
            remembered.cache_clear()


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
