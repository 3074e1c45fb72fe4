"""Settings of all tests."""

from pathlib import Path

import hypothesis
import jobs
import pytest

# The same examples in every run and on every rank: ranks that draw different examples would call
# different collectives. No deadline: no test depends on how busy the machine is.
hypothesis.settings.register_profile("mpicoll", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("mpicoll")


def pytest_ignore_collect(collection_path, config):
    """Leave out tests/mpi when not under mpirun: importing those tests initialises MPI."""
    mpi = Path(__file__).parent / "mpi"
    if not config.getoption("--with-mpi") and collection_path == mpi:
        return True
    return None


@pytest.fixture
def job(tmp_path_factory):
    """Run a script on some ranks; see `jobs.run`."""

    def run(*arguments, **variables):
        return jobs.run(tmp_path_factory.mktemp("job"), *arguments, **variables)

    return run
