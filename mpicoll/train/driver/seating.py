"""Who takes which place of a mesh where ranks have died: as many whole replicas as can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mpicoll.base.wording import plural
from mpicoll.train.config import Config
from mpicoll.train.parallel.checks import require_progress
from mpicoll.train.strategies.kept import Seat


def counted(config: Config, ranks: int) -> Config:
    """The same run, whose mesh says how many replicas so many ranks make."""
    axes = config.axes
    return replace(config, mesh=_words({**axes, "data": ranks // (axes["pipe"] * axes["tensor"])}))


def chosen(config: Config, everyone: Sequence[Sequence[Seat]]) -> list[int]:
    """As `seated`, for as large a mesh as these ranks make; all of them, where they make none.

    Args:
        config: The run at its start.
        everyone: As of `seated`.
    """
    try:
        return seated(everyone, fitted(config, len(everyone)).axes)
    except ValueError:  # said when they go on
        return [*range(len(everyone))]


def fitted(config: Config, ranks: int) -> Config:
    """The same run by at most so many ranks.

    Fewer replicas cut the same global batch into as many microbatches as before, or into a few
    more, where that number cannot be divided.  With `invariant` it has to be.

    Args:
        config: The run at its start; its mesh says how many replicas there are.
        ranks: Those that are left.

    Raises:
        ValueError: They are too few for one replica.
    """
    axes = config.axes
    replicas, place = axes["data"], axes["pipe"] * axes["tensor"]
    if ranks >= replicas * place:
        return config
    parts = replicas * config.step_schedule.microbatches // config.accumulate
    for fewer in range(min(replicas - 1, ranks // place), 0, -1):
        exact = config.invariant is not None
        if exact and parts % fewer:
            continue
        mesh = _words({**axes, "data": fewer})
        least = -(-parts // fewer)
        for microbatches in range(least, least + (1 if exact else axes["pipe"])):
            try:
                found = replace(config, mesh=mesh, microbatches=microbatches)
                require_progress(found.step_schedule)
                return found
            except ValueError:  # not all orders of computation take any number
                continue
    remedy = "give checkpoint, from which a run goes on, and spares"
    if config.checkpoint is not None:
        remedy = f"start again with resume={config.checkpoint}, or give spares"
    raise ValueError(
        f"a replica of mesh {config.mesh} needs {plural(place, 'rank')}, and {ranks} "
        f"{'is' if ranks == 1 else 'are'} left: {remedy}"
    )


def _words(axes: Mapping[str, int]) -> str:
    """Axes as `Config.mesh` has them."""
    return ",".join(f"{name}={length}" for name, length in axes.items())


def seated(everyone: Sequence[Sequence[Seat]], axes: Mapping[str, int]) -> list[int]:
    """The ranks that train, in the order of the mesh's.

    Of the last step of which all parts of the model are there, ranks keep their parts, first those
    of replicas of which nobody is missing.  What is left is filled with others.

    Args:
        everyone: What each rank holds, the latest first.
        axes: Lengths of the mesh that they are to make.
    """
    replicas, tensor = axes["data"], axes["tensor"]
    places = range(axes["pipe"] * tensor)
    holding = _holding(everyone, len(places))
    members = Counter(seat.replica for seat in holding.values())

    def first(rank: int) -> tuple[int, ...]:
        seat = holding.get(rank)
        if seat is not None:
            return 0, -members[seat.replica], seat.replica, rank
        # Who has trained knows the run's files.
        latest = max((seat.number for seat in everyone[rank]), default=-1)
        return 1, -latest, 0, rank

    left = sorted(range(len(everyone)), key=first)
    rows = []
    for place in places:
        own = [rank for rank in left if rank in holding and holding[rank].place == place]
        rows.append(own[:replicas])
    left = [rank for rank in left if not any(rank in row for row in rows)]
    for row in rows:
        while len(row) < replicas:
            row.append(left.pop(0))
    return [
        rows[stage * tensor + part][replica]
        for stage in range(axes["pipe"])
        for replica in range(replicas)
        for part in range(tensor)
    ]


def _holding(everyone: Sequence[Sequence[Seat]], places: int) -> dict[int, Seat]:
    """What ranks hold of the last step of which all is there, by rank; {} if there is none."""
    for number in sorted({seat.number for seats in everyone for seat in seats}, reverse=True):
        found: dict[int, Seat] = {}
        for rank, seats in enumerate(everyone):
            for seat in seats:
                if seat.number == number:
                    found.setdefault(rank, seat)
        if len({seat.place for seat in found.values()}) == places:
            return found
    return {}
