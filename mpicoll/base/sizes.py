"""Sizes of messages: how they are written, read and swept.

Units are binary, as everywhere in MPI benchmarks: ``1K`` is 1024 bytes. Bandwidths are not: they
are given in GB/s with 1 GB = 1e9 bytes.
"""

from __future__ import annotations

import re
from itertools import count, takewhile

_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_LARGEST = 1 << 50
#: Most sizes of a sweep.
_MOST = 1 << 16


def parse_size(text: str) -> int:
    """Read one size in bytes, such as ``8``, ``64k``, ``4M`` or ``1GiB``.

    Raises:
        ValueError: if the text is no size, or larger than 1024T.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not a size; write a whole number of bytes with at most one unit "
            "of K, M, G or T, such as 8, 64K or 4M"
        )
    size = int(match[1]) << _UNITS[match[2].lower()]
    if size > _LARGEST:
        raise ValueError(f"size {text!r} is larger than the limit of {format_size(_LARGEST)}")
    return size


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read a list of sizes, such as ``8,64,1K``, in the order written.

    In ``64K-64M`` each size is 4 times the last.

    Raises:
        ValueError: if any part is no size, a range is empty, or the list is.
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        found += sweep(parse_size(first), parse_size(last), 4) if dash else [parse_size(part)]
    return tuple(found)


def format_size(size: int) -> str:
    """Write a size with the largest unit that divides it: 4096 is ``4K``, 4097 is ``4097``.

    ``parse_size(format_size(n)) == n`` for every size.
    """
    for unit in ("T", "G", "M", "K"):
        shift = _UNITS[unit.lower()]
        if size and size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return str(size)


def about_size(nbytes: float) -> str:
    """Write a size with three digits: 1234567 is ``1.18M``."""
    for unit, factor in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:.3g}{unit}"
    return f"{nbytes:.0f}"


def sweep(begin: int, end: int, factor: int | None = 2, step: int | None = None) -> tuple[int, ...]:
    """Sizes from ``begin`` up to and including ``end``, multiplied or stepped.

    Args:
        begin: First size in bytes.
        end: Largest size in bytes; it is met only if the sweep hits it.
        factor: What a size is multiplied by to give the next one. Not used with ``step``.
        step: Bytes added to a size to give the next one.

    Raises:
        ValueError: if the range is empty, does not grow, or has more than 65,536 sizes.
    """
    if begin > end:
        raise ValueError(
            f"the first size {format_size(begin)} is larger than the last size "
            f"{format_size(end)}; swap them or raise the last one"
        )
    if step is not None:
        if step < 1:
            raise ValueError(f"a step of {step} bytes does not grow; give at least 1")
        sizes = range(begin, end + 1, step)
        if len(sizes) > _MOST:
            raise ValueError(
                f"a step of {format_size(step)} from {format_size(begin)} to {format_size(end)} "
                f"makes {len(sizes):,} sizes, and the limit is {_MOST:,}; take a longer step"
            )
        return tuple(sizes)
    if factor is None or factor < 2:
        raise ValueError(f"a factor of {factor} does not grow; give at least 2")
    if begin < 1:
        raise ValueError(f"a sweep by a factor cannot start at {begin} bytes; start at 1 or more")
    powers = (begin * factor**number for number in count())
    return tuple(takewhile(lambda size: size <= end, powers))
