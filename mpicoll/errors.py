"""Errors and warnings that a program may want to catch."""

from __future__ import annotations

__all__ = [
    "CudaError",
    "Disagreement",
    "FallbackWarning",
    "LaunchWarning",
    "MemoryGone",
    "RankLost",
    "TransportWarning",
    "UnknownDatatype",
    "Unordered",
    "Unsupported",
]


class FallbackWarning(RuntimeWarning):
    """The MPI library's own collective ran because mpicoll cannot serve the call."""


class LaunchWarning(RuntimeWarning):
    """Several processes were launched, and each of them is alone."""


class TransportWarning(RuntimeWarning):
    """A faster transport than the one that serves cannot be used; says why."""


class Unsupported(TypeError):
    """A legal argument that only the MPI library's own collective can serve; says why."""


class UnknownDatatype(KeyError, TypeError):
    """A datatype that MPI does not have: KeyError as in mpi4py, and a TypeError."""

    __str__ = Exception.__str__


class Disagreement(RuntimeError):
    """Ranks of a communicator do not make the same call; raised on all of them."""


class MemoryGone(RuntimeError):
    """The memory of another rank cannot be read any more."""


class RankLost(RuntimeError):
    """Ranks of a communicator have died, see ``survive=True`` of :class:`mpicoll.Intracomm`.

    All that are left raise it, in the call under way or in their next one, and in every later call
    on the communicator; on each of them it is one object, which ``survivors()`` completes.

    Attributes:
        ranks: those that have died, ascending, by their ranks in the communicator.  As far as this
            rank has heard; all of them, and the same on all ranks, once ``survivors()`` has
            returned.
        finished: the number of the last call on the communicator that has finished on every rank
            that is left, counted from 1 as ``stats()`` counts them; 0 if none has.  None until
            ``survivors()`` has returned, because the ranks have to agree on it.
        given_up: None; the rank of this process, where the others have given it up and go on
            without it.
    """

    def __init__(
        self,
        ranks: tuple[int, ...] = (),
        finished: int | None = None,
        given_up: int | None = None,
    ) -> None:
        super().__init__(ranks, finished, given_up)
        self.ranks, self.finished, self.given_up = ranks, finished, given_up

    def __str__(self) -> str:
        if self.given_up is not None:
            return (
                f"the other ranks have given up rank {self.given_up}, which is this one, and go on "
                "without it: end this process"
            )
        which = f"rank{'s' * (len(self.ranks) > 1)} {', '.join(map(str, self.ranks))}"
        text = f"{which if self.ranks else 'a rank'} of this communicator has died: "
        if len(self.ranks) > 1:
            text = text.replace("has died", "have died")
        if self.finished is not None:
            text += f"call {self.finished} is the last that has finished on all others; "
        return f"{text}go on with what survivors() returns"


class CudaError(RuntimeError):
    """What the CUDA driver has reported."""


class Unordered(RuntimeError):
    """A call cannot be put in the order of those before it; it has not been made."""
