"""Arithmetic on the elements of arrays: the reductions, rounded and exact."""

from mpicoll.ops.reductions import *
from mpicoll.ops.reductions import __all__ as __all__
