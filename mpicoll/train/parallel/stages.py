"""Where a model is cut into the chunks of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from mpicoll.base.wording import plural
from mpicoll.schedule.layout import even

#: What `cut` may be: the numbers of the first layers of all chunks, or "0,3,7", or "even".
Cut = str | Sequence[int]


def starts(layers: int, stages: int, chunks: int, cut: Cut = "even") -> tuple[int, ...]:
    """Number of the first layer of each chunk.

    Args:
        layers: How many layers the model has.
        stages: Number of ranks that share them.
        chunks: Chunks of each rank.
        cut: The numbers themselves, or "even" for as many layers in each chunk, but for one.

    Raises:
        ValueError: There are fewer layers than chunks, or the cut is none.
    """
    count = stages * chunks
    if count > layers:
        remedy = f"give pipe of at most {layers}"
        if chunks > 1:
            remedy = (
                f"give chunks={max(layers // stages, 1)}, or pipe of at most {layers // chunks}"
            )
        several = f" with chunks={chunks}" if chunks > 1 else ""
        raise ValueError(
            f"pipe={stages}{several} needs {plural(count, 'layer')}, the model has {layers}: "
            f"{remedy}"
        )
    if cut == "even":
        return even(layers, count).offsets
    try:
        found = tuple(int(n) for n in (cut.split(",") if isinstance(cut, str) else cut))
    except ValueError:
        raise ValueError(
            f'cut is {cut!r}: give "even", or the first layer of each chunk, as 0,3,7'
        ) from None
    words = ",".join(map(str, found))
    if len(found) != count:
        raise ValueError(
            f"cut {words} is of {plural(len(found), 'chunk')}, and there are {count}: give the "
            "first layer of each"
        )
    if found[0] != 0 or found[-1] >= layers or any(a >= b for a, b in pairwise(found)):
        example = ",".join(map(str, even(layers, count).offsets))
        raise ValueError(
            f"cut {words} is no ascending list of layers that begins with 0 and ends below "
            f"{layers}: give the first layer of each chunk, as {example}"
        )
    return found


def balanced(times: Sequence[float], chunks: int) -> tuple[int, ...]:
    """The cut whose slowest chunk is fastest; among equal ones, that with longer chunks first.

    Args:
        times: Of each layer.
        chunks: How many.

    Raises:
        ValueError: There are fewer layers than chunks.
    """
    count = len(times)
    starts(count, chunks, 1)
    sums = [0.0, *accumulate(times)]
    # Of the first layers, into so many chunks: the slowest one's time, and where the last begins.
    best = [[(total, 0) for total in sums]]
    for made in range(1, chunks):
        best.append(
            [
                min(
                    (max(best[-1][start][0], sums[end] - sums[start]), -start)
                    for start in range(made, end)
                )
                if end > made
                else (0.0, 0)
                for end in range(count + 1)
            ]
        )
    cut, end = [], count
    for row in reversed(best[1:]):
        end = -row[end][1]
        cut.append(end)
    return (0, *reversed(cut))
