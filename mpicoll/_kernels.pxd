"""Reduction kernels, for compiled code that calls them without the GIL."""

# dst = operands[0] op operands[1] op ..., left to right, n elements each, any alignment;
# dst may be exactly one of the operands, which otherwise stay as they are.
ctypedef void (*fold_function)(char *dst, char **operands, int count, Py_ssize_t n) noexcept nogil

# The kernel for an operator and a type (numbers of `OPS` and `TYPES`) at the level in use, or NULL.
cdef fold_function lookup(int op, int type) noexcept nogil
