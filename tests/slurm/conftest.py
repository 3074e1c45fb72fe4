"""A SLURM cluster for all tests of this folder, and what is left of each test."""

import os

import pytest
from clouds import write_samples

from slurm import lab

PLACE = os.path.dirname(__file__)


def pytest_collection_modifyitems(items):
    """Without SLURM none of these tests runs."""
    reason = lab.missing()
    for item in items:
        if not str(item.path).startswith(PLACE):
            continue
        item.add_marker(pytest.mark.timeout(300))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def cluster():
    """Four nodes, and data for trainings of some seconds."""
    with lab.Slurm(4) as made:
        made.site()
        write_samples(made.shared / "data.npz")
        yield made


@pytest.fixture
def slurm(cluster):
    """The cluster; nothing of a test may be left on its nodes, neither processes nor files."""
    yield cluster
    cluster.tidy()
    left = cluster.leftovers()
    cluster.clear()  # for the tests that follow
    assert left == {host: [] for host in cluster.hosts}
