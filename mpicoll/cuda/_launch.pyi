"""See _cuda_launch.pyx."""

from typing import Any

def __getattr__(name: str) -> Any: ...
