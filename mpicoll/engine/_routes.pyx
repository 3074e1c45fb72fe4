"""The calls that are remembered, by their signatures, and how each is made again.

A call is remembered when it has been served for the first time, on the slow path.  `_fast_path`
makes it again.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from mpicoll.engine._execution cimport Execution
from mpicoll.engine._flight cimport CallCount
from mpicoll.engine._library cimport Direct
from mpicoll.engine._packing cimport Packing
from mpicoll.engine._program cimport kernel_of
from mpicoll.engine._signature cimport HANDLES, Signature, is_same, read, release


cdef enum:
    PLACES = 8  # that a call may have
    # Bytes of packed elements that are kept for the next call, and for the next one like it.
    KEPT = 64 << 20
    KEPT_EACH = 4 << 20
    STARTED = 32  # what is added to the number of a method, see `mpicoll.schedule.methods`


cdef class Route:
    """How a call that is remembered is made again: by an execution, or by the MPI library."""

    def __cinit__(self):
        self.words = NULL

    def __dealloc__(self):
        free(self.words)

    cdef int know(self, const Signature *signature) except -1:
        """Remember a signature."""
        self.words = <int64_t *> malloc(signature.n * sizeof(int64_t))
        if self.words == NULL:
            raise MemoryError()
        self.n = signature.n
        memcpy(self.words, signature.words, self.n * sizeof(int64_t))
        return 0


cdef class Routes:
    """The calls of one communicator that are remembered."""

    def __cinit__(self):
        self.named = {}
        Routes.forget(self)

    def forget(self):
        """Forget all calls, but not how often they were made."""
        self.routes = [None] * KNOWN
        memset(self.mixed, 0, sizeof(self.mixed))

    cdef CallCount count(self, name):
        """The count of a (collective, algorithm)."""
        if name not in self.named:
            self.named[name] = CallCount(name)
        return self.named[name]

    def calls(self):
        """How often each (collective, algorithm) was run by a fast path."""
        cdef CallCount count
        return {count.name: count.calls for count in self.named.values() if count.calls}

    cdef Route find(self, const Signature *signature):
        """The route of a call, None if it has none."""
        cdef int i, place, first = signature.mixed % KNOWN
        cdef Route route
        for i in range(first, first + PLACES):
            place = i % KNOWN
            if self.mixed[place] == signature.mixed:
                route = self.routes[place]
                if route is not None and is_same(signature, route.words, route.n):
                    return route
        return None

    def learn(
        self, int method, tuple arguments, algorithm, name, call, Execution execution,
        tuple packings, tuple loads, bint stores,
    ):
        """Remember a call that an execution has served, if it has a signature.

        Args:
            method: its number; of a call that is started, none of whose buffers go by value.
            arguments: send buffer, receive buffer, operator, root, counts.
            algorithm: that the caller names, or None.
            name: (collective, algorithm) of what was run.
            call: the parsed call.
            execution: what ran it.
            packings: how each buffer goes by value, None if it does not.
            loads: whether each is to be packed before it starts.
            stores: whether the receive buffer is to be unpacked.
        """
        cdef Signature signature
        cdef Route route
        try:
            route = self.route(&signature, method, arguments, algorithm, name, call)
            if route is None:
                return
            route.reduction, route.kernel = call.reduction, kernel_of(call.reduction)
            if not _take_packings(route, packings, loads, stores, KEPT):
                return
            if method >= STARTED:
                route.pool = []
            route.execution = execution
            self.remember(&signature, route)
        finally:
            release(&signature)

    def pass_on(
        self, int method, tuple arguments, algorithm, name, call, function, tuple numbers,
        tuple packings, tuple loads, bint stores, tuple messages, Direct direct,
    ):
        """Remember a call that the MPI library has served, if it has a signature.

        Args:
            method, arguments, algorithm, name, call: as for `learn`.
            function: mpi4py's method.
            numbers: which of the arguments it takes.
            packings, loads, stores: as for `learn`.
            messages: what it gets in place of a buffer that goes by value, [memory, ...], or None.
            direct: the library's own function; None for mpi4py's method.
        """
        cdef Signature signature
        cdef Route route
        cdef int i
        try:
            route = self.route(&signature, method, arguments, algorithm, name, call)
            if route is None:
                return
            route.function, route.taken = function, len(numbers)
            for i in range(route.taken):
                route.numbers[i] = numbers[i]
            if not _take_packings(route, packings, loads, stores, KEPT_EACH):
                return
            route.messages = messages
            if _are_kept(&signature):
                route.direct = direct
            self.remember(&signature, route)
        finally:
            release(&signature)

    cdef Route route(
        self, Signature *signature, int method, tuple arguments, algorithm, name, call
    ):
        """What makes a call again, still to be filled in; None if it has no signature."""
        cdef Route route = Route()
        cdef int i, source
        cdef int64_t base
        sendbuf, recvbuf, op, root, counts = arguments
        if not read(signature, method, sendbuf, recvbuf, op, root, counts, algorithm):
            return None
        route.count, route.algorithm = self.count(name), algorithm
        for i in range(2):
            route.sources[i], route.first[i], route.end[i] = -1, 0, 0
        for i, (source, address, first, end) in enumerate(call.places()):
            if source < 0 or signature.sides[source].address == NULL:
                continue
            base = <int64_t> signature.sides[source].address
            route.sources[i] = source
            route.offsets[i] = address - base if address else 0
            if end > first:
                route.first[source], route.end[source] = first - base, end - base
        return route

    cdef int remember(self, const Signature *signature, Route route) except -1:
        """Take a place for a route: its own, a free one, or that of another call."""
        cdef int i, place, first = signature.mixed % KNOWN
        cdef int taken = first
        cdef Route other
        route.know(signature)
        for i in range(first + PLACES - 1, first - 1, -1):
            place = i % KNOWN
            other = self.routes[place]
            if other is None:
                taken = place
            elif is_same(signature, other.words, other.n):
                taken = place
                break
        self.routes[taken], self.mixed[taken] = route, signature.mixed
        return 0


cdef bint _take_packings(
    Route route, tuple packings, tuple loads, bint stores, int64_t limit
) except -1:
    """Let a route pack; False if it cannot."""
    cdef int i
    if packings is None:
        return True
    route.packings, route.stores = packings, stores
    for i in range(2):
        route.loads[i] = loads[i]
        if packings[i] is not None and (
            route.sources[i] < 0 or (<Packing> packings[i]).length > limit
        ):
            return False
    return True


cdef bint _are_kept(const Signature *signature) noexcept:
    """Whether the handles of all datatypes are there."""
    return signature.sides[0].named <= HANDLES and signature.sides[1].named <= HANDLES
