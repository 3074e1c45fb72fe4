"""Which algorithm runs a call that names none."""

from mpicoll.tuning.rules import *
from mpicoll.tuning.rules import __all__ as __all__
