/* Copies within one process.
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

#if defined(__x86_64__)
#include <emmintrin.h>

#define COPY_PAST_CACHES (2 << 20)

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
    if (length >= COPY_PAST_CACHES && apart >= length && -apart >= length) {
        copy_past_caches(to, from, length);
        return;
    }
#endif
    memmove(to, from, length);
}

#endif
