/* Reductions of 16 bytes at a time, with the values of the host's kernels (mpicoll/_kernels.h).

   Compiled without contraction and without flush to zero. Before this file come, written by
   mpicoll/cuda/kernels.py from the tables of mpicoll/ops.py: the enums OP_sum, ... and TYPE_i8, ...,
   and P, the number of ranks. A kind is an operator on a type; it is uniform in a launch, so the
   switches below cost a jump. */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;

#define DEVICE __device__ __forceinline__

/* float32 whose subnormal numbers are never flushed to zero: CuPy tells the compiler to flush those
   of plain floats, after whatever it is told itself. */
struct f32 {
    float x;
};
#define ARITHMETIC(sign, name) \
    DEVICE f32 operator sign(f32 a, f32 b) \
    { \
        f32 c; \
        asm(name ".rn.f32 %0, %1, %2;" : "=f"(c.x) : "f"(a.x), "f"(b.x)); \
        return c; \
    }
ARITHMETIC(+, "add")
ARITHMETIC(-, "sub")
ARITHMETIC(*, "mul")
#undef ARITHMETIC
#define COMPARISON(sign, name) \
    DEVICE bool operator sign(f32 a, f32 b) \
    { \
        u32 c; \
        asm("{ .reg .pred p; setp." name ".f32 p, %1, %2; selp.u32 %0, 1, 0, p; }" \
            : "=r"(c) : "f"(a.x), "f"(b.x)); \
        return c; \
    }
COMPARISON(==, "eq")
COMPARISON(!=, "neu")
COMPARISON(<, "lt")
COMPARISON(<=, "le")
COMPARISON(>, "gt")
COMPARISON(>=, "ge")
#undef COMPARISON
#define KIND(op, type) (OP_##op * 32 + TYPE_##type)

/* 16 bytes in two registers pairs. */
struct Cell {
    u64 a, b;
};

template <class T> union Lanes {
    Cell cell;
    T at[16 / sizeof(T)];
    DEVICE Lanes(Cell c) : cell(c) {}
};

/* ---- Operators: a is what has been folded so far, b the next operand ---- */

#define OPERATOR(Name, expression) \
    template <class T> struct Name { \
        static DEVICE T of(T a, T b) { return T(expression); } \
    };
OPERATOR(Sum, a + b)
OPERATOR(Prod, a * b)
/* The first NaN stays, and so does the first of equal values (+0 and -0 are equal). */
OPERATOR(Max, (a >= b) | (a != a) ? a : b)
OPERATOR(Min, (a <= b) | (a != a) ? a : b)
OPERATOR(Land, (a != 0) & (b != 0))
OPERATOR(Lor, (a != 0) | (b != 0))
OPERATOR(Lxor, (a != 0) ^ (b != 0))
OPERATOR(Band, a & b)
OPERATOR(Bor, a | b)
OPERATOR(Bxor, a ^ b)
#undef OPERATOR

template <class Op, class T> DEVICE Cell each(Cell x, Cell y)
{
    Lanes<T> a(x), b(y);
#pragma unroll
    for (int i = 0; i < (int)(16 / sizeof(T)); i++)
        a.at[i] = Op::of(a.at[i], b.at[i]);
    return a.cell;
}

/* float16 and bfloat16 as float32. */
struct Half {
    static DEVICE f32 wide(u16 x)
    {
        f32 y;
        asm("cvt.f32.f16 %0, %1;" : "=f"(y.x) : "h"(x));
        return y;
    }
    static DEVICE u16 narrow(f32 x)
    {
        u16 y;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x.x));
        return y;
    }
};
struct Brain {
    static DEVICE f32 wide(u16 x) { return {__uint_as_float((u32)x << 16)}; }
    static DEVICE u16 narrow(f32 x)
    {
        u16 y;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x.x));
        return y;
    }
};

/* The value of one or the other, chosen by comparison as float32, which is exact. */
template <class Op, class Type> struct Chosen {
    static DEVICE u16 of(u16 a, u16 b)
    {
        const f32 x = Type::wide(a), y = Type::wide(b);
        return (Op::of(x, y) == x) | (x != x) ? a : b;
    }
};

template <class T> DEVICE Cell complex_product(Cell x, Cell y)
{
    Lanes<T> a(x), b(y);
#pragma unroll
    for (int i = 0; i < (int)(16 / sizeof(T)); i += 2) {
        const T re = a.at[i], im = a.at[i + 1];
        a.at[i] = re * b.at[i] - im * b.at[i + 1];
        a.at[i + 1] = re * b.at[i + 1] + im * b.at[i];
    }
    return a.cell;
}

/* MPI's pairs: NaN beats every number; of equal values the lower index wins. */
template <class T> struct Pair {
    T value;
    i32 index;
};
template <bool MAX, class T> DEVICE Cell locate(Cell x, Cell y)
{
    Lanes<Pair<T>> a(x), b(y);
#pragma unroll
    for (int i = 0; i < (int)(16 / sizeof(Pair<T>)); i++) {
        const T v = a.at[i].value, w = b.at[i].value;
        const bool v_nan = v != v, w_nan = w != w;
        const bool tie = (v == w) | (v_nan & w_nan);
        const bool better = (MAX ? w > v : w < v) | (w_nan & !v_nan);
        if (better | (tie & (b.at[i].index < a.at[i].index)))
            a.at[i] = b.at[i];
    }
    return a.cell;
}

/* ---- Any kind but sums and products of float16 and bfloat16 ---- */

#define CASE(op, type, Op, T) \
    case KIND(op, type): \
        return each<Op<T>, T>(x, y);
#define CASES_INTEGER(op, Op) \
    CASE(op, u8, Op, u8) CASE(op, u16, Op, u16) CASE(op, u32, Op, u32) CASE(op, u64, Op, u64) \
    CASE(op, i8, Op, i8) CASE(op, i16, Op, i16) CASE(op, i32, Op, i32) CASE(op, i64, Op, i64)
/* Where the sign does not matter. */
#define CASES_BITS(op, Op) \
    case KIND(op, i8): CASE(op, u8, Op, u8) case KIND(op, i16): CASE(op, u16, Op, u16) \
    case KIND(op, i32): CASE(op, u32, Op, u32) case KIND(op, i64): CASE(op, u64, Op, u64)
#define CASE_CHOSEN(op, type, Op, Type) \
    case KIND(op, type): \
        return each<Chosen<Op<f32>, Type>, u16>(x, y);
#define CASES_LOCATE(op, MAX) \
    case KIND(op, i16_int): return locate<MAX, i16>(x, y); \
    case KIND(op, i32_int): return locate<MAX, i32>(x, y); \
    case KIND(op, i64_int): return locate<MAX, i64>(x, y); \
    case KIND(op, f32_int): return locate<MAX, f32>(x, y); \
    case KIND(op, f64_int): return locate<MAX, double>(x, y);

static __device__ __noinline__ Cell fold_any(int kind, Cell x, Cell y)
{
    switch (kind) {
        case KIND(sum, c64): CASE(sum, f32, Sum, f32)
        case KIND(sum, c128): CASE(sum, f64, Sum, double)
        CASE(prod, f32, Prod, f32) CASE(prod, f64, Prod, double)
        CASES_BITS(sum, Sum) CASES_BITS(prod, Prod)
        CASE(max, f32, Max, f32) CASE(max, f64, Max, double)
        CASE(min, f32, Min, f32) CASE(min, f64, Min, double)
        CASES_INTEGER(max, Max) CASES_INTEGER(min, Min)
        CASE_CHOSEN(max, f16, Max, Half) CASE_CHOSEN(max, bf16, Max, Brain)
        CASE_CHOSEN(min, f16, Min, Half) CASE_CHOSEN(min, bf16, Min, Brain)
        case KIND(land, bool): CASES_BITS(land, Land)
        case KIND(lor, bool): CASES_BITS(lor, Lor)
        case KIND(lxor, bool): CASES_BITS(lxor, Lxor)
        CASES_BITS(band, Band) CASES_BITS(bor, Bor) CASES_BITS(bxor, Bxor)
        case KIND(prod, c64): return complex_product<f32>(x, y);
        case KIND(prod, c128): return complex_product<double>(x, y);
        CASES_LOCATE(maxloc, true) CASES_LOCATE(minloc, false)
    }
    return x;
}

/* A call costs nothing beside the way through the link, but much code where it is inlined. */
DEVICE Cell fold_plain(int kind, Cell x, Cell y)
{
    return kind == KIND(sum, f32) ? each<Sum<f32>, f32>(x, y) : fold_any(kind, x, y);
}

/* ---- What is folded so far, of 16 bytes ---- */

struct Copied { /* one operand alone */
    Cell cell;
    DEVICE void first(int, Cell c) { cell = c; }
    DEVICE void next(int, Cell c) { cell = c; }
    DEVICE Cell value(int) const { return cell; }
};

struct Plain {
    Cell cell;
    DEVICE void first(int, Cell c) { cell = c; }
    DEVICE void next(int kind, Cell c) { cell = fold_plain(kind, cell, c); }
    DEVICE Cell value(int) const { return cell; }
};

/* Sums and products of float16 and bfloat16: formed in float32, rounded once at the end. A single
   operand keeps its bits. */
template <class Type> DEVICE void widen(Cell c, f32 (&out)[8])
{
    Lanes<u16> x(c);
#pragma unroll
    for (int i = 0; i < 8; i++)
        out[i] = Type::wide(x.at[i]);
}
template <class Type> DEVICE Cell narrowed(const f32 (&in)[8])
{
    Lanes<u16> x(Cell{0, 0});
#pragma unroll
    for (int i = 0; i < 8; i++)
        x.at[i] = Type::narrow(in[i]);
    return x.cell;
}
#if P == 2 && __CUDA_ARCH__ >= 900
/* The sum of two, rounded once: float32 has twice their digits and two more, so that its rounding
   on the way would change nothing. */
struct Narrow {
    Cell cell;
    DEVICE void first(int, Cell c) { cell = c; }
    DEVICE void next(int kind, Cell c)
    {
        Lanes<u32> a(cell), b(c);
        const bool half = kind % 32 == TYPE_f16;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (kind == KIND(sum, f16))
                asm("add.rn.f16x2 %0, %0, %1;" : "+r"(a.at[i]) : "r"(b.at[i]));
            else if (kind == KIND(sum, bf16))
                asm("add.rn.bf16x2 %0, %0, %1;" : "+r"(a.at[i]) : "r"(b.at[i]));
            else
                a.at[i] = half ? product<Half>(a.at[i], b.at[i]) : product<Brain>(a.at[i], b.at[i]);
        cell = a.cell;
    }
    DEVICE Cell value(int) const { return cell; }

  private:
    template <class Type> static DEVICE u32 product(u32 a, u32 b)
    {
        const u16 low = Type::narrow(Type::wide((u16)a) * Type::wide((u16)b));
        const u16 high = Type::narrow(Type::wide((u16)(a >> 16)) * Type::wide((u16)(b >> 16)));
        return low | (u32)high << 16;
    }
};
#else
struct Narrow {
    f32 wide[8];
    static DEVICE bool is_half(int kind) { return kind % 32 == TYPE_f16; }
    static DEVICE void widen_kind(int kind, Cell c, f32 (&out)[8])
    {
        if (is_half(kind))
            widen<Half>(c, out);
        else
            widen<Brain>(c, out);
    }
    DEVICE void first(int kind, Cell c) { widen_kind(kind, c, wide); }
    DEVICE void next(int kind, Cell c)
    {
        f32 more[8];
        widen_kind(kind, c, more);
        const bool sum = kind / 32 == OP_sum;
#pragma unroll
        for (int i = 0; i < 8; i++)
            wide[i] = sum ? wide[i] + more[i] : wide[i] * more[i];
    }
    DEVICE Cell value(int kind) const
    {
        return is_half(kind) ? narrowed<Half>(wide) : narrowed<Brain>(wide);
    }
};
#endif
