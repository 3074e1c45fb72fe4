"""Compiled reductions and updates of weights: one pass, no temporaries, without the GIL.

What the kernels promise is said in `_kernels.h` and `_updates.h`.  Python calls the reductions
through `ops`, and the updates through `train.optimizers`.
"""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from mpicoll.base.wording import plural

cnp.import_array()


cdef extern from "_kernels.h" nogil:
    const char *kernels_op_names[]
    const char *kernels_type_names[]
    int KERNELS_OP_COUNT
    int KERNELS_TYPE_COUNT
    int KERNELS_LEVEL_COUNT
    bint kernels_available(int level)
    const char *kernels_level_name(int level)
    fold_function kernels_at(int level, int op, int type)

cdef extern from "_updates.h" nogil:
    void update_sgd_f32(int level, float *w, const float *g, float *velocity, Py_ssize_t n,
                        float lr, float momentum, float decay, bint nesterov)
    void update_sgd_f64(int level, double *w, const double *g, double *velocity, Py_ssize_t n,
                        double lr, double momentum, double decay, bint nesterov)
    void update_adam_f32(int level, float *w, const float *g, float *mean, float *square,
                         Py_ssize_t n, float keep, float decay, float beta1, float rest1,
                         float beta2, float rest2, float correction, float epsilon, float rate)
    void update_adam_f64(int level, double *w, const double *g, double *mean, double *square,
                         Py_ssize_t n, double keep, double decay, double beta1, double rest1,
                         double beta2, double rest2, double correction, double epsilon,
                         double rate)


OPS = {kernels_op_names[i].decode(): i for i in range(KERNELS_OP_COUNT)}
TYPES = {kernels_type_names[i].decode(): i for i in range(KERNELS_TYPE_COUNT)}

cdef dict _available = {
    kernels_level_name(i).decode(): i for i in range(KERNELS_LEVEL_COUNT) if kernels_available(i)
}
cdef int _level = max(_available.values())


cdef fold_function lookup(int op, int type) noexcept nogil:
    return kernels_at(_level, op, type)


def levels():
    """The instruction sets that this processor has, from the plainest to the widest."""
    return tuple(_available)


def level():
    """The instruction set in use."""
    return kernels_level_name(_level).decode()


def use_level(str name not None):
    """Use this instruction set from now on, in all threads.

    Raises:
        ValueError: this processor does not have it.
    """
    global _level
    if name not in _available:
        raise ValueError(
            f"instruction set {name!r} is not available here: choose one of {', '.join(_available)}"
        )
    _level = _available[name]


def has(str op not None, str type not None):
    """Whether there is a kernel for an operator and a type (names of `OPS` and `TYPES`)."""
    return op in OPS and type in TYPES and lookup(OPS[op], TYPES[type]) != NULL


def fold(str op not None, str type not None, dtype, dst, operands):
    """dst = operands[0] op operands[1] op ..., left to right.

    Args:
        op, type: Names of `OPS` and `TYPES`.
        dtype: NumPy dtype of all the arrays, the one that `type` names.
        dst: Writable contiguous array; exactly the memory of an operand, or apart from all.
        operands: At least one contiguous array, each as long as `dst`.

    Raises:
        TypeError: There is no such kernel, or what should be an array is none or has another dtype.
        ValueError: No operand, or one of another length than `dst`; an array is not contiguous, or
            `dst` not writable.
    """
    cdef fold_function kernel = NULL
    if op in OPS and type in TYPES:
        kernel = lookup(OPS[op], TYPES[type])
    if kernel == NULL:
        raise TypeError(f"no kernel for {op} of {type}")
    cdef tuple held = tuple(operands)  # so that no other thread takes them away meanwhile
    cdef int count = len(held), i
    if count == 0:
        raise ValueError("nothing to fold: pass at least one operand")
    cdef cnp.ndarray target = _checked(dst, op, dtype), operand
    if not cnp.PyArray_ISWRITEABLE(target):
        raise ValueError(f"the result of {op} is read-only: pass a writable array")
    cdef char **addresses = <char **> malloc(count * sizeof(char *))
    if addresses == NULL:
        raise MemoryError
    cdef char *to = cnp.PyArray_BYTES(target)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(target)
    try:
        for i in range(count):
            operand = _checked(held[i], op, dtype)
            if cnp.PyArray_SIZE(operand) != n:
                raise ValueError(
                    f"operand {i} has {plural(operand.size, 'element')}, the result {n}: "
                    "they must be equally long"
                )
            addresses[i] = cnp.PyArray_BYTES(operand)
        with nogil:
            kernel(to, addresses, count, n)
    finally:
        free(addresses)


cdef cnp.ndarray _checked(given, str op, dtype):
    """What was given, if it is a contiguous array of this dtype."""
    cdef cnp.ndarray array = <cnp.ndarray?> given
    cdef object own = array.descr
    if own is not dtype and own != dtype:
        raise TypeError(f"{op} of {dtype} cannot fold an array of {own}")
    if not cnp.PyArray_IS_C_CONTIGUOUS(array):
        raise ValueError(f"{op} folds contiguous arrays only: pass a copy (array.copy())")
    return array


ctypedef fused real:
    float
    double


def update_sgd(
    real[::1] weights not None,
    const real[::1] gradient not None,
    real[::1] velocity,
    double lr,
    double momentum,
    double decay,
    bint nesterov,
):
    """Change weights as `mpicoll.train.optimizers.SGD` does, and the velocity if there is one.

    Raises:
        ValueError: The lengths differ, or one is not contiguous.
    """
    cdef Py_ssize_t n = weights.shape[0]
    cdef real *v = NULL
    if velocity is not None:
        _require_length(n, velocity.shape[0])
    _require_length(n, gradient.shape[0])
    if n == 0:
        return
    if velocity is not None:
        v = &velocity[0]
    with nogil:
        if real is float:
            update_sgd_f32(_level, &weights[0], &gradient[0], v, n, lr, momentum, decay, nesterov)
        else:
            update_sgd_f64(_level, &weights[0], &gradient[0], v, n, lr, momentum, decay, nesterov)


def update_adam(
    real[::1] weights not None,
    const real[::1] gradient not None,
    real[::1] mean not None,
    real[::1] square not None,
    double keep,
    double decay,
    double beta1,
    double beta2,
    double correction,
    double epsilon,
    double rate,
):
    """Change weights and means as `mpicoll.train.optimizers.Adam` does.

    Args:
        keep: Factor of the weights, other than 1 where decay is decoupled.
        correction: Divides the mean of squares.
        rate: Learning rate, divided by the correction of the mean.

    Raises:
        ValueError: The lengths differ, or one is not contiguous.
    """
    cdef Py_ssize_t n = weights.shape[0]
    cdef double rest1 = 1 - beta1, rest2 = 1 - beta2
    for length in (gradient.shape[0], mean.shape[0], square.shape[0]):
        _require_length(n, length)
    if n == 0:
        return
    with nogil:
        if real is float:
            update_adam_f32(
                _level, &weights[0], &gradient[0], &mean[0], &square[0], n, keep, decay, beta1,
                rest1, beta2, rest2, correction, epsilon, rate
            )
        else:
            update_adam_f64(
                _level, &weights[0], &gradient[0], &mean[0], &square[0], n, keep, decay, beta1,
                rest1, beta2, rest2, correction, epsilon, rate
            )


def add_squares(const real[::1] values not None, int64_t[:, ::1] sums not None):
    """Add the squares of at most 2^31 values, each rounded to float64, exactly.

    Args:
        values: Any.
        sums: Shape (2, 2049).  Row 0 has the lower 32 bits of significands, row 1 the others, added
            up by exponent: column 0 for numbers below the least normal one, 2047 for infinity, 2048
            for NaN.

    Raises:
        ValueError: `sums` has another shape, or `values` is not contiguous.
    """
    if sums.shape[0] != 2 or sums.shape[1] != 2049:
        raise ValueError(f"sums have shape {(sums.shape[0], sums.shape[1])}: give (2, 2049)")
    cdef Py_ssize_t i
    cdef double square
    cdef uint64_t bits, significand, exponent, leading = <uint64_t> 1 << 52
    cdef int64_t *low = &sums[0, 0]
    cdef int64_t *high = &sums[1, 0]
    with nogil:
        for i in range(values.shape[0]):
            square = <double> values[i] * <double> values[i]
            memcpy(&bits, &square, sizeof(bits))
            exponent = bits >> 52 & 0x7ff
            significand = bits & (leading - 1)
            if exponent == 0x7ff and significand:
                exponent = 0x800
            if exponent:
                significand |= leading
            low[exponent] += significand & <uint64_t> 0xffffffff
            high[exponent] += significand >> 32


cdef int _require_length(Py_ssize_t wanted, Py_ssize_t found) except -1:
    if found != wanted:
        raise ValueError(
            f"an array has {plural(found, 'element')}, the weights {wanted}: give equally many"
        )
    return 0
