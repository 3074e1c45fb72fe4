"""Hints of a communicator: ``mpicoll_allreduce = ring`` chooses for it alone.

They go by MPI's info objects.  MPI libraries forget hints that are not their own, so mpicoll keeps
them, and hands them to duplicates as MPI does.
"""

from __future__ import annotations

from mpi4py import MPI

from mpicoll.base.consensus import from_rank_0
from mpicoll.schedule.collectives import COLLECTIVES
from mpicoll.tuning import rules as tuning

#: Of the keys that are mpicoll's, and the value that takes a hint back.
PREFIX, DEFAULT = "mpicoll_", "default"
#: The one that chooses no algorithm.
SURVIVE = "mpicoll_survive"


def agreed(
    private: MPI.Intracomm, info: MPI.Info | None, before: tuning.Table
) -> tuple[tuning.Table, bool]:
    """What rank 0's info object asks for.  Collective over ``private``.

    Returns:
        Hints as it changes those there were; and whether the ranks are to hear of each other's
        deaths.

    Raises:
        ValueError: on all ranks, if it has a key or a value that is not understood.
    """

    def asked() -> tuple[tuning.Table, bool]:
        if info is None or info == MPI.INFO_NULL:
            return before, False
        ours = {k: v for k, v in info.items() if k.startswith(PREFIX)}
        survives = ours.pop(SURVIVE, None)
        if survives not in (None, "true"):
            raise ValueError(f'hint {SURVIVE} = {survives!r}: only "true" is known, and stays')
        return _changed(before, ours), survives is not None

    return from_rank_0(private, asked)


def _changed(before: tuning.Table, hints: dict[str, str]) -> tuning.Table:
    for key in hints:
        if key.removeprefix(PREFIX) not in COLLECTIVES:
            known = ", ".join([*(PREFIX + name for name in COLLECTIVES), SURVIVE])
            raise ValueError(f"unknown hint {key!r}: known are {known}")
    gone = {key.removeprefix(PREFIX) for key, value in hints.items() if value == DEFAULT}
    asked = tuning.from_hints({key: value for key, value in hints.items() if value != DEFAULT})
    return {name: rules for name, rules in {**before, **asked}.items() if name not in gone}


def written(hints: tuning.Table) -> dict[str, str]:
    """Hints as an info object has them."""
    return {
        f"{PREFIX}{name}": choice.words
        for name, rules in hints.items()
        for rule in rules
        for choice in rule.candidates
    }
