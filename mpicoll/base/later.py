"""A module that is imported when something of it is first asked for.

For what few programs need and would slow down the start of all.  Where it stands for a module, an
import for type checkers alone says which (``if TYPE_CHECKING:``).
"""

from __future__ import annotations

import importlib
from typing import Any


class Later:
    """Stands for a module.

    Args:
        name: Of the module, in full.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)
