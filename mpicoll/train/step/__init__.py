"""A training step as a schedule: in which order ranks compute, and all that follows from it.

An order says in a few lines when one rank computes which chunk of the model for which microbatch.
Passes add messages and recomputation; the result is a program of each rank, which is verified,
simulated, drawn, and run.  Needs the standard library alone.
"""

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
