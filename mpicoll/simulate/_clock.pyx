"""The compiled clock: see `_clock.h`; Python calls it through `compiled`."""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free


cdef extern from "_clock.h" nogil:
    ctypedef struct ticks:  # 128 bits
        pass
    ctypedef struct clock_program:
        int32_t ranks, channels, segments, window, ports, pairs, strands, links
        const int64_t *first_round
        const int64_t *first_side
        const int64_t *reduced
        const int64_t *reduced_longer
        const int32_t *sides
        const uint8_t *receives
        const int32_t *sender
        const int32_t *receiver
        const int32_t *position
        const int32_t *distance
        const int32_t *channel
        const int32_t *pair
        const int32_t *link
        const int64_t *blocks
        const int64_t *longer
        const int64_t *slowdown
        const int64_t *shorter
        const int64_t *more
        const int64_t *first_piece
        const int64_t *upto
        const int64_t *alpha
        const int64_t *beta
        const int64_t *rank_slowdown
        int64_t unit_slowdown, step, gamma, messages, overhead
        const int64_t *latency
        const int64_t *out_beta
        const int64_t *into_beta
        const int64_t *beta_of_pair
        const int64_t *link_beta
        const int32_t *first_link
        const int32_t *link_of_pair
        const int32_t *first_user
        const int32_t *user
    ctypedef struct clock_state:
        int64_t delivered, through
    int clock_open(clock_state *state, const clock_program *program, ticks *finish, int64_t *sent)
    int clock_run(clock_state *state, int64_t most)
    void clock_close(clock_state *state)


#: Messages and rounds between looks at signals.
cdef int64_t AT_A_TIME = 1 << 20

ctypedef const int32_t[::1] Ints
ctypedef const int64_t[::1] Longs


cdef const int32_t *ints(dict arrays, str name, list kept) except? NULL:
    cdef Ints view = arrays[name]
    kept.append(view)
    return &view[0]


cdef const int64_t *longs(dict arrays, str name, list kept) except? NULL:
    cdef Longs view = arrays[name]
    kept.append(view)
    return &view[0]


def run(dict numbers not None, dict arrays not None):
    """Run the schedules that :mod:`mpicoll.simulate.compiled` has put into arrays.

    Returns:
        For each rank when it is done and the bytes it sent; the messages; and how many segments of
        ranks are complete.

    Raises:
        MemoryError: there is not enough.
    """
    cdef clock_program program
    cdef clock_state state
    cdef list kept = []  # what the pointers point into
    cdef const uint8_t[::1] receives = arrays["receives"]
    cdef int more = 1
    program.ranks, program.channels = numbers["ranks"], numbers["channels"]
    program.segments, program.window = numbers["segments"], numbers["window"]
    program.ports, program.pairs = numbers["ports"], numbers["pairs"]
    program.unit_slowdown, program.messages = numbers["unit_slowdown"], numbers["messages"]
    program.step, program.gamma = numbers["step"], numbers["gamma"]
    program.strands, program.links = numbers["strands"], numbers["links"]
    program.overhead = numbers["overhead"]
    program.latency = NULL
    if "latency" in arrays:  # on a network
        program.latency = longs(arrays, "latency", kept)
        program.out_beta = longs(arrays, "out_beta", kept)
        program.into_beta = longs(arrays, "into_beta", kept)
        program.beta_of_pair = longs(arrays, "beta_of_pair", kept)
        program.link_beta = longs(arrays, "link_beta", kept)
        program.first_link = ints(arrays, "first_link", kept)
        program.link_of_pair = ints(arrays, "link_of_pair", kept)
        program.first_user = ints(arrays, "first_user", kept)
        program.user = ints(arrays, "user", kept)
    program.receives = &receives[0]
    program.first_round = longs(arrays, "first_round", kept)
    program.first_side = longs(arrays, "first_side", kept)
    program.reduced = longs(arrays, "reduced", kept)
    program.reduced_longer = longs(arrays, "reduced_longer", kept)
    program.sides = ints(arrays, "sides", kept)
    program.sender = ints(arrays, "sender", kept)
    program.receiver = ints(arrays, "receiver", kept)
    program.position = ints(arrays, "position", kept)
    program.distance = ints(arrays, "distance", kept)
    program.channel = ints(arrays, "channel", kept)
    program.pair = ints(arrays, "pair", kept)
    program.link = ints(arrays, "link", kept)
    program.blocks = longs(arrays, "blocks", kept)
    program.longer = longs(arrays, "longer", kept)
    program.slowdown = longs(arrays, "slowdown", kept)
    program.shorter = longs(arrays, "shorter", kept)
    program.more = longs(arrays, "more", kept)
    program.first_piece = longs(arrays, "first_piece", kept)
    program.upto = longs(arrays, "upto", kept)
    program.alpha = longs(arrays, "alpha", kept)
    program.beta = longs(arrays, "beta", kept)
    program.rank_slowdown = longs(arrays, "rank_slowdown", kept)
    cdef int ranks = program.ranks
    cdef uint64_t *finish = <uint64_t *>calloc(2 * ranks, sizeof(uint64_t))
    cdef int64_t *sent = <int64_t *>calloc(ranks, sizeof(int64_t))
    if not finish or not sent:
        free(finish)
        free(sent)
        raise MemoryError("no memory for the times of all ranks")
    try:
        with nogil:
            more = 1 if clock_open(&state, &program, <ticks *>finish, sent) == 0 else -1
        while more > 0:
            with nogil:
                more = clock_run(&state, AT_A_TIME)
            PyErr_CheckSignals()
        if more < 0:
            raise MemoryError(f"no memory for the clock of {program.messages} messages a segment")
        times = [int(finish[2 * i]) + (int(finish[2 * i + 1]) << 64) for i in range(ranks)]
        return times, [int(sent[i]) for i in range(ranks)], state.delivered, state.through
    finally:
        clock_close(&state)
        free(finish)
        free(sent)
