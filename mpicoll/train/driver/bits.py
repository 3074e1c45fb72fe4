"""What equal bits depend on besides the order of sums, and which algorithms keep that order."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll import algorithms, local, ops
from mpicoll.base import processors
from mpicoll.train import threads

#: Ranks at most on which an algorithm is tried.
_MOST = 32


def require_one_thread() -> None:
    """Refuse BLAS libraries of several threads: they round differently with another number.

    Raises:
        ValueError: Their number is another, or nobody has limited it.
    """
    found = threads.describe_blas_threads()
    if found != "1":
        raise ValueError(
            f"BLAS threads are {found}, and bits depend on their number: set "
            "OPENBLAS_NUM_THREADS=1, or call mpicoll.train.threads.limit_blas_threads() before "
            "NumPy is loaded"
        )


def require_fixed_order(algorithm: str, size: int) -> None:
    """Refuse all-reduce algorithms that add blocks up in orders of their own.

    Raises:
        ValueError: With this one, a sum depends on where in the vector it is.
    """
    tried = min(size, _MOST)
    if not has_fixed_order(algorithm, tried):
        known = [name for name in algorithms.names("allreduce") if has_fixed_order(name, tried)]
        raise ValueError(
            f"with {algorithm} the order of a sum depends on where in a bucket it is, so that bits "
            f"depend on the bucket size: give {', '.join(known)}"
        )


@cache
def has_fixed_order(algorithm: str, size: int) -> bool:
    """Whether an all-reduce makes the sum of every element by the same expression.

    It is tried in this process with an operator that is neither associative nor commutative, on
    numbers that are equal in all elements: so expressions that differ have values that differ.
    """
    entry = algorithms.find("allreduce", algorithm)
    if not entry.runs_on(size):
        return False
    length = 8 * entry.blocks(size)
    vectors = [np.full(length, 1000 + rank) for rank in range(size)]
    grouped = ops.user(_grouped, np.int64, commutative=True)  # not so: it is to be given to all
    (found, *_) = local.execute(entry, vectors, grouped)
    assert found is not None
    return bool((found == found[0]).all())


def _grouped(left: NDArray[np.int64], right: NDArray[np.int64]) -> None:
    right[:] = (31 * left + 17 * right + 7) % 1_000_003


def machine() -> dict[str, str]:
    """Processor, NumPy and its BLAS library: what equal bits are promised for."""
    built: Any = np.show_config(mode="dicts") or {}
    blas = built.get("Build Dependencies", {}).get("blas", {})
    return {
        "processor": processors.model_name(),
        "NumPy": np.__version__,
        "BLAS": f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip(),
    }
