"""Pipeline schedules: the order in which ranks compute a training step.

An order is a generator of a few lines: it yields the chunk and the microbatch that a rank computes
next.  Passes add messages and recomputation.  The result is a program for each rank, which is
verified, simulated, drawn and run.  Needs only the standard library.
"""

from mpicoll.train.step import registered  # noqa: F401 - fills the catalogue
from mpicoll.train.step.catalogue import Order, Schedule, find, names, register, schedule
from mpicoll.train.step.checking import Verdict, check
from mpicoll.train.step.core import DeadlockError
from mpicoll.train.step.tasks import (
    Durations,
    Task,
    backward,
    backward_input,
    backward_weight,
    folded,
    forward,
    looped,
    update,
)
from mpicoll.train.step.timing import Timing, simulate

__all__ = [
    "DeadlockError",
    "Durations",
    "Order",
    "Schedule",
    "Task",
    "Timing",
    "Verdict",
    "backward",
    "backward_input",
    "backward_weight",
    "check",
    "find",
    "folded",
    "forward",
    "looped",
    "names",
    "register",
    "schedule",
    "simulate",
    "update",
]
