"""Bytes that ranks send in collectives: in rings, and in trees of broadcasts and reductions."""

from __future__ import annotations

#: How often the ranks together send the whole vector, for each rank but one.
TIMES = {"allreduce": 2, "allgather": 1, "reduce_scatter": 1, "bcast": 1, "reduce": 1}


def sent_together(name: str, ranks: int, nbytes: int) -> int:
    """Bytes that all ranks of a collective send.

    Args:
        name: Of the collective.
        ranks: How many.
        nbytes: Of the whole vector.
    """
    return TIMES[name] * (ranks - 1) * nbytes
