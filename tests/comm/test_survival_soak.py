"""Many launches in which ranks are killed at random points: none hangs, no sum is wrong."""

import contextlib
import random
import subprocess
import sys

import pytest
from deaths import survive, ulfm

#: Launches, of three deaths each; and those of one death on a loaded machine.
LAUNCHES, LOADED = 240, 20
#: Kinds of calls in which each rank waits for the others.
KINDS = (
    *("blocking", "blocking_doubling", "waited", "tested", "all_waited", "persistent"),
    *("persistent_doubling", "native", "native_waited", "persistent_native", "barrier", "objects"),
)
BUSY = "while True: pass"

pytestmark = [ulfm, pytest.mark.long, pytest.mark.timeout(120)]


@pytest.mark.parametrize("seed", range(LAUNCHES))
def test_deaths_at_random(mpirun, seed):
    draw = random.Random(seed)
    ranks = draw.choice([4, 4, 4, 8])
    rounds = [
        (draw.choice(KINDS), draw.randrange(size), draw.randrange(6))
        for size in range(ranks, ranks - 3, -1)
    ]
    survive(
        mpirun,
        rounds,
        ranks=ranks,
        exits=draw.random() < 0.5,
        transport=draw.choice(["auto", "shm", "mpi"]),
        elements=draw.choice([1, 100, 2000, 100_000]),
        after=draw.choice([None, draw.uniform(0, 0.1)]),
        limit=60,
    )


@contextlib.contextmanager
def load(processes):
    """Keep the machine busy."""
    running = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.parametrize("seed", range(LOADED))
def test_a_death_on_a_loaded_machine(mpirun, seed):
    """Of rank 1, in sums of 800 kB over shared memory."""
    with load(16):
        survive(
            mpirun,
            [("blocking", 1, seed % 6)] + [("persistent", 1, seed % 5)] * 2,
            elements=100_000,
            after=[None, 0.01 * seed][seed % 2],
            limit=100,
        )
