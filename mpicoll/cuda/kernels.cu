/* The kernels that are launched; mpicoll/cuda/kernels.py puts the files before this one. */

#define LAUNCHED(threads) extern "C" __global__ void __launch_bounds__(threads, 1)
#define ARGS const __grid_constant__ Args args

#define PACKETS(name, W, GATHER, Folded) \
    LAUNCHED(SMALL) name##_small(ARGS) { exchange<1, W, GATHER, Folded>(args); } \
    LAUNCHED(LARGE) name##_large(ARGS) { exchange<LARGE_ROWS, W, GATHER, Folded>(args); }

template <bool GATHER, class Folded> DEVICE void bulk(const Args &args, u64 done = 0)
{
#if P > 2
    if (args.total) {
        two_phases<BULK_ROWS, BULK, Folded>(args, done);
        return;
    }
#endif
    exchange<BULK_ROWS, BULK, GATHER, Folded>(args, done);
}

#define IN_BULK(name, GATHER, Folded) \
    LAUNCHED(BULK_THREADS) name##_bulk(ARGS) { bulk<GATHER, Folded>(args); } \
    LAUNCHED(BULK_THREADS) name##_direct(ARGS) \
    { \
        direct_or<BULK_ROWS, BULK, Folded>(args, [&](u64 done) { bulk<GATHER, Folded>(args, done); }); \
    }

PACKETS(copy, WORDS, true, Copied)
PACKETS(plain, WORDS, false, Plain)
PACKETS(whole, WHOLE, false, Plain)
PACKETS(narrow, WORDS, false, Narrow)
IN_BULK(copy, true, Copied)
IN_BULK(plain, false, Plain)
IN_BULK(narrow, false, Narrow)

#ifdef RING
IN_A_RING(copy, Copied)
IN_A_RING(plain, Plain)
IN_A_RING(narrow, Narrow)
#endif

#if P > 2
#define TWO_PHASES(name, W, Folded) \
    LAUNCHED(LARGE) name##_phases(ARGS) { two_phases<LARGE_ROWS, W, Folded>(args); }

TWO_PHASES(copy, WORDS, Copied)
TWO_PHASES(plain, WORDS, Plain)
TWO_PHASES(whole, WHOLE, Plain)
TWO_PHASES(narrow, WORDS, Narrow)
#endif
