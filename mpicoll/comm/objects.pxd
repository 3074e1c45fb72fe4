"""The types of the object collectives' helpers, where they are compiled."""

cdef bint _survives(object comm)
