"""Launches in which ranks are killed, and the others go on: for tests that start them."""

import json
import os
from pathlib import Path

import launch
import pytest

PROGRAM = Path(__file__).parent / "comm" / "surviving.py"
#: A launcher that goes on when a rank dies.
FAULT_TOLERANT = ("--with-ft", "ulfm")

ulfm = pytest.mark.skipif(
    "Open MPI v5" not in launch._library(), reason="all ranks end with one, by this library"
)


def survive(mpirun, rounds, transport="auto", elements=1000, after=None, limit=40):
    """Run rounds in which a rank dies; what the ranks that are left have found in each."""
    job = json.dumps({"rounds": rounds, "elements": elements, "after": after})
    done = mpirun(
        len(rounds) + 1,
        PROGRAM,
        job,
        options=FAULT_TOLERANT,
        environment={"MPICOLL_TRANSPORT": transport},
        limit=limit,
    )
    *found, last = done.out.splitlines() or [""]
    assert last == "done", done.err
    assert len(found) == len(rounds)
    _, started = mpirun.running[-1]
    assert not [name for name in started.shared_memory if os.path.exists(name)]
    return [json.loads(line) for line in found]
