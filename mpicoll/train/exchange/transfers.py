"""How one bucket of gradients becomes the sum over the ranks.

A transfer is bound to a view of the gradients. Started on all ranks it leaves, in the part of the
view that this rank owns, the sums over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.schedule.layout import even, part
from mpicoll.train.exchange import tree
from mpicoll.train.exchange.wire import Codec, TopK
from mpicoll.train.ranks.workers import Done, Started, Workers


class Transfer:
    """The way of one bucket: by one collective, exact; what differs says so.

    Args:
        own: First element and end, within the bucket, of what this rank updates.
        plans: The collectives; the first starts with the transfer.
    """

    def __init__(self, own: tuple[int, int], *plans: Started) -> None:
        self.own, self._plan, self._plans = own, plans[0], plans

    def start(self) -> None:
        """The gradients of the bucket are final on this rank."""
        self._plan.Start()

    def poll(self) -> bool:
        """Make progress; whether all that can be done before `finish` is done."""
        return bool(self._plan.Test())

    def finish(self) -> None:
        """Until the sums are there. Called for all buckets, in the same order on all ranks."""
        self._plan.Wait()

    def commit(self) -> None:
        """The step counts: remember what it lost, for the next."""

    def residual(self) -> Array | None:
        """What was lost so far on this rank, shape of the bucket; None where nothing is."""
        return None

    def free(self) -> None:
        """It will not be started again."""
        for plan in self._plans:
            plan.Free()


MakeTransfer = Callable[[Workers, Array], Transfer]


class Sum(Transfer):
    """All-reduce: every rank owns the whole bucket."""

    def __init__(self, workers: Workers, view: Array) -> None:
        super().__init__((0, view.size), workers.plan_sum(view))


class Stay(Transfer):
    """Nothing is sent: every rank keeps its own gradients."""

    def __init__(self, workers: Workers, view: Array) -> None:
        super().__init__((0, view.size), Done())


class Scatter(Transfer):
    """Reduce-scatter: every rank owns its even part of the bucket."""

    def __init__(self, workers: Workers, view: Array) -> None:
        start, length = part(view.size, workers.size, workers.rank)
        self._target = view[start : start + length]
        self._sums = np.zeros_like(self._target)
        plan = workers.plan_reduce_scatter(view, self._sums)
        super().__init__((start, start + length), plan)

    def finish(self) -> None:
        super().finish()
        self._target[...] = self._sums


class _Lossy(Transfer):
    """What transfers in a narrow format share: error feedback (Seide et al. 2014)."""

    def __init__(self, view: Array, codec: Codec, *plans: Started) -> None:
        super().__init__((0, view.size), *plans)
        self._view = view
        self._codec = codec
        self._residual = np.zeros_like(view) if codec.feedback else None
        self._lost: Array | None = None

    def residual(self) -> Array | None:
        return self._residual

    def commit(self) -> None:
        if self._residual is not None and self._lost is not None:
            self._residual[...] = self._lost

    def _add_residual(self) -> None:
        if self._residual is not None:
            self._view += self._residual
            self._lost = self._view.copy()


class Narrow(_Lossy):
    """Parts go to their owners in a narrow format, are added in the wide one, and come back.

    Each value is rounded twice, however many ranks there are. An owner's second loss is fed back
    too, into its own next contribution.
    """

    def __init__(self, workers: Workers, view: Array, codec: Codec) -> None:
        layout = even(view.size, workers.size)
        self._parts = [view[o : o + c] for o, c in zip(layout.offsets, layout.counts, strict=True)]
        self._offsets, self._rank = layout.offsets, workers.rank
        longest = codec.length(max(layout.counts))
        self._rows = np.zeros((workers.size, longest), np.uint8)
        self._received = np.zeros_like(self._rows)
        self._row = np.zeros(longest, np.uint8)
        self._collected = np.zeros_like(self._rows)
        there = workers.plan_exchange(self._rows, self._received)
        self._back = workers.plan_collect(self._row, self._collected)
        super().__init__(view, codec, there, self._back)

    def start(self) -> None:
        self._add_residual()
        for row, values in zip(self._rows, self._parts, strict=True):
            self._codec.encode(values, self._filled(row, values))
        if self._lost is not None:
            for row, values, offset in zip(self._rows, self._parts, self._offsets, strict=True):
                sent = np.empty_like(values)
                self._codec.decode(self._filled(row, values), sent)
                self._lost[offset : offset + values.size] -= sent
        super().start()

    def finish(self) -> None:
        # The way back starts here, in the same order everywhere.
        super().finish()
        mine = self._parts[self._rank]
        total = np.zeros(mine.size, np.promote_types(mine.dtype, np.float32))
        values = np.empty_like(total)
        for row in self._received:
            self._codec.decode(self._filled(row, mine), values)
            total += values
        self._codec.encode(total, self._filled(self._row, mine))
        if self._lost is not None:
            self._codec.decode(self._filled(self._row, mine), values)
            offset = self._offsets[self._rank]
            self._lost[offset : offset + mine.size] += total - values
        self._back.Start()
        self._back.Wait()
        for row, target in zip(self._collected, self._parts, strict=True):
            self._codec.decode(self._filled(row, target), target)

    def _filled(self, row: Array, values: Array) -> Array:
        return row[: self._codec.length(values.size)]


class Sparse(_Lossy):
    """Every rank's largest values go to all ranks, which add them in rank order."""

    def __init__(self, workers: Workers, view: Array, codec: TopK) -> None:
        self._row = np.zeros(codec.length(view.size), np.uint8)
        self._collected = np.zeros((workers.size, self._row.size), np.uint8)
        super().__init__(view, codec, workers.plan_collect(self._row, self._collected))

    def start(self) -> None:
        self._add_residual()
        self._codec.encode(self._view, self._row)
        assert self._lost is not None
        sent = np.empty_like(self._view)
        self._codec.decode(self._row, sent)
        self._lost -= sent
        super().start()

    def finish(self) -> None:
        super().finish()
        self._view[...] = 0
        values = np.empty_like(self._view)
        for row in self._collected:
            self._codec.decode(row, values)
            self._view += values


class TreeSum(Transfer):
    """The sums of subtrees go to the owners of parts, which add them up along one tree.

    Args:
        workers: The ranks.
        rows: Shape (slots, elements); the first rows are the sums of this rank's subtrees, in
            order. The sum over all shards replaces the first.
        shards: Number of leaves of the tree.
    """

    def __init__(self, workers: Workers, rows: Array, shards: int) -> None:
        nodes = [
            tree.subtrees(tree.shards_of(rank, workers.size, shards), shards)
            for rank in range(workers.size)
        ]
        length = rows.shape[1]
        layout = even(length, workers.size)
        first, count = layout.offsets[workers.rank], layout.counts[workers.rank]
        self._shards = shards
        self._given = rows[: len(nodes[workers.rank])]
        self._target = rows[0, first : first + count]
        self._parts = np.zeros(self._given.size, rows.dtype)
        self._places = [slice(o, o + c) for o, c in zip(layout.offsets, layout.counts, strict=True)]
        received = np.zeros((sum(map(len, nodes)), count), rows.dtype)
        self._sums = dict(zip((node for own in nodes for node in own), received, strict=True))
        plan = workers.plan_exchange_parts(
            self._parts,
            [len(self._given) * c for c in layout.counts],
            received.reshape(-1),
            [len(own) * count for own in nodes],
        )
        self._back = workers.plan_share(rows[0])
        super().__init__((0, length), plan, self._back)

    def start(self) -> None:
        end = 0
        for place in self._places:
            values = self._given[:, place]
            start, end = end, end + values.size
            self._parts[start:end].reshape(values.shape)[...] = values
        super().start()

    def finish(self) -> None:
        super().finish()
        self._target[...] = tree.total(self._sums, self._shards)
        self._back.Start()
        self._back.Wait()


def summing(codec: Codec | None, shards: int | None = None) -> MakeTransfer:
    """What makes transfers after which all ranks have the whole sums, in a wire format.

    Args:
        codec: The format, None for values as they are.
        shards: Sums are made along the tree over so many; None: as the all-reduce makes them.
    """
    if shards is not None:
        return lambda workers, rows: TreeSum(workers, rows, shards)
    if codec is None:
        return Sum
    if isinstance(codec, TopK):
        return lambda workers, view: Sparse(workers, view, codec)
    return lambda workers, view: Narrow(workers, view, codec)
