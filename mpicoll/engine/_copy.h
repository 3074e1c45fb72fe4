/* Copies within one process.
 *
 * Processors of AMD (Zen 3 is one) copy by `rep movsb`, which the C library and the kernel use for
 * long copies, at a fifth to a twentieth of their speed where the target lies 1 to 31 bytes behind the
 * source, whole pages apart: two arrays of which one begins a few elements later than the other.
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

#define COPY_PAGE 4096

/* Whether `rep movsb` is slow between these addresses, which may be of two processes. */
static inline int copy_is_slow(uint64_t to, uint64_t from, uint64_t length) {
    return length >= COPY_PAGE && (to - from) % COPY_PAGE - 1 < 31;
}

#if defined(__x86_64__)
#include <emmintrin.h>

#define COPY_PAST_CACHES (2 << 20)

static inline void copy_by_vectors(char *to, const char *from, size_t length) {
    size_t i;
    for (i = 0; i + 64 <= length; i += 64) {
        __m128i a = _mm_loadu_si128((const __m128i *)(from + i));
        __m128i b = _mm_loadu_si128((const __m128i *)(from + i + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(from + i + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(from + i + 48));
        _mm_storeu_si128((__m128i *)(to + i), a);
        _mm_storeu_si128((__m128i *)(to + i + 16), b);
        _mm_storeu_si128((__m128i *)(to + i + 32), c);
        _mm_storeu_si128((__m128i *)(to + i + 48), d);
    }
    memcpy(to + i, from + i, length - i);
}

static inline void copy_past_caches(char *to, const char *from, size_t length) {
    size_t head = -(uintptr_t)to % 64, i;
    memcpy(to, from, head);
    for (i = head; i + 64 <= length; i += 64) {
        __m128i a = _mm_loadu_si128((const __m128i *)(from + i));
        __m128i b = _mm_loadu_si128((const __m128i *)(from + i + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(from + i + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(from + i + 48));
        _mm_stream_si128((__m128i *)(to + i), a);
        _mm_stream_si128((__m128i *)(to + i + 16), b);
        _mm_stream_si128((__m128i *)(to + i + 32), c);
        _mm_stream_si128((__m128i *)(to + i + 48), d);
    }
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
