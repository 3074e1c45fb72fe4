"""A SLURM cluster for all tests of this folder, and what is left of each test."""

import os

import pytest
from clouds import write_samples
from slurm import lab, starts

PLACE = os.path.dirname(__file__)
BEFORE = pytest.StashKey()


def pytest_collection_modifyitems(items):
    """Without SLURM none of these tests runs."""
    reason = lab.missing()
    for item in items:
        if not str(item.path).startswith(PLACE):
            continue
        item.add_marker(pytest.mark.timeout(300))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


#: The cluster, once it is there.
made = []


def written():
    """What jobs have written into the folder of all hosts: logs, and a folder of each run."""
    found = made[-1].shared.iterdir() if made else ()
    return {path for path in found if path.is_dir() or path.suffix == ".log"}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Run a test again where the library has not survived its start, see `starts`."""
    if not str(item.path).startswith(PLACE):
        return None
    item.stash[BEFORE] = written()
    return starts.run_test(item, nextitem)


def pytest_runtest_makereport(item, call):
    """Keep what the jobs of a test said that fails; the cluster may be gone when it is over."""
    if call.excinfo is not None and BEFORE in item.stash:
        item.stash[starts.FILES] = new = sorted(written() - item.stash[BEFORE])
        item.stash[starts.SAID] = lab.said(new)


@pytest.fixture(scope="session")
def cluster():
    """Four nodes, and data for trainings of some seconds."""
    with lab.Slurm(4) as slurm:
        slurm.site()
        write_samples(slurm.shared / "data.npz")
        made.append(slurm)
        yield slurm
        made.clear()


@pytest.fixture
def slurm(cluster):
    """The cluster; nothing of a test may be left on its nodes, neither processes nor files."""
    yield cluster
    cluster.tidy()
    left = cluster.leftovers()
    cluster.clear()  # for the tests that follow
    assert left == {host: [] for host in cluster.hosts}
