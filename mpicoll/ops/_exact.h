/* Correctly rounded sums: dst = the exact sum of x[0], ..., x[count - 1], rounded once, to nearest,
   ties to even. Infinities and NaN as in IEEE 754; -0 only where every operand is -0.

   The sum of almost every element is known exactly, or well enough to be rounded, from a few
   operations of double precision; the others are added up in fixed point.

   float64: s and e are a sum and the sum of its rounding errors, each found without error by the
   TwoSum of D. E. Knuth, The Art of Computer Programming, vol. 2; the errors d of e itself are
   bounded by the sum of their magnitudes. If adding that bound or taking it away does not change
   the rounding of s + e, that rounding is the result (T. Ogita, S. M. Rump, S. Oishi, Accurate sum
   and dot product, SIAM J. Sci. Comput. 26, 2005). A sum that overflows on the way leaves a NaN.

   float32: a sum of double precision is exact if all bits of the operands lie within 53 places; if
   they do not, a bound of its error tells whether its rounding is sure; if it is not, three sums of
   double precision hold all bits that lie within about 150 places. */

#ifndef MPICOLL_EXACT_H
#define MPICOLL_EXACT_H

#define MAGNITUDE32 0x7fffffffu
#define INFINITY32 0x7f800000u
#define ONE32 0x3f800000u
#define MAGNITUDE64 0x7fffffffffffffffull
#define INFINITY64 0x7ff0000000000000ull

/* ---- In fixed point: digits of 32 bits, the lowest worth 2^-1074, in 64 bits each, so that 2^31
   operands can be added before carries are ---- */

enum { EXACT_DIGITS = 68 };

static double exact_operand(char *const *x, int k, ptrdiff_t i, int single)
{
    return single ? (double)((const any_f32 *)x[k])[i] : ((const any_f64 *)x[k])[i];
}

static void exact_carry(int64_t *digits, int first, int last)
{
    int64_t carry = 0;
    for (int j = first; j < last; j++) {
        const int64_t digit = digits[j] + carry;
        carry = digit >> 32;
        digits[j] = digit & 0xffffffff;
    }
    digits[last] += carry;
}

/* The bits of a sum as a float64, or as a float32 if `single`. Digits before the first and after
   the last are 0, and the last has room for a carry. */
static uint64_t exact_round(int64_t *digits, int first, int last, int single)
{
    exact_carry(digits, first, last);
    const int negative = digits[last] < 0;
    if (negative) {
        for (int j = first; j <= last; j++)
            digits[j] = -digits[j];
        exact_carry(digits, first, last);
    }
    int top = last;
    while (top > first && digits[top] == 0)
        top--;
    if (digits[top] == 0)
        return 0;
    const int precision = single ? 24 : 53, least = single ? 1074 - 149 : 0;
    const int length = 32 * top + 64 - __builtin_clzll((uint64_t)digits[top]);
    const int end = length - precision > least ? length - precision : least; /* place kept */
    uint64_t kept = 0;
    for (int j = end / 32; j <= top && j <= end / 32 + 2; j++) {
        const int shift = 32 * j - end;
        const uint64_t digit = (uint64_t)digits[j];
        kept |= shift < 0 ? digit >> -shift : shift < 64 ? digit << shift : 0;
    }
    if (end > 0) {
        const int half = end - 1;
        const uint64_t below = ((uint64_t)1 << half % 32) - 1;
        int more = (digits[half / 32] & (int64_t)below) != 0;
        for (int j = first; !more && j < half / 32; j++)
            more = digits[j] != 0;
        if (digits[half / 32] >> half % 32 & 1)
            kept += more | (int)(kept & 1);
    }
    /* A number without its leading 1, and one that was rounded up to the next power of two, turn
       into the right exponent by themselves. */
    const uint64_t infinity = single ? INFINITY32 : INFINITY64;
    const uint64_t bits = ((uint64_t)(end - least) << (precision - 1)) + kept;
    return (bits < infinity ? bits : infinity) | (uint64_t)negative << (single ? 31 : 63);
}

/* The sum of element i in fixed point. */
static uint64_t exact_sum_at(char *const *x, int count, ptrdiff_t i, int single)
{
    int64_t digits[EXACT_DIGITS] = {0};
    int plus = 0, minus = 0, nan = 0, negative_zeros = 0, first = EXACT_DIGITS - 2, last = 0;
    for (int k = 0; k < count; k++) {
        const double value = exact_operand(x, k, i, single);
        uint64_t bits;
        memcpy(&bits, &value, sizeof bits);
        const int negative = (int)(bits >> 63), exponent = (int)(bits >> 52 & 0x7ff);
        if (exponent == 0x7ff) {
            nan |= value != value;
            plus |= !negative;
            minus |= negative;
            continue;
        }
        negative_zeros += bits == ~MAGNITUDE64;
        const uint64_t significand =
            (bits & 0xfffffffffffffull) | (exponent ? 0x10000000000000ull : 0);
        const int place = exponent ? exponent - 1 : 0;
        unsigned __int128 shifted = (unsigned __int128)significand << place % 32;
        int j = place / 32;
        if (shifted && first > j)
            first = j;
        for (; shifted; j++, shifted >>= 32) {
            const int64_t digit = (int64_t)(shifted & 0xffffffff);
            digits[j] += negative ? -digit : digit;
        }
        if (last < j)
            last = j;
    }
    const uint64_t infinity = single ? INFINITY32 : INFINITY64, sign = single ? 31 : 63;
    if (nan || (plus && minus))
        return infinity | (uint64_t)1 << (single ? 22 : 51);
    if (plus || minus)
        return infinity | (uint64_t)minus << sign;
    return negative_zeros == count ? (uint64_t)1 << sign : exact_round(digits, first, last, single);
}

/* ---- By TwoSum, on vectors ---- */

/* sum + error is a + b exactly; `sum` must be neither of them. */
#define TWO_SUM(V, sum, error, a, b) \
    do { \
        sum = (a) + (b); \
        const V virtual = sum - (a); \
        error = ((a) - (sum - virtual)) + ((b) - virtual); \
    } while (0)

/* Sums, the sums of their errors, and the bounds of theirs, of one vector of elements; LOAD(to, k)
   takes in operand k. */
#define EXACT_SUMS(V, W, s, e, bound, LOAD) \
    do { \
        LOAD(s, 0); \
        for (int k = 1; k < count; k++) { \
            V b, sum, error; \
            LOAD(b, k); \
            TWO_SUM(V, sum, error, s, b); \
            s = sum; \
            TWO_SUM(V, sum, b, e, error); \
            e = sum; \
            bound += ABSOLUTE(V, W, b); \
        } \
    } while (0)
#define ABSOLUTE(V, W, v) ((V)((W)(v) & MAGNITUDE64))

/* Put the sums in fixed point where they are not sure. U: an element's bits. */
#define EXACT_UNSURE(U, sure, result, at, elements, single) \
    do { \
        uint64_t all = ~(uint64_t)0; \
        for (size_t u = 0; u < sizeof(sure) / sizeof(uint64_t); u++) \
            all &= sure[u]; \
        for (size_t u = 0; !all && u < (elements); u++) \
            if (!sure[u]) { \
                const U bits = (U)exact_sum_at(x, count, (at) + (ptrdiff_t)u, single); \
                memcpy((char *)&result + u * sizeof(U), &bits, sizeof(U)); \
            } \
    } while (0)

/* ---- float64 ---- */

#define EXACT_VECTOR_F64(V, W, at, elements) \
    do { \
        V s = {0}, e = {0}, bound = {0}, h, l; \
        const size_t offset = sizeof(double) * (size_t)(at); \
        EXACT_SUMS(V, W, s, e, bound, LOAD_F64); \
        TWO_SUM(V, h, l, s, e); \
        /* Where there is a bound, the slack also covers the rounding of l + slack. */ \
        const W bounded = (W)(bound != 0); \
        const V slack = bound + bound + (V)((W)(ABSOLUTE(V, W, l) * 0x1p-52) & bounded); \
        const W sure = (W)(h + (l + slack) == h) & (W)(h + (l - slack) == h); \
        h = (V)SELECT(W, e == 0, (W)s, (W)h); /* -0 + 0 is +0 */ \
        EXACT_UNSURE(uint64_t, sure, h, at, elements, 0); \
        memcpy(dst + offset, &h, (elements) * sizeof(double)); \
    } while (0)

#define EXACT_F64(TARGET, name, level) \
    static TARGET void name(char *dst, char **x, int count, ptrdiff_t n) \
    { \
        typedef level##_doubles V; \
        enum { LANES = sizeof(V) / sizeof(double) }; \
        ptrdiff_t at = 0; \
        for (; at + LANES <= n; at += LANES) { \
            enum { elements = LANES }; \
            EXACT_VECTOR_F64(V, level##_longs, at, elements); \
        } \
        if (at < n) { \
            const size_t elements = (size_t)(n - at); \
            EXACT_VECTOR_F64(V, level##_longs, at, elements); \
        } \
    }
#define LOAD_F64(to, k) (to = (V){0}, memcpy(&to, x[k] + offset, elements * sizeof(double)))

/* ---- float32 ---- */

/* Three sums per element, of bits too far apart for one; only what is not sure is replaced.

   Let M and C be powers of 2, M > |x[k]| for all k and C >= count, and high = 3 C M. Then the sums
   high + x[0], high + x[0] + x[1], ... stay between 2 C M and 4 C M, so each is rounded to a
   multiple of g = 2^-51 C M: s - high is a sum of multiples of g, exact, and every x[k] leaves a
   rest, exact, of at most g / 2. The sum of the rests is at most C g / 2. It is found in the same
   way from middle = 1.5 C g: rests of at most 2^-53 C g remain, and their sum is low. They are
   multiples of the unit u in the last place of the least operand, so low is exact if
   2^-53 C^2 g <= 2^53 u, that is, if the exponents of the largest and the least operand are at most
   EXACT_SPREAD apart. Otherwise its error is below count 2^-106 C^2 g = count 2^-157 C^2 high / 3,
   a third of `bound`.

   The three are added up to sum + rest, |rest| less than a unit of sum, by FAST_TWO_SUM: of each
   two the first is a multiple of the unit in the last place of the second, as C < 2^52. Only the
   rounding of `error` += l loses something, at most half of |rest|. So where |rest| >= bound, its
   sign says on which side of `sum` the exact sum is. That is enough to round the sum to odd
   (towards 0, then the last bit set if it is not exact), and so rounded it rounds to the float32
   that the exact sum rounds to. */
#define EXACT_WIDE_F32(TARGET, name, level) \
    enum { name##_GROUP = PARALLEL * sizeof(level##_doubles) / sizeof(double) }; \
    static TARGET void name##_wide(float *sums, char **x, int count, ptrdiff_t at, \
                                   const int32_t *most, const int32_t *spread, \
                                   const int32_t *unsure, int deep) \
    { \
        typedef level##_doubles V; \
        typedef level##_longs W; \
        typedef level##_singles F; \
        typedef int32_t I __attribute__((vector_size(sizeof(F)))); \
        enum { LANES = sizeof(V) / sizeof(double) }; \
        const double c = (double)((uint64_t)1 << EXACT_PLACES(count)); \
        V high[PARALLEL], middle[PARALLEL], s[PARALLEL], t[PARALLEL], low[PARALLEL]; \
        V rest[PARALLEL]; \
        for (int p = 0; p < PARALLEL; p++) { \
            I magnitude; \
            memcpy(&magnitude, most + LANES * p, sizeof(I)); \
            const F half = (F)(magnitude & (int32_t)INFINITY32); /* of M */ \
            s[p] = high[p] = (V)TO_DOUBLES_##level(half, V) * (6 * c); \
            t[p] = middle[p] = high[p] * (0x1p-52 * c); \
            low[p] = (V){0}; \
        } \
        for (int k = 0; k < count; k++) \
            for (int p = 0; p < PARALLEL; p++) { \
                F operand; \
                memcpy(&operand, x[k] + sizeof(float) * (size_t)(at + LANES * p), sizeof(F)); \
                V b = (V)TO_DOUBLES_##level(operand, V); \
                const V s_before = s[p], t_before = t[p]; \
                s[p] += b; \
                b -= s[p] - s_before; \
                t[p] += b; \
                b -= t[p] - t_before; \
                low[p] += b; \
            } \
        for (int p = 0; p < PARALLEL; p++) { \
            V sum, error, h, l; \
            FAST_TWO_SUM(sum, error, t[p] - middle[p], low[p]); \
            FAST_TWO_SUM(h, l, s[p] - high[p], sum); \
            error += l; \
            FAST_TWO_SUM(sum, rest[p], h, error); \
            const W towards_zero = (W)(sum * rest[p] < 0), inexact = (W)(rest[p] != 0); \
            const V odd = (V)(((W)sum + towards_zero) | (inexact & 1)); \
            const F found = __builtin_convertvector(odd, F); \
            I result, put; \
            memcpy(&result, sums + LANES * p, sizeof(I)); \
            memcpy(&put, unsure + LANES * p, sizeof(I)); \
            result = SELECT(I, put, (I)found, result); \
            memcpy(sums + LANES * p, &result, sizeof(I)); \
        } \
        for (int p = 0; deep && p < PARALLEL; p++) { \
            I apart; \
            memcpy(&apart, spread + LANES * p, sizeof(I)); \
            const F inexact = (F)((I)(apart > EXACT_SPREAD(count)) & (int32_t)ONE32); \
            const V bound = (V)TO_DOUBLES_##level(inexact, V) * high[p] \
                * (0x1p-157 * c * c * count); \
            const W sure = (W)(ABSOLUTE(V, W, rest[p]) >= bound); \
            EXACT_UNSURE(uint32_t, sure, sums[LANES * p], at + LANES * p, LANES, 1); \
        } \
    }
enum { PARALLEL = 2 }; /* vectors at a time: hides latency */
/* sum + error is a + b exactly where a is a multiple of the unit in b's last place. */
#define FAST_TWO_SUM(sum, error, a, b) (sum = (a) + (b), error = (b) - (sum - (a)))
/* ceil(log2(count)) */
#define EXACT_PLACES(count) ((count) > 1 ? 32 - __builtin_clz((unsigned)(count) - 1) : 0)
/* Exponents of operands may be so far apart that one sum, or three sums, are exact. */
#define EXACT_ROOM(count) (29 - EXACT_PLACES(count))
#define EXACT_SPREAD(count) (133 - 3 * EXACT_PLACES(count))
/* GCC makes two conversions and a shuffle of __builtin_convertvector. */
#define TO_DOUBLES_baseline(f, V) __builtin_convertvector(f, V)
#define TO_DOUBLES_avx2(f, V) _mm256_cvtps_pd((__m128)(f))
#define TO_DOUBLES_avx512(f, V) _mm512_cvtps_pd((__m256)(f))

enum { EXACT_TILE = 512 };

/* Sums of a tile, and per element the largest magnitude, as bits, and the least but 0, minus 1. */
#define EXACT_F32(TARGET, name, level) \
    EXACT_WIDE_F32(TARGET, name, level) \
    static TARGET void name##_tile(double *sum, int32_t *most, int32_t *least, \
                                   const any_u32 *a, const any_u32 *b, int first, ptrdiff_t m) \
    { \
        const any_f32 *p = (const any_f32 *)a, *q = (const any_f32 *)b; \
        if (first) \
            for (ptrdiff_t i = 0; i < m; i++) { \
                const int32_t one = (int32_t)(a[i] & MAGNITUDE32); \
                sum[i] = p[i]; \
                most[i] = one; \
                least[i] = LESS_ONE(one); \
            } \
        else \
            for (ptrdiff_t i = 0; i < m; i++) { \
                const int32_t one = (int32_t)(a[i] & MAGNITUDE32); \
                const int32_t two = (int32_t)(b[i] & MAGNITUDE32); \
                const int32_t high = one > two ? one : two; \
                const int32_t one_less = LESS_ONE(one), two_less = LESS_ONE(two); \
                const int32_t low = one_less < two_less ? one_less : two_less; \
                sum[i] = sum[i] + p[i] + q[i]; \
                most[i] = most[i] > high ? most[i] : high; \
                least[i] = least[i] < low ? least[i] : low; \
            } \
    } \
    /* Mark, by all bits, the elements whose sums are neither exact nor sure, and return whether \
       there are any. In place of the least magnitudes it leaves how far the exponents are apart. \
       Of NaN, which may have any bits, it makes the same everywhere. \
       No sum is off by more than 2^-53 (2 + 3 + ... + count) M, M the largest magnitude, and \
       adding the slack errs by at most 2^-53 (count + 1) M: both together are below the slack. */ \
    static TARGET int32_t name##_unsure(float *sums, const double *sum, const int32_t *most, \
                                        int32_t *least, int32_t *unsure, int count, ptrdiff_t m) \
    { \
        const any_f32 *largest = (const any_f32 *)most; \
        const int room = EXACT_ROOM(count); \
        const double unit = 0x1p-52 * count * count; \
        int32_t any = 0; \
        for (ptrdiff_t i = 0; i < m; i++) { \
            const int32_t top = most[i] >> 23; \
            const int32_t low = (int32_t)(((uint32_t)least[i] + 1) >> 23); \
            const double slack = unit * largest[i]; \
            const int32_t open = (float)(sum[i] - slack) != (float)(sum[i] + slack); \
            sums[i] = sum[i] == sum[i] ? sums[i] : __builtin_nanf(""); \
            least[i] = top - low; \
            unsure[i] = -((top - low > room) & (top != 255) & open); \
            any |= unsure[i]; \
        } \
        for (; m % name##_GROUP; m++) \
            unsure[m] = 0; \
        return any; \
    } \
    static TARGET void name(char *dst, char **x, int count, ptrdiff_t n) \
    { \
        enum { GROUP = name##_GROUP }; \
        static const uint32_t minus_zeros[EXACT_TILE] = \
            {[0 ... EXACT_TILE - 1] = ~MAGNITUDE32}; \
        double sum[EXACT_TILE]; \
        int32_t most[EXACT_TILE], least[EXACT_TILE], unsure[EXACT_TILE]; \
        float sums[EXACT_TILE]; \
        const int room = EXACT_ROOM(count), deepest = EXACT_SPREAD(count); \
        for (ptrdiff_t at = 0; at < n; at += EXACT_TILE) { \
            const ptrdiff_t m = n - at < EXACT_TILE ? n - at : EXACT_TILE; \
            const any_u32 *one = (const any_u32 *)x[0] + at; \
            name##_tile(sum, most, least, one, one, 1, m); \
            for (int k = 1; k < count; k += 2) { \
                const any_u32 *next = minus_zeros; \
                if (k + 1 < count) \
                    next = (const any_u32 *)x[k + 1] + at; \
                one = (const any_u32 *)x[k] + at; \
                name##_tile(sum, most, least, one, next, 0, m); \
            } \
            int32_t wide = 0, deep = 0; \
            for (ptrdiff_t i = 0; i < m; i++) { \
                const int32_t top = most[i] >> 23; \
                const int32_t low = (int32_t)(((uint32_t)least[i] + 1) >> 23); \
                sums[i] = (float)sum[i]; \
                wide |= (top - low > room) | (top == 255); \
            } \
            if (wide) \
                wide = name##_unsure(sums, sum, most, least, unsure, count, m); \
            for (ptrdiff_t i = 0; wide && i < m; i++) \
                deep |= least[i] > deepest; \
            for (ptrdiff_t i = 0; wide && i < m; i += GROUP) { \
                int32_t any = 0; \
                for (ptrdiff_t u = 0; u < GROUP; u++) \
                    any |= unsure[i + u]; \
                const ptrdiff_t from = i + GROUP <= m ? i : m - GROUP; \
                if (any && from >= 0) \
                    name##_wide(sums + from, x, count, at + from, most + from, least + from, \
                                unsure + from, deep); \
                for (ptrdiff_t u = 0; from < 0 && u < m; u++) \
                    if (unsure[u]) { \
                        const uint32_t bits = (uint32_t)exact_sum_at(x, count, at + u, 1); \
                        memcpy(sums + u, &bits, sizeof bits); \
                    } \
            } \
            memcpy(dst + sizeof(float) * (size_t)at, sums, sizeof(float) * (size_t)m); \
        } \
    }
#define LESS_ONE(magnitude) (((magnitude) - 1) & 0x7fffffff)

#endif
