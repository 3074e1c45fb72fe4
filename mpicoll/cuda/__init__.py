"""GPUs: which of them are linked, their memory, streams and kernels, and messages between them.

Nothing here imports CuPy, PyTorch or another library of arrays: where a program brings one, its
arrays are taken.  The driver's library is opened when the first array in device memory comes.

:func:`mpicoll.cuda.empty` and :func:`mpicoll.cuda.register` are imported when they are asked for.
"""

import importlib
from typing import Any

__all__ = ["empty", "register"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # By name: they need the communicators, which are built upon this package.
    home = importlib.import_module("mpicoll.comm.arrays")
    return home.empty_on_device if name == "empty" else home.register
