"""How long the gradients of a step travel, by the fitted model that ``MPICOLL_MODEL`` names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpicoll import algorithms, tuning
from mpicoll.tuning import Choice

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpicoll.state import State


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
    state: State | None = getattr(comm, "_state", None)
    if state is None or state.settings.model is None or not collectives:
        return None
    from mpicoll.predict import predict  # with all that a simulation needs

    total = 0.0
    for collective, nbytes in collectives:
        choice = _choice(state, collective, nbytes, algorithm)
        try:
            found = predict(
                state.settings.model, collective, choice, state.size, nbytes, nodes=state.nodes
            )
        except ValueError:
            return None
        total += found.seconds
    return total


def _choice(state: State, collective: str, nbytes: int, algorithm: str | None) -> Choice:
    if algorithm in (*algorithms.names(collective), tuning.NATIVE):
        return Choice(algorithm, tuning.check(collective, algorithm, {}), tuning.ARGUMENT)
    return tuning.choose(
        collective,
        state.size,
        nbytes,
        state.table,
        lambda candidate: tuning.fits(collective, candidate, state.size),
    )
