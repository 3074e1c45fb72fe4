"""How many threads the BLAS library under NumPy may use. Imports no NumPy: it must come first.

A BLAS library starts as many threads as the machine has cores, in every rank: P ranks on one node
then fight for the cores with P times as many threads. It also rounds differently with another
number of threads, which would blur the comparison of P ranks with one process. So training uses
one thread a rank, unless the user chose a number.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping

#: Read by OpenBLAS, by anything built with OpenMP, and by MKL, BLIS and Apple's Accelerate.
VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def limit_blas_threads(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Limit BLAS to one thread, unless the user set one of `VARIABLES` or it is too late.

    The libraries read their variables once, when NumPy is loaded.

    Returns:
        True if the limit was set here.
    """
    if "numpy" in sys.modules or any(name in environ for name in VARIABLES):
        return False
    environ.update(dict.fromkeys(VARIABLES, "1"))
    return True


def describe_blas_threads(environ: Mapping[str, str] = os.environ) -> str:
    """The limit in words, for a report: `1`, or `OMP_NUM_THREADS=4`, or `not limited`."""
    chosen = {name: environ[name] for name in VARIABLES if name in environ}
    if set(chosen.values()) == {"1"}:
        return "1"
    return ", ".join(f"{name}={value}" for name, value in chosen.items()) or "not limited"
