"""What tests of trainings in which ranks die start."""

import json
from pathlib import Path

import launch
import pytest
from deaths import EXITS, STOPPED_FOR

HERE = Path(__file__).parent


@pytest.fixture
def train(mpirun):
    """Train on so many ranks, of which some die; what the program prints, by rank."""
    if "Open MPI v5" not in launch._library():
        pytest.skip("all ranks end with one, by this library")

    def start(ranks, deaths=(), changes=None, transport="auto", options=(), limit=80, **job):
        job = {
            "tests": str(launch.ROOT / "tests"),
            "deaths": list(deaths),
            "changes": changes or {},
            "stopped": 1.5 * STOPPED_FOR,  # the others give it up
            **job,
        }
        done = mpirun(
            ranks,
            HERE / "surviving.py",
            json.dumps(job),
            options=(*EXITS, *options),
            environment={"MPICOLL_TRANSPORT": transport},
            limit=limit,
        )
        mpirun.check_tidy()
        return done

    return start
