"""The fast path of persistent calls, by an algorithm or by the MPI library."""

from mpi4py cimport MPI
from mpi4py cimport libmpi as mpi

from mpicoll.engine._execution cimport Execution
from mpicoll.engine._fast_path cimport FastPath
from mpicoll.engine._flight cimport ACTIVE, INACTIVE, CallCount


from mpi4py import MPI as _MPI


cdef class CountedPrequest(MPI.Prequest):
    """A persistent collective of the MPI library's, whose starts are counted."""

    cdef CallCount count

    def count_by(self, CallCount count not None):
        """Count starts there from now on."""
        self.count = count

    def Start(self):
        """Start the collective."""
        cdef int code
        with nogil:
            code = mpi.MPI_Start(&self.ob_mpi)
        if code != mpi.MPI_SUCCESS:
            raise _MPI.Exception(code)
        self.count.calls += 1


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
        if path.look is not None:
            path.hear()
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
        path.under_way[request] = None
        for poller in self.pollers:  # of a thread that has been started since
            poller.wake()
        if len(path.under_way) > 1:
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
            del path.under_way[request]
            self.count.calls += 1
            self.waited = True
        request._stage = INACTIVE
        return True
