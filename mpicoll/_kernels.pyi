from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

OPS: Final[dict[str, int]]
TYPES: Final[dict[str, int]]

def levels() -> tuple[str, ...]: ...
def level() -> str: ...
def use_level(name: str) -> None: ...
def has(op: str, type: str) -> bool: ...
def fold(
    op: str,
    type: str,
    dtype: np.dtype[Any],
    dst: npt.NDArray[Any],
    operands: Sequence[npt.NDArray[Any]],
) -> None: ...
