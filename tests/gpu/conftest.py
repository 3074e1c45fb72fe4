"""What the tests on GPUs share.  They need CuPy and a GPU for every rank:

mpirun -n 2 python -m pytest tests/gpu
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items):
    mine = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    reason = _missing() if mine else ""
    for item in mine:
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def _missing() -> str:
    """Why nothing can be tested, "" if it can."""
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        return f"no GPU: {type(error).__name__}: {error}".splitlines()[0]
    return "" if count else "no GPU"


@pytest.fixture(scope="session")
def world():
    """All ranks; each has made its GPU the current one."""
    import cupy
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    cupy.cuda.Device(comm.Get_rank() % cupy.cuda.runtime.getDeviceCount()).use()
    return comm


@pytest.fixture(scope="module")
def peers(world):
    """The peers of all ranks."""
    from gpu_peers import opened

    with opened(world) as made:
        yield made


@pytest.fixture(scope="module")
def low(world):
    """The same, in which what is short already goes the ways of what is long."""
    from gpu_peers import LOW, opened

    with opened(world, limits=LOW) as made:
        yield made
