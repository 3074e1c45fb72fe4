/* The kernels of one instruction set. Included once per set by _kernels.h, which defines LEVEL (its
   name), TARGET (its function attribute), LOAD_F16 and STORE_F16 (its conversions). */

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define EXPAND(generator, ...) generator(__VA_ARGS__)
#define NAME(op, tag) JOIN(op##_##tag, LEVEL)
#define EACH(op, tag, T, OP) EXPAND(ELEMENTWISE, TARGET, NAME(op, tag), tag, T, OP)
#define NARROW(op, tag, LOAD, STORE, OP) \
    EXPAND(VECTOR_KERNEL, TARGET, NAME(op, tag), 2, LEVEL, JOIN(LEVEL, halves), \
           JOIN(LEVEL, floats), LOAD, STORE, OP)

/* Wrapping sums and products, bits and truth values do not depend on the sign. */
#define UNSIGNED(tag, T) \
    EACH(sum, tag, T, SUM_WRAP) \
    EACH(prod, tag, T, PROD_WRAP) \
    EACH(max, tag, T, MAX_INT) \
    EACH(min, tag, T, MIN_INT) \
    EACH(land, tag, T, LAND) \
    EACH(lor, tag, T, LOR) \
    EACH(lxor, tag, T, LXOR) \
    EACH(band, tag, T, BAND) \
    EACH(bor, tag, T, BOR) \
    EACH(bxor, tag, T, BXOR)
#define SIGNED(tag, T) EACH(max, tag, T, MAX_INT) EACH(min, tag, T, MIN_INT)
#define FLOATING(tag, T) \
    EACH(sum, tag, T, SUM) EACH(prod, tag, T, PROD) \
    EACH(max, tag, T, MAX_FLOAT) EACH(min, tag, T, MIN_FLOAT)

UNSIGNED(u8, uint8_t)
UNSIGNED(u16, uint16_t)
UNSIGNED(u32, uint32_t)
UNSIGNED(u64, uint64_t)
SIGNED(i8, int8_t)
SIGNED(i16, int16_t)
SIGNED(i32, int32_t)
SIGNED(i64, int64_t)
FLOATING(f32, float)
FLOATING(f64, double)
EXPAND(COMPLEX_SUM, NAME(sum, c64), NAME(sum, f32))
EXPAND(COMPLEX_SUM, NAME(sum, c128), NAME(sum, f64))
EXPAND(VECTOR_KERNEL, TARGET, NAME(prod, c64), 8, LEVEL, JOIN(LEVEL, floats),
       JOIN(LEVEL, floats), AS_IT_IS, AS_IT_IS, COMPLEX_TIMES_32)
EXPAND(VECTOR_KERNEL, TARGET, NAME(prod, c128), 16, LEVEL, JOIN(LEVEL, doubles),
       JOIN(LEVEL, doubles), AS_IT_IS, AS_IT_IS, COMPLEX_TIMES_64)
NARROW(sum, f16, LOAD_F16, STORE_F16, SUM)
NARROW(prod, f16, LOAD_F16, STORE_F16, PROD)
NARROW(sum, bf16, SOFTWARE_WIDEN_BF16, SOFTWARE_NARROW_BF16, SUM)
NARROW(prod, bf16, SOFTWARE_WIDEN_BF16, SOFTWARE_NARROW_BF16, PROD)
EXPAND(ELEMENTWISE, TARGET, NAME(max, f16), i16, int16_t, MAX_F16)
EXPAND(ELEMENTWISE, TARGET, NAME(min, f16), i16, int16_t, MIN_F16)
EXPAND(ELEMENTWISE, TARGET, NAME(max, bf16), i16, int16_t, MAX_BF16)
EXPAND(ELEMENTWISE, TARGET, NAME(min, bf16), i16, int16_t, MIN_BF16)

EXPAND(EXACT_F32, TARGET, NAME(exactsum, f32), LEVEL)
EXPAND(EXACT_F64, TARGET, NAME(exactsum, f64), LEVEL)

#define EVERY_INTEGER(op) \
    AT(op, u8, NAME(op, u8)), AT(op, u16, NAME(op, u16)), AT(op, u32, NAME(op, u32)), \
    AT(op, u64, NAME(op, u64)), AT(op, i8, NAME(op, u8)), AT(op, i16, NAME(op, u16)), \
    AT(op, i32, NAME(op, u32)), AT(op, i64, NAME(op, u64))
#define EVERY_FLOAT(op) \
    AT(op, f16, NAME(op, f16)), AT(op, bf16, NAME(op, bf16)), AT(op, f32, NAME(op, f32)), \
    AT(op, f64, NAME(op, f64))
#define ARITHMETIC(op) \
    EVERY_INTEGER(op), EVERY_FLOAT(op), AT(op, c64, NAME(op, c64)), AT(op, c128, NAME(op, c128))
#define ORDERED(op) \
    AT(op, u8, NAME(op, u8)), AT(op, u16, NAME(op, u16)), AT(op, u32, NAME(op, u32)), \
    AT(op, u64, NAME(op, u64)), AT(op, i8, NAME(op, i8)), AT(op, i16, NAME(op, i16)), \
    AT(op, i32, NAME(op, i32)), AT(op, i64, NAME(op, i64)), EVERY_FLOAT(op)
#define LOGICAL(op) EVERY_INTEGER(op), AT(op, bool, NAME(op, u8))

static kernels_table JOIN(table, LEVEL) = {
    ARITHMETIC(sum), ARITHMETIC(prod), ORDERED(max), ORDERED(min),
    LOGICAL(land), LOGICAL(lor), LOGICAL(lxor),
    EVERY_INTEGER(band), EVERY_INTEGER(bor), EVERY_INTEGER(bxor),
    AT(exactsum, f32, NAME(exactsum, f32)), AT(exactsum, f64, NAME(exactsum, f64)),
};

#undef JOIN_
#undef JOIN
#undef EXPAND
#undef NAME
#undef EACH
#undef NARROW
#undef UNSIGNED
#undef SIGNED
#undef FLOATING
#undef EVERY_INTEGER
#undef EVERY_FLOAT
#undef ARITHMETIC
#undef ORDERED
#undef LOGICAL
