"""Predicting how long a schedule takes, without MPI."""

from mpicoll.simulate.simulation import (
    METHODS,
    Model,
    Result,
    TooLargeError,
    Transfer,
    simulate,
    trace,
)

__all__ = [
    "METHODS",
    "Model",
    "Result",
    "TooLargeError",
    "Transfer",
    "simulate",
    "trace",
]
