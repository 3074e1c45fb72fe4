"""Launches that the MPI library does not survive at its own start, on emulated hosts under load.

Such a test is run again once, and a line says so. What dies anywhere else, or with a line
of ours in its last words, is a failure at once.
"""

import re
import shutil
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

#: What the jobs of a test that has failed had said by then, and the files that they had written.
SAID: pytest.StashKey[str] = pytest.StashKey()
FILES: pytest.StashKey[list[Path]] = pytest.StashKey()

#: The last words of a process that a signal has ended, as Open MPI prints them.
_LAST_WORDS = re.compile(
    r"\*\*\* Process received signal \*\*\*(.*?)(?:\*\*\* End of error message \*\*\*|\Z)", re.S
)
#: Calls of a start that are on the stack, and what the libraries say of a start that has failed.
_STARTING = re.compile(r"\b(?:ompi_mpi_init|P?MPI_Init(?:_thread)?|MPIR_Init\w*|MPID_Init)\+0x")
_FAILED_START = re.compile(
    r"It looks like MPI_INIT failed|An error occurred in MPI_Init"
    r"|Fatal error in \w*_?Init(?:_thread)?\b"
)
_OURS = re.compile(r"/mpicoll/|\bmpicoll\.|Traceback \(most recent call last\)")


def crashed(said: str) -> bool:
    """Whether MPI_Init itself has failed or crashed, and nothing of ours has."""
    deaths = _LAST_WORDS.findall(said)
    if any(_OURS.search(words) or not _STARTING.search(words) for words in deaths):
        return False
    if "Traceback (most recent call last)" in said:
        return False
    return bool(deaths) or bool(_FAILED_START.search(said))


def run_test(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test, as pytest does; once more where :func:`crashed` says so."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if any(report.failed for report in reports) and crashed(item.stash.get(SAID, "")):
        again = f"\n{item.nodeid}: MPI_Init crashed on an emulated host; started again once"
        item.config.get_terminal_writer().line(again)
        _forget(item)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _forget(item: pytest.Item) -> None:
    """Remove what the first run has left: files, and fixtures that have failed."""
    for path in item.stash.get(FILES, []):
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)
    for fixtures in item._fixtureinfo.name2fixturedefs.values():
        for fixture in fixtures:
            if fixture.cached_result is not None and fixture.cached_result[2] is not None:
                fixture.cached_result = None
    item._initrequest()
