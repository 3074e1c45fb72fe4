"""Communicators that record: mpi4py's, of a class of their own, and mpicoll's.

`Classes.install` puts them in the place of those that ``mpi4py.MPI`` offers, before a program runs.
What they make (``Dup``, ``Split``, ``Create_cart``, ...) records too.  Calls of C code, and on an
``MPI.Intracomm(comm)`` that a program makes itself, go past them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from mpicoll.profile import requests
from mpicoll.profile.calls import COLLECTIVES, MESSAGES
from mpicoll.profile.methods import Collective, Function, Message
from mpicoll.profile.recorder import Recorder

#: Methods that make a communicator.
_MAKERS = (
    *("Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Create_group"),
    *("Create_cart", "Create_graph", "Create_dist_graph", "Create_dist_graph_adjacent", "Sub"),
    *("Create_intercomm", "Merge", "Shrink"),
)
_PLAIN = (MPI.Intracomm, MPI.Cartcomm, MPI.Graphcomm, MPI.Distgraphcomm, MPI.Intercomm)


class Patches:
    """Attributes that are put in the place of others, until `undo`."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a module or a class."""
        if name in vars(owner):
            self._undo.append(functools.partial(setattr, owner, name, vars(owner)[name]))
        else:
            self._undo.append(functools.partial(delattr, owner, name))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Set all as it was."""
        while self._undo:
            self._undo.pop()()


class Classes:
    """The recording classes of a process.

    Args:
        recorder: What they tell.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self.patches = recorder, Patches()
        self._made: dict[type, Any] = {plain: self._communicator(plain) for plain in _PLAIN}

    def install(self, world: MPI.Intracomm) -> None:
        """Let ``mpi4py.MPI`` offer communicators and requests that record.

        Args:
            world: What the program has for MPI.COMM_WORLD.
        """
        self._instrument_mpicoll()
        put = self.patches.put
        put(MPI, "COMM_WORLD", self.recorded(world, "COMM_WORLD"))
        put(MPI, "COMM_SELF", self.recorded(MPI.COMM_SELF, "COMM_SELF"))
        put(MPI, "Request", requests.Request)
        put(MPI, "Prequest", requests.Prequest)

    def _instrument_mpicoll(self) -> None:
        """Let mpicoll's own communicators record, and say which algorithm has run."""
        from mpicoll.comm import Intercomm, Intracomm, objects
        from mpicoll.comm.intracomm import Cartcomm, Distgraphcomm, Graphcomm
        from mpicoll.requests import device, library, own

        objects.survive()  # what is put in the place of a method calls the one that was there
        self._instrument(Intracomm, algorithms=True)
        self._instrument(Intercomm, algorithms=False)
        for cls in (Cartcomm, Graphcomm, Distgraphcomm):
            self._instrument(cls, algorithms=True, names=("neighbor", "Neighbor", "Ineighbor"))
        for kind in (
            *(own.Request, own.FastRequest, own.Prequest),
            *(device.Staged, device.StagedPrequest, device.Enqueued, device.EnqueuedPrequest),
            *(library.OwnedRequest, library.OwnedPrequest, library.CountedPrequest),
            *(library.FastPrequest, library.LibraryRequest, library.LibraryPrequest),
            library.PersistentFallback,
        ):
            for name, function in requests.instrumented(kind):
                self.patches.put(kind, name, function)

    def recorded(self, comm: Any, kind: str) -> Any:
        """A communicator as one that records; what is none, or null, stays what it is."""
        if not isinstance(comm, MPI.Comm) or comm == MPI.COMM_NULL:
            return comm
        made: Any = self._made[type(comm)](comm) if type(comm) in self._made else comm
        if hasattr(made, "_profile"):
            made._profile = self._recorder.channel(made, kind)
        return made

    def _communicator(self, plain: type) -> type:
        made = type(plain.__name__, (plain,), {"__module__": plain.__module__})
        self._instrument(made, algorithms=False)
        return made

    def _instrument(self, cls: Any, algorithms: bool, names: str | tuple[str, ...] = "") -> None:
        """Let the methods of a class of communicators record.

        Args:
            cls: The class, in Python.
            algorithms: Whether it can say what has run (``stats``).
            names: What the names of the collectives begin with that it has of its own.
        """
        put = functools.partial(self.patches.put, cls)
        put("_profile", None)
        for name, method in COLLECTIVES.items():
            if name.startswith(names) and hasattr(cls, name):
                made = Collective(self._recorder, method, getattr(cls, name), algorithms)
                put(name, made.recording())
        if names:
            return
        for name, buffer in MESSAGES.items():
            put(name, Message(self._recorder, getattr(cls, name), buffer).recording())
        for name in _MAKERS:
            if hasattr(cls, name):
                put(name, self._maker(name, getattr(cls, name)))
        for name in ("Idup", "Idup_with_info"):
            put(name, self._starting_maker(getattr(cls, name)))

    # --- communicators ---

    def _maker(self, name: str, function: Function) -> Function:
        @functools.wraps(function)
        def make(*arguments: Any, **named: Any) -> Any:
            return self.recorded(function(*arguments, **named), name)

        return make

    def _starting_maker(self, function: Function) -> Function:
        @functools.wraps(function)
        def make(*arguments: Any, **named: Any) -> Any:
            comm, request = function(*arguments, **named)
            # It must not be asked for its ranks yet; its first call does.
            made = self._made[type(comm)](comm) if type(comm) in self._made else comm
            return made, request

        return make
