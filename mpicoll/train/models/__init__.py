"""Models: their layers and their parameters."""

from mpicoll.train.models.networks import *
from mpicoll.train.models.networks import __all__ as __all__
