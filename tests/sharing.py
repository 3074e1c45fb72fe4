"""Several ranks on one GPU: slow, so that programs do not get it, but right, so that tests can."""

from __future__ import annotations

import contextlib
from functools import partial


@contextlib.contextmanager
def allowed():
    """Let communicators take ``cuda_ipc`` where ranks share a GPU."""
    from mpicoll.cuda.ipc import Peers

    before = vars(Peers)["open"]
    Peers.open = partial(Peers.open, share=True)
    try:
        yield
    finally:
        Peers.open = before
