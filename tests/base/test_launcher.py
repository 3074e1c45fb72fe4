"""The launcher of the MPI tests on small test files: it must see each way in which a rank fails."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import launch
import pytest

TESTS = Path(launch.__file__).parent
PREAMBLE = """
    import os, signal, subprocess, time
    import pytest
    from mpi4py import MPI
    world = MPI.COMM_WORLD
"""


@pytest.fixture
def launched(tmp_path):
    """Launch a test file; give (exit status, output). Nothing of it may be left afterwards."""
    if not any(map(shutil.which, [str(Path(sys.executable).with_name("mpirun")), "mpirun"])):
        pytest.skip("no mpirun")
    temporary = tmp_path / "t"
    temporary.mkdir()

    def run(body, *arguments):
        shutil.copy(TESTS / "mpi" / "conftest.py", tmp_path)
        text = textwrap.dedent(PREAMBLE) + textwrap.dedent(body)
        (tmp_path / "test_generated.py").write_text(text)
        at = arguments.index("--") if "--" in arguments else len(arguments)
        done = subprocess.run(
            [sys.executable, TESTS / "launch.py", *arguments[:at], tmp_path, *arguments[at:]],
            env={**os.environ, "TMPDIR": str(temporary)},
            capture_output=True,
            text=True,
            timeout=50,
        )
        return done.returncode, done.stdout

    yield run
    assert os.listdir(temporary) == []
    assert launch.processes(temporary) == []


def closing(output):
    return launch.counts(output.splitlines()[-1])


def test_counts_of_all_launches_are_added_up(launched):
    status, output = launched(
        """
        def test_sum():
            assert world.allreduce(1) == world.size

        @pytest.mark.mpi(min_size=2)
        def test_two():
            world.Barrier()
        """,
        "-n1,2",
    )
    assert status == 0, output
    assert closing(output) == Counter(passed=3, skipped=1)


def test_failing_rank_is_named_and_ends_the_launch(launched):
    status, output = launched(
        """
        def test_good(): pass

        def test_bad():
            if world.rank == 1:
                assert 2 + 2 == 5, "arithmetic"
            world.Barrier()

        def test_never_reached():
            world.Barrier()
        """,
        "-n3",
    )
    assert status == 1
    assert re.search(r"^\[rank 1\] E +AssertionError: arithmetic", output, re.M), output
    assert "rank 0 stuck" not in output
    assert closing(output) == Counter(passed=1, failed=1)


def test_ranks_that_fail_alike_are_reported_together(launched):
    status, output = launched(
        """
        def test_bad():
            assert MPI.VERSION < 0
        """,
        "-n3",
    )
    assert status == 1
    assert re.search(r"^E +assert ", output, re.M), output  # rank 0's own
    assert re.search(r"^\[rank 1-2\] E +assert ", output, re.M), output
    assert closing(output) == Counter(failed=1)


def test_failure_in_a_fixture_of_one_rank(launched):
    status, output = launched(
        """
        @pytest.fixture
        def resource():
            yield 1
            if world.rank == 1:
                raise OSError("cannot let go")

        def test_uses(resource): pass
        """,
        "-n2",
    )
    assert status == 1
    assert re.search(r"^\[rank 1\] E +OSError: cannot let go", output, re.M), output


def test_hanging_rank_ends_at_the_limit_of_the_test(launched):
    status, output = launched(
        """
        def wait_for_ever():
            time.sleep(1000)

        @pytest.mark.timeout(1)
        def test_hang():
            if world.rank == 1:
                wait_for_ever()
        """,
        "-n2",
    )
    assert status == 1
    assert "time limit reached: rank 1 of 2 stuck" in output
    assert re.search(r"^\[rank 1\] .* in wait_for_ever$", output, re.M), output
    assert re.search(r"^FAILED .*::test_hang", output, re.M), output
    assert closing(output) == Counter(failed=1)


def test_all_ranks_hang_inside_the_library(launched):
    status, output = launched(
        """
        def test_hang():
            world.recv(source=(world.rank + 1) % world.size)
        """,
        "-n2",
        "--",
        "--timeout=1",
    )
    assert status == 1
    assert "time limit reached: rank 0-1 of 2 stuck" in output, output
    assert closing(output) == Counter(failed=1)


def test_killed_rank_fails_the_launch(launched):
    status, output = launched(
        """
        def test_killed():
            if world.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            world.Barrier()
        """,
        "-n2",
    )
    assert status == 1
    assert re.search(r"^\[rank 1\] was in .*::test_killed$", output, re.M), output
    assert closing(output) == Counter(error=1)


def test_limit_of_a_launch(launched):
    status, output = launched(
        """
        def test_hang():
            subprocess.Popen(["sleep", "1000"], start_new_session=True)
            world.recv(source=(world.rank + 1) % world.size)
        """,
        "-n2",
        "--limit=4",
    )
    assert status == 1
    assert "killed at the limit of 4 s" in output, output
    assert re.search(r"^\[rank 1\] was in .*::test_hang$", output, re.M), output
    assert re.search(r"^\[rank 1\] .* in test_hang$", output, re.M), output
    assert closing(output) == Counter(error=1)


def test_ranks_that_collect_different_tests(launched):
    status, output = launched(
        """
        if world.rank == 1:
            def test_more(): pass

        def test_same(): pass
        """,
        "-n2",
    )
    assert status == 1
    assert "ranks 1 collected other tests than rank 0" in output, output


def test_nothing_to_run_is_a_failure(launched):
    status, output = launched("", "-n1")
    assert status == 1
    assert closing(output) == Counter(error=1)


@pytest.mark.parametrize(
    "words",
    [
        "1 passed",
        "1 failed, 12 passed, 3 skipped",
        "2 failed, 1 error, 10 passed, 1 skipped, 1 xfailed, 2 warnings",
    ],
)
def test_closing_words_are_read_and_written(words):
    assert launch.closing_words(launch.counts(words)) == words


def test_closing_line_has_the_form_of_pytest():
    line = launch.closing_line(Counter(passed=3, failed=1), 3661.5)
    assert re.fullmatch(r"=+ 1 failed, 3 passed in 3661.50s \(1:01:01\) =+", line)
    assert launch.CLOSING.match(line)[1] == "1 failed, 3 passed"
