"""Hooks for profilers: functions that run after every collective call of this process.

::

    from mpicoll import hooks

    hooks.add(lambda event: print(event.collective, event.algorithm, event.nbytes, event.seconds))

Non-blocking collectives and each start of a persistent one count as calls.  With mpicoll's
algorithms they are reported when they are found complete, in whatever call or thread that happens,
if there were hooks when they started.  The library's own are reported when they have started.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

__all__ = ["Event", "Hook", "add", "installed", "remove", "report"]


class Event(NamedTuple):
    """A collective call of this rank that has ended, or that the MPI library has started.

    Attributes:
        collective, algorithm: names as in ``mpicoll list``; ``native``: the MPI library's own.
        size, rank: of the communicator.
        nbytes: bytes of the whole vector; 0 where this rank cannot tell.
        seconds: from the call to its end on this rank.
        error: what it raised, if it failed.
        complete: False for a non-blocking call of the MPI library, whose end mpicoll does not see;
            then ``seconds`` is the time of the start.
    """

    collective: str
    algorithm: str
    size: int
    rank: int
    nbytes: int
    seconds: float
    error: BaseException | None = None
    complete: bool = True


Hook: TypeAlias = Callable[[Event], object]

#: The hooks, in the order in which they are called.
installed: list[Hook] = []


def add(hook: Hook) -> None:
    """Call ``hook(event)`` after every collective call from now on.

    An exception of the hook is raised by that call, or by ``Wait`` or ``Test`` of a request.
    """
    installed.append(hook)


def remove(hook: Hook) -> None:
    """Remove a hook.

    Raises:
        ValueError: it has not been added.
    """
    if hook not in installed:
        raise ValueError(f"{hook!r} is no hook: it has not been added, or is removed already")
    installed.remove(hook)


def report(event: Event) -> None:
    """Call all hooks."""
    for hook in [*installed]:
        hook(event)
