"""The choices among which the fastest is searched: algorithms with many values of parameters.

What is tried of a parameter: of ``segments`` the powers of two whose messages are not too short, of
``window`` a few of those that are smaller than the segments, of an order of ranks those that keep
the ranks of a node, or every second rank, together, and of any other number, as a radix, the powers
of two up to the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from mpicoll import algorithms, tuning
from mpicoll.registry import Algorithm
from mpicoll.schedule.parameters import PERMUTATION, Value
from mpicoll.simulate.costs import CostModel
from mpicoll.tuning.predict import estimate

#: Bytes of the shortest segment of a block, and most segments.
_SHORTEST, _MOST_SEGMENTS = 1024, 256
_WINDOWS = (2, 8, 32)


def candidates(
    collective: str, ranks: int, nbytes: int, nodes: Sequence[int] = ()
) -> list[tuning.Choice]:
    """All choices that may serve, each algorithm with its defaults first.

    Args:
        collective: its name.
        ranks: how many.
        nbytes: bytes of the whole vector.
        nodes: the node of each rank, where there are several.
    """
    found: dict[str, tuning.Choice] = {}
    for name in algorithms.names(collective, ranks):
        entry = algorithms.find(collective, name)
        for parameters in ({}, *_settings(entry, ranks, nbytes, nodes)):
            choice = tuning.Choice(name, tuning.check(collective, name, parameters))
            if tuning.fits(collective, choice, ranks):
                found.setdefault(choice.words, choice)
    return list(found.values())


def _settings(
    entry: Algorithm, ranks: int, nbytes: int, nodes: Sequence[int]
) -> Iterator[dict[str, Value]]:
    values = {name: _values(entry, name, ranks, nbytes, nodes) for name in entry.parameters}
    values = {name: several for name, several in values.items() if several}
    for chosen in product(*values.values()):
        setting = dict(zip(values, chosen, strict=True))
        segments, window = setting.get("segments"), setting.get("window")
        # A window that holds all segments is the same as any larger one.
        if isinstance(segments, int) and isinstance(window, int) and window >= segments:
            del setting["window"]
        yield setting


def _values(
    entry: Algorithm, name: str, ranks: int, nbytes: int, nodes: Sequence[int]
) -> tuple[Value, ...]:
    """What is tried of a parameter; nothing: its default alone."""
    if entry.kinds[name] is PERMUTATION:
        return _orders(ranks, nodes)
    if entry.kinds[name].per_rank:
        return ()
    if name == "segments":
        most = min(_MOST_SEGMENTS, nbytes // max(entry.blocks(ranks), 1) // _SHORTEST)
        return _powers(1, max(most, 1))
    if name == "window":
        return _WINDOWS
    return _powers(2, max(ranks, 2))


def _powers(first: int, last: int) -> tuple[int, ...]:
    return tuple(1 << k for k in range(last.bit_length()) if first <= 1 << k <= last)


def _orders(ranks: int, nodes: Sequence[int]) -> tuple[Value, ...]:
    natural = tuple(range(ranks))
    found: list[Value] = [natural, tuple(sorted(natural, key=lambda rank: (rank % 2, rank)))]
    if nodes:
        found.append(tuple(sorted(natural, key=lambda rank: (nodes[rank], rank))))
    # The natural order is what an empty one stands for.
    return ((), *dict.fromkeys(order for order in found if order != natural))


def promising(
    model: CostModel,
    collective: str,
    ranks: int,
    nbytes: int,
    nodes: tuple[int, ...],
    most: int,
) -> list[str]:
    """The best choices by prediction, in words, the best first.

    Args:
        model: the costs of a machine.
        collective, ranks, nbytes, nodes: see :func:`candidates`.
        most: how many.
    """
    timed = []
    for choice in candidates(collective, ranks, nbytes, nodes):
        try:
            seconds = estimate(model, collective, choice, ranks, nbytes, nodes)
        except ValueError:  # a window too large for its channels, or too much to simulate
            continue
        timed.append((seconds, choice.words))
    return [words for _, words in sorted(timed)[:most]]
