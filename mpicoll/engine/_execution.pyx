"""Executes programs over MPI messages and shared memory, without the GIL.

It does what :class:`mpicoll.engine.runner.Execution` does, and bit for bit the same.  Messages to
ranks of the same node go through memory that both map where the communicator has it
(`_transport`), all others through MPI.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.string cimport memset
from mpi4py cimport MPI
from mpi4py cimport libmpi as mpi

from mpicoll.engine._folding cimport Folding
from mpicoll.engine._program cimport Channel, Phase
from mpicoll.engine._transport cimport (
    DONE, POSTED, PUBLISHED, WAITING, Idle, Receive, Send, at, copy_bytes, shared_acked,
    shared_acknowledge, shared_offer, shared_relax, shared_try, shared_unlock, shared_was_asked
)

from mpi4py import MPI as _MPI


cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int)

cdef enum:
    # Offers of the processor between two looks at signals, the time limit and whatever else waits.
    OFFERS = 16
    # Offers before messages that wait for others are moved out of the way unasked, and before those
    # are taken in that nothing is posted for yet.
    HELD = 100
    UNEXPECTED = 2000
    # Offers, some milliseconds' worth, before a wait sleeps instead, and for how many microseconds:
    # by then they are little beside it, and what else runs on the processor gets all of it.
    SLEEPLESS = 5000
    NAP = 50
    # Tag that no message has, of the lane for messages that belong to no plan.
    NO_TAG = 32766


cdef inline void reset(Idle *idle) noexcept nogil:
    """A wait begins, or something has moved."""
    idle.looks = idle.offers = idle.taken = 0


@cython.final
cdef class Execution(Folding):
    """A program that is run: begun, moved on, and waited for."""

    def start(self, MPI.Comm comm not None, int high, int lane, send, recv, reduction):
        """Begin a run; see `prepare`."""
        self.prepare(comm, high, lane, send, recv, reduction)
        self.go()

    cdef int go(self) except -1:
        """Begin a run with the buffers that are bound."""
        cdef bint failed
        self.error, self.active = None, True
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

    cpdef int wait(self, pause) except -1:
        """Progress until everything is done; lets signals in.

        Args:
            pause: called again and again while nothing moves; may raise.
        """
        return self.finish(False, pause)

    cdef int go_through(self, pause) except -1:
        """Begin a run with the buffers that are bound, and finish it, without the GIL between."""
        self.error, self.active = None, True
        return self.finish(True, pause)

    cdef int finish(self, bint begins, pause) except -1:
        cdef Idle idle
        cdef int code = 0
        reset(&idle)
        with nogil:
            if begins:
                code = self.begin()
            if code >= 0:
                code = self.spin(&idle)
        while code == 0:
            PyErr_CheckSignals()
            pause()
            with nogil:
                code = self.spin(&idle)
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
                self.device.poll(True)
        # MPI may owe something to others, too.
        mpi.MPI_Iprobe(
            mpi.MPI_ANY_SOURCE, NO_TAG, self.device.probe, &flag, mpi.MPI_STATUS_IGNORE
        )
        shared_unlock(&self.device.lock)

    cdef void release(self) noexcept nogil:
        """Bring messages that a fold still waits with to their places, and free their entries.

        It costs a copy, and mostly the fold goes on before.  So it is done at once where a sender
        asks, and otherwise rarely: another execution may have heard the request, and who has sent
        from a window does not ask.
        """
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
                    copy_bytes(
                        at(self.bases, &receive.landing), receive.data, receive.landing.length
                    )
                    receive.data = at(self.bases, &receive.landing)
                    shared_acknowledge(&self.device.shared, receive.local, receive.use)
                    receive.use = 0

    cdef void copy(self, int start, int end) noexcept nogil:
        cdef int i
        for i in range(start, end):
            copy_bytes(
                at(self.bases, &self.copies[i].target),
                at(self.bases, &self.copies[i].source),
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
            moved = self.device.poll(False)
            if self.pending:
                moved += self.push()
            if not moved and shared_was_asked(&self.device.shared):
                self.release()
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
                    at(self.bases, &receive.landing), <int> receive.landing.length, mpi.MPI_BYTE,
                    receive.peer, receive.tag & 0xffff, self.comm, &self.requests[self.nrequests],
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
                    at(self.bases, &send.source), <int> send.source.length, mpi.MPI_BYTE,
                    send.peer, send.tag & 0xffff, self.comm, &self.requests[self.nrequests],
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
                    at(self.bases, &send.source),
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
        """Take in what MPI has completed: how many messages, -1 after a failure."""
        cdef int i, n, index, kept = 0, found = 0
        cdef Receive *receive
        n = 0
        self.code = mpi.MPI_Testsome(
            self.nrequests, self.requests, &n, self.indices, self.statuses
        )
        # MPI says that one has failed; of which, and why, its status knows.
        for i in range(n):
            if self.statuses[i].MPI_ERROR not in (mpi.MPI_SUCCESS, mpi.MPI_ERR_PENDING):
                self.code = self.statuses[i].MPI_ERROR
                break
        if self.code != mpi.MPI_SUCCESS:
            return -1
        if n <= 0:
            return 0
        # Close the gaps of completed requests, then tell what came.
        for i in range(self.nrequests):
            index = self.owners[i]
            if self.requests[i] != mpi.MPI_REQUEST_NULL:
                self.requests[kept] = self.requests[i]
                self.owners[kept] = index
                kept += 1
            elif index >= 0:
                self.indices[found] = index
                found += 1
            else:
                self.sends[-1 - index].state = DONE
                self.pass_done(&self.channels[self.sends[-1 - index].channel])
        self.nrequests = kept
        for i in range(found):
            receive = &self.receives[self.indices[i]]
            receive.data = at(self.bases, &receive.landing)
            self.got(receive)
        return n
