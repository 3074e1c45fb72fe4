"""The language of schedules, and what a schedule must achieve; standard library only."""

from mpicoll.schedule.steps import *
from mpicoll.schedule.steps import __all__ as __all__
