"""The kernels' source, and its compilation by CuPy."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from mpicoll.cuda.keys import OPS, TYPES
from mpicoll.cuda.launches import BULK, Limits

FAMILIES = ("copy", "plain", "whole", "narrow")
FILES = ("fold.cuh", "exchange.cuh", "direct.cuh", "ring.cuh", "kernels.cu")


def names(size: int, ring: bool = False) -> list[str]:
    """The kernels that a communicator of this many ranks has, linked all with all or in a ring."""
    packets = ("small", "large", *(("phases",) if size > 2 else ()))
    found = [f"{family}_{suffix}" for family in FAMILIES for suffix in packets]
    bulk = [suffix for suffix in BULK if ring or suffix != "ring"]
    return found + [f"{family}_{s}" for family in FAMILIES for s in bulk if family != "whole"]


@cache
def source(names: tuple[str, ...] = FILES) -> str:
    """The source of kernels: the numbers of operators and types, and one file behind the other."""
    here = Path(__file__).parent
    enums = [
        f"enum {{ {', '.join(f'{prefix}_{name}' for name in table)} }};\n"
        for prefix, table in (("OP", OPS), ("TYPE", TYPES))
    ]
    return "".join(
        (
            *enums,
            *(f'#line 1 "{name}"\n{(here / name).read_text(encoding="utf-8")}' for name in names),
        )
    )


def options(size: int, limits: Limits) -> tuple[str, ...]:
    """What the compiler is told.

    No contraction: a fused multiply-add rounds differently from the host's kernels.  (That nothing
    is flushed to zero, the source sees to itself.)
    """
    return (
        "--std=c++17",
        "--fmad=false",
        f"-DP={size}",
        f"-DSMALL={limits.small}",
        f"-DLARGE={limits.large}",
        f"-DBULK_THREADS={limits.bulk}",
        f"-DLARGE_ROWS={limits.rows}",
        f"-DBULK_ROWS={limits.bulk_rows}",
        *(("-DRING",) if limits.ring else ()),
    )


def compiled(size: int, limits: Limits) -> dict[str, Any]:
    """The kernels, loaded on the current device as long as these are kept; ``ptr``: their handles.

    CuPy keeps what has been compiled on disk.

    Raises:
        cupy.cuda.compiler.CompileException: the compiler rejects the source.
    """
    import cupy

    module = cupy.RawModule(code=source(), options=options(size, limits))
    return {name: module.get_function(name).kernel for name in names(size, bool(limits.ring))}
