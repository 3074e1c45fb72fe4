"""A plan as arrays of C, with the buffers and the tags of a run: what `_execution` executes."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy
from mpi4py cimport MPI
from mpi4py cimport libmpi as mpi

from mpicoll._kernels cimport fold_function, lookup
from mpicoll.engine._transport cimport Device, Place, Receive, Send

import numpy as np

from mpicoll import _kernels, ops
from mpicoll.engine import lowering
from mpicoll.schedule import MAX_OPEN_CHANNELS

cdef uint64_t NEVER = -1


cdef class Program:
    """A plan, made ready to run again and again; one run at a time.

    Args:
        plan: what to do; None for what another program does, with parts of another length.
        device: what its messages go through.
        like: that program.
        old, new: bytes of its smallest part, and of this one's: all its lengths and offsets are
            multiples of the first.

    Raises:
        ValueError: messages are too long for the device; or they are not such multiples.
    """

    def __cinit__(
        self, plan, Device device not None, Program like=None, int64_t old=1, int64_t new=1
    ):
        self.plan, self.device = plan, device
        self.lane = self.high = -1
        if like is not None:
            self._scale(like, old, new)
            return
        longest = max(
            [m.span.length for c in plan.channels for p in c.phases for m in p.sends], default=0
        )
        shortest = lowering.shortest_read(
            plan.shape,
            device.remote,
            min(device.together, device.shared.slot),
            device.shared.slot,
        )
        self.remote = NEVER if shortest is None else shortest
        if (
            device.shared.base != NULL
            and <uint64_t> longest > device.shared.slot
            and (shortest is None or not device.reads)
        ):
            raise ValueError(f"a message of {longest} bytes, but slots of {device.shared.slot}")
        channels = lowering.lower(plan)
        phases = [phase for channel in channels for phase in channel]
        units = [unit for phase in phases for unit in phase.units]
        folds = [fold for unit in units for fold in unit.folds]
        self.nchannels = len(channels)
        self.nsegments = plan.channels[0].segments if channels else 0
        self.window = plan.channels[0].window if channels else 0
        self.most_open = plan.most_open
        self.nreceives = sum(len(phase.receives) for phase in phases)
        self.nsends = sum(len(phase.sends) for phase in phases)
        ncopies = len(plan.before) + len(plan.after) + sum(
            len(phase.moves) + len(phase.stores) for phase in phases
        )
        self.nphases, self.nunits, self.nfolds = len(phases), len(units), len(folds)
        self.noperands = sum(len(fold.operands) for fold in folds)
        self.nnumbers = sum(len(unit.receives) for unit in units)
        self.widest = max([len(fold.operands) for fold in folds], default=0)
        self.nbases = 2 + len(plan.temporary)
        self.itemsize = plan.shape.itemsize
        self._take(ncopies)
        self._hold(plan.temporary)
        self._late = [fold for phase in phases for fold in phase.folds]
        self._fill(channels)

    cdef _take(self, Py_ssize_t copies):
        """Take the memory of the arrays."""
        self.channels = <Channel *> self.space(self.nchannels, sizeof(Channel))
        self.phases = <Phase *> self.space(self.nphases, sizeof(Phase))
        self.copies = <Copy *> self.space(copies, sizeof(Copy))
        self.receives = <Receive *> self.space(self.nreceives, sizeof(Receive))
        self.sends = <Send *> self.space(self.nsends, sizeof(Send))
        self.units = <Unit *> self.space(self.nunits, sizeof(Unit))
        self.folds = <Fold *> self.space(self.nfolds, sizeof(Fold))
        self.operands = <Operand *> self.space(self.noperands, sizeof(Operand))
        self.numbers = <int *> self.space(self.nnumbers, sizeof(int))
        self.pointers = <char **> self.space(self.widest, sizeof(char *))
        self.left = <int *> self.space(self.nsegments, sizeof(int))
        self.opening = <int *> self.space(self.nchannels, sizeof(int))
        self.blocked = <int64_t *> self.space(self.device.shared.ranks, sizeof(int64_t))
        self.requests = <mpi.MPI_Request *> self.space(
            self.nreceives + self.nsends, sizeof(mpi.MPI_Request)
        )
        self.owners = <int *> self.space(self.nreceives + self.nsends, sizeof(int))
        self.indices = <int *> self.space(self.nreceives + self.nsends, sizeof(int))
        self.statuses = <mpi.MPI_Status *> self.space(
            self.nreceives + self.nsends, sizeof(mpi.MPI_Status)
        )
        self.bases = <char **> self.space(self.nbases, sizeof(char *))

    def _hold(self, lengths):
        """Take the temporary space."""
        cdef int i
        self._temporary = [np.empty(length, np.uint8) for length in lengths]
        for i in range(2, self.nbases):
            self.bases[i] = _address(self._temporary[i - 2])

    @property
    def held(self):
        """Bytes of temporary space."""
        return sum([len(array) for array in self._temporary])

    cdef _scale(self, Program like, int64_t old, int64_t new):
        """Do what another program does, with parts of another length."""
        cdef int i
        if like._late:
            raise ValueError("what is partly reduced is not scaled")
        self.remote, self.itemsize = like.remote, like.itemsize
        self.nchannels, self.nphases, self.nsegments = like.nchannels, like.nphases, like.nsegments
        self.nreceives, self.nsends, self.nunits = like.nreceives, like.nsends, like.nunits
        self.nfolds, self.noperands, self.nnumbers = like.nfolds, like.noperands, like.nnumbers
        self.widest, self.nbases, self.window = like.widest, like.nbases, like.window
        self.most_open = like.most_open
        self.before_end, self.after, self.after_end = like.before_end, like.after, like.after_end
        self._take(self.after_end)
        self._hold([len(array) // old * new for array in like._temporary])
        self._late = []
        memcpy(self.channels, like.channels, self.nchannels * sizeof(Channel))
        memcpy(self.phases, like.phases, self.nphases * sizeof(Phase))
        memcpy(self.copies, like.copies, self.after_end * sizeof(Copy))
        memcpy(self.receives, like.receives, self.nreceives * sizeof(Receive))
        memcpy(self.sends, like.sends, self.nsends * sizeof(Send))
        memcpy(self.units, like.units, self.nunits * sizeof(Unit))
        memcpy(self.folds, like.folds, self.nfolds * sizeof(Fold))
        memcpy(self.operands, like.operands, self.noperands * sizeof(Operand))
        memcpy(self.numbers, like.numbers, self.nnumbers * sizeof(int))
        for i in range(self.after_end):
            _resize(&self.copies[i].target, old, new)
            _resize(&self.copies[i].source, old, new)
        for i in range(self.nreceives):
            _resize(&self.receives[i].landing, old, new)
            self.receives[i].owner = <void *> self
            self.receives[i].next = NULL
        for i in range(self.nsends):
            _resize(&self.sends[i].source, old, new)
        for i in range(self.nfolds):
            _resize(&self.folds[i].target, old, new)
        for i in range(self.noperands):
            _resize(&self.operands[i].place, old, new)

    cdef _fill(self, channels):
        """Write the plan down as arrays."""
        cdef int c = 0, p = 0, m = 0, r = 0, s = 0, u = 0, f = 0, o = 0, x = 0, late = 0, first
        cdef Phase *phase
        cdef Device device = self.device
        for move in self.plan.before:
            m = _copy(self.copies, m, move)
        self.before_end = m
        for number, channel in enumerate(channels):
            self.channels[c].phases = p
            self.channels[c].segment = self.plan.channels[number].segment
            for lowered in channel:
                phase = &self.phases[p]
                phase.moves = m
                for move in lowered.moves:
                    m = _copy(self.copies, m, move)
                phase.moves_end = phase.stores = m
                for move in lowered.stores:
                    m = _copy(self.copies, m, move)
                phase.stores_end = m
                first = phase.receives = r
                for message in lowered.receives:
                    self.receives[r].peer = message.peer
                    self.receives[r].local = device.local[message.peer]
                    self.receives[r].channel, self.receives[r].unit = c, -1
                    _place(&self.receives[r].landing, message.span)
                    self.receives[r].owner = <void *> self
                    r += 1
                phase.receives_end = r
                phase.sends = s
                previous = None
                for index, message in enumerate(lowered.sends):
                    self.sends[s].peer = message.peer
                    self.sends[s].local = device.local[message.peer]
                    self.sends[s].channel = c
                    self.sends[s].same = message.span == previous
                    self.sends[s].written = index in lowered.written
                    previous = message.span
                    _place(&self.sends[s].source, message.span)
                    s += 1
                phase.sends_end = s
                phase.units = u
                for unit in lowered.units:
                    self.units[u].receives, self.units[u].count = x, len(unit.receives)
                    for index in unit.receives:
                        self.numbers[x] = first + <int> index
                        self.receives[first + <int> index].unit = u
                        x += 1
                    self.units[u].alone = len(unit.receives) == 1 and all(
                        sum(operand.receive >= 0 for operand in fold.operands) == 1
                        for fold in unit.folds
                    )
                    # Of this phase's sends alone: a round's earlier ones read none of its targets.
                    self.units[u].sends = phase.sends + <int> unit.sends if unit.sends else 0
                    self.units[u].folds = f
                    for fold in unit.folds:
                        _place(&self.folds[f].target, fold.target)
                        self.folds[f].operands, self.folds[f].count = o, len(fold.operands)
                        for operand in fold.operands:
                            self.operands[o].receive = (
                                first + <int> operand.receive if operand.receive >= 0 else -1
                            )
                            _place(&self.operands[o].place, operand.span)
                            o += 1
                        f += 1
                    self.units[u].folds_end = f
                    u += 1
                phase.units_end = u
                phase.late = late
                late += len(lowered.folds)
                phase.late_end = late
                phase.last = lowered.last
                p += 1
            self.channels[c].phases_end = p
            c += 1
        self.after = m
        for move in self.plan.after:
            m = _copy(self.copies, m, move)
        self.after_end = m

    def prepare(self, MPI.Comm comm not None, int high, int lane, send, recv, reduction):
        """Bind what the next runs need.

        Args:
            comm: carries the messages that MPI carries.
            high: number that keeps the communicators of one device apart.
            lane: see :func:`mpicoll.engine.runner.tag`.
            send, recv: the user's buffers, 1-D arrays of bytes, or None.
            reduction: the operator, or None.
        """
        self.bind(comm, high, lane)
        self.reduction, self.kernel = reduction, kernel_of(reduction)
        self._send, self._recv = send, recv
        self.bases[0] = _address(send)
        self.bases[1] = _address(recv)

    def drop(self):
        """Forget the buffers of a run that is over: plans outlive them."""
        self._send = self._recv = None
        self.bases[0] = self.bases[1] = NULL

    cdef int bind(self, MPI.Comm comm, int high, int lane) except -1:
        """Make the tags of a lane."""
        cdef int i
        cdef uint32_t first = (<uint32_t> high << 16) + lane * <int> MAX_OPEN_CHANNELS
        self.comm = comm.ob_mpi
        if lane == self.lane and high == self.high:
            return 0
        for i in range(self.nreceives):
            self.receives[i].tag = first + self.receives[i].channel % self.most_open
        for i in range(self.nsends):
            self.sends[i].tag = first + self.sends[i].channel % self.most_open
        self.lane, self.high = lane, high
        return 0


cdef char *_address(array) except? NULL:
    """Where an array of bytes lies; NULL for None or an empty one."""
    cdef const unsigned char[::1] view
    if array is None or array.size == 0:
        return NULL
    view = array
    return <char *> &view[0]


cdef int _place(Place *place, span) except -1:
    place.buffer, place.offset, place.length = span
    return 0


cdef int _resize(Place *place, int64_t old, int64_t new) except -1:
    if place.offset % old or place.length % old:
        raise ValueError(f"{place.length} bytes at {place.offset} are not parts of {old} bytes")
    place.offset = place.offset // old * new
    place.length = place.length // old * new
    return 0


cdef int _copy(Copy *copies, int index, move) except -1:
    _place(&copies[index].target, move.target)
    _place(&copies[index].source, move.source)
    return index + 1


cdef fold_function kernel_of(reduction):
    """The compiled kernel of a reduction, NULL if Python folds."""
    if (
        reduction is None
        or ops.simd_level() == "numpy"
        or reduction.function is not None
        or not _kernels.has(reduction.name, reduction.type)
    ):
        return NULL
    return lookup(_kernels.OPS[reduction.name], _kernels.TYPES[reduction.type])
