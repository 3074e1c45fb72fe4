"""What a step of a pipeline takes at least, whatever the cut, and by each cut.

Rank s cannot begin before the first microbatch has come through the chunks before its first one; it
then computes for M microbatches; and where the last thing that it computes is a backward pass, that
of the last microbatch has to go back through the same chunks, or its gradients have to be summed
over the replicas:

    sum over the chunks before of (F + B + 2 c) + M T_s      without what is summed
    sum over the chunks before of (F + c) + M T_s + E_s      with it

T_s is what rank s computes for a microbatch, c what a message takes, E_s the sum over the replicas.
The cut whose largest such time is least is found by dynamic programming from the last chunk to the
first; the tables then say of the first chunks of a cut what all its completions take at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpicoll.train.planner.layers import LONGEST, Layers, Numbers
from mpicoll.train.planner.problem import Problem
from mpicoll.train.planner.space import Candidate

#: More than any time; twice as much still fits into 64 bits.
NEVER = 2 * LONGEST


class Form(NamedTuple):
    """One of the two times above.

    Attributes:
        path: Picoseconds that a microbatch needs for the layers before each, as it counts here.
        ways: How often a message passes an edge.
        exchanges: Whether what is summed over the replicas counts.
    """

    path: Numbers
    ways: int
    exchanges: bool


class State(NamedTuple):
    """The first chunks of a cut.

    Attributes:
        chunks: How many.
        time: What a step takes at least by what they take.
        messages: Picoseconds of the messages on the way through them, by form.
    """

    chunks: int
    time: int
    messages: tuple[int, ...]


def fluid(problem: Problem, candidate: Candidate, layers: Layers) -> int:
    """What a step takes at least if layers could be cut anywhere; fast to find.

    With stages of times w_s and a path of at least a share q of them, q (w_1 + .. + w_s) + M w_s is
    at most x for all stages; then the sum of all w is at most x (1 - (1 - q/M)^S) / q.
    """
    count = candidate.microbatches
    work = work_of(candidate, layers)
    total, longest = int(work.sum()), int(work.max())
    if not candidate.order:
        return count * total
    least = max(-(-count * total // candidate.pipe), count * longest)
    if candidate.chunks == candidate.pipe and total:
        # In two parts, the last that a rank computes may be a gradient of weights.
        path = layers.forward if candidate.splits else layers.forward + layers.backward
        q = min(float(p) / float(w) for p, w in zip(path, work, strict=True) if w)
        filled = q * total / (1 - (1 - q / count) ** candidate.pipe) if q else 0.0
        least = max(least, int(filled * (1 - 1e-9)))
    return least


def work_of(candidate: Candidate, layers: Layers) -> Numbers:
    """Picoseconds that a microbatch takes of a rank, by layer."""
    return layers.backward + layers.forward * (1 + candidate.recompute)


class Bounds:
    """The tables of a pipelined candidate.

    Args:
        problem: What is to be trained.
        candidate: How.
        layers: For a microbatch.
        most: Cuts that take longer are of no interest.

    Attributes:
        least: What a step takes at least, whatever the cut; NEVER where no cut has enough memory,
            or all take longer than `most`.
    """

    def __init__(
        self, problem: Problem, candidate: Candidate, layers: Layers, most: int = NEVER
    ) -> None:
        self._problem, self._candidate, self._layers = problem, candidate, layers
        schedule = candidate.schedule
        self._chunks = schedule.chunks
        self._ranks = [schedule.place(chunk) for chunk in range(self._chunks)]
        work = work_of(candidate, layers)
        self._work = np.concatenate([[0], np.cumsum(work)]) * candidate.microbatches
        before = layers.before
        self.forms = [Form(before["forward"], 1, candidate.data > 1)]
        if not candidate.splits:
            self.forms.append(Form(before["forward"] + before["backward"], 2, False))
        if self._chunks > candidate.pipe:
            # A rank sums the gradients of all its chunks together; and of a chunk by itself counts
            # only how long it is, so that the cut is the one whose longest chunk is shortest.
            self._of_rank = self.forms[-1]
            nothing = np.zeros(len(layers) + 1, np.int64)
            self.forms = [Form(nothing, 0, exchanges=False)]
        length = len(layers)
        # The longest chunk that is of any interest.
        reach = np.searchsorted(self._work, self._work + most, side="right") - 1
        width = max(int((reach - np.arange(length + 1)).max()), 1)
        self._ends = np.minimum(np.arange(length)[:, None] + np.arange(1, width + 1), length)
        self._tables = self._all_tables()
        self.least = max(int(table[0][0]) for table in self._tables)

    @cached_property
    def _edges(self) -> list[Numbers]:
        """Of the edge before each chunk, and behind the last, what a message takes by the layer."""
        machine = self._problem.machine(self._candidate)
        lengths, where = np.unique(self._layers.edges, return_inverse=True)
        nothing = np.zeros(len(self._layers) + 1, np.int64)
        found = [nothing]
        known: dict[tuple[int, int], Numbers] = {}
        for ends in pairwise(self._ranks):
            if ends[0] == ends[1]:
                found.append(nothing)
                continue
            if ends not in known:
                times = [machine.message(*ends, int(length)) for length in lengths]
                known[ends] = np.array(times, np.int64)[where]
            found.append(known[ends])
        return [*found, nothing]

    @cached_property
    def _exchange(self) -> Numbers:
        """What summing over the replicas takes, by first layer and end as in `_ends`."""
        sums = self._layers.before["weights"]
        weights = sums[self._ends] - sums[:-1, None]
        return self._problem.exchange(self._candidate, weights)

    def _needs(self, starts: NDArray[np.intp]) -> tuple[Numbers, Numbers, Numbers]:
        """Bytes of chunks: of parameters and passes, and of a microbatch that is kept, or waits."""
        layers, ends = self._layers, self._ends[starts]
        rows = starts[:, None]
        weights, kept, waiting = (
            layers.before[what][ends] - layers.before[what][rows]
            for what in ("weights", "kept", "waiting")
        )
        once = weights.copy()
        for before, layer in layers.repeated:
            once -= int(layers.weights[layer]) * ((rows <= before) & (ends > layer))
        fixed = weights + (1 + self._problem.slots + self._problem.narrow) * once
        fixed += layers.most("weights")[rows, ends - 1] + layers.most("working")[rows, ends - 1]
        kept += layers.begins[rows] + np.where(ends == len(layers), layers.edges[-1], 0)
        return fixed, kept, waiting

    def _fitting(
        self, chunk: int, starts: NDArray[np.intp], needs: tuple[Numbers, Numbers, Numbers]
    ) -> NDArray[np.bool_]:
        """Which chunks leave their rank enough memory, as far as they alone say."""
        assert self._problem.memory is not None
        fixed, kept, waiting = needs
        fixed = fixed + self._candidate.schedule.waiting(self._ranks[chunk]) * waiting
        count, again = self._candidate.schedule.held(self._ranks[chunk])
        room = self._problem.memory - fixed
        if again:
            room, count = room - count * self._layers.edges[starts, None], again
        fits: NDArray[np.bool_] = count * kept <= room
        return fits

    def _all_tables(self) -> list[list[Numbers]]:
        """For each form, each chunk and its first layer: what it and those behind take at least.

        Times begin with the first microbatch; messages that it has passed before do not count.
        """
        length, ends = len(self._layers), self._ends
        work = self._work[ends] - self._work[:-1, None]
        times = []
        for form in self.forms:
            time = form.path[:-1, None] + work
            times.append(time + self._exchange if form.exchanges else time)
        behind = np.full(length + 1, NEVER)
        behind[length] = 0
        tables: list[list[Numbers]] = [[behind] for _ in self.forms]
        starts = np.arange(length)
        needs = None if self._problem.memory is None else self._needs(starts)
        for chunk in reversed(range(self._chunks)):
            fits = None if needs is None else self._fitting(chunk, starts, needs)
            for form, time, table in zip(self.forms, times, tables, strict=True):
                then = table[-1] + form.ways * self._edges[chunk + 1]
                found = np.maximum(time, then[ends])
                if fits is not None:
                    found[~fits] = NEVER
                least = found.min(axis=1)
                least[~self._layers.cuts[:-1]] = NEVER
                table.append(np.minimum(np.append(least, NEVER), NEVER))
        return [table[::-1] for table in tables]

    def following(self, state: State, start: int, most: int) -> list[tuple[int, int, State]]:
        """The next chunk of a cut: all its ends, with what a step takes at least.

        Args:
            state: Of the chunks before.
            start: Its first layer.
            most: Ends for which that is as much or more are left out.

        Returns:
            The least time, the end, and the state with this chunk.
        """
        chunk = state.chunks
        ends = np.unique(self._ends[start])
        least = np.full(len(ends), state.time)
        work = self._work[ends] - self._work[start]
        times = []
        for number, form in enumerate(self.forms):
            time = state.messages[number] + form.path[start] + work
            if form.exchanges:
                time = time + self._exchange[start][: len(ends)]
            then = self._tables[number][chunk + 1][ends]
            edge = form.ways * self._edges[chunk + 1][ends]
            times.append((time, edge))
            least = np.maximum(least, time)
            least = np.maximum(least, np.minimum(state.messages[number] + edge + then, NEVER))
        if self._problem.memory is not None:
            row = np.array([start])
            fits = self._fitting(chunk, row, self._needs(row))
            least = np.where(fits[0][: len(ends)], least, NEVER)
        found = []
        for index in np.nonzero(least < most)[0]:
            reached = max(state.time, *(int(time[index]) for time, _ in times))
            messages = tuple(
                before + int(edge[index])
                for before, (_, edge) in zip(state.messages, times, strict=True)
            )
            following = State(chunk + 1, reached, messages)
            found.append((int(least[index]), int(ends[index]), following))
        return found

    @property
    def first(self) -> State:
        """Of a cut without chunks."""
        return State(0, 0, (0,) * len(self.forms))

    def of_ranks(self, cut: Sequence[int]) -> int:
        """What a step takes at least by a cut of which ranks have several chunks."""
        form = self._of_rank
        work, messages = [0] * self._candidate.pipe, 0
        begins: dict[int, int] = {}
        for chunk, (start, end) in enumerate(pairwise([*cut, len(self._layers)])):
            messages += form.ways * int(self._edges[chunk][start])
            begins.setdefault(self._ranks[chunk], int(form.path[start]) + messages)
            work[self._ranks[chunk]] += int(self._work[end] - self._work[start])
        return max(begin + work[rank] for rank, begin in begins.items())

    @property
    def balanced(self) -> tuple[int, ...]:
        """A cut by which no chunk takes longer than `least`; there is one if that is not NEVER."""
        state, cut = self.first, [0]
        for _ in range(self._chunks):
            _, end, state = min(self.following(state, cut[-1], NEVER), key=lambda each: each[0])
            cut.append(end)
        return tuple(cut[:-1])

    def of(self, cut: Sequence[int]) -> int:
        """What a step takes at least by a cut; NEVER where its memory does not suffice."""
        state, ends = self.first, [*cut[1:], len(self._layers)]
        for start, end in zip(cut, ends, strict=True):
            states = [s for _, e, s in self.following(state, start, NEVER) if e == end]
            if not states:
                return NEVER
            (state,) = states
        return state.time
