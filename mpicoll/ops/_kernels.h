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

#include "_elementwise.h"
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
