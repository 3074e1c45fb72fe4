"""How a collective is launched: the kernel, its size, and what it is told besides addresses.

Pure functions of what MPI requires to be equal on all ranks, and of this rank's number.  What the
numbers mean to a kernel is said in ``exchange.cuh`` and ``direct.cuh``.
"""

from __future__ import annotations

from typing import NamedTuple

from mpicoll.cuda.keys import DIRECT, PHASES, REDUCING, LaunchKey, kernel_of, kind_of

#: Bytes of data in a row of packets, and where elements of 16 bytes stay whole; see exchange.cuh.
ROW, ROW_WHOLE = 480, 448
#: Bytes of a row on its way, which in bulk is all data; and of the line with the flag behind those.
LINES, FLAG_LINE = 512, 128
#: Kernels that send rows in bulk.
BULK = ("bulk", "direct", "ring")
#: Slots of a channel.
SLOTS = 4


class Limits(NamedTuple):
    """Sizes of launches, equal on all ranks of a communicator.

    Attributes:
        blocks: most blocks; all of them run at the same time.
        small, large, bulk: most threads of a block, by kernel.
        rows, bulk_rows: rows that a warp moves in a step of the kernels for large vectors, in bulk.
        small_bytes: longest block of a collective that the kernels for short ones serve.
        bulk_bytes: shortest block of a collective that is sent in bulk: four steps of all warps.
        one_shot: longest vector, in bytes, that every rank folds whole (with more than two ranks).
        direct: shortest vector, in bytes, for which it pays to read peers' memory where it lies.
        ring: the ranks in the order of a ring of links, where not all are linked; else empty.
    """

    blocks: int = 128
    small: int = 512
    large: int = 1024
    bulk: int = 512
    rows: int = 1
    bulk_rows: int = 8
    small_bytes: int = 2 << 20
    bulk_bytes: int = 32 << 20
    one_shot: int = 256 << 10
    direct: int = 16 << 20
    ring: tuple[int, ...] = ()

    @classmethod
    def of(cls, size: int) -> Limits:
        """Those for so many ranks.

        The more peers, the fewer rows keep a warp's link busy; and the more a rank that folds
        everything is sent, against its share in two phases.
        """
        rows = max(2, 16 // max(size, 2))
        return cls(
            bulk_rows=rows, bulk_bytes=rows * (4 << 20), one_shot=(768 << 10) // max(size - 1, 3)
        )

    @property
    def warps(self) -> int:
        """Most warps of a launch that sends packets."""
        return self.blocks * max(self.small, self.large) // 32

    @property
    def slot(self) -> int:
        """Bytes of one slot of a channel of packets."""
        return self.rows * LINES

    @property
    def bulk_slot(self) -> int:
        """Bytes of one slot in bulk."""
        return self.bulk_rows * LINES + FLAG_LINE

    @property
    def bulk_warps(self) -> int:
        """Most warps of a launch in bulk."""
        return self.blocks * self.bulk // 32

    def region(self, size: int) -> int:
        """Bytes of the slots of packets for one phase, in the window of one rank."""
        return self.warps * SLOTS * size * self.slot

    def bulk_region(self, size: int) -> int:
        """The same in bulk."""
        return self.bulk_warps * SLOTS * size * self.bulk_slot

    def channels(self, size: int) -> tuple[tuple[int, int, int, int], ...]:
        """Of packets and in bulk: warps, bytes of a slot, where the slots of a phase begin in the
        window, bytes of those."""
        packets, bulk = self.region(size), self.bulk_region(size)
        return (
            (self.warps, self.slot, 0, packets),
            (self.bulk_warps, self.bulk_slot, self.phases(size) * packets, bulk),
        )

    def phases(self, size: int) -> int:
        """Phases of a collective that have slots of their own."""
        return 2 if size > 2 else 1

    def window(self, size: int) -> int:
        """Bytes of the window of one rank."""
        return self.phases(size) * (self.region(size) + self.bulk_region(size))

    def neighbours(self, rank: int, size: int) -> set[int]:
        """The ranks whose window a rank uses; its own it uses in any case."""
        if not self.ring:
            return {*range(size)}
        place = self.ring.index(rank)
        return {self.ring[place - 1], self.ring[(place + 1) % size]}


class Launch(NamedTuple):
    """A launch but for the addresses."""

    kernel: str
    blocks: int
    threads: int
    n: int
    send_stride: int = 0
    recv_stride: int = 0
    sends: int = 0
    members: int = 0
    targets: int = 0
    total: int = 0
    kind: int = 0
    shift: int = 0  # bytes from the receive buffer's start to this rank's input in place
    in_bulk: bool = False
    registered: bool = False
    needed: tuple[bool, bool] = (False, False)
    source: int = 0
    target: int = 0
    length: int = 0
    stride: int = 0
    pulls: int = 0
    gives: int = 0
    turn: int = 0
    left: int = 0
    right: int = 0
    place: int = 0
    order: tuple[int, ...] = ()


def launch_of(key: LaunchKey, limits: Limits, registered: bool = False) -> Launch:
    """The launch of a collective.

    Args:
        key: what it depends on, of at least one byte.
        limits: equal on all ranks.
        registered: whether the communicator has registered memory.
    """
    family = kernel_of(key.op, key.type)
    if limits.ring:
        return _sized(key, limits, _ring(key, limits.ring), family, "ring", LINES)
    launch = _exchange(key)
    row = ROW_WHOLE if family == "whole" else ROW
    in_phases = key.size > 2 and key.collective in PHASES and key.nbytes > limits.one_shot
    if in_phases:
        launch = _phases(key, launch, row)
    suffix = "phases" if in_phases else "small" if launch.n <= limits.small_bytes else "large"
    if launch.n >= limits.bulk_bytes:
        suffix = "bulk"
    if registered and key.nbytes >= limits.direct and _can_be_direct(key):
        launch = _direct(key, launch)
        suffix = "direct"
    return _sized(key, limits, launch, family, suffix, row)


def _sized(
    key: LaunchKey, limits: Limits, launch: Launch, family: str, suffix: str, row: int
) -> Launch:
    """The launch with its kernel and its size."""
    if suffix in BULK:
        family, row = family.replace("whole", "plain"), LINES
    blocks, threads = _grid(launch.n, row, suffix, limits)
    direct = suffix == "direct"
    return launch._replace(
        kernel=f"{family}_{suffix}",
        blocks=limits.blocks if direct else blocks,
        threads=limits.bulk if direct else threads,
        kind=kind_of(key.op, key.type),
        in_bulk=suffix in BULK,
    )


def _masks(key: LaunchKey) -> tuple[int, int, int]:
    """All ranks, this one, the root, as bit masks."""
    return (1 << key.size) - 1, 1 << key.rank, 1 << key.root


def _exchange(key: LaunchKey) -> Launch:
    """One phase: who pushes which bytes to whom, and what becomes of them."""
    every, own, root = _masks(key)
    others, block = every ^ own, key.nbytes // key.size
    at_root = key.rank == key.root
    kept = every ^ own if key.in_place else every
    whole, cut = Launch("", 0, 0, key.nbytes), Launch("", 0, 0, block)
    if key.collective == "allreduce":
        return whole._replace(sends=others, members=every)
    if key.collective == "reduce":
        return whole._replace(sends=0 if at_root else root, members=every if at_root else 0)
    if key.collective == "bcast":
        return whole._replace(sends=others if at_root else 0, members=0 if at_root else root)
    if key.collective == "scan":
        return whole._replace(sends=every ^ (2 * own - 1), members=2 * own - 1)
    if key.collective == "exscan":
        return whole._replace(sends=every ^ (2 * own - 1), members=own - 1)
    if key.collective == "reduce_scatter":
        return cut._replace(send_stride=block, sends=others, members=every)
    if key.collective == "alltoall":
        return cut._replace(send_stride=block, recv_stride=block, sends=others, members=kept)
    if key.collective == "allgather":
        shift = key.rank * block if key.in_place else 0
        return cut._replace(recv_stride=block, sends=others, members=kept, shift=shift)
    if key.collective == "gather":
        return cut._replace(
            recv_stride=block, sends=0 if at_root else root, members=kept if at_root else 0
        )
    if key.collective == "scatter":
        if not at_root:
            return cut._replace(members=root)
        members = 0 if key.in_place else own
        return cut._replace(send_stride=block, sends=others, members=members)
    raise ValueError(f"no kernel for {key.collective}")


def _phases(key: LaunchKey, launch: Launch, row: int) -> Launch:
    """Two phases: every rank folds one block, and pushes it to the targets.

    A root has no block: it sends, or takes, the vector once, and nothing for others.
    """
    every, own, root = _masks(key)
    rows = -(-key.nbytes // row)
    if key.collective == "allreduce":
        n = -(-rows // key.size) * row
        return launch._replace(
            n=n, total=key.nbytes, sends=every ^ own, members=every, targets=every
        )
    n, turn = -(-rows // (key.size - 1)) * row, key.size - 1 - key.root
    launch = launch._replace(n=n, total=key.nbytes, turn=turn)
    if key.collective == "bcast":
        if own == root:
            return launch._replace(sends=every ^ root, members=0, targets=0)
        return launch._replace(sends=0, members=root, targets=every ^ root)
    members = 0 if own == root else every
    return launch._replace(sends=every & ~(own | root), members=members, targets=root)


def _ring(key: LaunchKey, order: tuple[int, ...]) -> Launch:
    """Blocks that travel around, folded first where anything is sent, then handed to the targets.

    The fold of a block begins right of its owner and ends there, as on the host.
    """
    every, own, _ = _masks(key)
    place, block = order.index(key.rank), key.nbytes // key.size
    launch = Launch(
        "", 0, 0, block, total=key.nbytes, members=own, place=place, order=order,
        left=order[place - 1], right=order[(place + 1) % key.size],
    )  # fmt: skip
    if key.collective == "allreduce":
        n = -(-key.nbytes // (LINES * key.size)) * LINES
        return launch._replace(n=n, send_stride=n, recv_stride=n, sends=every, targets=every)
    if key.collective == "reduce_scatter":
        return launch._replace(send_stride=block, sends=every)
    shift = key.rank * block if key.in_place else 0
    members = 0 if key.in_place else own
    return launch._replace(recv_stride=block, targets=every, members=members, shift=shift)


def _grid(n: int, row: int, suffix: str, limits: Limits) -> tuple[int, int]:
    """Blocks and threads of a block: as few steps as can be, all of them full."""
    rows, threads = limits.rows, limits.large
    if suffix == "small":
        rows, threads = 1, limits.small
    elif suffix in BULK:
        rows, threads = limits.bulk_rows, limits.bulk
    portions = max(1, -(-n // (row * rows)))
    steps = -(-portions // (limits.blocks * threads // 32))
    warps = -(-portions // steps)
    of_a_block = -(-warps // limits.blocks)
    return -(-warps // of_a_block), 32 * of_a_block


def _can_be_direct(key: LaunchKey) -> bool:
    if key.collective not in DIRECT:
        return False
    if key.collective in REDUCING and key.size <= 2:
        return False  # each folds all that comes, and moves no more bytes
    if key.collective in PHASES:
        return True
    moved = key.collective == "allgather" or not key.in_place
    return moved and (key.nbytes // key.size) % 16 == 0


def _direct(key: LaunchKey, launch: Launch) -> Launch:
    """Without a copy through the window: who reads what of whom, and writes it where.

    What the kernel does where a rank's buffers are not registered is in ``launch`` already.
    """
    every, own, root = _masks(key)
    block = key.nbytes // key.size
    launch = launch._replace(registered=True)
    if key.collective in ("allreduce", "reduce"):
        start, length = _share(key.nbytes, key.size, key.rank)
        to_all = key.collective == "allreduce"
        return launch._replace(
            needed=(True, to_all or own == root),
            source=start,
            target=start,
            length=length,
            pulls=every,
            gives=every if to_all else root,
        )
    if key.collective == "bcast":
        number = (key.rank - key.root - 1) % key.size
        start, length = _share(key.nbytes, max(key.size - 1, 1), number)
        if own == root:
            start = length = 0
        return launch._replace(
            needed=(True, True),
            source=start,
            target=start,
            length=length,
            pulls=root,
            gives=every ^ root,
        )
    mine = key.rank * block
    if key.collective == "reduce_scatter":
        return launch._replace(
            needed=(True, False), source=mine, length=block, pulls=every, gives=own
        )
    if key.collective == "alltoall":
        return launch._replace(
            needed=(False, True), target=mine, length=block, stride=block, pulls=own, gives=every
        )
    gives = every ^ own if key.in_place else every
    return launch._replace(needed=(False, True), target=mine, length=block, pulls=own, gives=gives)


def _share(nbytes: int, parts: int, number: int) -> tuple[int, int]:
    """Start and length of a part; all but the last are multiples of 16 bytes."""
    most = -(-nbytes // (16 * parts)) * 16
    start = min(number * most, nbytes)
    return start, min(most, nbytes - start)
