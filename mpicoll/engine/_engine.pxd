"""The compiled engine, for compiled code that starts its programs."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from mpi4py cimport MPI
from mpi4py cimport libmpi as mpi
from posix.types cimport pid_t

from mpicoll._kernels cimport fold_function


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
    entry_t *shared_look(const shared_t *, int, uint64_t)
    void shared_publish(
        const shared_t *, int, uint64_t, uint32_t, uint32_t, const void *, uint64_t, uint64_t
    )
    char *shared_content(const shared_t *, int, const entry_t *)
    char *shared_slot(const shared_t *, int, uint64_t)
    entry_t *shared_entry(const shared_t *, int, int, uint64_t)
    int shared_fetch(pid_t, void *, uint64_t, uint64_t)
    int shared_fetch_pieces(pid_t, entry_t *, char *, uint64_t *)
    int shared_is_fetched(pid_t, entry_t *, char *, uint64_t)
    int shared_help(const shared_t *, pid_t, int, uint64_t)
    void shared_relax()
    int shared_offer()
    bint shared_try(int *)
    void shared_unlock(int *)


cdef enum:
    WINDOWS = 64  # that a communicator may have at a time
    OFFSET = 48  # bits of an offset in one


cdef struct Window:
    char *base  # of the part of every rank, NULL: there is none
    char *mine  # where this rank's part begins, and ends
    char *mine_end


cdef struct Place:
    int buffer
    int64_t offset
    int64_t length


cdef struct Copy:
    Place target
    Place source


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
    void *owner
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


cdef struct Operand:
    int receive
    Place place


cdef struct Fold:
    Place target
    int operands
    int count


cdef struct Unit:
    int receives  # first in the list of numbers
    int count
    int folds
    int folds_end
    int sends  # that must be complete first: all before this number
    bint alone  # one message, once in each fold
    int missing
    bint folded


cdef struct Phase:
    int moves, moves_end
    int receives, receives_end
    int sends, sends_end
    int units, units_end
    int stores, stores_end
    int late, late_end
    bint last


cdef struct Channel:
    int phases, phases_end
    int segment
    int current
    int receives  # that are under way
    int sends, sends_end  # that are under way, the first one and the end
    int unfolded  # units of the current phase that are complete but for sends
    bint closed


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


cdef class Device:
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
    cdef int patience
    cdef int looks
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
    cdef int poll(self) noexcept nogil
    cdef void drain(self) noexcept nogil
    cdef bint set_aside(self, int writer, entry_t *entry) noexcept nogil


cdef class Program:
    cdef readonly object plan
    cdef readonly bint active
    cdef readonly Device device
    cdef object error
    cdef object reduction
    cdef object _send, _recv, _temporary  # keep memory alive
    cdef list _late
    cdef char **bases
    cdef int nbases, nchannels, nsegments, window
    cdef Channel *channels
    cdef Phase *phases
    cdef Copy *copies
    cdef Receive *receives
    cdef Send *sends
    cdef Operand *operands
    cdef Fold *folds
    cdef Unit *units
    cdef int *numbers
    cdef int nreceives, nsends, before_end, after, after_end
    cdef int *left
    cdef int *opening
    cdef int nopening
    cdef int open_channels
    cdef char **pointers
    cdef int64_t *blocked
    cdef int64_t scan
    cdef int pending  # sends that wait or are not acknowledged
    cdef int idle  # tests without progress
    cdef bint touched  # by a message, since it last advanced
    cdef fold_function kernel
    cdef int64_t itemsize
    cdef uint64_t remote  # length from which on messages are read where they lie
    cdef mpi.MPI_Comm comm
    cdef mpi.MPI_Request *requests
    cdef int *owners
    cdef int *indices
    cdef int nrequests
    cdef int code  # of MPI
    cdef int lane, high  # that the tags are made for

    cdef _fill(self, channels)
    cdef int bind(self, MPI.Comm comm, int high, int lane) except -1
    cdef int go(self) except -1
    cdef int finish_with(self, pause) except -1
    cdef void activate(self)
    cdef int go_through(self, pause) except -1
    cdef int go_on(self, int code, Idle *idle, pause) except -1
    cdef throw(self)
    cdef int spin(self, Idle *idle) noexcept nogil
    cdef void ease(self, int offers) noexcept nogil
    cdef void release(self) noexcept nogil
    cdef char *at(self, Place *place) noexcept nogil
    cdef void copy(self, int start, int end) noexcept nogil
    cdef int begin(self) noexcept nogil
    cdef int step(self) noexcept nogil
    cdef int open(self) noexcept nogil
    cdef int finish(self) noexcept nogil
    cdef int advance_all(self) noexcept nogil
    cdef int advance(self, int c) noexcept nogil
    cdef int post(self, int c) noexcept nogil
    cdef int push(self) noexcept nogil
    cdef int push_channel(self, Channel *channel) noexcept nogil
    cdef void pass_done(self, Channel *channel) noexcept nogil
    cdef int test_requests(self) noexcept nogil
    cdef void collect(self) noexcept nogil
    cdef int got(self, Receive *receive) noexcept nogil
    cdef int fold_ready(self, Channel *channel) noexcept nogil
    cdef int fold_unit(self, Channel *channel, Unit *unit) noexcept nogil
    cdef void close_unit(self, Channel *channel, Unit *unit) noexcept nogil
    cdef bint may_fold(self, const Receive *receive) noexcept nogil
    cdef int fold_from(self, Receive *receive, uint64_t where) noexcept nogil
    cdef int fold(self, Fold *fold) noexcept nogil
    cdef int fold_in_python(self, Fold *fold) noexcept
    cdef int fold_late(self, int index) noexcept nogil
    cdef int fail_length(self, Receive *receive, uint64_t length) noexcept nogil
    cdef int fail_fetch(self, Receive *receive) noexcept nogil


cdef fold_function kernel_of(reduction)
cdef void *space_for(Py_ssize_t count, size_t size) except NULL
