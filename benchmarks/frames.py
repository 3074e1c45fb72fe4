"""What frames make of two directions that share a port: a bidirectional ring, switch simulated.

The model (``mpicoll simulate``) lets messages take turns at a port as wholes.  Here each frame
takes its turn, as on the switch of the emulated cluster (``tests/cluster/switch.py``), and ranks
begin a little apart, as they do where several share a core.  Where the last frame of a message is
short, it then waits behind a whole one of the other direction, in every round::

    python benchmarks/frames.py --ranks 4 --late 2e-4 8704 8960 9216 12288

The message sizes are those of a block; for each it prints the median time in milliseconds, the
least and the most, of :data:`DRAWS` draws.
"""

from __future__ import annotations

import argparse
import heapq
import random
from itertools import count

PAYLOAD = 8948  # bytes of a frame that are not its headers
HEADERS = 90  # Ethernet, preamble, gap, IP, and TCP with its time stamps
ENVELOPE = 64  # bytes that the MPI library puts before a message, about
#: Seconds that a rank needs for a message, and how much longer where it naps: as fits say.
SOFTWARE, NAP = 100e-6, 60e-6
DRAWS = 21


def frames(nbytes: int) -> list[int]:
    """Bytes on the wire of each frame of a message."""
    whole, rest = divmod(nbytes + ENVELOPE, PAYLOAD)
    return [PAYLOAD + HEADERS] * whole + ([rest + HEADERS] if rest else [])


def ring(ranks: int, nbytes: int, delay: float, rate: float, late: float, seed: int = 0) -> float:
    """Seconds of an all-reduce by the bidirectional ring, without the arithmetic.

    Args:
        ranks: how many there are.
        nbytes: of a message.
        delay, rate: of each link, in seconds and bit/s.
        late: seconds after which the last rank begins at most.
        seed: of who begins when.
    """
    draw, number, rounds = random.Random(seed), count(), 2 * (ranks - 1)
    sends, receives = [0.0] * ranks, [0.0] * ranks  # until when a port is busy
    # Moment, order, what happens ("post", "leave", "arrive", "see"), rank, direction, frame.
    events: list[tuple[float, int, str, int, int, int]] = []
    posted = {(rank, way): 0 for rank in range(ranks) for way in (1, -1)}
    got = dict.fromkeys(posted, 0)
    lasts = [8 * size / rate for size in frames(nbytes)]

    def put(moment: float, what: str, rank: int, way: int, frame: int = 0) -> None:
        heapq.heappush(events, (moment, next(number), what, rank, way, frame))

    for rank in range(ranks):
        begin = draw.uniform(0, late)
        for way in (1, -1):
            put(begin, "post", rank, way)
    moment = 0.0
    while events:
        moment, _, what, rank, way, frame = heapq.heappop(events)
        if what == "post":
            posted[rank, way] += 1
            for index, seconds in enumerate(lasts):
                start = max(sends[rank], moment)
                sends[rank] = start + seconds
                put(start, "leave", (rank + way) % ranks, way, index)
        elif what == "leave":
            receives[rank] = max(receives[rank], moment) + lasts[frame]
            if frame == len(lasts) - 1:
                put(receives[rank] + delay, "arrive", rank, way)
        elif what == "arrive":
            put(moment + SOFTWARE + draw.uniform(0, NAP), "see", rank, way)
        else:
            got[rank, way] += 1
            if posted[rank, way] < rounds and posted[rank, way] <= got[rank, way]:
                put(moment, "post", rank, way)
    return moment


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sizes", nargs="+", type=int, metavar="BYTES", help="of a message")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--delay", type=float, default=5e-4, help="seconds from host to host")
    parser.add_argument("--rate", type=float, default=100e6, help="bit/s of each link, each way")
    parser.add_argument("--late", type=float, default=2e-4, help="seconds that ranks begin apart")
    options = parser.parse_args()
    for nbytes in options.sizes:
        call = options.ranks, nbytes, options.delay, options.rate, options.late
        times = sorted(1e3 * ring(*call, seed) for seed in range(DRAWS))
        print(f"{nbytes:8} {times[DRAWS // 2]:8.2f} ({times[0]:.2f} to {times[-1]:.2f})")


if __name__ == "__main__":
    main()
