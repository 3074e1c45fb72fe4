"""The process group that PyTorch holds."""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from mpi4py import MPI
from torch.distributed import DistBackendError, PrefixStore, Store

import mpicoll
from mpicoll.base import caller
from mpicoll.engine import progress
from mpicoll.runtime.settings import Settings
from mpicoll.runtime.state import attach
from mpicoll.torch.messages import Message, Messages
from mpicoll.torch.moving import Moving
from mpicoll.torch.reducing import Reducing
from mpicoll.torch.turns import GRACE, Limit, Turns


class Group(Reducing, Moving, Messages):
    """A process group over a communicator of its own, which it frees.

    Args:
        comm: its ranks are those of the group, in their order.  Collective over it.
        settings: those of the job.
        store: PyTorch's.
        timeout: how long an operation may take.
        name: PyTorch's name of it.
    """

    #: What ``split_group`` asks a backend for.
    supports_splitting = True
    options: Any = None

    def __init__(
        self,
        comm: MPI.Intracomm,
        settings: Settings,
        store: Store,
        timeout: timedelta,
        name: str,
    ) -> None:
        super().__init__(comm.Get_rank(), comm.Get_size())
        self._settings, self._store, self._name, self._description = settings, store, name, ""
        self._timeout = timeout.total_seconds()
        self._limit = Limit(f"group {name!r}")
        self.state = attach(comm, _limited(comm, settings, self._timeout))
        self.state.connect()  # before calls have a limit, which the library's own would not keep
        if self.state.watch is None:
            # Blocking calls then keep the limit of the group, and their fast path.
            self.state.guard.pause = self._limit.pause
        self.comm = mpicoll.Intracomm(comm)
        levels = self.comm.allreduce(MPI.Query_thread(), MPI.MIN)
        threaded = levels >= MPI.THREAD_MULTIPLE
        if threaded:
            progress.start()
        else:
            caller.warn_once(
                "MPI runs below MPI_THREAD_MULTIPLE, so async_op=True blocks; set "
                "mpi4py.rc.thread_level = 'multiple' before MPI is imported, and do without a "
                "setting that lowers it",
                RuntimeWarning,
                MPI.COMM_WORLD.Get_rank(),
            )
        self._turns = Turns(self._limit, threaded)
        self._streams, self._enqueued = {}, deque()
        self._last_tag = int(comm.Get_attr(MPI.TAG_UB) or 0)
        self._ended = ""

    # --- what PyTorch asks ---

    def getSize(self) -> int:
        return self.comm.Get_size()

    def getRank(self) -> int:
        return self.comm.Get_rank()

    def getBackendName(self) -> str:
        return "mpicoll"

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    # PyTorch's own properties do not call these methods before 2.7.
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    @property
    def _device_types(self) -> list[torch.device]:
        """Whose tensors it takes here; async checkpoints ask for the CPU."""
        found = [torch.device("cpu")]
        return [*found, torch.device("cuda")] if torch.cuda.is_available() else found

    def get_group_store(self) -> Store:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long an operation that is called from now on may take."""
        self._timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        """How many collectives were called on this rank."""
        return self._sequence

    def _get_backend(self, device: torch.device) -> Group:
        return self

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Remember the device of ``init_process_group``, whose groups ``split_group`` splits."""
        self.bound_device_id = device

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Take part in making a group of other ranks; only its members make it here."""

    # --- groups of this one ---

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> Group | None:
        """A group of ranks of this one; None on others.  Collective over these ranks."""
        if self.rank() not in ranks:
            return None
        name = group_name or f"{self._name}:split:{','.join(map(str, ranks))}"
        limit = timedelta(seconds=self._timeout) if timeout is None else timeout
        store = PrefixStore(f"{name}/", self._store)
        made = Group(members(self.comm, ranks, name), self._settings, store, limit, name)
        made.setGroupDesc(group_desc or "")
        return made

    # --- the end ---

    def _check(self, what: str) -> None:
        if self._ended:
            raise DistBackendError(f"{what} of group {self._name!r}, which {self._ended}")

    def shutdown(self) -> None:
        """End the group; what is under way has some seconds to complete."""
        self._end("has been destroyed", GRACE)

    def abort(self) -> None:
        """End the group; what is under way fails."""
        self._end("has been aborted", 0.0)

    def _end(self, how: str, seconds: float) -> None:
        if self._ended:
            return
        self._ended = how
        reason = f"the group {how} with work outstanding"
        complete = self._turns.close(min(seconds, self._timeout), reason)
        complete &= self._end_messages(seconds, reason)
        if complete and self.state.guard.failure is None:
            self.comm.Free()

    def _end_messages(self, seconds: float, reason: str) -> bool:
        """Let messages complete, and give up the others; whether there are none."""
        end = time.monotonic() + seconds
        for message in [*progress.under_way]:
            if isinstance(message, Message) and message.owner is self.state:
                message.end(end, RuntimeError(f"{message}: {reason}"))
        return not self.state.under_way


def members(comm: MPI.Intracomm, ranks: Sequence[int], name: str) -> MPI.Intracomm:
    """A communicator of some ranks of another.  Collective over these ranks alone."""
    whole = MPI.Intracomm.Get_group(comm)
    group = whole.Incl([*ranks])
    # Groups of different names may be made at the same time.
    made = MPI.Intracomm.Create_group(comm, group, zlib.crc32(name.encode()) & 0x7FFF)
    group.Free()
    whole.Free()
    return made


def _limited(comm: MPI.Intracomm, settings: Settings, seconds: float) -> Settings:
    """The settings of a group.  Collective.

    Where messages leave the node, the MPI library's own collectives serve, which nothing but the
    watch of a communicator can interrupt.
    """
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    on_one_node = node.Get_size() == comm.Get_size()
    node.Free()
    if settings.timeout or (on_one_node and settings.transport != "mpi"):
        return settings
    return settings._replace(timeout=seconds)
