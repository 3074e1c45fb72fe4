"""Words in messages that depend on a number, and words of several commands."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["PARAMETER", "plural", "ranges"]

PARAMETER = "A parameter of the algorithm, as segments=4, order=2,0,1,3 or nodes=0,0,1,1."


def plural(number: int, noun: str) -> str:
    """A number of things: "1 rank", "2 ranks"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ranges(ranks: Iterable[int]) -> str:
    """Ranks in words: "rank 3", "ranks 0-2, 5"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank{'' if len(runs) == 1 and runs[0][0] == runs[0][1] else 's'} {words}"
