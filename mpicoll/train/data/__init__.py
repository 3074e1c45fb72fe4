"""Data sets, and which samples each rank sees in each step."""

from mpicoll.train.data.datasets import *
from mpicoll.train.data.datasets import __all__ as __all__
