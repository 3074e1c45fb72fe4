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

/* Pieces of a length that the compiler knows.  Four of them at a time are one access to what is
 * packed, and no instruction waits for the one before. */
#define PIECES_OF(LENGTH, TYPE)                                                \
    case LENGTH: {                                                             \
        TYPE four[4];                                                          \
        for (; count >= 4; count -= 4, memory += 4 * stride) {                 \
            if (back)                                                          \
                memcpy(four, packed, sizeof(four));                            \
            for (i = 0; i < 4; i++)                                            \
                if (back)                                                      \
                    memcpy(memory + i * stride, &four[i], (LENGTH));           \
                else                                                           \
                    memcpy(&four[i], memory + i * stride, (LENGTH));           \
            if (!back)                                                         \
                memcpy(packed, four, sizeof(four));                            \
            packed += sizeof(four);                                            \
        }                                                                      \
        for (i = 0; i < count; i++)                                            \
            if (back)                                                          \
                memcpy(memory + i * stride, packed + i * (LENGTH), (LENGTH));  \
            else                                                               \
                memcpy(packed + i * (LENGTH), memory + i * stride, (LENGTH));  \
        break;                                                                 \
    }

typedef struct {
    uint64_t halves[2];
} sixteen_t;

/* Copy pieces along one axis. */
static inline void pieces_along(char *packed, char *memory, int64_t count, int64_t stride,
                                int64_t length, int back) {
    int64_t i;
    switch (length) {
        PIECES_OF(1, uint8_t)
        PIECES_OF(2, uint16_t)
        PIECES_OF(4, uint32_t)
        PIECES_OF(8, uint64_t)
        PIECES_OF(16, sixteen_t)
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
