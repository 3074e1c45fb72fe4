from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

def run(
    numbers: Mapping[str, int], arrays: Mapping[str, npt.NDArray[Any]]
) -> tuple[list[int], list[int], int, int]: ...
