"""Words in messages that depend on a number, and words of several commands."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

PARAMETER = "Parameter of the algorithm: segments=4, order=2,0,1,3 or nodes=0,0,1,1."


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


def longer(seconds: float, least: float) -> str:
    """How much longer a time is than the least: "fastest", "+75 %" or "12x"."""
    if seconds <= least:
        return "fastest"
    if least <= 0 or seconds >= 10 * least:
        return f"{seconds / least:.0f}x" if least > 0 else "-"
    return f"+{100 * (seconds / least - 1):.0f} %"


def behind(times: Sequence[float], kinds: Sequence[Hashable]) -> list[str]:
    """How much longer each time is than the least of its kind; "" for one alone."""
    of_kind: dict[Hashable, list[float]] = {}
    for seconds, kind in zip(times, kinds, strict=True):
        of_kind.setdefault(kind, []).append(seconds)
    return [
        longer(seconds, min(of_kind[kind])) if len(of_kind[kind]) > 1 else ""
        for seconds, kind in zip(times, kinds, strict=True)
    ]
