"""Arrays in memory that the ranks of a node share: messages from there are read where they lie."""

from __future__ import annotations

import mmap
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from mpicoll.base import caller
from mpicoll.base.consensus import combined
from mpicoll.engine import transport
from mpicoll.errors import TransportWarning

if TYPE_CHECKING:
    import numpy.typing as npt

#: Windows that a communicator may have at a time.
MOST = 64


class Windows:
    """The windows of one communicator.

    Args:
        private: the communicator that carries its messages.
        device: what these go through, or None.

    Attributes:
        used: whether there has been one.
    """

    def __init__(self, private: MPI.Intracomm, device: Any) -> None:
        self._private, self._device = private, device
        self._open: set[int] = set()  # equal on all ranks of the node
        self._dropped: set[int] = set()  # by this rank
        self.used = False

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Bytes in a new window, or in memory of this rank alone where none can be had.

        Collective.
        """
        here = self._device is not None and self._device.memory_of_node() is not None
        with transport.node_of(self._private) as node:
            shared = combined(node, here, MPI.LAND)
            memory = self._window(node, nbytes) if shared else None
        return np.empty(nbytes, np.uint8) if memory is None else memory

    def close(self) -> None:
        """The communicator has been freed."""
        self._device = None

    def _window(self, node: MPI.Intracomm, nbytes: int) -> npt.NDArray[np.uint8] | None:
        ranks = node.allgather((nbytes, frozenset(self._dropped)))
        for number in frozenset.intersection(*(dropped for _, dropped in ranks)):
            self._device.close_window(number)
            self._open.discard(number)
            self._dropped.discard(number)
        free = next((number for number in range(MOST) if number not in self._open), None)
        page = mmap.PAGESIZE
        pages = [(length + page - 1) // page for length, _ in ranks]
        problem = f"there are {MOST} windows already" if free is None else ""
        if free is None or not sum(pages):
            memory = None
        else:
            memory, problem = transport.memory_of(node, sum(pages) * page)
        if problem:
            caller.warn_once(
                f"mpicoll.empty gives memory that is not shared: {problem}",
                TransportWarning,
                MPI.COMM_WORLD.Get_rank(),
            )
        if free is None or memory is None:
            return None
        start = sum(pages[: node.Get_rank()]) * page
        self.used = True
        self._device.open_window(free, memory, start, nbytes)
        self._open.add(free)
        # An array of its own: views of it keep it alive, and nothing else does.
        mine = np.frombuffer(memory[start : start + nbytes].data, np.uint8)
        weakref.finalize(mine, self._dropped.add, free).atexit = False
        return mine
