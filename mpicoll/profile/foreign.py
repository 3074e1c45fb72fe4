"""Libraries in this process that may call MPI by themselves: what they call is not recorded."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from mpi4py import MPI

from mpicoll.base import libraries

_OURS = (Path(str(MPI.__file__)).parent, Path(__file__).parent.parent)


def calling_mpi() -> list[str]:
    """Names of loaded files that are linked to an MPI library, but for mpi4py's and mpicoll's own.

    Empty where the system does not tell which files are loaded.
    """
    folders = {path.parent for path in libraries.loaded(r"libmpi\w*\.so")}
    return sorted(
        path.name
        for path in libraries.loaded(r".*\.so")
        if not folders & {path.parent, path.parent.parent}
        and not any(ours in path.parents for ours in _OURS)
        and _names_mpi(path)
    )


def _names_mpi(path: Path) -> bool:
    """Whether a file has the name of an MPI library among its strings, as one it needs."""
    try:
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return False
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return content.find(b"\0libmpi") >= 0
    except (OSError, ValueError):
        return False
