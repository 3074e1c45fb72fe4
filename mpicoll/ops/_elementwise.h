/* What makes kernels that compute element by element: expressions of two operands, and the loops over
   them. The compiler makes vectors of these; what needs more is in _vectors.h and _exact.h. */

#ifndef MPICOLL_ELEMENTWISE_H
#define MPICOLL_ELEMENTWISE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* One pass over two or three operands (the arity). */
typedef void (*kernels_loop)(char *dst, char *const *x, int arity, ptrdiff_t n);

/* Elements at any address, of memory that has been written as another type. */
#define ANYWHERE __attribute__((aligned(1), may_alias))
typedef uint8_t ANYWHERE any_u8;
typedef uint16_t ANYWHERE any_u16;
typedef uint32_t ANYWHERE any_u32;
typedef uint64_t ANYWHERE any_u64;
typedef int8_t ANYWHERE any_i8;
typedef int16_t ANYWHERE any_i16;
typedef int32_t ANYWHERE any_i32;
typedef int64_t ANYWHERE any_i64;
typedef float ANYWHERE any_f32;
typedef double ANYWHERE any_f64;
typedef long double ANYWHERE any_ld;
typedef struct __attribute__((packed, may_alias)) { long double real, imaginary; } any_cld;

/* dst is an operand or apart from it, never shifted against it: iterations are independent. Four
   vectors an iteration: counting costs as much as one vector does. clang does so unasked. */
#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed" /* long double has no vectors */
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep") _Pragma("GCC unroll 4")
#endif

/* ---- Expressions: a is what has been folded so far, b the next operand, T the element type
   (_ where it does not matter) ---- */

/* The 1u keeps small types from being promoted to int, whose overflow is undefined. */
#define SUM_WRAP(T, a, b) ((T)(1u * (a) + (b)))
#define PROD_WRAP(T, a, b) ((T)(1u * (a) * (b)))
#define SUM(_, a, b) ((a) + (b))
#define PROD(_, a, b) ((a) * (b))
#define MAX_INT(T, a, b) ((a) < (b) ? (b) : (a))
#define MIN_INT(T, a, b) ((b) < (a) ? (b) : (a))
/* The first NaN stays, and so does the first of equal values (+0 and -0 are equal). */
#define MAX_STAYS(a, b) (((a) >= (b)) | ((a) != (a)))
#define MIN_STAYS(a, b) (((a) <= (b)) | ((a) != (a)))
#define MAX_FLOAT(_, a, b) (MAX_STAYS(a, b) ? (a) : (b))
#define MIN_FLOAT(_, a, b) (MIN_STAYS(a, b) ? (a) : (b))
#define LAND(T, a, b) ((T)(((a) != 0) & ((b) != 0)))
#define LOR(T, a, b) ((T)(((a) != 0) | ((b) != 0)))
#define LXOR(T, a, b) ((T)(((a) != 0) ^ ((b) != 0)))
#define BAND(T, a, b) ((T)((a) & (b)))
#define BOR(T, a, b) ((T)((a) | (b)))
#define BXOR(T, a, b) ((T)((a) ^ (b)))

/* float16 and bfloat16 are compared as integers: sign and magnitude made a two's complement key,
   in which both zeros are 0; a magnitude above that of infinity is NaN. */
#define MAGNITUDE16(x) ((int16_t)((x) & 0x7fff))
#define KEY16(x) ((int16_t)((MAGNITUDE16(x) ^ (int16_t)((x) >> 15)) - (int16_t)((x) >> 15)))
#define EXTREME16(a, b, INFINITY16, BEATS) \
    (((MAGNITUDE16(a) <= INFINITY16) \
      & ((MAGNITUDE16(b) > INFINITY16) | (KEY16(b) BEATS KEY16(a)))) ? (b) : (a))
#define MAX_F16(T, a, b) EXTREME16(a, b, 0x7c00, >)
#define MIN_F16(T, a, b) EXTREME16(a, b, 0x7c00, <)
#define MAX_BF16(T, a, b) EXTREME16(a, b, 0x7f80, >)
#define MIN_BF16(T, a, b) EXTREME16(a, b, 0x7f80, <)

/* ---- From passes over two or three operands to k ---- */

/* Vector stores that cross cache lines are slow: a long pass starts with the few elements before the
   next multiple of this many bytes in dst, where that is a whole number of elements. */
enum { ALIGNMENT = 64, LONG_PASS = 8192, LONG_FOLD = 1 << 17 };

static void kernels_pass(kernels_loop loop, size_t size, char *dst, char *const *x, int arity,
                         ptrdiff_t n)
{
    const size_t before = -(uintptr_t)dst % ALIGNMENT;
    if (before && before % size == 0 && n >= (ptrdiff_t)(LONG_PASS / size)) {
        loop(dst, x, arity, (ptrdiff_t)(before / size));
        char *rest[3];
        for (int k = 0; k < arity; k++)
            rest[k] = x[k] + before;
        loop(dst + before, rest, arity, n - (ptrdiff_t)(before / size));
    } else {
        loop(dst, x, arity, n);
    }
}

/* The running value of more than three operands is kept in this many bytes of the first cache. */
enum { SEGMENT = 4096 };

static void kernels_drive(kernels_loop loop, size_t size, char *dst, char **x, int count,
                          ptrdiff_t n)
{
    if (count <= 3) {
        if (count > 1)
            kernels_pass(loop, size, dst, x, count, n);
        else if (dst != x[0])
            memcpy(dst, x[0], size * (size_t)n);
        return;
    }
    char running[SEGMENT] __attribute__((aligned(64)));
    const ptrdiff_t most = (ptrdiff_t)(SEGMENT / size);
    for (ptrdiff_t first = 0; first < n; first += most) {
        const ptrdiff_t m = n - first < most ? n - first : most;
        const size_t at = size * (size_t)first;
        char *now[3] = {x[0] + at, x[1] + at, x[2] + at};
        loop(running, now, 3, m);
        now[0] = running;
        int next = 3;
        for (; count - next > 2; next += 2) {
            now[1] = x[next] + at;
            now[2] = x[next + 1] + at;
            loop(running, now, 3, m);
        }
        for (int i = 1; next < count; i++, next++)
            now[i] = x[next] + at;
        loop(dst + at, now, count % 2 ? 3 : 2, m);
    }
}

/* ---- Generators: a pass NAME_loop and the kernel NAME made of it ---- */

#define KERNEL(name, size) \
    static void name(char *dst, char **x, int count, ptrdiff_t n) \
    { \
        kernels_drive(name##_loop, size, dst, x, count, n); \
    }

#define ELEMENTWISE(TARGET, name, tag, T, OP) \
    static TARGET void name##_loop(char *dst, char *const *x, int arity, ptrdiff_t n) \
    { \
        any_##tag *d = (any_##tag *)dst; \
        const any_##tag *p = (const any_##tag *)x[0], *q = (const any_##tag *)x[1]; \
        if (arity == 2) { \
            INDEPENDENT \
            for (ptrdiff_t i = 0; i < n; i++) { \
                const T a = p[i], b = q[i]; \
                d[i] = OP(T, a, b); \
            } \
        } else { \
            const any_##tag *r = (const any_##tag *)x[2]; \
            INDEPENDENT \
            for (ptrdiff_t i = 0; i < n; i++) { \
                const T a = p[i], b = q[i], c = r[i]; \
                const T ab = OP(T, a, b); \
                d[i] = OP(T, ab, c); \
            } \
        } \
    } \
    KERNEL(name, sizeof(T))

/* Complex numbers are pairs of reals; their sum is a sum of twice as many reals. */
#define COMPLEX_SUM(name, real) \
    static void name(char *dst, char **x, int count, ptrdiff_t n) { real(dst, x, count, 2 * n); }

/* The extreme of long doubles, taken as bytes by its address: the x87's own store has seven steps,
   and a branch would often be foreseen wrongly. */
#define EXTREME_LD(name, STAYS) \
    static void name##_loop(char *dst, char *const *x, int arity, ptrdiff_t n) \
    { \
        for (ptrdiff_t i = 0; i < n; i++) { \
            const any_ld *best = (const any_ld *)x[0] + i; \
            for (int k = 1; k < arity; k++) { \
                const any_ld *const both[2] = {(const any_ld *)x[k] + i, best}; \
                const long double a = *both[1], b = *both[0]; \
                best = both[STAYS(a, b)]; \
            } \
            char value[sizeof(long double)]; \
            memcpy(value, best, sizeof value); \
            memcpy(dst + i * (ptrdiff_t)sizeof value, value, sizeof value); \
        } \
    } \
    KERNEL(name, sizeof(long double))

/* MINLOC and MAXLOC on MPI's pair types, laid out as C structs. NaN beats every number; of equal
   values (all NaNs are equal here) the lower index wins, and takes its own value along. */
#define PAIR(tag, T) typedef struct { T value; int32_t index; } tag;
#define BETTER_MAX(a, b) ((b) > (a))
#define BETTER_MIN(a, b) ((b) < (a))
#define LOCATE(name, T, BETTER) \
    static void name##_loop(char *dst, char *const *x, int arity, ptrdiff_t n) \
    { \
        for (ptrdiff_t i = 0; i < n; i++) { \
            T a, b; \
            memcpy(&a, x[0] + i * (ptrdiff_t)sizeof(T), sizeof(T)); \
            for (int k = 1; k < arity; k++) { \
                memcpy(&b, x[k] + i * (ptrdiff_t)sizeof(T), sizeof(T)); \
                const int a_nan = a.value != a.value, b_nan = b.value != b.value; \
                const int tie = (a.value == b.value) | (a_nan & b_nan); \
                const int better = BETTER(a.value, b.value) | (b_nan & !a_nan); \
                if (better | (tie & (b.index < a.index))) \
                    a = b; \
            } \
            memcpy(dst + i * (ptrdiff_t)sizeof(T), &a, sizeof(T)); \
        } \
    } \
    KERNEL(name, sizeof(T))

#endif
