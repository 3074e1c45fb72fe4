"""Reductions on a GPU of what has come there through the host; the bits are those of the host's."""

from __future__ import annotations

import sys
from typing import Any

from mpicoll import ops
from mpicoll.cuda import kernels, keys
from mpicoll.cuda.driver import driver

_THREADS, _BLOCKS = 256, 512
#: Bytes of a cell, see fold.cuh.
CELL = 16


class Folds:
    """The reductions of one GPU.

    Args:
        device: number of the GPU.
        size: operands, one a rank.

    Raises:
        Exception: CuPy's, where the compiler rejects the source.
    """

    def __init__(self, device: int, size: int) -> None:
        cupy: Any = sys.modules["cupy"]
        self._device = device
        source = kernels.source(("fold.cuh", "relay.cu"))
        options = ("--std=c++17", "--fmad=false", f"-DP={size}")
        with cupy.cuda.Device(device):
            module = cupy.RawModule(code=source, options=options)
            # These keep what is loaded; the module does not.
            self._functions = {
                name: module.get_function(f"relay_{name}").kernel for name in ("plain", "narrow")
            }

    @staticmethod
    def serves(reduction: ops.Reduction) -> bool:
        """Whether an operator is one that GPUs reduce by."""
        return reduction.name in keys.OPS and reduction.type in keys.TYPES

    def run(
        self, reduction: ops.Reduction, address: int, pitch: int, nbytes: int, stream: int
    ) -> None:
        """Fold operands into the place of the first, in the order of a stream.

        Args:
            reduction: the operator.
            address, pitch: of the first operand, and bytes from one to the next; multiples of 16.
            nbytes: of an operand; up to the next multiple of 16 there is memory.
            stream: handle of a stream.
        """
        cells = -(-nbytes // CELL)
        narrow = keys.kernel_of(reduction.name, reduction.type) == "narrow"
        kind = keys.kind_of(reduction.name, reduction.type)
        arguments = cells, pitch // CELL, kind, address
        blocks = min(_BLOCKS, -(-cells // _THREADS))
        with driver().on(self._device):
            function = self._functions["narrow" if narrow else "plain"]
            driver().launch(function.ptr, blocks, _THREADS, arguments, stream)
