"""Whether memory that a step frees goes back to the system.

Each step allocates and frees the same arrays.  glibc returns freed memory to the system as soon as
2 MiB or so are free at the end of its heap, and the kernel clears every page of it when the next
microbatch takes it again: up to a quarter of the step of a small transformer.  So training keeps
what is freed for the next step.  The most memory that a process has at a time stays as it was.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

#: Set by users who have chosen themselves.
VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
#: Parameters of mallopt, in glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: The largest threshold that glibc accepts; arrays beyond it are mapped, and unmapped when freed.
_LARGEST = 32 << 20


def keep_freed(environ: Mapping[str, str] = os.environ) -> bool:
    """Keep freed memory for the next step, unless the user set one of `VARIABLES`.

    Returns:
        Whether it is kept: False if the C library is not glibc, too.
    """
    if any(name in environ for name in VARIABLES):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    never = -1
    return bool(
        library.mallopt(_MMAP_THRESHOLD, _LARGEST) and library.mallopt(_TRIM_THRESHOLD, never)
    )
