"""What becomes of the messages that a program receives: they are folded as soon as all are there.

A fold reads a message where the transport has it (:mod:`mpicoll.engine.lowering`).
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint64_t

from mpicoll.engine._program cimport Channel, Fold, Operand, Phase, Program, Unit
from mpicoll.engine._transport cimport (
    FOLDED_AT_ONCE, Receive, at, shared_acknowledge, shared_fetch
)

import numpy as np

from mpicoll.engine.runner import fold_spans


cdef class Folding(Program):
    """A program that takes in its messages, and folds them."""

    cdef int got(self, Receive *receive) noexcept nogil:
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

    cdef int fold_from(self, Receive *receive, uint64_t where) noexcept nogil:
        cdef Channel *channel = &self.channels[receive.channel]
        cdef Unit *unit = &self.units[receive.unit]
        cdef int64_t step, done, length
        cdef uint64_t source = where
        cdef Fold *fold
        cdef Operand *operand
        cdef int f, i
        if (
            self.kernel == NULL
            or receive.unit < 0
            or not unit.alone
            or channel.sends < unit.sends
        ):
            return 1
        step = FOLDED_AT_ONCE // self.itemsize * self.itemsize
        self.touched = True
        for f in range(unit.folds, unit.folds_end):
            fold = &self.folds[f]
            done = 0
            while done < fold.target.length:
                length = min(step, fold.target.length - done)
                for i in range(fold.count):
                    operand = &self.operands[fold.operands + i]
                    if operand.receive < 0:
                        self.pointers[i] = at(self.bases, &operand.place) + done
                    else:
                        self.pointers[i] = self.device.piece
                        source = where + operand.place.offset + done
                if shared_fetch(
                    self.device.processes[receive.local], self.device.piece, source, length
                ):
                    return self.fail_fetch(receive)
                self.kernel(
                    at(self.bases, &fold.target) + done,
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
                self.pointers[i] = at(self.bases, &operand.place)
        if self.kernel != NULL:
            self.kernel(
                at(self.bases, &fold.target),
                self.pointers,
                fold.count,
                fold.target.length // self.itemsize,
            )
            return 0
        return self.fold_in_python(fold)

    cdef int fold_in_python(self, Fold *fold) noexcept with gil:
        cdef int i
        try:
            dtype = self.reduction.dtype
            target = _array(at(self.bases, &fold.target), fold.target.length, True).view(dtype)
            operands = [
                _array(self.pointers[i], fold.target.length, False).view(dtype)
                for i in range(fold.count)
            ]
            self.reduction.fold(target, operands)
        except BaseException as error:
            self.error = error
            return -1
        return 0

    cdef int fold_late(self, int index) noexcept with gil:
        try:
            fold_spans(self.reduction, self._late[index], self._bytes)
        except BaseException as error:
            self.error = error
            return -1
        return 0

    def _bytes(self, span):
        """The memory of a span."""
        buffer, offset, length = span
        return _array(self.bases[<int> buffer] + <int64_t> offset, length, True)


cdef _array(char *address, int64_t length, bint writable):
    """Memory as an array of bytes."""
    if length == 0:
        return np.empty(0, np.uint8)
    return np.frombuffer(
        PyMemoryView_FromMemory(address, length, PyBUF_WRITE if writable else PyBUF_READ), np.uint8
    )
