"""The algorithms, one module per family.  Importing this package fills the catalogue."""

from mpicoll.algorithms import (
    dissemination,
    double_tree,
    linear,
    parameter_server,
    recursive,
    ring,
)
from mpicoll.registry import catalogue, find, names

__all__ = [
    "catalogue",
    "dissemination",
    "double_tree",
    "find",
    "linear",
    "names",
    "parameter_server",
    "recursive",
    "ring",
]
