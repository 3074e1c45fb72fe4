/* Correctly rounded sums: dst = the exact sum of x[0], ..., x[count - 1], rounded once, to nearest,
   ties to even. Infinities and NaN as in IEEE 754; -0 only where every operand is -0.

   The sum of almost every element is known exactly, or well enough to be rounded, from a few
   operations of double precision; the others are added up in fixed point.

   float64: s and e are a sum and the sum of its rounding errors, each found without error by the
   TwoSum of D. E. Knuth, The Art of Computer Programming, vol. 2; the errors d of e itself are
   bounded by the sum of their magnitudes. If adding that bound or taking it away does not change
   the rounding of s + e, that rounding is the result (T. Ogita, S. M. Rump, S. Oishi, Accurate sum
   and dot product, SIAM J. Sci. Comput. 26, 2005). A sum that overflows on the way leaves a NaN.

   float32: sums of double precision are exact if all bits of the operands lie within 53 places. */

#ifndef MPICOLL_EXACT_H
#define MPICOLL_EXACT_H

#define MAGNITUDE32 0x7fffffffu
#define INFINITY32 0x7f800000u
#define MAGNITUDE64 0x7fffffffffffffffull
#define INFINITY64 0x7ff0000000000000ull

/* ---- In fixed point: digits of 32 bits, the lowest worth 2^-1074, in 64 bits each, so that 2^31
   operands can be added before carries are ---- */

enum { EXACT_DIGITS = 68 };

static double exact_operand(char *const *x, int k, ptrdiff_t i, int single)
{
    return single ? (double)((const any_f32 *)x[k])[i] : ((const any_f64 *)x[k])[i];
}

static void exact_carry(int64_t *digits)
{
    int64_t carry = 0;
    for (int j = 0; j < EXACT_DIGITS - 1; j++) {
        const int64_t digit = digits[j] + carry;
        carry = digit >> 32;
        digits[j] = digit & 0xffffffff;
    }
    digits[EXACT_DIGITS - 1] += carry;
}

/* The bits of a sum as a float64, or as a float32 if `single`. */
static uint64_t exact_round(int64_t *digits, int single)
{
    exact_carry(digits);
    const int negative = digits[EXACT_DIGITS - 1] < 0;
    if (negative) {
        for (int j = 0; j < EXACT_DIGITS; j++)
            digits[j] = -digits[j];
        exact_carry(digits);
    }
    int top = EXACT_DIGITS - 1;
    while (top > 0 && digits[top] == 0)
        top--;
    if (digits[top] == 0)
        return 0;
    const int precision = single ? 24 : 53, least = single ? 1074 - 149 : 0;
    const int length = 32 * top + 64 - __builtin_clzll((uint64_t)digits[top]);
    const int last = length - precision > least ? length - precision : least; /* place kept */
    uint64_t kept = 0;
    for (int j = last / 32; j <= top && j <= last / 32 + 2; j++) {
        const int shift = 32 * j - last;
        const uint64_t digit = (uint64_t)digits[j];
        kept |= shift < 0 ? digit >> -shift : shift < 64 ? digit << shift : 0;
    }
    if (last > 0) {
        const int half = last - 1;
        const uint64_t below = ((uint64_t)1 << half % 32) - 1;
        int more = (digits[half / 32] & (int64_t)below) != 0;
        for (int j = 0; !more && j < half / 32; j++)
            more = digits[j] != 0;
        if (digits[half / 32] >> half % 32 & 1)
            kept += more | (int)(kept & 1);
    }
    /* A number without its leading 1, and one that was rounded up to the next power of two, turn
       into the right exponent by themselves. */
    const uint64_t infinity = single ? INFINITY32 : INFINITY64;
    const uint64_t bits = ((uint64_t)(last - least) << (precision - 1)) + kept;
    return (bits < infinity ? bits : infinity) | (uint64_t)negative << (single ? 31 : 63);
}

/* The sum of element i in fixed point. */
static uint64_t exact_sum_at(char *const *x, int count, ptrdiff_t i, int single)
{
    int64_t digits[EXACT_DIGITS] = {0};
    int plus = 0, minus = 0, nan = 0, negative_zeros = 0;
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
        for (int j = place / 32; shifted; j++, shifted >>= 32) {
            const int64_t digit = (int64_t)(shifted & 0xffffffff);
            digits[j] += negative ? -digit : digit;
        }
    }
    const uint64_t infinity = single ? INFINITY32 : INFINITY64, sign = single ? 31 : 63;
    if (nan || (plus && minus))
        return infinity | (uint64_t)1 << (single ? 22 : 51);
    if (plus || minus)
        return infinity | (uint64_t)minus << sign;
    return negative_zeros == count ? (uint64_t)1 << sign : exact_round(digits, single);
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

/* Elements whose bits lie too far apart. Rounded to odd, a float64 rounds to the float32 that the
   exact sum rounds to; for that it is enough to know on which side of h the sum is. */
#define EXACT_WIDE_F32(TARGET, name, level) \
    static TARGET void name##_wide(char *dst, char **x, int count, ptrdiff_t at, size_t elements) \
    { \
        typedef level##_doubles V; \
        typedef level##_longs W; \
        typedef level##_singles F; \
        V s = {0}, e = {0}, bound = {0}, h, l; \
        const size_t offset = sizeof(float) * (size_t)at; \
        const int whole = elements == sizeof(V) / sizeof(double); /* a copy of fixed length */ \
        EXACT_SUMS(V, W, s, e, bound, LOAD_F32); \
        TWO_SUM(V, h, l, s, e); \
        const W sure = (W)(bound == 0) | (W)(ABSOLUTE(V, W, l) > bound + bound); \
        const W away = (W)((l > 0) == (h > 0)); \
        const W even = (W)(((W)h & 1) == 0), inexact = (W)(l != 0); \
        const W odd = (W)h + (even & inexact & SELECT(W, away, (W){0} + 1, (W){0} - 1)); \
        h = (V)SELECT(W, e == 0, (W)s, odd); \
        F result = __builtin_convertvector(h, F); \
        EXACT_UNSURE(uint32_t, sure, result, at, elements, 1); \
        memcpy(dst, &result, elements * sizeof(float)); \
    }
#define LOAD_F32(to, k) \
    do { \
        F narrow = {0}; \
        if (whole) \
            memcpy(&narrow, x[k] + offset, sizeof narrow); \
        else \
            memcpy(&narrow, x[k] + offset, elements * sizeof(float)); \
        to = __builtin_convertvector(narrow, V); \
    } while (0)

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
    static TARGET void name(char *dst, char **x, int count, ptrdiff_t n) \
    { \
        enum { LANES = sizeof(level##_doubles) / sizeof(double) }; \
        static const uint32_t minus_zeros[EXACT_TILE] = \
            {[0 ... EXACT_TILE - 1] = ~MAGNITUDE32}; \
        double sum[EXACT_TILE]; \
        int32_t most[EXACT_TILE], least[EXACT_TILE]; \
        float sums[EXACT_TILE]; \
        const int room = 29 - (count > 1 ? 32 - __builtin_clz((unsigned)count - 1) : 0); \
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
            int32_t wide = 0; \
            for (ptrdiff_t i = 0; i < m; i++) { \
                const int32_t top = most[i] >> 23; \
                const int32_t low = (int32_t)(((uint32_t)least[i] + 1) >> 23); \
                sums[i] = (float)sum[i]; \
                most[i] = (top - low > room) | (top == 255); \
                wide |= most[i]; \
            } \
            for (ptrdiff_t i = 0; wide && i < m; i += LANES) { \
                const ptrdiff_t elements = m - i < LANES ? m - i : LANES; \
                int32_t any = 0; \
                for (ptrdiff_t u = 0; u < elements; u++) \
                    any |= most[i + u]; \
                if (any) \
                    name##_wide((char *)(sums + i), x, count, at + i, (size_t)elements); \
            } \
            memcpy(dst + sizeof(float) * (size_t)at, sums, sizeof(float) * (size_t)m); \
        } \
    }
#define LESS_ONE(magnitude) (((magnitude) - 1) & 0x7fffffff)

#endif
