"""How long a collective takes on a machine, under the alpha-beta-gamma model."""

from __future__ import annotations

from mpicoll.clock import check_call, clock
from mpicoll.machine import Model, Sizes
from mpicoll.matching import Blank, Matching, Memory


def simulate(algorithm, size, nbytes, model=None, root=0, parameters=None):
    check_call(size, root)
    programs = [algorithm.channels(rank, size, root, parameters) for rank in range(size)]
    memories: list[Memory[None]] = [Blank() for _ in range(size)]
    matching = Matching(programs, algorithm.blocks(size), algorithm.scratch(size), memories)
    segments = programs[0][0].segments if programs[0] else 1
    return clock(matching, model or Model(), Sizes(nbytes, algorithm.blocks(size), segments))
