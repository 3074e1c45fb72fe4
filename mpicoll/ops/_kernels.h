/* Reductions of k operands, element by element, left to right, in one pass.

   Every kernel computes dst = x[0] op x[1] op ... op x[count - 1] on n elements. Addresses may have
   any alignment; dst may be exactly one of the operands. No kernel allocates memory, touches a
   Python object or reads another element than the one it writes, so results depend neither on
   alignment nor on where a vector body ends.

   One body (_kernels_body.h) is compiled once per instruction set, by function attributes, so that
   one build without machine flags serves every processor; the set is chosen at run time.
   Contraction to fused multiply-add would change results from one set to the next: build with
   -ffp-contract=off. */

#ifndef MPICOLL_KERNELS_H
#define MPICOLL_KERNELS_H

#include <stdint.h>
#include <string.h>
#include <stddef.h>

#if !defined(__GNUC__) || (!defined(__clang__) && __GNUC__ < 9)
#error "mpicoll's kernels need GCC 9 or newer, or clang"
#endif
#ifdef __FAST_MATH__
#error "mpicoll's kernels must not be compiled with -ffast-math: NaN would not propagate"
#endif

#undef I /* a macro of complex.h, which NumPy's headers include */

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

typedef void (*kernels_fold)(char *dst, char **x, int count, ptrdiff_t n);

/* One pass over two or three operands (the arity). */
typedef void (*kernels_loop)(char *dst, char *const *x, int arity, ptrdiff_t n);

#define KERNELS_OPS(X) \
    X(sum) X(prod) X(max) X(min) X(land) X(lor) X(lxor) X(band) X(bor) X(bxor) X(maxloc) X(minloc) \
    X(exactsum)
#define KERNELS_TYPES(X) \
    X(i8) X(i16) X(i32) X(i64) X(u8) X(u16) X(u32) X(u64) X(bool) X(f16) X(bf16) X(f32) X(f64) \
    X(ld) X(c64) X(c128) X(cld) X(f32_int) X(f64_int) X(ld_int) X(i16_int) X(i32_int) X(i64_int)

#define X(name) KERNELS_OP_##name,
enum { KERNELS_OPS(X) KERNELS_OP_COUNT };
#undef X
#define X(name) KERNELS_TYPE_##name,
enum { KERNELS_TYPES(X) KERNELS_TYPE_COUNT };
#undef X
#define X(name) #name,
static const char *const kernels_op_names[] = {KERNELS_OPS(X)};
static const char *const kernels_type_names[] = {KERNELS_TYPES(X)};
#undef X

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

#include "_vectors.h"
#include "_exact.h"

/* ---- Kernels that no instruction set helps: compiled once ---- */

ELEMENTWISE(, sum_ld, ld, long double, SUM)
ELEMENTWISE(, prod_ld, ld, long double, PROD)
EXTREME_LD(max_ld, MAX_STAYS)
EXTREME_LD(min_ld, MIN_STAYS)
COMPLEX_SUM(sum_cld, sum_ld)

static inline any_cld times_cld(any_cld a, any_cld b)
{
    const any_cld product = {
        a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real
    };
    return product;
}
#define COMPLEX_TIMES_LD(_, a, b) times_cld(a, b)
ELEMENTWISE(, prod_cld, cld, any_cld, COMPLEX_TIMES_LD)

#define LOCATE_BOTH(tag, T) \
    PAIR(tag, T) LOCATE(maxloc_##tag, tag, BETTER_MAX) LOCATE(minloc_##tag, tag, BETTER_MIN)
LOCATE_BOTH(f32_int, float)
LOCATE_BOTH(f64_int, double)
LOCATE_BOTH(ld_int, long double)
LOCATE_BOTH(i16_int, int16_t)
LOCATE_BOTH(i32_int, int32_t)
LOCATE_BOTH(i64_int, int64_t)

/* ---- The rest, once per instruction set ---- */

#define AT(op, type, kernel) [KERNELS_OP_##op][KERNELS_TYPE_##type] = kernel

/* The kernels that a level adds; for the others the level below it serves. */
typedef const kernels_fold kernels_table[KERNELS_OP_COUNT][KERNELS_TYPE_COUNT];

VECTORS(baseline, 16)
#define LANES32_baseline 4
#define LANES64_baseline 2
#define LEVEL baseline
#define TARGET
#define LOAD_F16 SOFTWARE_WIDEN_F16
#define STORE_F16 SOFTWARE_NARROW_F16
#include "_kernels_body.h"
#undef LEVEL
#undef TARGET
#undef LOAD_F16
#undef STORE_F16

#define PAIRS(op) \
    AT(op, f32_int, op##_f32_int), AT(op, f64_int, op##_f64_int), AT(op, ld_int, op##_ld_int), \
    AT(op, i16_int, op##_i16_int), AT(op, i32_int, op##_i32_int), AT(op, i64_int, op##_i64_int)
static kernels_table table_plain = {
    AT(sum, ld, sum_ld), AT(prod, ld, prod_ld), AT(max, ld, max_ld), AT(min, ld, min_ld),
    AT(sum, cld, sum_cld), AT(prod, cld, prod_cld), PAIRS(maxloc), PAIRS(minloc),
};

#if defined(__x86_64__)
VECTORS(avx2, 32)
#define LANES32_avx2 8
#define LANES64_avx2 4
#define LEVEL avx2
#define TARGET __attribute__((target("avx2,f16c")))
#define LOAD_F16 F16C_WIDEN
#define STORE_F16 F16C_NARROW
#include "_kernels_body.h"
#undef LEVEL
#undef TARGET
#undef LOAD_F16
#undef STORE_F16

/* Vectors of 64 bytes gain nothing where one instruction meets two loads and a store, and lose where
   loads cross cache lines (measured on Zen 4): only what computes more is here. */
VECTORS(avx512, 64)
#define LANES32_avx512 16
#define LANES64_avx512 8
#define TARGET_AVX512 __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")))
#define EACH_AVX512(op, tag, T, OP) ELEMENTWISE(TARGET_AVX512, op##_##tag##_avx512, tag, T, OP)
#define EXTREMES_AVX512(tag, T, kind) \
    EACH_AVX512(max, tag, T, MAX_##kind) EACH_AVX512(min, tag, T, MIN_##kind)
#define LOGICAL_AVX512(tag, T) \
    EACH_AVX512(land, tag, T, LAND) EACH_AVX512(lor, tag, T, LOR) EACH_AVX512(lxor, tag, T, LXOR)
#define NARROW_AVX512(name, LOAD, STORE, OP) \
    VECTOR_KERNEL(TARGET_AVX512, name, 2, avx512, avx512_halves, avx512_floats, LOAD, STORE, OP)
EXTREMES_AVX512(i64, int64_t, INT)
EXTREMES_AVX512(u64, uint64_t, INT)
EXTREMES_AVX512(f32, float, FLOAT)
EXTREMES_AVX512(f64, double, FLOAT)
EACH_AVX512(prod, u64, uint64_t, PROD_WRAP)
LOGICAL_AVX512(u8, uint8_t)
LOGICAL_AVX512(u16, uint16_t)
LOGICAL_AVX512(u32, uint32_t)
LOGICAL_AVX512(u64, uint64_t)
VECTOR_KERNEL(TARGET_AVX512, prod_c64_avx512, 8, avx512, avx512_floats, avx512_floats, AS_IT_IS,
              AS_IT_IS, COMPLEX_TIMES_32)
VECTOR_KERNEL(TARGET_AVX512, prod_c128_avx512, 16, avx512, avx512_doubles, avx512_doubles, AS_IT_IS,
              AS_IT_IS, COMPLEX_TIMES_64)
NARROW_AVX512(sum_f16_avx512, AVX512_WIDEN, AVX512_NARROW, SUM)
NARROW_AVX512(prod_f16_avx512, AVX512_WIDEN, AVX512_NARROW, PROD)
NARROW_AVX512(sum_bf16_avx512, SOFTWARE_WIDEN_BF16, SOFTWARE_NARROW_BF16, SUM)
NARROW_AVX512(prod_bf16_avx512, SOFTWARE_WIDEN_BF16, SOFTWARE_NARROW_BF16, PROD)
EXACT_F32(TARGET_AVX512, exactsum_f32_avx512, avx512)
EXACT_F64(TARGET_AVX512, exactsum_f64_avx512, avx512)
#define AT_AVX512(op, tag) AT(op, tag, op##_##tag##_avx512)
#define AT_EXTREMES(tag) AT_AVX512(max, tag), AT_AVX512(min, tag)
#define AT_LOGICAL(op) \
    AT_AVX512(op, u8), AT_AVX512(op, u16), AT_AVX512(op, u32), AT_AVX512(op, u64), \
    AT(op, i8, op##_u8_avx512), AT(op, i16, op##_u16_avx512), AT(op, i32, op##_u32_avx512), \
    AT(op, i64, op##_u64_avx512), AT(op, bool, op##_u8_avx512)
static kernels_table table_avx512 = {
    AT_EXTREMES(i64), AT_EXTREMES(u64), AT_EXTREMES(f32), AT_EXTREMES(f64),
    AT_AVX512(prod, u64), AT(prod, i64, prod_u64_avx512), AT_AVX512(prod, c64),
    AT_AVX512(prod, c128), AT_LOGICAL(land), AT_LOGICAL(lor), AT_LOGICAL(lxor),
    AT_AVX512(sum, f16), AT_AVX512(prod, f16), AT_AVX512(sum, bf16), AT_AVX512(prod, bf16),
    AT_AVX512(exactsum, f32), AT_AVX512(exactsum, f64),
};

static int has_avx2(void)
{
    unsigned a, b, c = 0, d;
    __builtin_cpu_init();
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) && __builtin_cpu_supports("avx2");
}
static int has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

static int always(void) { return 1; }

/* From the plainest to the widest. */
static const struct {
    const char *name;
    int (*available)(void);
    kernels_table *table;
} kernels_levels[] = {
    {"baseline", always, &table_baseline},
#if defined(__x86_64__)
    {"avx2", has_avx2, &table_avx2},
    {"avx512", has_avx512, &table_avx512},
#endif
};
enum { KERNELS_LEVEL_COUNT = sizeof kernels_levels / sizeof kernels_levels[0] };

static int kernels_available(int level) { return kernels_levels[level].available(); }
static const char *kernels_level_name(int level) { return kernels_levels[level].name; }

/* The kernel, or NULL where the operator has no meaning for the type. */
static kernels_fold kernels_at(int level, int op, int type)
{
    if (op < 0 || op >= KERNELS_OP_COUNT || type < 0 || type >= KERNELS_TYPE_COUNT)
        return NULL;
    for (; level >= 0; level--)
        if ((*kernels_levels[level].table)[op][type])
            return (*kernels_levels[level].table)[op][type];
    return table_plain[op][type];
}

#endif
