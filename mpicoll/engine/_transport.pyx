"""What the messages of one node's ranks go through: memory that all of them map (`_shared.h`).

A `Device` publishes what a communicator's rank sends there, and hands what has come to the
`Receiver` that waits for it, which is all that it knows of plans.  What goes to other nodes, by
MPI, is not here.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from mpi4py cimport MPI
from mpi4py cimport libmpi as mpi
from posix.types cimport pid_t

from mpicoll.errors import MemoryGone


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
    # Looks at a message in a slot that nothing is posted for, while another one of its sender is
    # awaited, before it is moved out of the way.
    STUCK = 200

#: The MPI that this was compiled for, "" for one that is not known.
BUILT_FOR = ENGINE_MPI.decode()


cdef class MemoryOwner:
    """Has zeroed memory, which is freed with it."""

    def __dealloc__(self):
        cdef int i
        for i in range(self.nblocks):
            free(self.blocks[i])

    cdef void *space(self, Py_ssize_t count, size_t size) except NULL:
        """Memory for an array; asked for at most as often as there are `blocks`."""
        cdef void *block = calloc(max(count, 1), size)
        if block == NULL:
            raise MemoryError
        self.blocks[self.nblocks] = block
        self.nblocks += 1
        return block


cdef class Receiver(MemoryOwner):
    """Owns receives that a device has posted, and is told what becomes of them."""

    cdef int got(self, Receive *receive) noexcept nogil:
        """A message is there."""
        return 0

    cdef int fold_from(self, Receive *receive, uint64_t where) noexcept nogil:
        """Fold a message from its sender's memory, a piece at a time, so that it lies nowhere else.

        Returns 1 if that is not possible, -1 if it fails.
        """
        return 1

    cdef int fail_length(self, Receive *receive, uint64_t length) noexcept with gil:
        self.error = RuntimeError(
            f"rank {receive.peer} has sent {length} bytes where this rank expects "
            f"{receive.landing.length}: all ranks must call with the same counts, datatypes "
            "and algorithm (MPICOLL_CHECK=1 tells who differs)"
        )
        return -1

    cdef int fail_fetch(self, Receive *receive) noexcept with gil:
        self.error = MemoryGone(
            f"the memory of rank {receive.peer} cannot be read any more; has it ended?"
        )
        return -1


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
        cdef Reference *readers
        self.size = len(locals)
        self.local = <int *> self.space(self.size, sizeof(int))
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
        self.sent = <uint64_t *> self.space(ranks, sizeof(uint64_t))
        self.acked = <uint64_t *> self.space(ranks, sizeof(uint64_t))
        self.received = <uint64_t *> self.space(ranks, sizeof(uint64_t))
        self.posted = <Receive **> self.space(ranks, sizeof(Receive *))
        self.strays = <Stray **> self.space(ranks, sizeof(Stray *))
        self.stuck = <int *> self.space(ranks, sizeof(int))
        self.slots = <Slot *> self.space(self.shared.slots, sizeof(Slot))
        readers = <Reference *> self.space(self.shared.slots * ranks, sizeof(Reference))
        for i in range(self.shared.slots):
            self.slots[i].readers = readers + i * ranks
        self.reads = self.helps = bool(processes)
        self.remote, self.together = remote, together
        if processes:
            self.processes = <pid_t *> self.space(ranks, sizeof(pid_t))
            for i in range(ranks):
                self.processes[i] = processes[i]
            self.piece = <char *> self.space(FOLDED_AT_ONCE, 1)

    def __dealloc__(self):
        cdef int i
        cdef Stray *stray
        if self.strays != NULL:
            for i in range(self.shared.ranks):
                while self.strays[i] != NULL:
                    stray = self.strays[i]
                    self.strays[i] = stray.next
                    free(stray.data)
                    free(stray)

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
        for i in range(self.shared.slots):
            slot = &self.slots[i]
            shared_ask(&self.shared, slot.readers[slot.count - 1].reader)
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
            shared_ask(&self.shared, reader)
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
                    copy_bytes(shared_slot(&self.shared, self.shared.me, again), content, length)
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
        cdef char *landing = at((<Receiver> receive.owner).bases, &receive.landing)
        cdef int code
        if length != <uint64_t> receive.landing.length:
            return (<Receiver> receive.owner).fail_length(receive, length)
        if kind == WINDOW:
            data = self.windows[where >> OFFSET].base + (where & ((<uint64_t> 1 << OFFSET) - 1))
        if kind == REMOTE:
            code = (<Receiver> receive.owner).fold_from(receive, where)
            if code <= 0:
                return code
        if kind == REMOTE and length >= self.together:
            receive.copied = 0
            if shared_fetch_pieces(
                &self.shared,
                receive.local,
                self.sent[receive.local],
                self.processes[receive.local],
                shared_entry(&self.shared, receive.local, self.shared.me, receive.use),
                landing,
                &receive.copied,
            ):
                return (<Receiver> receive.owner).fail_fetch(receive)
            receive.next = self.copying
            self.copying = receive
            self.look_at_copies()
            return 0
        if kind == REMOTE:
            if shared_fetch(self.processes[receive.local], landing, where, length):
                return (<Receiver> receive.owner).fail_fetch(receive)
        elif receive.use == 0 or receive.unit < 0:
            copy_bytes(landing, data, length)
        else:
            receive.data = data
            return (<Receiver> receive.owner).got(receive)
        return self.land(receive, landing)

    cdef int land(self, Receive *receive, char *landing) noexcept nogil:
        """A message is where it belongs."""
        if receive.use:
            shared_acknowledge(&self.shared, receive.local, receive.use)
            receive.use = 0
        receive.data = landing
        return (<Receiver> receive.owner).got(receive)

    cdef int look_at_copies(self) noexcept nogil:
        """Land what both sides have copied; how many messages.

        A failure belongs to the program that receives, which finds it.
        """
        cdef Receive **link = &self.copying
        cdef Receive *receive
        cdef char *landing
        cdef int state, moved = 0
        while link[0] != NULL:
            receive = link[0]
            landing = at((<Receiver> receive.owner).bases, &receive.landing)
            state = shared_is_fetched(
                self.processes[receive.local],
                shared_entry(&self.shared, receive.local, self.shared.me, receive.use),
                landing,
                receive.copied,
            )
            if state == 0:
                link = &receive.next
                continue
            link[0] = receive.next
            moved += 1
            if state < 0:
                (<Receiver> receive.owner).fail_fetch(receive)
            else:
                self.land(receive, landing)
        return moved

    cdef int poll(self, bint drain) noexcept nogil:
        """Take in the messages that are there and posted for; returns how many.

        Args:
            drain: take in those that nothing is posted for yet, too: others may wait behind them.
        """
        cdef int writer, moved = 0
        cdef entry_t *entry
        cdef Receive **at
        cdef Receive *receive
        if self.copying != NULL:
            moved += self.look_at_copies()
        for writer in range(self.shared.ranks):
            while self.posted[writer] != NULL or drain:
                entry = shared_look(&self.shared, writer, self.received[writer] + 1)
                if entry == NULL:
                    break
                at = &self.posted[writer]
                while at[0] != NULL and at[0].tag != entry.tag:
                    at = &at[0].next
                receive = at[0]
                if receive == NULL:
                    # Another one may be awaited behind it.
                    self.stuck[writer] += 1
                    if entry.kind == SLOT and self.stuck[writer] < STUCK and not drain:
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
    return shared_fetch(process, <char *> &into[0], address, into.shape[0]) == 0
