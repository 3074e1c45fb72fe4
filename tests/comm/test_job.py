"""How jobs end: quietly when all is well, at once and with the rank when one of them fails."""

import os

import pytest


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("finalize", ["", "MPI.Finalize()"])
def test_what_is_never_freed_ends_with_the_job(job, ranks, finalize):
    status, out, err = job(
        ranks,
        f"""
        kept = [comm.Dup(), comm.Split(0, -comm.rank), Intracomm(MPI.COMM_SELF)]
        for c in (comm, *kept):
            c.Allreduce(np.ones(9), np.zeros(9), algorithm="ring")
        comm.Dup().Free()
        print("done")
        {finalize}
        """,
    )
    assert (status, err) == (0, "")
    assert out.replace("\n", "") == "done" * ranks  # lines of ranks may be mixed


def test_a_communicator_is_freed_whatever_else_is_attached(job):
    """mpi4py attaches a lock with the first object; MPICH has 32 attributes before it makes room.

    While all are in use, the one that it has freed first leads nowhere.
    """
    status, out, err = job(
        1,
        """
        MPI.COMM_SELF.Create_cart([1]).Free()
        crowd = MPI.COMM_SELF.Dup()
        for number in range(64):
            crowd.Set_attr(MPI.Comm.Create_keyval(), number)
            for freed_by in (Intracomm, MPI.Intracomm):
                made = comm.Dup()
                made.Barrier(algorithm="tree")
                made.bcast(None)
                freed_by.Free(made)
                assert made == MPI.COMM_NULL
        print("done")
        """,
    )
    assert (status, out, err) == (0, "done\n", "")


def test_what_fails_while_a_communicator_is_freed_is_told(job):
    status, out, err = job(
        1,
        """
        from mpicoll.runtime import handles
        class Attached:
            def close(self):
                raise OSError("no space left")
        made = world.Dup()
        handles.attach(made, Attached())
        try:
            made.Free()
        except MPI.Exception as error:
            print("told")
        """,
    )
    assert (status, out) == (0, "told\n")
    assert "OSError: no space left" in err


def test_finalizing_frees_all(job):
    status, out, err = job(
        2,
        """
        from mpicoll.runtime import state
        kept = [comm.Dup(), Intracomm(MPI.COMM_SELF)]
        kept[0].Barrier(algorithm="dissemination")
        MPI.Finalize()
        assert not state._OPEN
        assert kept[0]._state.guard.closed
        """,
    )
    assert (status, out, err) == (0, "", "")


FAILING = """
@abort_on_exception()
def main():
    if comm.rank == 1:
        {mistake}
    comm.Allreduce(np.ones(9), np.zeros(9), algorithm="ring")

main()
print("not reached", file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("comm.Allreduce(np.ones(9), np.zeros(8))", "ValueError: send buffer of 9 elements but"),
        ("sys.exit(3)", "exit with status 3"),
        ("sys.exit('no data')", "exit with status no data"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_one_rank_that_fails_ends_the_job(job, mistake, words):
    status, _, err = job(3, FAILING.format(mistake=mistake))
    assert status != 0
    assert "not reached" not in err
    lines = [line for line in err.splitlines() if line.startswith("[rank 1] ")]
    assert any(words in line for line in lines), err
    assert "[rank 0]" not in err


def test_mpi4pys_own_runner_ends_the_job_too(job):
    script = """
    if comm.rank == 1:
        comm.Allreduce(np.ones(9), np.zeros(8))
    comm.Allreduce(np.ones(9), np.zeros(9), algorithm="ring")
    """
    status, _, _ = job(3, script, "-m", "mpi4py")
    assert status != 0


def test_leaving_with_status_0_is_no_failure(job):
    script = """
    with abort_on_exception():
        comm.Barrier(algorithm="dissemination")
        sys.exit(0)
    """
    assert job(2, script) == (0, "", "")


def test_alone_the_exception_is_left_as_it_is(job):
    status, _, err = job(1, FAILING.format(mistake="pass").replace("comm.rank == 1", "1 / 0"))
    assert status != 0
    assert "\nZeroDivisionError" in err
    assert "[rank" not in err


def test_a_rank_that_is_killed_ends_the_job(job):
    # The others wait in shared memory, where nobody tells them.
    status, out, _ = job(
        3,
        """
        import os, signal
        data = np.ones(1 << 20)
        for turn in range(20):
            if comm.rank == 1 and turn == 10:
                os.kill(os.getpid(), signal.SIGKILL)
            comm.Allreduce(MPI.IN_PLACE, data, algorithm="parameter_server")
        print("not reached")
        """,
    )
    assert status != 0
    assert "not reached" not in out
    assert not any("mpicoll" in name for name in os.listdir("/dev/shm"))
