"""The compiled engine: executes plans over MPI messages and shared memory, without the GIL.

It does what :class:`mpicoll.engine.runner.Execution` does, and bit for bit the same.  Messages to ranks of
the same node go through memory that both map where the communicator has it (`_shared.h`), all
others through MPI.  A fold reads a message where the transport has it (:mod:`mpicoll.engine.lowering`).
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from mpi4py cimport MPI
from mpi4py cimport libmpi as mpi
from posix.types cimport pid_t

cimport numpy as cnp

from mpicoll._kernels cimport fold_function, lookup

import numpy as np
from mpi4py import MPI as _MPI

from mpicoll import _kernels, ops
from mpicoll.engine import lowering
from mpicoll.engine.runner import fold_spans
from mpicoll.schedule import MAX_OPEN_CHANNELS


cnp.import_array()


cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int)


cdef extern from *:
    """
    #if defined(OPEN_MPI)
    #define ENGINE_MPI "Open MPI"
    #elif defined(MPICH_VERSION)
    #define ENGINE_MPI "MPICH"
    #else
    #define ENGINE_MPI ""
    #endif
    """
    const char *ENGINE_MPI

cdef enum:
    # Looks before the processor is offered to others where more were in vain.
    LEAST = 30
    # Offers of the processor between two looks at signals, the time limit and whatever else waits.
    OFFERS = 16
    # Offers before messages that wait for others are moved out of the way, and before those are
    # taken in that nothing is posted for yet.
    HELD = 100
    UNEXPECTED = 2000
    # Offers, some milliseconds' worth, before a wait sleeps instead, and for how many microseconds:
    # by then they are little beside it, and what else runs on the processor gets all of it.
    SLEEPLESS = 5000
    NAP = 50
    # Looks at a message in a slot that nothing is posted for, while another one of its sender is
    # awaited, before it is moved out of the way.
    STUCK = 200
    # Bytes of a message that are read from its sender's memory and folded at a time: they stay in
    # the cache in between.
    FOLDED_AT_ONCE = 128 << 10
    # Tag that no message has, of the lane for messages that belong to no plan.
    NO_TAG = 32766

cdef uint64_t NEVER = -1

#: The MPI that this was compiled for, "" for one that is not known.
BUILT_FOR = ENGINE_MPI.decode()


cdef inline void reset(Idle *idle) noexcept nogil:
    """A wait begins, or something has moved."""
    idle.looks = idle.offers = idle.taken = 0


cdef class Device:
    """What one communicator's messages go through.

    Args:
        locals: number of each rank in this node, -1 for those that share no memory with this one.
        me: this rank's number in the node.
        memory: the shared memory, writable, or None.
        geometry: (slots of each rank, bytes of a slot, longest message inside its entry).
        processes: of the node's ranks by number where their memory may be read, else empty.
        remote: shortest message that is read from the sender's memory.
        together: shortest one of these that the sender helps to copy.
        patience: looks without progress, at most, before the processor is offered to others.
        probe: a communicator on which MPI makes progress.
    """

    def __cinit__(
        self, locals, int me, memory, geometry, processes, uint64_t remote, uint64_t together,
        int patience, MPI.Comm probe not None,
    ):
        cdef int i, ranks
        cdef unsigned char[::1] view
        self.size = len(locals)
        self.local = <int *> calloc(max(self.size, 1), sizeof(int))
        for i in range(self.size):
            self.local[i] = locals[i]
        self.probe = probe.ob_mpi
        self.patience = self.looks = patience
        self.memory = memory
        self.mapped = [None] * WINDOWS
        if memory is None:
            return
        view = memory
        ranks = sum(number >= 0 for number in locals)
        self.shared.base = <char *> &view[0]
        self.shared.ranks, self.shared.me = ranks, me
        self.shared.slots, self.shared.slot, self.shared.inside = geometry
        if <uint64_t> view.shape[0] < shared_length(&self.shared):
            raise ValueError("shared memory is shorter than its geometry")
        self.sent = <uint64_t *> calloc(ranks, sizeof(uint64_t))
        self.acked = <uint64_t *> calloc(ranks, sizeof(uint64_t))
        self.received = <uint64_t *> calloc(ranks, sizeof(uint64_t))
        self.posted = <Receive **> calloc(ranks, sizeof(Receive *))
        self.strays = <Stray **> calloc(ranks, sizeof(Stray *))
        self.stuck = <int *> calloc(ranks, sizeof(int))
        self.slots = <Slot *> calloc(self.shared.slots, sizeof(Slot))
        for i in range(self.shared.slots):
            self.slots[i].readers = <Reference *> calloc(ranks, sizeof(Reference))
        self.reads = self.helps = bool(processes)
        self.remote, self.together = remote, together
        if processes:
            self.processes = <pid_t *> calloc(ranks, sizeof(pid_t))
            for i in range(ranks):
                self.processes[i] = processes[i]
            self.piece = <char *> space_for(FOLDED_AT_ONCE, 1)

    def __dealloc__(self):
        cdef int i
        cdef Stray *stray
        if self.slots != NULL:
            for i in range(self.shared.slots):
                free(self.slots[i].readers)
        if self.strays != NULL:
            for i in range(self.shared.ranks):
                while self.strays[i] != NULL:
                    stray = self.strays[i]
                    self.strays[i] = stray.next
                    free(stray.data)
                    free(stray)
        free(self.local)
        free(self.processes)
        free(self.piece)
        free(self.sent)
        free(self.acked)
        free(self.received)
        free(self.posted)
        free(self.strays)
        free(self.stuck)
        free(self.slots)

    def is_near(self):
        """Whether this rank shares memory with all others, of which there are some."""
        return self.shared.base != NULL and self.shared.ranks == self.size

    def memory_of_node(self):
        """See :meth:`mpicoll.Intracomm.shared_memory`."""
        if self.shared.base == NULL:
            return None
        return {
            "bytes": shared_length(&self.shared),
            "slots": self.shared.slots,
            "slot": self.shared.slot,
            "inside": self.shared.inside,
            "reads": bool(self.reads),
            "windows": sum(memory.size for memory in self.mapped if memory is not None),
        }

    # --- waiting ---

    cdef void learn(self, const Idle *idle) noexcept nogil:
        """A wait is over: how many looks are worth their time the next time."""
        if idle.taken:
            self.looks = max(self.looks // 2, min(LEAST, self.patience))
        elif idle.looks:
            self.looks = min(self.looks + self.looks // 8 + 1, self.patience)

    # --- windows ---

    def open_window(self, int number, memory, offset, length):
        """Let ranks read from memory that all of the node map.

        Args:
            number: the same on all ranks, below 64.
            memory: bytes of all ranks, writable.
            offset, length: the part of them that is this rank's.
        """
        cdef unsigned char[::1] view = memory
        cdef Window *window = &self.windows[number]
        self.mapped[number] = memory
        window.base = <char *> &view[0]
        window.mine = window.base + <Py_ssize_t> offset
        window.mine_end = window.mine + <Py_ssize_t> length
        self.nwindows = max(self.nwindows, number + 1)

    def close_window(self, int number):
        """Forget a window that nobody uses any more."""
        memset(&self.windows[number], 0, sizeof(Window))
        self.mapped[number] = None

    cdef int window_of(self, char *content, uint64_t length) noexcept nogil:
        """Number of the window in whose part of this rank's a message lies, -1 if in none."""
        cdef int number
        for number in range(self.nwindows):
            if (
                self.windows[number].mine <= content
                and content + length <= self.windows[number].mine_end
            ):
                return number
        return -1

    # --- sending ---

    cdef bint has_entry(self, int reader) noexcept nogil:
        """Whether the next entry to a reader may be used."""
        cdef uint64_t need
        if self.sent[reader] < ENTRIES:
            return True
        need = self.sent[reader] + 1 - ENTRIES
        if self.acked[reader] >= need:
            return True
        # Looked at only when what is known does not suffice: that word is in the reader's cache.
        while self.acked[reader] < self.sent[reader] and shared_acked(
            &self.shared, reader, self.acked[reader] + 1
        ):
            self.acked[reader] += 1
        return self.acked[reader] >= need

    cdef int free_slot(self) noexcept nogil:
        """A slot that nobody reads any more, -1 if there is none."""
        cdef int i, number
        cdef Slot *slot
        for i in range(self.shared.slots):
            number = (self.next_slot + i) % self.shared.slots
            slot = &self.slots[number]
            while slot.count and shared_acked(
                &self.shared, slot.readers[slot.count - 1].reader, slot.readers[slot.count - 1].use
            ):
                slot.count -= 1
            if slot.count == 0:
                self.next_slot = (number + 1) % self.shared.slots
                return number
        return -1

    cdef bint push(
        self, Send *send, const Send *before, char *content, uint64_t remote
    ) noexcept nogil:
        """Publish a message, if there is room.

        Args:
            send: the message.
            before: a message of the same content, whose slot serves again; NULL if there is none.
            content: where it lies.
            remote: how long it must be to be read where it lies.
        """
        cdef int reader = send.local
        cdef uint64_t length = send.source.length
        cdef uint32_t kind = INSIDE
        cdef uint64_t where = 0
        cdef Slot *slot
        cdef int again = -1, window
        if not self.has_entry(reader):
            return False
        send.slot = -1
        if length > self.shared.inside:
            # What its own phase overwrites must not wait for its readers, who may wait for it.
            window = -1 if send.written else self.window_of(content, length)
            if window >= 0:
                kind = WINDOW
                where = <uint64_t> window << OFFSET
                where += <uint64_t> (content - self.windows[window].base)
            elif self.reads and length >= remote:
                kind, where = REMOTE, <uint64_t> content
            else:
                kind = SLOT
                # While this message waited for an entry, the other may have been read and its slot
                # may have been filled anew.
                if (
                    before != NULL
                    and before.slot >= 0
                    and self.slots[before.slot].filled == before.filled
                ):
                    again = before.slot
                else:
                    again = self.free_slot()
                    if again < 0:
                        return False
                    memcpy(shared_slot(&self.shared, self.shared.me, again), content, length)
                    self.slots[again].filled += 1
                send.slot, send.filled = again, self.slots[again].filled
                where = again
        self.sent[reader] += 1
        send.use = self.sent[reader]
        shared_publish(&self.shared, reader, send.use, send.tag, kind, content, length, where)
        if kind == SLOT:
            slot = &self.slots[again]
            slot.readers[slot.count].reader = reader
            slot.readers[slot.count].use = send.use
            slot.count += 1
        send.state = PUBLISHED if kind in (REMOTE, WINDOW) else DONE
        send.shared = kind == REMOTE and length >= self.together
        return True

    cdef bint help(self, const Send *send) noexcept nogil:
        """Copy a piece of a published message for its reader; whether there was one."""
        cdef int code
        if not self.helps or not send.shared:
            return False
        code = shared_help(&self.shared, self.processes[send.local], send.local, send.use)
        # Where it fails, the reader copies the piece after all, and every other one from now on.
        self.helps = code >= 0
        self.helped += code > 0
        return code != 0

    # --- receiving ---

    cdef int post(self, Receive *receive) noexcept nogil:
        """Receive a message when it comes; -1 if it is there and reading it fails."""
        cdef int writer = receive.local
        cdef Stray **at = &self.strays[writer]
        cdef Stray *stray
        cdef Receive **end = &self.posted[writer]
        cdef int code
        while at[0] != NULL:
            stray = at[0]
            if stray.tag == receive.tag:
                at[0] = stray.next
                receive.use = stray.use if stray.kind in (REMOTE, WINDOW) else 0
                code = self.deliver(receive, stray.kind, stray.data, stray.length, stray.where)
                free(stray.data)
                free(stray)
                return code
            at = &stray.next
        while end[0] != NULL:
            end = &end[0].next
        receive.next = NULL
        end[0] = receive
        return 0

    cdef int deliver(
        self, Receive *receive, uint32_t kind, char *data, uint64_t length, uint64_t where
    ) noexcept nogil:
        cdef char *landing = (<Program> receive.owner).at(&receive.landing)
        if length != <uint64_t> receive.landing.length:
            return (<Program> receive.owner).fail_length(receive, length)
        if kind == WINDOW:
            data = self.windows[where >> OFFSET].base + (where & ((<uint64_t> 1 << OFFSET) - 1))
        if kind == REMOTE and (<Program> receive.owner).may_fold(receive):
            return (<Program> receive.owner).fold_from(receive, where)
        if kind == REMOTE and length >= self.together:
            receive.copied = 0
            if shared_fetch_pieces(
                self.processes[receive.local],
                shared_entry(&self.shared, receive.local, self.shared.me, receive.use),
                landing,
                &receive.copied,
            ):
                return (<Program> receive.owner).fail_fetch(receive)
            receive.next = self.copying
            self.copying = receive
            self.look_at_copies()
            return 0
        if kind == REMOTE:
            if shared_fetch(self.processes[receive.local], landing, where, length):
                return (<Program> receive.owner).fail_fetch(receive)
        elif receive.use == 0 or receive.unit < 0:
            copy_bytes(landing, data, length)
        else:
            receive.data = data
            return (<Program> receive.owner).got(receive)
        return self.land(receive, landing)

    cdef int land(self, Receive *receive, char *landing) noexcept nogil:
        """A message is where it belongs."""
        if receive.use:
            shared_acknowledge(&self.shared, receive.local, receive.use)
            receive.use = 0
        receive.data = landing
        return (<Program> receive.owner).got(receive)

    cdef int look_at_copies(self) noexcept nogil:
        """Land what both sides have copied; how many messages.

        A failure belongs to the program that receives, which finds it.
        """
        cdef Receive **at = &self.copying
        cdef Receive *receive
        cdef char *landing
        cdef int state, moved = 0
        while at[0] != NULL:
            receive = at[0]
            landing = (<Program> receive.owner).at(&receive.landing)
            state = shared_is_fetched(
                self.processes[receive.local],
                shared_entry(&self.shared, receive.local, self.shared.me, receive.use),
                landing,
                receive.copied,
            )
            if state == 0:
                at = &receive.next
                continue
            at[0] = receive.next
            moved += 1
            if state < 0:
                (<Program> receive.owner).fail_fetch(receive)
            else:
                self.land(receive, landing)
        return moved

    cdef int poll(self) noexcept nogil:
        """Take in the messages that are there and posted for; returns how many."""
        cdef int writer, moved = 0
        cdef entry_t *entry
        cdef Receive **at
        cdef Receive *receive
        if self.copying != NULL:
            moved += self.look_at_copies()
        for writer in range(self.shared.ranks):
            while self.posted[writer] != NULL:
                entry = shared_look(&self.shared, writer, self.received[writer] + 1)
                if entry == NULL:
                    break
                at = &self.posted[writer]
                while at[0] != NULL and at[0].tag != entry.tag:
                    at = &at[0].next
                receive = at[0]
                if receive == NULL:
                    # Another one is awaited behind it.
                    self.stuck[writer] += 1
                    if entry.kind == SLOT and self.stuck[writer] < STUCK:
                        break
                    if not self.set_aside(writer, entry):
                        break
                    continue
                self.stuck[writer] = 0
                at[0] = receive.next
                self.received[writer] += 1
                receive.use = self.received[writer]
                moved += 1
                # A failure belongs to the program that receives, which finds it.
                self.deliver(
                    receive,
                    entry.kind,
                    shared_content(&self.shared, writer, entry),
                    entry.length,
                    entry.where,
                )
        return moved

    cdef void drain(self) noexcept nogil:
        """Take in the messages that nothing is posted for yet: others may wait behind them."""
        cdef int writer
        cdef entry_t *entry
        cdef Receive *receive
        for writer in range(self.shared.ranks):
            while True:
                entry = shared_look(&self.shared, writer, self.received[writer] + 1)
                if entry == NULL:
                    break
                receive = self.posted[writer]
                while receive != NULL and receive.tag != entry.tag:
                    receive = receive.next
                if receive != NULL:
                    break  # for `poll`
                if not self.set_aside(writer, entry):
                    return

    cdef bint set_aside(self, int writer, entry_t *entry) noexcept nogil:
        """Take in a message that nothing is posted for; False if there is no memory."""
        cdef Stray *stray = <Stray *> malloc(sizeof(Stray))
        cdef Stray **end = &self.strays[writer]
        if stray == NULL:
            return False
        stray.data = NULL
        self.received[writer] += 1
        stray.use, stray.next = self.received[writer], NULL
        stray.tag, stray.kind = entry.tag, entry.kind
        stray.length, stray.where = entry.length, entry.where
        if entry.kind not in (REMOTE, WINDOW):
            stray.data = <char *> malloc(entry.length + 1)
            if stray.data == NULL:
                free(stray)
                self.received[writer] -= 1
                return False
            memcpy(stray.data, shared_content(&self.shared, writer, entry), entry.length)
            shared_acknowledge(&self.shared, writer, stray.use)
        while end[0] != NULL:
            end = &end[0].next
        end[0] = stray
        self.stuck[writer] = 0
        return True


cdef class Program:
    """A plan, made ready to run again and again; one run at a time.

    Args:
        plan: what to do.
        device: what its messages go through.
    """

    def __cinit__(self, plan, Device device not None):
        cdef int i
        self.plan, self.device = plan, device
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
        self.nreceives = sum(len(phase.receives) for phase in phases)
        self.nsends = sum(len(phase.sends) for phase in phases)
        ncopies = len(plan.before) + len(plan.after) + sum(
            len(phase.moves) + len(phase.stores) for phase in phases
        )
        self.channels = <Channel *> space_for(self.nchannels, sizeof(Channel))
        self.phases = <Phase *> space_for(len(phases), sizeof(Phase))
        self.copies = <Copy *> space_for(ncopies, sizeof(Copy))
        self.receives = <Receive *> space_for(self.nreceives, sizeof(Receive))
        self.sends = <Send *> space_for(self.nsends, sizeof(Send))
        self.units = <Unit *> space_for(len(units), sizeof(Unit))
        self.folds = <Fold *> space_for(len(folds), sizeof(Fold))
        self.operands = <Operand *> space_for(
            sum(len(fold.operands) for fold in folds), sizeof(Operand)
        )
        self.numbers = <int *> space_for(sum(len(unit.receives) for unit in units), sizeof(int))
        widest = max([len(fold.operands) for fold in folds], default=0)
        self.pointers = <char **> space_for(widest, sizeof(char *))
        self.left = <int *> space_for(self.nsegments, sizeof(int))
        self.opening = <int *> space_for(self.nchannels, sizeof(int))
        self.blocked = <int64_t *> space_for(device.shared.ranks, sizeof(int64_t))
        self.requests = <mpi.MPI_Request *> space_for(
            self.nreceives + self.nsends, sizeof(mpi.MPI_Request)
        )
        self.owners = <int *> space_for(self.nreceives + self.nsends, sizeof(int))
        self.indices = <int *> space_for(self.nreceives + self.nsends, sizeof(int))
        self.nbases = 2 + len(plan.temporary)
        self.bases = <char **> space_for(self.nbases, sizeof(char *))
        self._temporary = [np.empty(length, np.uint8) for length in plan.temporary]
        for i in range(2, self.nbases):
            self.bases[i] = _address(self._temporary[i - 2])
        self.itemsize = plan.shape.itemsize
        self.lane = self.high = -1
        self._late = [fold for phase in phases for fold in phase.folds]
        self._fill(channels)

    def __dealloc__(self):
        free(self.channels)
        free(self.phases)
        free(self.copies)
        free(self.receives)
        free(self.sends)
        free(self.units)
        free(self.folds)
        free(self.operands)
        free(self.numbers)
        free(self.pointers)
        free(self.left)
        free(self.opening)
        free(self.blocked)
        free(self.requests)
        free(self.owners)
        free(self.indices)
        free(self.bases)

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

    # --- for Python ---

    def start(self, MPI.Comm comm not None, int high, int lane, send, recv, reduction):
        """Begin a run; see `prepare`."""
        self.prepare(comm, high, lane, send, recv, reduction)
        self.go()

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
            self.receives[i].tag = first + self.receives[i].channel % <int> MAX_OPEN_CHANNELS
        for i in range(self.nsends):
            self.sends[i].tag = first + self.sends[i].channel % <int> MAX_OPEN_CHANNELS
        self.lane, self.high = lane, high
        return 0

    cdef void activate(self):
        self.error = None
        self.active = True

    cdef int go(self) except -1:
        """Begin a run with the buffers that are bound."""
        cdef bint failed
        self.activate()
        with nogil:
            failed = self.begin() < 0
        if failed:
            self.throw()
        return 0

    def test(self):
        """Make what progress is possible without waiting; True once everything is done."""
        cdef int moved
        if self.active:
            with nogil:
                moved = self.step()
                self.idle = 0 if moved else self.idle + 1
                if self.idle % HELD == HELD - 1:
                    self.ease(self.idle + 1)
            if moved < 0:
                self.throw()
        return not self.active

    @property
    def done(self):
        """Whether the run is over."""
        return not self.active

    def wait(self, pause):
        """Progress until everything is done; lets signals in.

        Args:
            pause: called again and again while nothing moves; may raise.
        """
        self.finish_with(pause)

    cdef int finish_with(self, pause) except -1:
        cdef Idle idle
        cdef int code
        reset(&idle)
        with nogil:
            code = self.spin(&idle)
        return self.go_on(code, &idle, pause)

    cdef int go_through(self, pause) except -1:
        """Begin a run with the buffers that are bound, and finish it, without the GIL between."""
        cdef Idle idle
        cdef int code
        self.activate()
        reset(&idle)
        with nogil:
            code = self.begin()
            if code >= 0:
                code = self.spin(&idle)
        return self.go_on(code, &idle, pause)

    cdef int go_on(self, int code, Idle *idle, pause) except -1:
        """Finish a run of which `spin` has said something."""
        while code == 0:
            PyErr_CheckSignals()
            pause()
            with nogil:
                code = self.spin(idle)
        if code < 0:
            self.throw()
        return 0

    cdef throw(self):
        if self.error is None:
            raise _MPI.Exception(self.code)
        raise self.error

    # --- running ---

    cdef int spin(self, Idle *idle) noexcept nogil:
        """Progress until the run is over (1), it is time to pause (0), or it has failed (-1).

        Looking again and again is the fastest way to wait, unless the rank that is waited for has
        to share this one's processor.  So looks are fewer the next time, down to a few, where
        somebody has taken the processor when it was offered, and more where nobody has.
        """
        cdef int moved, offers = 0
        while self.active:
            moved = self.step()
            if moved < 0:
                return -1
            if moved:
                self.device.learn(idle)
                reset(idle)
            elif idle.looks < self.device.looks:
                idle.looks += 1
                shared_relax()
            elif self.active:
                if offers == OFFERS:
                    return 0
                offers += 1
                idle.offers += 1
                if idle.offers < SLEEPLESS:
                    idle.taken += shared_offer()
                else:
                    usleep(NAP)
                self.ease(idle.offers)
        return 1

    cdef void ease(self, int offers) noexcept nogil:
        """What lets others go on while this run waits."""
        cdef int flag
        if not shared_try(&self.device.lock):
            return
        if self.device.shared.base != NULL:
            if offers % HELD == 0:
                self.release()
            if offers % UNEXPECTED == 0:
                self.device.drain()
        # MPI may owe something to others, too.
        mpi.MPI_Iprobe(
            mpi.MPI_ANY_SOURCE, NO_TAG, self.device.probe, &flag, mpi.MPI_STATUS_IGNORE
        )
        shared_unlock(&self.device.lock)

    cdef void release(self) noexcept nogil:
        """Bring messages that a fold still waits with to their places, and free their entries."""
        cdef int c, i
        cdef Receive *receive
        for c in range(self.nchannels):
            if self.channels[c].closed or self.channels[c].receives == 0:
                continue
            for i in range(
                self.phases[self.channels[c].current].receives,
                self.phases[self.channels[c].current].receives_end,
            ):
                receive = &self.receives[i]
                if receive.use and receive.data != NULL:
                    memcpy(self.at(&receive.landing), receive.data, receive.landing.length)
                    receive.data = self.at(&receive.landing)
                    shared_acknowledge(&self.device.shared, receive.local, receive.use)
                    receive.use = 0

    cdef char *at(self, Place *place) noexcept nogil:
        return self.bases[place.buffer] + place.offset

    cdef void copy(self, int start, int end) noexcept nogil:
        cdef int i
        for i in range(start, end):
            copy_bytes(
                self.at(&self.copies[i].target),
                self.at(&self.copies[i].source),
                self.copies[i].target.length,
            )

    cdef int begin(self) noexcept nogil:
        cdef int c, code
        while not shared_try(&self.device.lock):
            sched_yield()
        self.nrequests = self.pending = 0
        self.copy(0, self.before_end)
        memset(self.left, 0, self.nsegments * sizeof(int))
        self.nopening = self.open_channels = 0
        for c in range(self.nchannels):
            self.left[self.channels[c].segment] += 1
            self.channels[c].current = self.channels[c].phases
            self.channels[c].receives = self.channels[c].sends = self.channels[c].sends_end = 0
            self.channels[c].closed = True  # not open yet
            if self.channels[c].segment < self.window:
                self.opening[self.nopening] = c
                self.nopening += 1
        code = self.open()
        shared_unlock(&self.device.lock)
        return code

    cdef int step(self) noexcept nogil:
        """Make what progress is possible: how many things moved, -1 after a failure."""
        cdef int moved = 0, found
        if not shared_try(&self.device.lock):
            return 0
        if self.device.shared.base != NULL:
            moved = self.device.poll()
            if self.pending:
                moved += self.push()
        if self.nrequests:
            found = self.test_requests()
            moved = moved + found if found >= 0 else -1
        if moved >= 0 and (moved or self.touched):
            self.touched = False
            if self.advance_all() < 0:
                moved = -1
        if self.error is not None:
            moved = -1
        shared_unlock(&self.device.lock)
        return moved

    cdef int open(self) noexcept nogil:
        """Open the channels that may; one without messages is complete at once."""
        cdef int c
        while self.nopening:
            self.nopening -= 1
            c = self.opening[self.nopening]
            self.channels[c].closed = False
            self.open_channels += 1
            if self.post(c) < 0 or self.advance(c) < 0:
                return -1
        return self.finish()

    cdef int finish(self) noexcept nogil:
        if self.open_channels == 0 and self.active:
            self.copy(self.after, self.after_end)
            self.active = False
        return 0

    cdef int advance_all(self) noexcept nogil:
        cdef int c
        for c in range(self.nchannels):
            if not self.channels[c].closed and self.advance(c) < 0:
                return -1
        return self.open()

    cdef int advance(self, int c) noexcept nogil:
        """Close every phase of a channel that is complete, and post the next one."""
        cdef Channel *channel = &self.channels[c]
        cdef Phase *phase
        cdef int opens, each, i
        while channel.current < channel.phases_end:
            phase = &self.phases[channel.current]
            if channel.unfolded and self.fold_ready(channel) < 0:
                return -1
            if channel.receives or (phase.last and channel.sends < channel.sends_end):
                return 0
            self.copy(phase.stores, phase.stores_end)
            for i in range(phase.late, phase.late_end):
                if self.fold_late(i) < 0:
                    return -1
            channel.current += 1
            if self.post(c) < 0:
                return -1
        if channel.sends < channel.sends_end or channel.closed:
            return 0
        channel.closed = True
        self.open_channels -= 1
        self.left[channel.segment] -= 1
        opens = channel.segment + self.window
        if not self.left[channel.segment] and opens < self.nsegments:
            each = self.nchannels // self.nsegments
            for i in range(opens * each, (opens + 1) * each):
                self.opening[self.nopening] = i
                self.nopening += 1
        return 0

    cdef int post(self, int c) noexcept nogil:
        """Start the messages of a channel's current phase."""
        cdef Channel *channel = &self.channels[c]
        cdef Phase *phase
        cdef Receive *receive
        cdef Send *send
        cdef int i
        if channel.current == channel.phases_end:
            return 0
        phase = &self.phases[channel.current]
        self.copy(phase.moves, phase.moves_end)
        channel.unfolded = 0
        channel.receives = phase.receives_end - phase.receives
        for i in range(phase.units, phase.units_end):
            self.units[i].missing = self.units[i].count
            self.units[i].folded = False
            channel.unfolded += self.units[i].count == 0
        if channel.sends == channel.sends_end:
            channel.sends = phase.sends
        channel.sends_end = phase.sends_end
        for i in range(phase.receives, phase.receives_end):
            receive = &self.receives[i]
            receive.data, receive.use = NULL, 0
            if receive.local < 0:
                self.code = mpi.MPI_Irecv(
                    self.at(&receive.landing),
                    <int> receive.landing.length,
                    mpi.MPI_BYTE,
                    receive.peer,
                    receive.tag & 0xffff,
                    self.comm,
                    &self.requests[self.nrequests],
                )
                if self.code != mpi.MPI_SUCCESS:
                    return -1
                self.owners[self.nrequests] = i
                self.nrequests += 1
        for i in range(phase.sends, phase.sends_end):
            send = &self.sends[i]
            send.state, send.slot = WAITING, -1
            if send.local < 0:
                self.code = mpi.MPI_Isend(
                    self.at(&send.source),
                    <int> send.source.length,
                    mpi.MPI_BYTE,
                    send.peer,
                    send.tag & 0xffff,
                    self.comm,
                    &self.requests[self.nrequests],
                )
                if self.code != mpi.MPI_SUCCESS:
                    return -1
                send.state = POSTED
                self.owners[self.nrequests] = -1 - i
                self.nrequests += 1
            else:
                self.pending += 1
        if self.pending:
            self.push_channel(channel)
        # Last, because a message that is there already is folded at once.
        for i in range(phase.receives, phase.receives_end):
            if self.receives[i].local >= 0 and self.device.post(&self.receives[i]) < 0:
                return -1
        return 0

    # --- sending ---

    cdef int push(self) noexcept nogil:
        """Publish what waits, as far as there is room; how many messages moved."""
        cdef int c, moved = 0
        for c in range(self.nchannels):
            if not self.channels[c].closed:
                moved += self.push_channel(&self.channels[c])
        return moved

    cdef int push_channel(self, Channel *channel) noexcept nogil:
        cdef int i, moved = 0
        cdef Send *send
        self.scan += 1
        for i in range(channel.sends, channel.sends_end):
            send = &self.sends[i]
            if send.state == PUBLISHED:
                if shared_acked(&self.device.shared, send.local, send.use):
                    send.state = DONE
                    self.pending -= 1
                    moved += 1
                elif self.device.help(send):
                    moved += 1
            elif send.state == WAITING:
                # Messages to one rank stay in order.
                if self.blocked[send.local] == self.scan:
                    continue
                if not self.device.push(
                    send,
                    &self.sends[i - 1] if send.same else NULL,
                    self.at(&send.source),
                    self.remote,
                ):
                    self.blocked[send.local] = self.scan
                    continue
                self.pending -= send.state == DONE
                moved += 1
        self.pass_done(channel)
        return moved

    cdef void pass_done(self, Channel *channel) noexcept nogil:
        while channel.sends < channel.sends_end and self.sends[channel.sends].state == DONE:
            channel.sends += 1

    cdef int test_requests(self) noexcept nogil:
        cdef int i, n, index
        self.code = mpi.MPI_Testsome(
            self.nrequests, self.requests, &n, self.indices, mpi.MPI_STATUSES_IGNORE
        )
        if self.code != mpi.MPI_SUCCESS:
            return -1
        if n <= 0:
            return 0
        for i in range(n):
            index = self.owners[self.indices[i]]
            if index < 0:
                self.sends[-1 - index].state = DONE
                self.pass_done(&self.channels[self.sends[-1 - index].channel])
        self.collect()
        return n

    cdef void collect(self) noexcept nogil:
        """Close the gaps of completed requests, then tell what came."""
        cdef int i, index, kept = 0, found = 0
        cdef Receive *receive
        for i in range(self.nrequests):
            index = self.owners[i]
            if self.requests[i] != mpi.MPI_REQUEST_NULL:
                self.requests[kept] = self.requests[i]
                self.owners[kept] = index
                kept += 1
            elif index >= 0:
                self.indices[found] = index
                found += 1
        self.nrequests = kept
        for i in range(found):
            receive = &self.receives[self.indices[i]]
            receive.data = self.at(&receive.landing)
            self.got(receive)

    # --- folding ---

    cdef int got(self, Receive *receive) noexcept nogil:
        """A message is there."""
        cdef Channel *channel = &self.channels[receive.channel]
        cdef Unit *unit
        self.touched = True
        if receive.unit < 0:
            channel.receives -= 1
            return 0
        unit = &self.units[receive.unit]
        unit.missing -= 1
        if unit.missing:
            return 0
        channel.unfolded += 1
        return self.fold_unit(channel, unit)

    cdef int fold_ready(self, Channel *channel) noexcept nogil:
        """Fold all that waits for nothing any more."""
        cdef Phase *phase = &self.phases[channel.current]
        cdef int i
        for i in range(phase.units, phase.units_end):
            if not self.units[i].missing and not self.units[i].folded:
                if self.fold_unit(channel, &self.units[i]) < 0:
                    return -1
        return 0

    cdef int fold_unit(self, Channel *channel, Unit *unit) noexcept nogil:
        cdef int i
        if channel.sends < unit.sends:
            return 0
        for i in range(unit.folds, unit.folds_end):
            if self.fold(&self.folds[i]) < 0:
                return -1
        self.close_unit(channel, unit)
        return 0

    cdef void close_unit(self, Channel *channel, Unit *unit) noexcept nogil:
        """All folds of a unit are done."""
        cdef int i
        cdef Receive *receive
        unit.folded = True
        channel.unfolded -= 1
        channel.receives -= unit.count
        for i in range(unit.receives, unit.receives + unit.count):
            receive = &self.receives[self.numbers[i]]
            if receive.use:
                shared_acknowledge(&self.device.shared, receive.local, receive.use)
                receive.use = 0

    cdef bint may_fold(self, const Receive *receive) noexcept nogil:
        """Whether a message can be folded while it is read, without lying anywhere as a whole."""
        cdef Unit *unit
        if self.kernel == NULL or receive.unit < 0:
            return False
        unit = &self.units[receive.unit]
        return unit.alone and self.channels[receive.channel].sends >= unit.sends

    cdef int fold_from(self, Receive *receive, uint64_t where) noexcept nogil:
        """Fold a message from its sender's memory, a piece at a time."""
        cdef Channel *channel = &self.channels[receive.channel]
        cdef Unit *unit = &self.units[receive.unit]
        cdef int64_t step = FOLDED_AT_ONCE // self.itemsize * self.itemsize
        cdef int64_t done, length
        cdef uint64_t source
        cdef Fold *fold
        cdef Operand *operand
        cdef int f, i
        self.touched = True
        for f in range(unit.folds, unit.folds_end):
            fold = &self.folds[f]
            done = 0
            while done < fold.target.length:
                length = min(step, fold.target.length - done)
                for i in range(fold.count):
                    operand = &self.operands[fold.operands + i]
                    if operand.receive < 0:
                        self.pointers[i] = self.at(&operand.place) + done
                    else:
                        self.pointers[i] = self.device.piece
                        source = where + operand.place.offset + done
                if shared_fetch(
                    self.device.processes[receive.local], self.device.piece, source, length
                ):
                    return self.fail_fetch(receive)
                self.kernel(
                    self.at(&fold.target) + done,
                    self.pointers,
                    fold.count,
                    length // self.itemsize,
                )
                done += length
        unit.missing = 0
        channel.unfolded += 1
        self.close_unit(channel, unit)
        return 0

    cdef int fold(self, Fold *fold) noexcept nogil:
        cdef int i
        cdef Operand *operand
        for i in range(fold.count):
            operand = &self.operands[fold.operands + i]
            if operand.receive >= 0:
                self.pointers[i] = self.receives[operand.receive].data + operand.place.offset
            else:
                self.pointers[i] = self.at(&operand.place)
        if self.kernel != NULL:
            self.kernel(
                self.at(&fold.target),
                self.pointers,
                fold.count,
                fold.target.length // self.itemsize,
            )
            return 0
        with gil:
            return self.fold_in_python(fold)

    cdef int fold_in_python(self, Fold *fold) noexcept:
        cdef int i
        try:
            dtype = self.reduction.dtype
            target = _array(self.at(&fold.target), fold.target.length, True).view(dtype)
            operands = [
                _array(self.pointers[i], fold.target.length, False).view(dtype)
                for i in range(fold.count)
            ]
            self.reduction.fold(target, operands)
        except BaseException as error:
            self.error = error
            return -1
        return 0

    cdef int fold_late(self, int index) noexcept nogil:
        with gil:
            try:
                fold_spans(self.reduction, self._late[index], self._bytes)
            except BaseException as error:
                self.error = error
                return -1
        return 0

    def _bytes(self, span):
        """The memory of a span."""
        cdef Place place
        _place(&place, span)
        return _array(self.at(&place), place.length, True)

    # --- failures ---

    cdef int fail_length(self, Receive *receive, uint64_t length) noexcept nogil:
        with gil:
            self.error = RuntimeError(
                f"rank {receive.peer} has sent {length} bytes where this rank expects "
                f"{receive.landing.length}: all ranks must call with the same counts, datatypes "
                "and algorithm (MPICOLL_CHECK=1 tells who differs)"
            )
        return -1

    cdef int fail_fetch(self, Receive *receive) noexcept nogil:
        with gil:
            self.error = RuntimeError(
                f"the memory of rank {receive.peer} cannot be read any more; has it ended?"
            )
        return -1


cdef void *space_for(Py_ssize_t count, size_t size) except NULL:
    cdef void *space = calloc(max(count, 1), size)
    if space == NULL:
        raise MemoryError
    return space


cdef char *_address(array) except? NULL:
    """Where an array of bytes lies; NULL for None or an empty one."""
    cdef const unsigned char[::1] view
    if array is None or array.size == 0:
        return NULL
    view = array
    return <char *> &view[0]


cdef _array(char *address, int64_t length, bint writable):
    """Memory as an array of bytes."""
    if length == 0:
        return np.empty(0, np.uint8)
    return np.frombuffer(
        PyMemoryView_FromMemory(address, length, PyBUF_WRITE if writable else PyBUF_READ), np.uint8
    )


cdef int _place(Place *place, span) except -1:
    place.buffer, place.offset, place.length = span
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


def library():
    """What the MPI library that this is linked with calls itself; MPI need not be initialised."""
    cdef char text[mpi.MPI_MAX_LIBRARY_VERSION_STRING]
    cdef int length = 0
    mpi.MPI_Get_library_version(text, &length)
    return text[:length].decode(errors="replace")


def space(int ranks, geometry):
    """Bytes of shared memory that a node with so many ranks needs."""
    cdef shared_t shared
    shared.ranks = ranks
    shared.slots, shared.slot, shared.inside = geometry
    return shared_length(&shared)


def read_memory(pid_t process, uint64_t address, unsigned char[::1] into):
    """Read memory of another process; whether that went well."""
    return shared_fetch(process, &into[0], address, into.shape[0]) == 0
