/* The kernels that are launched; mpicoll/cuda/kernels.py puts the files before this one. */

#define LAUNCHED(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)

template <bool WHOLE, bool GATHER, class Folded> DEVICE void longer(const Args &args, u64 done)
{
#if P > 2
    if (args.total) {
        two_phases<UNROLL, WHOLE, Folded>(args, done);
        return;
    }
#endif
    exchange<UNROLL, WHOLE, GATHER, Folded>(args, done);
}

#define KERNELS(name, WHOLE, GATHER, Folded) \
    LAUNCHED(SMALL, 1) name##_small(const __grid_constant__ Args args) \
    { \
        exchange<1, WHOLE, GATHER, Folded>(args); \
    } \
    LAUNCHED(LARGE, 1) name##_large(const __grid_constant__ Args args) \
    { \
        exchange<UNROLL, WHOLE, GATHER, Folded>(args); \
    } \
    LAUNCHED(LARGE, 1) name##_direct(const __grid_constant__ Args args) \
    { \
        direct_or<UNROLL, WHOLE, Folded>(args, [&](u64 done) { \
            longer<WHOLE, GATHER, Folded>(args, done); \
        }); \
    }

KERNELS(copy, false, true, Copied)
KERNELS(plain, false, false, Plain)
KERNELS(whole, true, false, Plain)
KERNELS(narrow, false, false, Narrow)

#if P > 2
#define TWO_PHASES(name, WHOLE, Folded) \
    LAUNCHED(LARGE, 1) name##_phases(const __grid_constant__ Args args) \
    { \
        two_phases<UNROLL, WHOLE, Folded>(args); \
    }

TWO_PHASES(copy, false, Copied)
TWO_PHASES(plain, false, Plain)
TWO_PHASES(whole, true, Plain)
TWO_PHASES(narrow, false, Narrow)
#endif
