"""The names of the transports of device memory; :mod:`mpicoll.cuda.group` says what they are."""

from __future__ import annotations

CUDA_IPC, AWARE, STAGED = "cuda_ipc", "aware", "staged"
#: What ``MPICOLL_GPU`` accepts; ``auto``: the first one that can serve.
TRANSPORTS = ("auto", CUDA_IPC, AWARE, STAGED)
