"""Words in messages that depend on a number, and words of several commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

PARAMETER = "A parameter of the algorithm, as segments=4, order=2,0,1,3 or nodes=0,0,1,1."


def plural(number: int, noun: str) -> str:
    """A number of things: "1 rank", "2 ranks"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def measures(found: Mapping[str, float]) -> str:
    """Measures in words: "loss 0.1234, accuracy 0.9876"."""
    return ", ".join(f"{name} {value:.4f}" for name, value in found.items())


def ranges(ranks: Iterable[int]) -> str:
    """Ranks in words: "rank 3", "ranks 0-2, 5"."""
    ordered = sorted(ranks)
    return f"rank{'' if len(ordered) == 1 else 's'} {intervals(ordered, ', ')}"


def intervals(numbers: Iterable[int], separator: str = ",") -> str:
    """Numbers in the order given, those that follow one another as an interval: "0-2,5"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1] = [found[-1][0], number]
        else:
            found.append([number])
    return separator.join("-".join(map(str, interval)) for interval in found)
