"""Speed of the reduction kernels against NumPy's ufuncs with out=, on one core.

    python benchmarks/kernels.py [--ops sum max] [--types float16] [--json results.jsonl]

For each operator, dtype and size (bytes of one array) two operands are folded into a third array.
The two ways alternate, sample by sample, in random order; CPU time of the thread is counted, so
that other work on the machine disturbs less. GB/s counts what is read and written (three arrays),
by the median over the samples. The ratio is that of our speed to NumPy's, the median over pairs of
neighbouring samples with its 95 % interval (order statistics); above 1 the kernels are faster.
The documentation shows the runs that benchmarks/results/kernels.jsonl holds.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from statistics import median
from typing import Any

import numpy as np

import mpicoll
from mpicoll import ops
from mpicoll.base import processors
from mpicoll.base.json_lines import Appender, Attempt

UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
DTYPES = (
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("bool", "float16", "bfloat16", "float32", "float64", "longdouble"),
    *("complex64", "complex128", "clongdouble"),
)
SIZES = (16 << 10, 4 << 20)


def dtype_of(name: str) -> np.dtype[Any] | None:
    """The dtype, None for bfloat16 where ml_dtypes is missing."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        return None
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def seconds(call: Callable[[], object], repeat: int) -> float:
    """CPU seconds of one call, averaged over `repeat` calls in a row."""
    start = time.thread_time()
    for _ in range(repeat):
        call()
    return (time.thread_time() - start) / repeat


def interval(values: list[float]) -> tuple[float, float]:
    """95 % interval of the median: ranks n/2 -+ 0.98 sqrt(n) of the sorted values."""
    ordered, half = sorted(values), 0.98 * len(values) ** 0.5
    low = max(0, int(len(values) / 2 - half))
    return ordered[low], ordered[-1 - low]


def measure(
    op: str, dtype: np.dtype[Any], nbytes: int, samples: int, target: float
) -> dict[str, Any]:
    """One line of the table; `target` seconds a sample."""
    rng = np.random.default_rng(0)
    n = nbytes // dtype.itemsize
    a, b = (rng.integers(0, 2, n).astype(dtype) for _ in range(2))
    out = np.empty_like(a)
    reduction, ufunc, operands = ops.reduction(op, dtype), UFUNCS[op], (a, b)

    def ours() -> None:
        reduction.fold(out, operands)

    def theirs() -> None:
        ufunc(a, b, out=out)

    ways = (ours, theirs)
    repeats = [max(1, int(target / max(seconds(way, 2), 1e-7))) for way in ways]
    rows = []
    for _ in range(samples):
        row = [0.0, 0.0]
        for way in rng.permutation(2):
            row[way] = seconds(ways[way], repeats[way])
        rows.append(row)
    ratios = [numpy / mine for mine, numpy in rows]
    low, high = interval(ratios)
    return {
        "op": op,
        "dtype": dtype.name,
        "bytes": nbytes,
        "gbps": 3e-9 * nbytes / median(row[0] for row in rows),
        "numpy_gbps": 3e-9 * nbytes / median(row[1] for row in rows),
        "ratio": median(ratios),
        "ratio_low": low,
        "ratio_high": high,
    }


def facts(samples: int) -> dict[str, Any]:
    """When, where and of what a run is."""
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "mpicoll": mpicoll.__version__,
        "numpy": np.__version__,
        "processor": processors.model_name(),
        "system": f"{platform.system()} {platform.release()}",
        "level": ops.simd_level(),
        "samples": samples,
    }


def cases(chosen_ops: list[str], chosen_types: list[str]) -> Iterator[tuple[str, np.dtype[Any]]]:
    """Pairs of operator and dtype that make sense."""
    for op in chosen_ops:
        for name in chosen_types:
            dtype = dtype_of(name)
            if dtype is None:
                continue
            try:
                ops.reduction(op, dtype)
            except TypeError:
                continue
            yield op, dtype


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ops", nargs="+", choices=list(UFUNCS), default=list(UFUNCS))
    parser.add_argument("--types", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--bytes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--samples", type=int, default=21)
    parser.add_argument("--target", type=float, default=2e-3, help="seconds of one sample")
    parser.add_argument("--level", choices=ops.simd_levels(), default=ops.simd_level())
    parser.add_argument("--json", help="append a line for the run, and one a case, to this file")
    options = parser.parse_args()
    ops.use_simd_level(options.level)
    run = facts(options.samples)
    lines = [run]
    for op, dtype in cases(options.ops, options.types):
        for nbytes in options.bytes:
            line = measure(op, dtype, nbytes, options.samples, options.target)
            lines.append(line)
            print(
                f"{op:5} {line['dtype']:11} {nbytes:>8} B {line['gbps']:7.1f} GB/s, NumPy "
                f"{line['numpy_gbps']:7.1f}, ratio {line['ratio']:6.2f} "
                f"[{line['ratio_low']:.2f}, {line['ratio_high']:.2f}]",
                flush=True,
            )
    if options.json:
        with Appender(options.json) as file:
            for line in lines:
                file.append(Attempt(run["started"]), line)


if __name__ == "__main__":
    main()
