/* Folds of operands that lie one behind the other; mpicoll/cuda/folds.py puts fold.cuh before this.

   Operand k begins k * pitch cells after the first, in whose place the result is. Behind the last
   element there may be anything up to the end of a cell. */

#define RELAY(name, Folded) \
    extern "C" __global__ void relay_##name(u64 cells, u64 pitch, int kind, Cell *at) \
    { \
        const u64 step = (u64)gridDim.x * blockDim.x; \
        for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < cells; i += step) { \
            Folded folded; \
            folded.first(kind, at[i]); \
            for (int k = 1; k < P; k++) \
                folded.next(kind, at[k * pitch + i]); \
            at[i] = folded.value(kind); \
        } \
    }

RELAY(plain, Plain)
RELAY(narrow, Narrow)
