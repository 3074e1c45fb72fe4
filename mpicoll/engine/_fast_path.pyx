"""The short ways in: calls that are made again reach the engine without building Python objects."""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memset
from mpi4py cimport MPI

cimport numpy as cnp

from mpicoll.engine._engine cimport Program, kernel_of, space_for
from mpicoll._kernels cimport fold_function

from mpi4py import MPI as _MPI


cnp.import_array()


cdef struct Key:
    # What decides a call of one communicator, without addresses.
    int64_t method
    int64_t root
    int64_t op
    int64_t algorithm  # where the caller's name of it lies, 0 if the caller names none
    int64_t kinds[2]
    int64_t lengths[2]


cdef enum:
    KNOWN = 128  # calls that are remembered
    PLACES = 8  # that one of them may have
    ABSENT = -1
    IN_PLACE = -2


cdef class Tally:
    """How often something was run."""

    cdef readonly object name
    cdef int64_t calls

    def __cinit__(self, name):
        self.name = name


cdef class Way:
    """How a call that is remembered is made again: by a program, or by the MPI library."""

    cdef Program program  # None: the library
    cdef object function, numbers  # mpi4py's method, and which arguments it takes
    cdef object reduction, kept
    cdef fold_function kernel
    cdef int sources[2]  # of the plan's two buffers: argument 0 or 1, -1 for none
    cdef Tally tally


cdef class Front:
    """The short way in: blocking calls that have been made before, of plain arrays.

    Args:
        comm: carries the messages that MPI carries.
        pause: called again and again while nothing moves; may raise.
        poll: moves on what is under way besides.
        under_way: what is, if there is anything.
        hooks, forks: must be empty: the hooks, the process that this one was forked from.
        failed: told of an error and the program.
    """

    cdef Key *keys
    cdef list ways
    cdef dict vectors
    cdef MPI.Comm comm
    cdef object pause, poll, under_way, failed
    cdef list hooks, forks
    cdef public bint open
    cdef public object devices  # serves arrays in device memory, None if nothing does
    cdef dict named

    def __cinit__(self, MPI.Comm comm, pause, poll, under_way, list hooks, list forks, failed):
        self.keys = <Key *> space_for(KNOWN, sizeof(Key))
        self.comm, self.pause, self.poll, self.under_way = comm, pause, poll, under_way
        self.hooks, self.forks, self.failed = hooks, forks, failed
        self.open = True
        self.named = {}
        self.forget()

    def __dealloc__(self):
        free(self.keys)

    def forget(self):
        """Forget all calls, but not how often they were made."""
        self.ways = [None] * KNOWN
        self.vectors = {}
        memset(self.keys, 0, KNOWN * sizeof(Key))

    cdef Tally tally(self, name):
        """The count of a (collective, algorithm)."""
        if name not in self.named:
            self.named[name] = Tally(name)
        return self.named[name]

    def calls(self):
        """How often each (collective, algorithm) was run by a short way."""
        cdef Tally tally
        return {tally.name: tally.calls for tally in self.named.values() if tally.calls}

    def serve(self, comm, int method, sendbuf, recvbuf, op, root, algorithm):
        """Make a call of a communicator; False if it has to go the long way."""
        cdef Key key
        cdef char *address[2]
        cdef int index
        if not self.open or self.hooks or self.forks:
            return False
        if not _key(&key, address, method, sendbuf, recvbuf, op, root, algorithm):
            return self.devices is not None and self.on_device(
                method, sendbuf, recvbuf, op, root, algorithm
            )
        index = self.find(&key)
        if index < 0:
            return False
        return self.run(
            <Way> self.ways[index], address, key.lengths, comm, sendbuf, recvbuf, (op, root)
        )

    def serve_vectors(
        self, comm, str method, sendbuf, recvbuf, counts, op, root, algorithm
    ):
        """The same for the calls whose blocks may differ; `counts` are those of Reduce_scatter."""
        cdef char *address[2]
        cdef int64_t lengths[2]
        if not self.open or self.hooks or self.forks:
            return False
        key = _vector_key(address, lengths, method, sendbuf, recvbuf, counts, op, root, algorithm)
        if key is None:
            return False
        way = self.vectors.get(key)
        if way is None:
            return False
        return self.run(<Way> way, address, lengths, comm, sendbuf, recvbuf, (op, root, counts))

    cdef bint run(
        self, Way way, char **address, int64_t *lengths, comm, sendbuf, recvbuf, tuple others,
    ) except -1:
        """Make a call; False if it has to go the long way."""
        cdef Program program = way.program
        cdef Tally tally = way.tally
        if address[0] < address[1] + lengths[1] and address[1] < address[0] + lengths[0]:
            return False  # they overlap
        if program is None:
            if self.under_way:
                return False
            arguments = (sendbuf, recvbuf, *others)
            way.function(comm, *[arguments[number] for number in way.numbers])
            tally.calls += 1
            return True
        if program.active:
            return False
        program.bind(self.comm, 0, 0)
        program.reduction, program.kernel = way.reduction, way.kernel
        program.bases[0] = address[way.sources[0]] if way.sources[0] >= 0 else NULL
        program.bases[1] = address[way.sources[1]] if way.sources[1] >= 0 else NULL
        try:
            if self.under_way:
                program.go()
                self.poll()
                program.finish_with(self.pause)
            else:
                program.go_through(self.pause)
        except BaseException as error:
            program._send, program._recv = sendbuf, recvbuf
            self.failed(error, program)
            raise
        tally.calls += 1
        return True

    cdef bint on_device(self, int method, sendbuf, recvbuf, op, root, algorithm) except -1:
        """Make a call of arrays in device memory; False if it has to go the long way."""
        cdef Tally tally
        if algorithm is not None:
            return False
        peers, tallies = self.devices
        tally = tallies[method]
        try:
            if not peers.serve(tally.name[0], sendbuf, recvbuf, op, root):
                return False
        except BaseException as error:
            self.failed(error)
            raise
        tally.calls += 1
        if self.under_way:
            self.poll()
        return True

    def serve_devices(self, peers, names):
        """Let arrays in device memory go the short way too.

        Args:
            peers: its ``serve(collective, sendbuf, recvbuf, op, root)`` says whether it does.
            names: (collective, algorithm) by the numbers of methods.
        """
        self.devices = (peers, [self.tally(name) for name in names])

    def learn(
        self, int method, sendbuf, recvbuf, op, root, algorithm, call, name, Program program,
        reduction,
    ):
        """Remember a call that has been made the long way, if it is a plain one.

        Args:
            method, sendbuf, recvbuf, op, root, algorithm: as for `serve`.
            call: the parsed call.
            name: (collective, algorithm).
            program: what ran it.
            reduction: the operator, or None.
        """
        cdef Key key
        cdef char *address[2]
        if _key(&key, address, method, sendbuf, recvbuf, op, root, algorithm):
            self.take(&key, self.way(call, name, program, reduction, algorithm, address))

    def learn_vectors(
        self, str method, sendbuf, recvbuf, counts, op, root, algorithm, call, name,
        Program program, reduction,
    ):
        """The same for a call whose blocks may differ."""
        cdef char *address[2]
        cdef int64_t lengths[2]
        key = _vector_key(address, lengths, method, sendbuf, recvbuf, counts, op, root, algorithm)
        if key is not None:
            self.keep(key, self.way(call, name, program, reduction, algorithm, address))

    cdef Way way(self, call, name, Program program, reduction, algorithm, char **address):
        """What makes a call again."""
        cdef Way way = Way()
        cdef uint64_t first
        cdef int side
        way.program, way.tally, way.reduction = program, self.tally(name), reduction
        way.kernel, way.kept = kernel_of(reduction), algorithm
        for side, memory in enumerate(call.memory()):
            way.sources[side] = -1
            if memory is not None:
                first = memory.ctypes.data
                way.sources[side] = 0 if address[0] != NULL and (
                    address[1] == NULL or first == <uint64_t> address[0]
                ) else 1
        return way

    def pass_on(
        self, int method, sendbuf, recvbuf, op, root, algorithm, name, function, numbers
    ):
        """Remember a call that the MPI library has served, if it is a plain one.

        Args:
            method, sendbuf, recvbuf, op, root, algorithm: as for `serve`.
            name: (collective, algorithm).
            function: mpi4py's method.
            numbers: which of sendbuf, recvbuf, op and root it takes.
        """
        cdef Key key
        cdef char *address[2]
        if _key(&key, address, method, sendbuf, recvbuf, op, root, algorithm):
            self.take(&key, self.library(name, function, numbers, algorithm))

    def pass_vectors_on(
        self, str method, sendbuf, recvbuf, counts, op, root, algorithm, name, function, numbers
    ):
        """The same for a call whose blocks may differ; number 4 of its arguments is `counts`."""
        cdef char *address[2]
        cdef int64_t lengths[2]
        key = _vector_key(address, lengths, method, sendbuf, recvbuf, counts, op, root, algorithm)
        if key is not None:
            self.keep(key, self.library(name, function, numbers, algorithm))

    cdef Way library(self, name, function, numbers, algorithm):
        cdef Way way = Way()
        way.function, way.numbers = function, numbers
        way.tally, way.kept = self.tally(name), algorithm
        return way

    cdef keep(self, key, Way way):
        """Remember a call whose blocks may differ."""
        if len(self.vectors) >= KNOWN:
            self.vectors.clear()
        self.vectors[key] = way

    cdef int find(self, Key *key) noexcept:
        """The place of a call, -1 if it has none."""
        cdef int i, first = _hash(key)
        for i in range(first, first + PLACES):
            if self.ways[i % KNOWN] is not None and _same(&self.keys[i % KNOWN], key):
                return i % KNOWN
        return -1

    cdef take(self, Key *key, Way way):
        """Remember a call, perhaps in the place of another one."""
        cdef int index = self.find(key)
        if index < 0:
            # One of the few places that it may have: a free one, else any.
            index = _hash(key)
            for i in range(PLACES):
                if self.ways[(_hash(key) + i) % KNOWN] is None:
                    index = (_hash(key) + i) % KNOWN
                    break
        self.keys[index] = key[0]
        self.ways[index] = way


cdef enum:
    # Stages of a request, see `mpicoll.requests`.
    INACTIVE = 0
    ACTIVE = 2


cdef class Starter:
    """The short way of a persistent call: its start, and the wait for its end.

    Args:
        front: the communicator's; where it is closed, everything goes the long way.
        program: of the call alone, with its lane and buffers bound.
        name: (collective, algorithm).
        pollers: threads that make progress; with one, everything goes the long way.
        lock: held by who moves operations under way on.
    """

    cdef Front front
    cdef Program program
    cdef Tally tally
    cdef list pollers
    cdef object lock, is_locked
    cdef bint started  # the last time
    cdef bint waited  # for that start, here: the request is inactive, and knows the program

    def __cinit__(
        self, Front front not None, Program program not None, name, list pollers, lock
    ):
        self.front, self.program = front, program
        self.tally, self.pollers = front.tally(name), pollers
        self.lock, self.is_locked = lock, lock.locked

    def start(self, request):
        """Start an inactive request; False if it has to go the long way."""
        cdef Front front = self.front
        cdef bint waited = self.waited
        self.started = self.waited = False
        if not front.open or front.hooks or front.forks or self.pollers:
            return False
        if not waited and (self.program.active or request._stage == ACTIVE):
            return False
        request._stage = ACTIVE
        try:
            self.program.go()
        except BaseException as error:
            request._fail(error)
            return True
        self.started = True
        if not waited:
            request._execution = self.program
        (<dict> front.under_way)[request] = None
        for poller in self.pollers:  # of a thread that has been started since
            poller.wake()
        if len(<dict> front.under_way) > 1:
            front.poll()
        return True

    def wait(self, request):
        """Wait for a request that was started here; False if it has to go the long way."""
        cdef Front front = self.front
        if not self.started or not front.open or front.forks:
            return False  # after a failure the front is closed, and the long way raises it
        try:
            self.program.finish_with(front.pause)
        except BaseException as error:
            with self.lock:
                request._fail(error)
            return False
        if self.is_locked():
            return False  # another thread may have seen the end, too
        # The same as the request's own `_finish` where nobody is to be told; no other thread runs.
        if request._stage == ACTIVE:
            del (<dict> front.under_way)[request]
            self.tally.calls += 1
            self.waited = True
        request._stage = INACTIVE
        return True


cdef bint _key(
    Key *key, char **address, int method, sendbuf, recvbuf, op, root, algorithm
) except -1:
    """What decides a call, and where its arrays lie; False if it is none of plain arrays."""
    memset(key, 0, sizeof(Key))
    key.method = method
    if type(root) is not int:
        return False
    key.root = root
    if algorithm is not None:
        # The table keeps the name, so nothing else can lie there.
        key.algorithm = <int64_t> <void *> algorithm
    if op is not None:
        if type(op) is not _MPI.Op:
            return False
        key.op = <int64_t> (<MPI.Op> op).ob_mpi
    return _argument(key, address, 0, sendbuf) and _argument(key, address, 1, recvbuf)


cdef bint _argument(Key *key, char **address, int side, buffer) noexcept:
    cdef cnp.ndarray array
    address[side] = NULL
    key.kinds[side] = key.lengths[side] = 0
    if buffer is None:
        key.kinds[side] = ABSENT
        return True
    if buffer is _IN_PLACE:
        key.kinds[side] = IN_PLACE
        return True
    if not cnp.PyArray_CheckExact(buffer):
        return False
    array = <cnp.ndarray> buffer
    if not cnp.PyArray_IS_C_CONTIGUOUS(array) or not cnp.PyArray_ISNOTSWAPPED(array):
        return False
    key.kinds[side] = 2 * cnp.PyArray_TYPE(array) + cnp.PyArray_ISWRITEABLE(array)
    if cnp.PyTypeNum_ISFLEXIBLE(cnp.PyArray_TYPE(array)):
        return False  # that number does not tell how long an element is
    key.lengths[side] = cnp.PyArray_NBYTES(array)
    address[side] = <char *> cnp.PyArray_DATA(array)
    return True


cdef object _vector_key(
    char **address, int64_t *lengths, str method, sendbuf, recvbuf, counts, op, root, algorithm
):
    """What decides a call whose blocks may differ; None if it is none of plain arrays and numbers.

    Datatypes are told by their handles.  Only calls of predefined ones are remembered, whose
    handles stay theirs.
    """
    if type(root) is not int:
        return None
    if op is not None:
        if type(op) is not _MPI.Op:
            return None
        op = <int64_t> (<MPI.Op> op).ob_mpi
    sent = _vector(address, lengths, 0, sendbuf)
    received = _vector(address, lengths, 1, recvbuf)
    numbers = _plain(counts)
    if sent is None or received is None or numbers is None:
        return None
    return method, sent, received, numbers, op, root, algorithm


cdef object _vector(char **address, int64_t *lengths, int side, message):
    """A message without its address."""
    cdef Key key
    if type(message) is not list and type(message) is not tuple:
        if not _argument(&key, address, side, message):
            return None
        lengths[side] = key.lengths[side]
        return key.kinds[side], key.lengths[side]
    if not message or not _argument(&key, address, side, message[0]):
        return None
    lengths[side] = key.lengths[side]
    rest = _plain(message[1:])
    return None if rest is None else (key.kinds[side], key.lengths[side], rest)


cdef object _plain(value):
    """Numbers, datatypes and sequences of them as what can be compared; None for anything else."""
    kind = type(value)
    if kind is int or kind is str:
        return value
    if value is None:
        return ()
    if kind is list or kind is tuple:
        found = [kind]
        for item in value:
            item = _plain(item)
            if item is None:
                return None
            found.append(item)
        return tuple(found)
    if kind is _MPI.Datatype:
        return kind, <int64_t> (<MPI.Datatype> value).ob_mpi
    if cnp.PyArray_CheckExact(value) and value.ndim == 1 and value.dtype.kind in "iu":
        return value.dtype.str, value.tobytes()
    return None


cdef int _hash(Key *key) noexcept nogil:
    cdef uint64_t mixed = (
        key.method + 31 * key.root + 7 * key.op + 11 * key.algorithm
        + key.kinds[0] + 3 * key.kinds[1]
        + 5 * key.lengths[0] + key.lengths[1]
    )
    return (mixed * <uint64_t> 0x9E3779B97F4A7C15) >> 57


cdef bint _same(Key *a, Key *b) noexcept nogil:
    return memcmp(a, b, sizeof(Key)) == 0


_IN_PLACE = _MPI.IN_PLACE
