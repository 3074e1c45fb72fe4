"""mpicoll: choose, understand, predict and beat the collectives of an MPI library."""

__version__ = "0.1.0"
