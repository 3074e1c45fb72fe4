"""See `_folding.pyx`."""

from mpicoll.engine._program cimport Channel, Fold, Program, Unit


cdef class Folding(Program):
    cdef int fold_ready(self, Channel *channel) noexcept nogil
    cdef int fold_unit(self, Channel *channel, Unit *unit) noexcept nogil
    cdef void close_unit(self, Channel *channel, Unit *unit) noexcept nogil
    cdef int fold(self, Fold *fold) noexcept nogil
    cdef int fold_in_python(self, Fold *fold) noexcept with gil
    cdef int fold_late(self, int index) noexcept with gil
