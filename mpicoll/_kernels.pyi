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
def update_sgd(
    weights: npt.NDArray[Any],
    gradient: npt.NDArray[Any],
    velocity: npt.NDArray[Any] | None,
    lr: float,
    momentum: float,
    decay: float,
    nesterov: bool,
) -> None: ...
def update_adam(
    weights: npt.NDArray[Any],
    gradient: npt.NDArray[Any],
    mean: npt.NDArray[Any],
    square: npt.NDArray[Any],
    keep: float,
    decay: float,
    beta1: float,
    beta2: float,
    correction: float,
    epsilon: float,
    rate: float,
) -> None: ...
def add_squares(values: npt.NDArray[Any], sums: npt.NDArray[np.int64]) -> None: ...
