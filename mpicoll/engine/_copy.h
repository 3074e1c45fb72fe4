/* Copies within one process.
 *
 * Some processors (AMD's Zen 3 is one) copy by `rep movsb`, which the C library and the kernel use for
 * long copies, at a fifth to a twentieth of their speed where the target lies 1 to 31 bytes behind the
 * source, whole pages apart: two arrays of which one begins a few elements later than the other.
 * Whether this one does is measured.
 *
 * What is longer than the caches near a core is written past them: a store that waits for its cache
 * line to be read first moves every byte three times instead of twice.  The C library does so too,
 * but from three quarters of the last cache on, which may be hundreds of MiB that all cores of a
 * machine share.
 */
#ifndef MPICOLL_COPY_H
#define MPICOLL_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define COPY_PAGE 4096
#define COPY_TRIAL (2 * COPY_PAGE)

#if defined(__x86_64__)
/* Nanoseconds of a copy by `rep movsb`, the shortest of some. */
static inline int64_t copy_nanoseconds(char *to, const char *from) {
    struct timespec begin, end;
    int64_t passed, least = INT64_MAX;
    int i;
    for (i = 0; i < 5; i++) {
        char *target = to;
        const char *source = from;
        size_t length = COPY_TRIAL;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        __asm__ volatile("rep movsb" : "+D"(target), "+S"(source), "+c"(length) : : "memory");
        clock_gettime(CLOCK_MONOTONIC, &end);
        passed = (end.tv_sec - begin.tv_sec) * 1000000000 + end.tv_nsec - begin.tv_nsec;
        if (passed < least) least = passed;
    }
    return least;
}

/* Whether this processor has slow distances; it takes some microseconds, once. */
static inline int copy_has_slow(void) {
    static int known = -1;
    if (known < 0) {
        char memory[2 * COPY_TRIAL + COPY_PAGE] = {0};
        known = copy_nanoseconds(memory + COPY_TRIAL + 16, memory) >
                3 * copy_nanoseconds(memory + COPY_TRIAL + 64, memory) + 500;
    }
    return known;
}
#else
static inline int copy_has_slow(void) { return 0; }
#endif

/* Whether `rep movsb` is slow between these addresses, which may be of two processes. */
static inline int copy_is_slow(uint64_t to, uint64_t from, uint64_t length) {
    return length >= COPY_PAGE && (to - from) % COPY_PAGE - 1 < 31 && copy_has_slow();
}

#if defined(__x86_64__)
#include <emmintrin.h>

#define COPY_PAST_CACHES (2 << 20)

#define COPY_LINE 64

/* Copy a cache line; past the caches only to where one begins. */
static inline void copy_line(char *to, const char *from, int past_caches) {
    __m128i line[4];
    int i;
    for (i = 0; i < 4; i++) line[i] = _mm_loadu_si128((const __m128i *)from + i);
    for (i = 0; i < 4; i++)
        if (past_caches)
            _mm_stream_si128((__m128i *)to + i, line[i]);
        else
            _mm_storeu_si128((__m128i *)to + i, line[i]);
}

static inline void copy_by_vectors(char *to, const char *from, size_t length) {
    size_t i;
    for (i = 0; i + COPY_LINE <= length; i += COPY_LINE) copy_line(to + i, from + i, 0);
    memcpy(to + i, from + i, length - i);
}

static inline void copy_past_caches(char *to, const char *from, size_t length) {
    size_t head = -(uintptr_t)to % COPY_LINE, i;
    memcpy(to, from, head);
    for (i = head; i + COPY_LINE <= length; i += COPY_LINE) copy_line(to + i, from + i, 1);
    memcpy(to + i, from + i, length - i);
    _mm_sfence();
}
#endif

/* As memmove. */
static inline void copy_bytes(char *to, const char *from, size_t length) {
#if defined(__x86_64__)
    /* The difference wraps, so that it is large where `to` comes first. */
    size_t apart = (uintptr_t)to - (uintptr_t)from;
    if (length >= COPY_PAGE && apart >= length && -apart >= length) {
        if (length >= COPY_PAST_CACHES) {
            copy_past_caches(to, from, length);
            return;
        }
        if (copy_is_slow((uintptr_t)to, (uintptr_t)from, length)) {
            copy_by_vectors(to, from, length);
            return;
        }
    }
#endif
    memmove(to, from, length);
}

#endif
