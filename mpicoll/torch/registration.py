"""What PyTorch is told: the names, and who is called when they are used.

An entry point lets PyTorch import this with itself: so neither NumPy nor mpi4py is imported before
a process group is made.  PyTorch is imported by the functions alone: where this comes first,
PyTorch calls `autoload` in the middle of its own import.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

BACKEND = "mpicoll"
SCHEME = "mpi"


def register() -> None:
    """Make the backend and ``mpi://`` known to PyTorch; the second time it does nothing.

    Raises:
        RuntimeError: this PyTorch is built without torch.distributed.
    """
    import torch.distributed

    if not torch.distributed.is_available():
        raise RuntimeError(
            f"PyTorch {torch.__version__} is built without torch.distributed; install one with it"
        )
    if not hasattr(torch.distributed.Backend, BACKEND.upper()):
        torch.distributed.Backend.register_backend(
            BACKEND, _group, extended_api=True, devices=["cpu", "cuda"]
        )
        torch.distributed.register_rendezvous_handler(SCHEME, _rendezvous)


def autoload() -> None:
    """The same for PyTorch's entry point, where an exception would break every program's import."""
    try:
        import torch.distributed

        if torch.distributed.is_available():
            register()
    except Exception as error:
        with suppress(Exception):  # a warning may be one
            warnings.warn(
                f'the backend "{BACKEND}" is not available: {error}', RuntimeWarning, stacklevel=2
            )


def _group(options: Any, more: Any) -> Any:
    from mpicoll.torch.creation import create

    return create(options)


def _rendezvous(url: str, **more: Any) -> Any:
    from mpicoll.torch.rendezvous import rendezvous

    return rendezvous(url, **more)
