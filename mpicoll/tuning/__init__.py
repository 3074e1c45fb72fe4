"""Which algorithm a call takes where nobody names one."""

from mpicoll.tuning.rules import *
from mpicoll.tuning.rules import __all__ as __all__
