"""Predicting how long a schedule takes, without MPI."""

from mpicoll.simulate.simulation import *
from mpicoll.simulate.simulation import __all__ as __all__
