"""Non-blocking calls on the fast path: under way without Python objects but the request itself.

Executions come from the pool of a route, and go back to it when they are done.
"""

from mpi4py cimport MPI


cdef enum:
    PATIENCE = 200  # rounds without progress before the processor is offered


cdef class CallCount:
    """How often something was run."""

    def __cinit__(self, name):
        self.name = name


cdef class Airspace:
    """What the non-blocking calls of one communicator have around them.

    Args:
        comm: carries the messages that MPI carries.
        pause: called again and again while nothing moves; may raise.
        poll: moves on what is under way.
        under_way: what is.
        pollers: threads that make progress.
        forks: must be empty: the process that this one was forked from.
        lock: held by who moves operations under way on.
        lanes: of the communicator, see :mod:`mpicoll.engine.lanes`.
        look: raises where what is under way never ends; None where that is not to be known.
    """

    def __cinit__(
        self,
        MPI.Comm comm,
        pause,
        poll,
        dict under_way,
        list pollers,
        list forks,
        lock,
        lanes,
        look,
    ):
        self.comm = comm
        self.pause, self.poll, self.under_way = pause, poll, under_way
        self.pollers, self.forks = pollers, forks
        self.lock, self.is_locked, self.lanes, self.look = lock, lock.locked, lanes, look


cdef class Flight:
    """The engine's part of a request of a non-blocking call; the rest is in Python."""

    @property
    def name(self):
        """(collective, algorithm)."""
        return self.count.name

    cdef int depart(self) except -1:
        """Take a lane, and begin if it is free."""
        cdef Airspace air = self.air
        self._stage = ACTIVE
        self.lane = air.lanes.join(self)
        air.under_way[self] = None
        for poller in air.pollers:
            poller.wake()
        if len(air.under_way) > 1 or air.pollers:
            air.poll()
        else:
            self.advance()
        return 0

    cdef int begin(self) except -1:
        """Begin if the lane is free."""
        if self.air.lanes.is_first(self, self.lane):
            self.execution.bind(self.air.comm, 0, self.lane.number)
            self.execution.go()
            self.begun = True
        return 0

    def advance(self):
        """See :class:`mpicoll.engine.progress.Operation`."""
        if self._stage != ACTIVE or self._error is not None:
            return
        try:
            if not self.begun:
                self.begin()
            if not self.begun or not self.execution.test():
                if self.air.look is not None:
                    self.air.look()
                return
            self.finish()
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise

    cdef int finish(self) except -1:
        """It is done: give back all that it has needed."""
        cdef Airspace air = self.air
        self.pool.append(self.execution)
        self.execution = None
        self.count.calls += 1
        air.under_way.pop(self, None)
        self._stage = COMPLETE
        # From here on other threads may run.
        self.kept = None
        air.lanes.leave(self, self.lane)
        return 0

    def finish_alone(self):
        """Wait for it where no other thread moves it on; False if it has to be waited for as any.

        After a failure too, which is raised there.
        """
        cdef Airspace air = self.air
        if air.forks or self._error is not None:
            return False
        if self._stage == COMPLETE:
            self._stage = INACTIVE
            return True
        if self._stage != ACTIVE or not self.begun or air.pollers:
            return False
        try:
            self.execution.wait(air.pause)
        except BaseException as error:
            with air.lock:
                self._fail(error)
            return False
        if self._stage != ACTIVE or air.is_locked():
            return False  # somebody else has seen the end, too
        self.finish()
        self._stage = INACTIVE
        return True


def finish_all(list flights):
    """Move calls on until none is under way, or one has failed.

    Where they are of several communicators, the one of the first call pauses.
    """
    cdef Flight flight
    cdef bint left = True
    cdef int idle = 0
    cdef Airspace air = (<Flight> flights[0]).air
    while left:
        left = False
        air.poll()
        for flight in flights:
            if flight._error is not None:
                return
            left |= flight._stage == ACTIVE
        idle += 1
        if left and idle > PATIENCE:
            air.pause()
