"""Errors and warnings that a program may want to catch."""

from __future__ import annotations

__all__ = [
    "CudaError",
    "Disagreement",
    "FallbackWarning",
    "LaunchWarning",
    "TransportWarning",
    "UnknownDatatype",
    "Unordered",
    "Unsupported",
]


class FallbackWarning(RuntimeWarning):
    """The MPI library's own collective ran because mpicoll cannot serve the call."""


class LaunchWarning(RuntimeWarning):
    """Several processes were launched, and each of them is alone."""


class TransportWarning(RuntimeWarning):
    """A faster transport than the one that serves cannot be used; says why."""


class Unsupported(TypeError):
    """A legal argument that only the MPI library's own collective can serve; says why."""


class UnknownDatatype(KeyError, TypeError):
    """A datatype that MPI does not have: KeyError as in mpi4py, and a TypeError."""

    __str__ = Exception.__str__


class Disagreement(RuntimeError):
    """Ranks of a communicator do not make the same call; raised on all of them."""


class CudaError(RuntimeError):
    """What the CUDA driver has reported."""


class Unordered(RuntimeError):
    """A call cannot be put in the order of those before it; it has not been made."""
