"""A table of the calls that a communicator has made, to be found again without Python objects."""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp


cdef enum:
    KNOWN = 256  # calls that are remembered
    PLACES = 8  # that one of them may have


cdef struct Key:
    # What decides a call of one communicator, without addresses of buffers.
    int64_t method
    int64_t root
    int64_t op
    int64_t algorithm  # where the caller's name of it lies, 0 if the caller names none
    int64_t kinds[2]
    int64_t lengths[2]


cdef struct CallCache:
    Key keys[KNOWN]
    bint used[KNOWN]


cdef inline int first_place(const Key *key) noexcept nogil:
    cdef uint64_t mixed = (
        key.method + 31 * key.root + 7 * key.op + 11 * key.algorithm
        + key.kinds[0] + 3 * key.kinds[1]
        + 5 * key.lengths[0] + key.lengths[1]
    )
    return (mixed * <uint64_t> 0x9E3779B97F4A7C15) >> 56


cdef inline int find(const CallCache *cache, const Key *key) noexcept nogil:
    """The place of a call, -1 if it has none."""
    cdef int i, place, first = first_place(key)
    for i in range(first, first + PLACES):
        place = i % KNOWN
        if cache.used[place] and memcmp(&cache.keys[place], key, sizeof(Key)) == 0:
            return place
    return -1


cdef inline int take(CallCache *cache, const Key *key) noexcept nogil:
    """The place to remember a call in: its own, a free one, or that of another call."""
    cdef int i, place = find(cache, key), first = first_place(key)
    if place < 0:
        place = first
        for i in range(first, first + PLACES):
            if not cache.used[i % KNOWN]:
                place = i % KNOWN
                break
    cache.keys[place], cache.used[place] = key[0], True
    return place
