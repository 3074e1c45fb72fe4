"""From what users pass to memory: buffers, datatypes, and how they are packed."""

from mpicoll.buffers.buffer import Buffer, Kind, View
from mpicoll.buffers.datatypes import kind_of
from mpicoll.buffers.parsing import by_value, goes_by_value, items, natural, parse, view
from mpicoll.errors import Unsupported

__all__ = [
    "Buffer",
    "Kind",
    "Unsupported",
    "View",
    "by_value",
    "goes_by_value",
    "items",
    "kind_of",
    "natural",
    "parse",
    "view",
]
