/* Kernels on explicit vectors, for what compilers do not vectorise as it should be: products of complex
   numbers, float16 and bfloat16. */

#ifndef MPICOLL_VECTORS_H
#define MPICOLL_VECTORS_H

#define VECTORS(level, bytes) \
    typedef uint16_t level##_halves __attribute__((vector_size((bytes) / 2))); \
    typedef uint32_t level##_words __attribute__((vector_size(bytes))); \
    typedef int32_t level##_signed __attribute__((vector_size(bytes))); \
    typedef uint64_t level##_longs __attribute__((vector_size(bytes))); \
    typedef float level##_floats __attribute__((vector_size(bytes))); \
    typedef float level##_singles __attribute__((vector_size((bytes) / 2))); \
    typedef double level##_doubles __attribute__((vector_size(bytes)));

/* All operands in one pass; the running value, a vector of type WIDE, stays in registers. STORED
   is a vector of as many elements in memory. UNROLL vectors at a time hide the latency; one at a
   time go the rest and, in a long fold, the elements before the first aligned one of dst, the last
   from and to a padded vector, so that every element meets the same code. */
#define VECTOR_KERNEL(TARGET, name, itemsize, level, STORED, WIDE, LOAD, STORE, OP) \
    static TARGET void name(char *dst, char **x, int count, ptrdiff_t n) \
    { \
        enum { UNROLL = 4, BYTES = sizeof(STORED) }; \
        const ptrdiff_t length = (itemsize) * n; \
        const ptrdiff_t before = (ptrdiff_t)(-(uintptr_t)dst % BYTES); \
        ptrdiff_t at = 0, end = before % (itemsize) || length < LONG_FOLD ? 0 : before; \
        if (count == 1) { \
            if (dst != x[0]) \
                memcpy(dst, x[0], (size_t)length); \
            return; \
        } \
        while (at < length) { \
            for (; at < end; at += BYTES) { \
                const size_t bytes = (size_t)(end - at < BYTES ? end - at : BYTES); \
                STORED part = {0}; \
                memcpy(&part, x[0] + at, bytes); \
                WIDE running = LOAD(level, part); \
                for (int k = 1; k < count; k++) { \
                    memcpy(&part, x[k] + at, bytes); \
                    running = OP(level, running, LOAD(level, part)); \
                } \
                part = STORE(level, running); \
                memcpy(dst + at, &part, bytes); \
            } \
            for (at = end; at + UNROLL * BYTES <= length; at += UNROLL * BYTES) { \
                WIDE running[UNROLL]; \
                STORED part; \
                for (int u = 0; u < UNROLL; u++) { \
                    memcpy(&part, x[0] + at + u * BYTES, BYTES); \
                    running[u] = LOAD(level, part); \
                } \
                for (int k = 1; k < count; k++) \
                    for (int u = 0; u < UNROLL; u++) { \
                        memcpy(&part, x[k] + at + u * BYTES, BYTES); \
                        running[u] = OP(level, running[u], LOAD(level, part)); \
                    } \
                for (int u = 0; u < UNROLL; u++) { \
                    part = STORE(level, running[u]); \
                    memcpy(dst + at + u * BYTES, &part, BYTES); \
                } \
            } \
            end = length; \
        } \
    }

#define AS_IT_IS(level, vector) (vector)

/* Shuffles within a vector of pairs (real, imaginary), by number of lanes. */
#ifdef __clang__
#define SHUFFLE(W, v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define SHUFFLE(W, v, ...) __builtin_shuffle(v, (W){__VA_ARGS__})
#endif
#define REALS_2 0, 0
#define REALS_4 REALS_2, 2, 2
#define REALS_8 REALS_4, 4, 4, 6, 6
#define REALS_16 REALS_8, 8, 8, 10, 10, 12, 12, 14, 14
#define IMAGINARIES_2 1, 1
#define IMAGINARIES_4 IMAGINARIES_2, 3, 3
#define IMAGINARIES_8 IMAGINARIES_4, 5, 5, 7, 7
#define IMAGINARIES_16 IMAGINARIES_8, 9, 9, 11, 11, 13, 13, 15, 15
#define SWAPPED_2 1, 0
#define SWAPPED_4 SWAPPED_2, 3, 2
#define SWAPPED_8 SWAPPED_4, 5, 4, 7, 6
#define SWAPPED_16 SWAPPED_8, 9, 8, 11, 10, 13, 12, 15, 14
#define SIGNS_2(sign) sign, 0
#define SIGNS_4(sign) SIGNS_2(sign), SIGNS_2(sign)
#define SIGNS_8(sign) SIGNS_4(sign), SIGNS_4(sign)
#define SIGNS_16(sign) SIGNS_8(sign), SIGNS_8(sign)

/* The product by the textbook formula, each operation rounded once: no rescue of infinities as in
   annex G of the C standard (NumPy has none either). The difference is the sum with a flipped sign:
   GCC 12 contracts scalar code that adds and subtracts in turn to vfmaddsub in spite of
   -ffp-contract=off. */
#define COMPLEX_TIMES_(V, W, lanes, sign, a, b) \
    __extension__ ({ \
        const V left = (a), right = (b); \
        const V cross = SHUFFLE(W, left, IMAGINARIES_##lanes) * SHUFFLE(W, right, SWAPPED_##lanes); \
        SHUFFLE(W, left, REALS_##lanes) * right + (V)((W)cross ^ (W){SIGNS_##lanes(sign)}); \
    })
#define COMPLEX_TIMES(...) COMPLEX_TIMES_(__VA_ARGS__)
#define COMPLEX_TIMES_32(level, a, b) \
    COMPLEX_TIMES(level##_floats, level##_words, LANES32_##level, 0x80000000, a, b)
#define COMPLEX_TIMES_64(level, a, b) \
    COMPLEX_TIMES(level##_doubles, level##_longs, LANES64_##level, 0x8000000000000000, a, b)

/* ---- float16 and bfloat16 <-> float32, on vectors; the same bits as the processors' own ---- */

/* yes where the mask is all ones, no where it is zero */
#define SELECT(W, mask, yes, no) (((W)(mask) & (yes)) | (~(W)(mask) & (no)))

/* Magnitudes are compared, and made floats, as signed integers: SSE2 has no other instruction.

   Normal numbers: rebias the exponent. Subnormals are integers times 2^-24 (no arithmetic on
   subnormals: that would depend on the processor's flush-to-zero mode). NaN is made quiet. */
#define WIDEN_F16(F, W, S, h) \
    __extension__ ({ \
        const W all = __builtin_convertvector(h, W), sign = (all & 0x8000u) << 16; \
        const S magnitude = (S)(all & 0x7fffu); \
        const W shifted = (W)magnitude << 13; \
        const W tiny = (W)(__builtin_convertvector(magnitude, F) * 0x1p-24f); \
        const W special = shifted | 0x7f800000u | ((W)(magnitude > 0x7c00) & 0x400000u); \
        const W finite = SELECT(W, magnitude < 0x400, tiny, shifted + 0x38000000u); \
        (F)(sign | SELECT(W, magnitude >= 0x7c00, special, finite)); \
    })

/* Round to nearest, ties to even. The unit in the last place of 0.5f is that of a subnormal
   float16, so adding 0.5f rounds there. */
#define NARROW_F16(F, W, S, H, f) \
    __extension__ ({ \
        const W bits = (W)(f), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu; \
        const S order = (S)magnitude; \
        const W tiny = (W)((F)magnitude + 0.5f) - 0x3f000000u; \
        const W even = (magnitude >> 13) & 1u; \
        const W normal = (magnitude - 0x38000000u + 0xfffu + even) >> 13; \
        const W finite = SELECT(W, order < 0x38800000, tiny, normal); \
        const W nan = (W)(order > 0x7f800000) & (0x200u | ((magnitude >> 13) & 0x3ffu)); \
        const W large = nan | 0x7c00u; \
        __builtin_convertvector(sign | SELECT(W, order >= 0x477ff000, large, finite), H); \
    })

#define WIDEN_BF16(F, W, h) ((F)(__builtin_convertvector(h, W) << 16))

/* AVX-512's own instruction flushes subnormals to zero; integers do not. */
#define NARROW_BF16(F, W, S, H, f) \
    __extension__ ({ \
        const W bits = (W)(f), high = bits >> 16; \
        const W rounded = (bits + 0x7fffu + (high & 1u)) >> 16; \
        const W nan = (W)((S)(bits & 0x7fffffffu) > 0x7f800000); \
        __builtin_convertvector(SELECT(W, nan, high | 0x40u, rounded), H); \
    })

#define SOFTWARE_WIDEN_F16(level, h) WIDEN_F16(level##_floats, level##_words, level##_signed, h)
#define SOFTWARE_NARROW_F16(level, f) \
    NARROW_F16(level##_floats, level##_words, level##_signed, level##_halves, f)
#define SOFTWARE_WIDEN_BF16(level, h) WIDEN_BF16(level##_floats, level##_words, h)
#define SOFTWARE_NARROW_BF16(level, f) \
    NARROW_BF16(level##_floats, level##_words, level##_signed, level##_halves, f)
#define F16C_WIDEN(level, h) ((level##_floats)_mm256_cvtph_ps((__m128i)(h)))
#define F16C_NARROW(level, f) \
    ((level##_halves)_mm256_cvtps_ph((__m256)(f), _MM_FROUND_TO_NEAREST_INT))
#define AVX512_WIDEN(level, h) ((level##_floats)_mm512_cvtph_ps((__m256i)(h)))
#define AVX512_NARROW(level, f) \
    ((level##_halves)_mm512_cvtps_ph((__m512)(f), _MM_FROUND_TO_NEAREST_INT))

#endif
