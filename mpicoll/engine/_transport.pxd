"""See `_transport.pyx`: the node's memory, what lies there, and who is told of messages."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from mpi4py cimport libmpi as mpi
from posix.types cimport pid_t


cdef extern from "_copy.h" nogil:
    void copy_bytes(char *, const char *, size_t)


cdef extern from "_shared.h" nogil:
    enum: ENTRIES
    enum: INSIDE
    enum: SLOT
    enum: REMOTE
    enum: WINDOW
    ctypedef struct entry_t:
        uint32_t tag
        uint32_t kind
        uint64_t length
        uint64_t where
    ctypedef struct shared_t:
        char *base
        int ranks
        int me
        int slots
        uint64_t inside
        uint64_t slot
    uint64_t shared_length(const shared_t *)
    bint shared_acked(const shared_t *, int, uint64_t)
    void shared_acknowledge(const shared_t *, int, uint64_t)
    void shared_ask(const shared_t *, int)
    bint shared_was_asked(const shared_t *)
    entry_t *shared_look(const shared_t *, int, uint64_t)
    void shared_publish(
        const shared_t *, int, uint64_t, uint32_t, uint32_t, const void *, uint64_t, uint64_t
    )
    char *shared_content(const shared_t *, int, const entry_t *)
    char *shared_slot(const shared_t *, int, uint64_t)
    entry_t *shared_entry(const shared_t *, int, int, uint64_t)
    int shared_fetch(pid_t, char *, uint64_t, uint64_t)
    int shared_fetch_pieces(
        const shared_t *, int, uint64_t, pid_t, entry_t *, char *, uint64_t *
    )
    int shared_is_fetched(pid_t, entry_t *, char *, uint64_t)
    int shared_help(const shared_t *, pid_t, int, uint64_t)
    void shared_relax()
    int shared_offer()
    bint shared_try(int *)
    void shared_unlock(int *)


cdef enum:
    WINDOWS = 64  # that a communicator may have at a time
    OFFSET = 48  # bits of an offset in one
    # Bytes of a message that are read from its sender's memory and folded at a time: they stay in
    # the cache in between.
    FOLDED_AT_ONCE = 128 << 10


cdef struct Window:
    char *base  # of the part of every rank, NULL: there is none
    char *mine  # where this rank's part begins, and ends
    char *mine_end


cdef struct Place:
    int buffer
    int64_t offset
    int64_t length


cdef struct Receive:
    int peer
    int local  # number of the peer in this node, -1 if it is on another
    int channel
    int unit  # that waits for it, -1: it is only stored
    Place landing
    uint32_t tag
    char *data  # where the content is
    uint64_t use  # of the entry that has it, 0 if it lies in its landing
    uint64_t copied  # bytes, where the writer copies others
    void *owner  # a Receiver
    Receive *next  # that is posted for the same peer, or that writers still copy for


cdef struct Send:
    int peer
    int local
    int channel
    bint same  # content as the one before it
    bint written  # by a fold of the same phase
    Place source
    uint32_t tag
    int state
    bint shared  # its copying
    int slot  # that has the content, -1: none
    uint64_t filled  # how often the slot had been filled then
    uint64_t use


cdef enum:
    IDLE
    WAITING  # for an entry or a slot
    PUBLISHED  # until it is acknowledged
    POSTED  # in MPI
    DONE


cdef struct Idle:
    # What a wait has done since something moved.
    int looks
    int offers
    int taken  # of these, those that let somebody else run


cdef struct Stray:
    # A message that came before its receive was posted.
    uint32_t tag
    uint32_t kind
    uint64_t length
    uint64_t where
    uint64_t use
    char *data
    Stray *next


cdef struct Reference:
    int reader
    uint64_t use


cdef struct Slot:
    int count
    Reference *readers
    uint64_t filled  # how often it has been filled


cdef class MemoryOwner:
    cdef void *blocks[20]
    cdef int nblocks

    cdef void *space(self, Py_ssize_t count, size_t size) except NULL


cdef class Receiver(MemoryOwner):
    cdef char **bases  # of its buffers
    cdef object error  # of one of its messages

    cdef int got(self, Receive *receive) noexcept nogil
    cdef int fold_from(self, Receive *receive, uint64_t where) noexcept nogil
    cdef int fail_length(self, Receive *receive, uint64_t length) noexcept with gil
    cdef int fail_fetch(self, Receive *receive) noexcept with gil


cdef class Device(MemoryOwner):
    cdef shared_t shared
    cdef int lock
    cdef int size
    cdef int *local
    cdef pid_t *processes
    cdef char *piece  # of a message that is folded while it is read
    cdef bint reads
    cdef readonly bint helps  # to copy what this rank has sent
    cdef readonly uint64_t helped  # pieces that were copied so
    cdef uint64_t remote, together
    cdef int patience, looks
    cdef uint64_t *sent
    cdef uint64_t *acked
    cdef uint64_t *received
    cdef Receive **posted
    cdef Receive *copying
    cdef Stray **strays
    cdef int *stuck
    cdef Slot *slots
    cdef int next_slot
    cdef mpi.MPI_Comm probe
    cdef object memory
    cdef Window windows[WINDOWS]
    cdef int nwindows  # no window has a higher number
    cdef list mapped  # memory of the windows

    cdef void learn(self, const Idle *idle) noexcept nogil
    cdef int window_of(self, char *content, uint64_t length) noexcept nogil
    cdef bint has_entry(self, int reader) noexcept nogil
    cdef int free_slot(self) noexcept nogil
    cdef bint push(
        self, Send *send, const Send *before, char *content, uint64_t remote
    ) noexcept nogil
    cdef int post(self, Receive *receive) noexcept nogil
    cdef int deliver(
        self, Receive *receive, uint32_t kind, char *data, uint64_t length, uint64_t where
    ) noexcept nogil
    cdef int land(self, Receive *receive, char *landing) noexcept nogil
    cdef int look_at_copies(self) noexcept nogil
    cdef bint help(self, const Send *send) noexcept nogil
    cdef int poll(self, bint drain) noexcept nogil
    cdef bint set_aside(self, int writer, entry_t *entry) noexcept nogil


cdef inline char *at(char **bases, const Place *place) noexcept nogil:
    return bases[place.buffer] + place.offset
