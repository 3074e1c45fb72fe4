"""Launches in which ranks are killed, and the others go on: for tests that start them."""

import json
from pathlib import Path

import launch
import pytest

PROGRAM = Path(__file__).parent / "comm" / "surviving.py"
#: A launcher that goes on when a rank dies.
FAULT_TOLERANT = ("--with-ft", "ulfm")
#: One that does not end all when a second process has ended with a status other than 0, either.
EXITS = (*FAULT_TOLERANT, "--rtos", "error-nonzero-status=0")
#: Options with which it also notices ranks of which it hears nothing for so many seconds.
STOPPED_FOR = 4
HEARTBEATS = (
    *("--mca", "mpi_ft_detector", "true", "--mca", "mpi_ft_detector_period", "0.5"),
    *("--mca", "mpi_ft_detector_timeout", str(STOPPED_FOR)),
    *("--mca", "mpi_ft_propagator_with_rbcast", "true"),
)

ulfm = pytest.mark.skipif(
    "Open MPI v5" not in launch._library(), reason="all ranks end with one, by this library"
)


def survive(
    mpirun, rounds, transport="auto", elements=1000, after=None, limit=40, ranks=None, exits=False
):
    """Run rounds in which a rank dies; what the ranks that are left have found in each.

    There are `ranks`, one more than rounds if that is not given; `exits`: they die by ``os._exit``.
    """
    job = {"rounds": rounds, "elements": elements, "after": after, "exits": exits}
    done = mpirun(
        ranks or len(rounds) + 1,
        PROGRAM,
        json.dumps(job),
        options=EXITS if exits else FAULT_TOLERANT,
        environment={"MPICOLL_TRANSPORT": transport},
        limit=limit,
    )
    *found, last = done.out.splitlines() or [""]
    assert last == "done", done.err
    assert len(found) == len(rounds)
    mpirun.check_tidy()
    return [json.loads(line) for line in found]
