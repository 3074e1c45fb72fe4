/* Pieces of memory at regular distances, copied to where they lie one behind the other, and back.
 *
 * Short pieces are copied by instructions for their length: calls of memcpy would take longer than
 * the copies.
 */
#ifndef MPICOLL_PIECES_H
#define MPICOLL_PIECES_H

#include <stdint.h>
#include <string.h>

#include "_copy.h"

/* Pieces of a length that the compiler knows. */
#define PIECES_OF(LENGTH)                                                      \
    case LENGTH:                                                               \
        if (back)                                                              \
            for (i = 0; i < count; i++)                                        \
                memcpy(memory + i * stride, packed + i * (LENGTH), (LENGTH));  \
        else                                                                   \
            for (i = 0; i < count; i++)                                        \
                memcpy(packed + i * (LENGTH), memory + i * stride, (LENGTH));  \
        break;

/* Copy pieces along one axis. */
static inline void pieces_along(char *packed, char *memory, int64_t count, int64_t stride,
                                int64_t length, int back) {
    int64_t i;
    switch (length) {
        PIECES_OF(1)
        PIECES_OF(2)
        PIECES_OF(4)
        PIECES_OF(8)
        PIECES_OF(16)
    default:
        for (i = 0; i < count; i++) {
            char *there = memory + i * stride, *here = packed + i * length;
            copy_bytes(back ? there : here, back ? here : there, length);
        }
    }
}

/* Copy pieces along several axes, the outermost first; returns the end of what is packed. */
static inline char *pieces_copy(char *packed, char *memory, const int64_t *counts,
                                const int64_t *strides, int axes, int64_t length, int back) {
    int64_t i;
    if (axes <= 1) {
        pieces_along(packed, memory, axes ? counts[0] : 1, axes ? strides[0] : 0, length, back);
        return packed + (axes ? counts[0] : 1) * length;
    }
    for (i = 0; i < counts[0]; i++)
        packed = pieces_copy(packed, memory + i * strides[0], counts + 1, strides + 1, axes - 1,
                             length, back);
    return packed;
}

#endif
