"""The fast paths: calls that are made again reach the engine without building Python objects.

A `FastPath` remembers blocking calls, a `Starter` starts a persistent one.  What they do not know
goes the slow path, which parses the call and chooses an algorithm (:mod:`mpicoll.comm.dispatch`).
"""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset
from mpi4py cimport MPI

cimport numpy as cnp

from mpicoll._kernels cimport fold_function
from mpicoll.base._call_cache cimport KNOWN, CallCache, Key, find, take
from mpicoll.engine._execution cimport Execution
from mpicoll.engine._program cimport kernel_of

from mpi4py import MPI as _MPI


cnp.import_array()


cdef enum:
    ABSENT = -1
    IN_PLACE = -2


cdef class CallCount:
    """How often something was run."""

    cdef readonly object name
    cdef int64_t calls

    def __cinit__(self, name):
        self.name = name


cdef class Route:
    """How a call that is remembered is made again: by an execution, or by the MPI library."""

    cdef Execution execution  # None: the library
    cdef object function, numbers  # mpi4py's method, and which arguments it takes
    cdef object reduction, algorithm  # whose names are told apart by where they lie
    cdef fold_function kernel
    cdef int sources[2]  # of the plan's two buffers: argument 0 or 1, -1 for none
    cdef CallCount count


cdef class FastPath:
    """The fast path of blocking calls that have been made before, of plain arrays.

    Args:
        comm: carries the messages that MPI carries.
        pause: called again and again while nothing moves; may raise.
        poll: moves on what is under way besides.
        under_way: what is, if there is anything.
        hooks, forks: must be empty: the hooks, the process that this one was forked from.
        failed: told of an error and the execution.
    """

    cdef CallCache cache
    cdef list routes
    cdef dict vectors
    cdef MPI.Comm comm
    cdef object pause, poll, under_way, failed
    cdef list hooks, forks
    cdef public bint open
    cdef public object devices  # serves arrays in device memory, None if nothing does
    cdef dict named

    def __cinit__(self, MPI.Comm comm, pause, poll, under_way, list hooks, list forks, failed):
        self.comm, self.pause, self.poll, self.under_way = comm, pause, poll, under_way
        self.hooks, self.forks, self.failed = hooks, forks, failed
        self.open = True
        self.named = {}
        self.forget()

    def forget(self):
        """Forget all calls, but not how often they were made."""
        self.routes = [None] * KNOWN
        self.vectors = {}
        memset(&self.cache, 0, sizeof(CallCache))

    cdef CallCount count(self, name):
        """The count of a (collective, algorithm)."""
        if name not in self.named:
            self.named[name] = CallCount(name)
        return self.named[name]

    def calls(self):
        """How often each (collective, algorithm) was run by a fast path."""
        cdef CallCount count
        return {count.name: count.calls for count in self.named.values() if count.calls}

    def serve(self, comm, int method, sendbuf, recvbuf, op, root, algorithm):
        """Make a call of a communicator; False if it has to go the slow path."""
        cdef Key key
        cdef char *address[2]
        cdef int index
        if not self.open or self.hooks or self.forks:
            return False
        if not _key(&key, address, method, sendbuf, recvbuf, op, root, algorithm):
            return self.devices is not None and self.on_device(
                method, sendbuf, recvbuf, op, root, algorithm
            )
        index = find(&self.cache, &key)
        if index < 0:
            return False
        return self.run(
            <Route> self.routes[index], address, key.lengths, comm, sendbuf, recvbuf, (op, root)
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
        route = self.vectors.get(key)
        if route is None:
            return False
        return self.run(<Route> route, address, lengths, comm, sendbuf, recvbuf, (op, root, counts))

    cdef bint run(
        self, Route route, char **address, int64_t *lengths, comm, sendbuf, recvbuf, tuple others,
    ) except -1:
        """Make a call; False if it has to go the slow path."""
        cdef Execution execution = route.execution
        if address[0] < address[1] + lengths[1] and address[1] < address[0] + lengths[0]:
            return False  # they overlap
        if execution is None:
            if self.under_way:
                return False
            arguments = (sendbuf, recvbuf, *others)
            route.function(comm, *[arguments[number] for number in route.numbers])
            route.count.calls += 1
            return True
        if execution.active:
            return False
        execution.bind(self.comm, 0, 0)
        execution.reduction, execution.kernel = route.reduction, route.kernel
        execution.bases[0] = address[route.sources[0]] if route.sources[0] >= 0 else NULL
        execution.bases[1] = address[route.sources[1]] if route.sources[1] >= 0 else NULL
        try:
            if self.under_way:
                execution.go()
                self.poll()
                execution.wait(self.pause)
            else:
                execution.go_through(self.pause)
        except BaseException as error:
            execution._send, execution._recv = sendbuf, recvbuf
            self.failed(error, execution)
            raise
        route.count.calls += 1
        return True

    cdef bint on_device(self, int method, sendbuf, recvbuf, op, root, algorithm) except -1:
        """Make a call of arrays in device memory; False if it has to go the slow path."""
        cdef CallCount count
        if algorithm is not None:
            return False
        peers, counts = self.devices
        count = counts[method]
        try:
            if not peers.serve(count.name[0], sendbuf, recvbuf, op, root):
                return False
        except BaseException as error:
            self.failed(error)
            raise
        count.calls += 1
        if self.under_way:
            self.poll()
        return True

    def serve_devices(self, peers, names):
        """Let calls of arrays in device memory go the fast path too.

        Args:
            peers: its ``serve(collective, sendbuf, recvbuf, op, root)`` says whether it does.
            names: (collective, algorithm) by the numbers of methods.
        """
        self.devices = (peers, [self.count(name) for name in names])

    def learn(self, method, tuple arguments, algorithm, name, call, Execution execution):
        """Remember a call that has been made on the slow path, if it is a plain one.

        Args:
            method: as for `serve`, or as for `serve_vectors`.
            arguments: send buffer, receive buffer, operator, root, counts.
            algorithm: that the caller names, or None.
            name: (collective, algorithm) of what was run.
            call: the parsed call.
            execution: what ran it.
        """
        cdef char *address[2]
        cdef uint64_t first
        cdef int side
        cdef list memory = [m if m is None else m.ctypes.data for m in call.memory()]
        cdef Route route = self.route(method, arguments, algorithm, name, address)
        if route is None:
            return
        route.execution, route.reduction = execution, call.reduction
        route.kernel = kernel_of(call.reduction)
        for side in range(2):
            route.sources[side] = -1
            if memory[side] is not None:
                first = memory[side]
                route.sources[side] = 0 if address[0] != NULL and (
                    address[1] == NULL or first == <uint64_t> address[0]
                ) else 1

    def pass_on(self, method, tuple arguments, algorithm, name, function, numbers):
        """Remember a call that the MPI library has served, if it is a plain one.

        Args:
            method, arguments, algorithm, name: as for `learn`.
            function: mpi4py's method.
            numbers: which of the arguments it takes.
        """
        cdef char *address[2]
        cdef Route route = self.route(method, arguments, algorithm, name, address)
        if route is not None:
            route.function, route.numbers = function, numbers

    cdef Route route(self, method, tuple arguments, algorithm, name, char **address):
        """What makes a call again, still to be filled in; None if it is not a plain one."""
        cdef Key key
        cdef int64_t lengths[2]
        cdef Route route = Route()
        sendbuf, recvbuf, op, root, counts = arguments
        route.count, route.algorithm = self.count(name), algorithm
        if type(method) is int:
            if not _key(&key, address, method, sendbuf, recvbuf, op, root, algorithm):
                return None
            self.routes[take(&self.cache, &key)] = route
            return route
        vector_key = _vector_key(
            address, lengths, method, sendbuf, recvbuf, counts, op, root, algorithm
        )
        if vector_key is None:
            return None
        if len(self.vectors) >= KNOWN:
            self.vectors.clear()
        self.vectors[vector_key] = route
        return route


cdef enum:
    # Stages of a request, see `mpicoll.requests`.
    INACTIVE = 0
    ACTIVE = 2


cdef class Starter:
    """The fast path of a persistent call: its start, and the wait for its end.

    Args:
        path: that of the communicator's calls; where it is closed, so is this one.
        execution: of the call alone, with its lane and buffers bound.
        name: (collective, algorithm).
        pollers: threads that make progress; with one, everything goes the slow path.
        lock: held by who moves operations under way on.
    """

    cdef FastPath path
    cdef Execution execution
    cdef CallCount count
    cdef list pollers
    cdef object lock, is_locked
    cdef bint started  # the last time
    cdef bint waited  # for that start, here: the request is inactive, and knows the execution

    def __cinit__(
        self, FastPath path not None, Execution execution not None, name, list pollers, lock
    ):
        self.path, self.execution = path, execution
        self.count, self.pollers = path.count(name), pollers
        self.lock, self.is_locked = lock, lock.locked

    def start(self, request):
        """Start an inactive request; False if it has to go the slow path."""
        cdef FastPath path = self.path
        cdef bint waited = self.waited
        self.started = self.waited = False
        if not path.open or path.hooks or path.forks or self.pollers:
            return False
        if not waited and (self.execution.active or request._stage == ACTIVE):
            return False
        request._stage = ACTIVE
        try:
            self.execution.go()
        except BaseException as error:
            request._fail(error)
            return True
        self.started = True
        if not waited:
            request._execution = self.execution
        (<dict> path.under_way)[request] = None
        for poller in self.pollers:  # of a thread that has been started since
            poller.wake()
        if len(<dict> path.under_way) > 1:
            path.poll()
        return True

    def wait(self, request):
        """Wait for a request that was started here; False if it has to go the slow path."""
        cdef FastPath path = self.path
        if not self.started or not path.open or path.forks:
            return False  # after a failure the path is closed, and the slow one raises it
        try:
            self.execution.wait(path.pause)
        except BaseException as error:
            with self.lock:
                request._fail(error)
            return False
        if self.is_locked():
            return False  # another thread may have seen the end, too
        # The same as the request's own `_finish` where nobody is to be told; no other thread runs.
        if request._stage == ACTIVE:
            del (<dict> path.under_way)[request]
            self.count.calls += 1
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


_IN_PLACE = _MPI.IN_PLACE
