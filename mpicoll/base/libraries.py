"""What the shared libraries loaded into this process say about themselves.

Nothing is guessed from names or versions: a library is asked through its own functions, and where
it has none the answer is None.
"""

from __future__ import annotations

import ctypes
import os
import re
from functools import cache
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_COMPILERS = re.compile(rb"GCC: \([^)\0]*\) [0-9.]+|clang version [0-9.]+|icx [0-9.]+")
_BLAS_THREADS = (
    "scipy_openblas_get_num_threads64_",
    "scipy_openblas_get_num_threads",
    "openblas_get_num_threads64_",
    "openblas_get_num_threads",
    "MKL_Get_Max_Threads",
    "bli_thread_get_num_threads",
)


def loaded(pattern: str) -> list[Path]:
    """Paths of the loaded libraries whose file name matches a pattern, each once.

    Empty where the system does not tell.
    """
    from pathlib import Path  # which takes as long as all of this file

    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(Path(line.split(maxsplit=5)[5]) for line in lines if "/" in line)
    return [path for path in paths if re.match(pattern, path.name)]


def _answer(pattern: str, *names: str) -> int | None:
    """What the first of some functions that a loaded library has returns; none is loaded anew."""
    for path, name in product(loaded(pattern), names):
        try:
            function = getattr(ctypes.CDLL(str(path), os.RTLD_NOLOAD | os.RTLD_LAZY), name)
        except (OSError, AttributeError):
            continue
        function.restype, function.argtypes = ctypes.c_int, []
        return int(function())
    return None


#: Methods by which a CUDA-aware library reduces arrays in device memory.  Open MPI 4.1 makes other
#: reductions, those that do not block among them, by the host's loads, and crashes.
REDUCING_ON_DEVICE = frozenset({"Allreduce", "Reduce", "Reduce_scatter_block", "Scan", "Exscan"})


@cache
def cuda_aware() -> bool | None:
    """Whether the loaded MPI library takes pointers to CUDA memory; None if it does not say.

    It is asked by MPIX_Query_cuda_support, which Open MPI and MPICH have.
    """
    answer = _answer(r"lib(mpi|mpich|mpi_\w+)\.so", "MPIX_Query_cuda_support")
    return None if answer is None else bool(answer)


def blas_threads() -> int | None:
    """Threads that the loaded BLAS library would use; None if it does not say."""
    return _answer(r"lib\w*(openblas|mkl_rt|blis)", *_BLAS_THREADS)


def compiler_of(extension: str) -> str | None:
    """The compiler that wrote itself into a compiled file; None if none did."""
    with open(extension, "rb") as file:
        match = _COMPILERS.search(file.read())
    return match[0].decode("ascii", "replace") if match else None
