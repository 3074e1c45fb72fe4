"""For programs that tests start on several ranks: what one does at a moment that a test names."""

import pkgutil


def before_call(where, times, do):
    """Do something just before a function of ``mpicoll.train`` is called the so manieth time."""
    path, _, name = where.rpartition(".")
    owner = pkgutil.resolve_name(f"mpicoll.train.{path}")
    before = getattr(owner, name)

    def watched(*arguments, **named):
        nonlocal times
        times -= 1
        if not times:
            do()
        return before(*arguments, **named)

    setattr(owner, name, watched)
