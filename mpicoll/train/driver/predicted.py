"""How long the gradients of a step travel, by the fitted model that ``MPICOLL_MODEL`` names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpicoll import algorithms, tuning
from mpicoll.tuning import Choice

if TYPE_CHECKING:
    from mpi4py import MPI

#: Bytes of the smallest bucket that is thought of, and how much longer than the best all may take.
_SMALLEST, _DEARER = 4096, 1.1


def seconds(
    comm: MPI.Intracomm | None, algorithm: str | None, collectives: Sequence[tuple[str, int]]
) -> float | None:
    """Seconds of some collectives one after the other.

    Args:
        comm: An `mpicoll.Intracomm`.
        algorithm: As `mpicoll.train.Config` names it.
        collectives: Name and bytes of each.

    Returns:
        None where no model is known, or where it says nothing of them.
    """
    if comm is None or not collectives:
        return None
    from mpicoll.runtime.state import find  # starts MPI

    state = find(comm)
    if state is None or state.settings.model is None:
        return None
    from mpicoll.tuning.predict import predict  # with all that a simulation needs

    total = 0.0
    for collective, nbytes in collectives:
        if algorithm in (*algorithms.names(collective), tuning.NATIVE):
            choice = Choice(algorithm, tuning.check(collective, algorithm, {}), tuning.ARGUMENT)
        else:
            choice = tuning.choose_fitting(collective, state.size, nbytes, state.table)
        try:
            found = predict(
                state.settings.model, collective, choice, state.size, nbytes, nodes=state.nodes
            )
        except ValueError:
            return None
        total += found.seconds
    return total


def bucket(comm: MPI.Intracomm | None, algorithm: str | None, nbytes: int) -> int | None:
    """Bytes in a bucket of all-reduced gradients: small, and not dear.

    Args:
        comm, algorithm: As in `seconds`.
        nbytes: Of all gradients.

    Returns:
        The smallest power of two from 4 KiB on with which all sums one after the other take at most
        a tenth longer than with the best one; None where no model is known.
    """
    times: dict[int, float] = {}
    size = _SMALLEST
    while True:
        whole, rest = divmod(nbytes, size)
        one, last = (seconds(comm, algorithm, [("allreduce", n)]) for n in (size, rest))
        if one is None or last is None:
            return None
        times[size] = whole * one + (last if rest else 0.0)
        if size >= nbytes:
            break
        size *= 2
    return min(size for size, time in times.items() if time <= _DEARER * min(times.values()))
