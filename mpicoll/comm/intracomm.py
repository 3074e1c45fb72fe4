"""The communicator: mpi4py's, with collectives whose algorithm can be chosen.

``Intracomm(c)`` is collective over ``c`` and keeps its handle, so that point-to-point messages
still meet those of ``c``.  Messages of the collectives travel on a private communicator, made once
for each handle where a call needs it (see :mod:`mpicoll.runtime.state`): two objects on one handle
share it, and freeing the handle frees it.  ``Dup, Idup, Dup_with_info, Idup_with_info, Clone,
Split, Split_type, Create, Create_group, Create_from_group`` and ``Shrink`` return this class;
``Create_cart, Create_graph, Create_dist_graph`` and ``Create_dist_graph_adjacent`` return it with
mpi4py's topology methods.  Unpickled objects are made ready by their first collective call.
``Create_intercomm`` returns :class:`mpicoll.comm.passed.Intercomm`.
``Ishrink`` and what else makes intercommunicators (``Spawn``, ...) stay mpi4py's.

Every collective goes one way, see :mod:`mpicoll.comm.dispatch`.  A mistake that all ranks make
raises on all of them; one that a single rank makes raises there, while the others wait for it.  So
let an uncaught exception end the job: start scripts by ``python -m mpi4py script.py``, or run their
main part within :func:`abort_on_exception`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from mpi4py import MPI

from mpicoll.base import launcher
from mpicoll.base.later import Later
from mpicoll.base.wording import plural
from mpicoll.comm.handle import Handle
from mpicoll.comm.inspection import Inspection
from mpicoll.comm.messages import Messages
from mpicoll.comm.nonblocking import Nonblocking
from mpicoll.comm.objects import Objects
from mpicoll.comm.passed import Intercomm, Neighbourhood
from mpicoll.comm.persistent import Persistent
from mpicoll.comm.survival import Survival
from mpicoll.engine import progress
from mpicoll.engine.transport import FastComm
from mpicoll.runtime.first_calls import FirstCalls
from mpicoll.runtime.state import find, inherit
from mpicoll.tuning import Table

if TYPE_CHECKING:
    from mpicoll.runtime import recovery
else:
    recovery = Later("mpicoll.runtime.recovery")

_C = TypeVar("_C", bound="Intracomm")
#: Of the several constructors of the bases the one that makes room for all of them.
_NEW: Any = FastComm.__new__
#: mpi4py's methods, which are found more slowly by ``super()``.
_BASE: Any = MPI.Intracomm
_CART: Any = MPI.Cartcomm
_NO_MORE: Mapping[str, Any] = {}


class Intracomm(Messages, Handle, Inspection, Survival, Objects, Nonblocking, Persistent):
    """An intracommunicator whose collectives run by an algorithm that you choose.

    Args:
        comm: an intracommunicator.  Collective over it: all its ranks build theirs.  None: the
            null communicator.
        survive: whether the other ranks go on when one dies, which Open MPI 5 allows under
            ``mpirun --with-ft ulfm``: then their collectives raise :class:`mpicoll.RankLost`, and
            :meth:`survivors` returns a communicator of those that are left.  The same on all ranks.
            It holds for all objects on the handle from then on, and for its duplicates and parts.

    Raises:
        TypeError: not an intracommunicator.
        RuntimeError: ``survive`` is not available in this launch; says why.
        ValueError: the null communicator; or the environment of rank 0 has a setting
            (``MPICOLL_ALLREDUCE=ring``, ``MPICOLL_FALLBACK=warn``) that is not understood.

    The collectives take mpi4py's arguments, and the keywords ``algorithm=`` (a name from
    ``mpicoll list``, or ``"native"``: the MPI library's own) and that algorithm's parameters.  All
    ranks must pass the same.  Without ``algorithm`` the environment of rank 0 decides, else a
    table, by the number of bytes.  Non-blocking and persistent calls without ``algorithm`` are the
    library's own and return its requests, unless rank 0 has ``MPICOLL_PROGRESS=thread``; with
    ``algorithm`` see :mod:`mpicoll.requests`.

    If mpicoll has no algorithm for a call (reductions of derived datatypes), the MPI library runs
    it: a fallback.  ``MPICOLL_FALLBACK`` is ``error``, ``warn`` (once, the default) or ``silent``.
    With ``algorithm`` given the call raises.  Neighbourhood collectives (``Neighbor_allgather``,
    ...) and all collectives of intercommunicators (:class:`Intercomm`) always run the library's
    own; :meth:`stats` counts them.

    Buffers may be arrays in the memory of CUDA devices, for example CuPy's.  Then ``stream=`` names
    the stream that orders the call (default: the current stream of their library).

    On a communicator with a topology (``MPI.Cartcomm``, ...) it has that topology's methods too.

    They raise TypeError, ValueError and BufferError for arguments that do not fit (see
    :mod:`mpicoll.buffers`), and MPI.Exception for errors of MPI, after a call of the communicator's
    error handler.  If a call fails while messages are in flight, all later calls raise
    RuntimeError.
    """

    def __new__(cls: type[_C], comm: MPI.Comm | None = None, *, survive: bool = False) -> _C:
        if comm is None:  # mpi4py is going to fill it in
            return _NEW(cls)
        if isinstance(comm, MPI.Intercomm):
            raise TypeError(
                "mpicoll.Intracomm cannot be built on an intercommunicator; use its Merge(), or "
                "mpicoll.Intercomm, which passes its collectives through"
            )
        if not isinstance(comm, MPI.Comm):
            raise TypeError(f"expected an mpi4py communicator, not {type(comm).__name__}")
        return _NEW(_with_topology(cls, comm), comm)

    def __init__(self, comm: MPI.Intracomm | None = None, *, survive: bool = False) -> None:
        if comm is None:  # the null communicator, whose handle may be filled in by its address
            return
        if not comm:
            raise ValueError("the communicator is MPI.COMM_NULL; pass one that has this rank in it")
        launcher.warn_if_alone(MPI.COMM_WORLD.Get_size())
        self._first_calls = getattr(comm, "_first_calls", None)
        self._state = self._begun()
        if survive:
            recovery.survive(self._state)

    @classmethod
    def fromhandle(cls, handle: int) -> Any:
        """The communicator of a handle of the MPI library's."""
        return _of_this_package(super().fromhandle(handle))

    @classmethod
    def fromint(cls, arg: int, /) -> Any:
        """The communicator of an integer that stands for a handle."""
        return _of_this_package(super().fromint(arg))

    @classmethod
    def f2py(cls, arg: int) -> Any:
        """The communicator of a handle of Fortran's."""
        return _of_this_package(super().f2py(arg))

    # --- communicators ---

    def Dup(self: _C, info: MPI.Info | None = None) -> _C:
        """Duplicate the communicator; without ``info`` with its hints."""
        if info is not None:
            return self.Dup_with_info(info)
        return _adopt(self, _made(_BASE.Dup, self, ()), self._hints())

    def Dup_with_info(self: _C, info: MPI.Info) -> _C:
        """Duplicate the communicator with hints."""
        return self._hinted(_adopt(self, _made(_BASE.Dup_with_info, self, (info,))), info)

    def Clone(self: _C) -> _C:
        """Clone the communicator, with its hints."""
        return _adopt(self, _made(_BASE.Clone, self, ()), self._hints())

    def Idup(self: _C, info: MPI.Info | None = None) -> tuple[_C, MPI.Request]:
        """Start to duplicate the communicator, without ``info`` with its hints.

        It may be used once the request is complete.
        """
        if info is not None:
            return self.Idup_with_info(info)
        made, request = super().Idup()
        made._first_calls = FirstCalls(self._ready().family, self._hints())
        return made, request

    def Idup_with_info(self: _C, info: MPI.Info) -> tuple[_C, MPI.Request]:
        """The same with other hints, of which mpicoll's are not taken."""
        made, request = super().Idup_with_info(info)
        made._first_calls = FirstCalls(self._ready().family)
        return made, request

    def Split(self, color: int = 0, key: int = 0) -> Intracomm:
        """Split the communicator by color and key."""
        return _child(self, _made(_BASE.Split, self, (color, key)))

    def Split_type(
        self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> Intracomm:
        """Split the communicator by split type."""
        made = _child(self, _made(_BASE.Split_type, self, (split_type, key, info)))
        return self._hinted(made, info)

    def Create(self, group: MPI.Group) -> Intracomm:
        """Create a communicator of a group."""
        return _child(self, _made(_BASE.Create, self, (group,)))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Intracomm:
        """Create a communicator of a group; collective over the group alone."""
        return _child(self, _made(_BASE.Create_group, self, (group, tag)))

    @classmethod
    def Create_from_group(
        cls,
        group: MPI.Group,
        stringtag: str = "org.mpi4py",
        info: MPI.Info = MPI.INFO_NULL,
        errhandler: MPI.Errhandler | None = None,
    ) -> Intracomm:
        """Create a communicator of a group, of a session for example."""
        made = Intracomm(super().Create_from_group(group, stringtag, info, errhandler))
        return made._hinted(made, info)

    def Shrink(self) -> Intracomm:
        """Create a communicator without the processes that have failed."""
        return _child(self, _made(_BASE.Shrink, self, ()))

    def survivors(self) -> Intracomm:
        """A communicator of the ranks that are left, in the same order; collective over them.

        It is ready for use: deaths are told of there, too, messages have a way of their own, and
        the ranks of a node share new memory.  A topology is not kept.  Ranks may die meanwhile.
        The :class:`mpicoll.RankLost` that this rank has caught then names all that have died, and
        the last call that has finished on all others.

        Raises:
            ValueError: the communicator is not built with ``survive=True``.
            RankLost: the other ranks have given up this one, and go on without it.
        """
        return Intracomm(recovery.survivors(self._begun()).comm)

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False
    ) -> Cartcomm:
        """Create a communicator with a Cartesian topology; see mpi4py's method."""
        return _child(self, _made(_BASE.Create_cart, self, (dims, periods, reorder)))

    def Create_graph(self, *arguments: Any, **more: Any) -> Graphcomm:
        """Create a communicator with a graph topology; see mpi4py's method."""
        return _child(self, _made(_BASE.Create_graph, self, arguments, more))

    def Create_dist_graph(self, *arguments: Any, **more: Any) -> Distgraphcomm:
        """Create a communicator with a distributed graph topology; see mpi4py's method."""
        return _child(self, _made(_BASE.Create_dist_graph, self, arguments, more))

    def Create_dist_graph_adjacent(self, *arguments: Any, **more: Any) -> Distgraphcomm:
        """Create a communicator with a distributed graph topology; see mpi4py's method."""
        return _child(self, _made(_BASE.Create_dist_graph_adjacent, self, arguments, more))

    def Create_intercomm(self, *arguments: Any, **more: Any) -> Intercomm:
        """Create an intercommunicator; see mpi4py's method."""
        return Intercomm(_made(_BASE.Create_intercomm, self, arguments, more))

    def Free(self) -> None:
        """Free the communicator.

        Raises:
            RuntimeError: a collective is under way on it.
        """
        _let_go(self, "Free")
        _BASE.Free(self)

    def free(self) -> None:
        """Free the communicator, if it is one that can be freed.  Raises as ``Free`` does."""
        _let_go(self, "free")
        _BASE.free(self)

    def Disconnect(self) -> None:
        """Disconnect from the communicator.  Raises as ``Free`` does."""
        _let_go(self, "Disconnect")
        _BASE.Disconnect(self)

    def load(self, path: str) -> None:
        """Load a schedule file, again if it has been loaded before.  Collective.

        Rank 0 reads and verifies it, and all ranks get what it has read.  From then on
        ``algorithm="file:PATH"`` is what the file had; the first blocking call that names a file
        loads it by itself.

        Args:
            path: as rank 0 finds it.

        Raises:
            ValueError: on all ranks, if the ranks name different files, the file cannot be read,
                or its schedule is wrong.
        """
        self._ready().load(path)


class Cartcomm(Neighbourhood, Intracomm, MPI.Cartcomm):
    """An :class:`Intracomm` with a Cartesian topology."""

    def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm:
        """Create communicators of lower-dimensional subgrids."""
        return _child(self, _made(_CART.Sub, self, (remain_dims,)))


class Graphcomm(Neighbourhood, Intracomm, MPI.Graphcomm):
    """An :class:`Intracomm` with a graph topology."""


class Distgraphcomm(Neighbourhood, Intracomm, MPI.Distgraphcomm):
    """An :class:`Intracomm` with a distributed graph topology."""


#: The classes of this package, by mpi4py's.
_CLASSES: dict[type[MPI.Comm], type[Intracomm]] = {
    MPI.Intracomm: Intracomm,
    MPI.Cartcomm: Cartcomm,
    MPI.Graphcomm: Graphcomm,
    MPI.Distgraphcomm: Distgraphcomm,
}
_OURS = frozenset(_CLASSES.values())


def _child(comm: Intracomm, made: Any) -> Any:
    """What mpi4py has made of a communicator, as an object of this package, if this rank is in it.

    Its class is not that of the communicator, which may be a user's.
    """
    kind = _CLASSES.get(type(made))
    if kind is not None:
        made = _NEW(kind, made)
    elif type(made) not in _OURS:
        made = Intracomm.__new__(Intracomm, made)
    return _adopt(comm, made) if made else made


def _adopt(comm: Intracomm, made: Any, hinted: Table | None = None) -> Any:
    """Set up an object of this package that mpi4py has made of a communicator."""
    family = (comm._state or comm._first_calls or comm._ready()).family
    made._first_calls = made._fast_path = FirstCalls(family, hinted)
    if hinted or not family.is_plain:
        made._state = inherit(made, made._first_calls)
    return made


def _made(
    method: Callable[..., Any],
    comm: Intracomm,
    arguments: tuple[Any, ...],
    more: Mapping[str, Any] = _NO_MORE,
) -> Any:
    """What a method of mpi4py's makes, while all that is under way goes on."""
    if not progress.under_way:
        return method(comm, *arguments, **more)
    with progress.meanwhile():
        return method(comm, *arguments, **more)


def _let_go(comm: Intracomm, method: str) -> None:
    """Raise if a collective is under way: its messages would have nowhere to go."""
    if not progress.under_way:
        return
    state = comm._state or (find(comm) if comm else None)
    if state is None or state.closed or state.guard.failure is not None:
        return
    if state.under_way:
        progress.poll()
        if state.under_way:
            raise RuntimeError(
                f"{method} of a communicator with "
                f"{plural(len(state.under_way), 'collective')} under way: "
                f"{', '.join(map(repr, state.under_way))}; Wait for them first"
            )


def _of_this_package(comm: MPI.Comm) -> Any:
    """A communicator of mpi4py's as one of mpicoll's; made ready by its first collective call."""
    if isinstance(comm, MPI.Intercomm):
        return Intercomm(comm)
    return Intracomm.__new__(Intracomm, comm)


def _with_topology(cls: type[Intracomm], comm: MPI.Comm) -> type[Intracomm]:
    """The class for a communicator: that of its topology where ``cls`` does not say otherwise."""
    if cls is Intracomm:
        for kind, made in reversed(_CLASSES.items()):
            if isinstance(comm, kind):
                return made
    return cls
