"""Ranks that die while others wait for them in collectives: these hear of it, and go on."""

import re
import textwrap

import pytest
from deaths import FAULT_TOLERANT, HEARTBEATS, survive, ulfm

#: Four calls of each kind pass before a rank dies: by then they go the fast path.
WHEN = 4


@ulfm
@pytest.mark.parametrize("transport", ["auto", pytest.param("mpi", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "kinds",
    [
        ["blocking", "waited", "persistent", "native"],
        ["tested", "all_waited", "native_waited", "native_all_waited"],
        ["barrier", "objects", "broadcast", "persistent_native"],
    ],
    ids=" ".join,
)
def test_whoever_waits_hears_of_a_death_and_goes_on(mpirun, kinds, transport):
    # Another rank each time, rank 0 among them.
    rounds = [(kind, number % (5 - number), WHEN) for number, kind in enumerate(kinds)]
    found = survive(mpirun, rounds, transport)
    for (kind, victim, _), every in zip(rounds, found, strict=True):
        for told in every:
            assert told["kind"] == kind
            assert re.match(rf"rank {victim} of this communicator has died: ", told["told"])


@ulfm
def test_a_rank_that_dies_within_a_call(mpirun):
    rounds = [(kind, 1, 0) for kind in ("blocking", "persistent_doubling", "blocking_doubling")]
    survive(mpirun, rounds, elements=100_000, after=0.05)


#: What the programs below begin with.
BEGIN = """
import os, signal, sys, time
import numpy as np
import pytest
from mpi4py import MPI
import mpicoll
from mpicoll.comm import exit_on_exception

def works(comm):
    total = np.zeros(3)
    comm.Allreduce(np.full(3, comm.rank + 1.0), total, algorithm="ring")
    return (total == sum(range(1, comm.size + 1))).all()

def until_lost(comm):
    with pytest.raises(mpicoll.RankLost) as caught:
        while True:
            assert works(comm)
    return caught.value

def kill_myself():
    os.kill(os.getpid(), signal.SIGKILL)

"""

MAIN = """
@exit_on_exception()
def main():
{}
    if comm.rank == 0:
        print("done", comm.size, flush=True)
    comm.leave()

main()
"""


@pytest.fixture
def program(mpirun, tmp_path):
    """Run a program on some ranks of a launch that goes on when one dies; it leaves ``comm``."""

    def run(ranks, text, options=FAULT_TOLERANT, limit=30, **environment):
        path = tmp_path / "program.py"
        path.write_text(BEGIN + MAIN.format(textwrap.indent(textwrap.dedent(text), "    ")))
        return mpirun(ranks, path, options=options, environment=environment, limit=limit)

    return run


@ulfm
def test_a_rank_that_dies_while_the_others_recover(program):
    done = program(
        5,
        """
        comm = mpicoll.Intracomm(MPI.COMM_WORLD, survive=True)
        assert works(comm)
        if comm.rank == 3:
            kill_myself()
        lost = until_lost(comm)
        # The next one dies in what sets up the new communicator, where others wait for it.
        if comm.rank == 1:
            from mpicoll.engine import transport
            transport.space = lambda *given: kill_myself()
        comm = comm.survivors()
        assert lost.ranks == (1, 3) and lost.finished == 1
        assert works(comm)
        """,
    )
    assert done.out.split() == ["done", "3"], done.err


@ulfm
@pytest.mark.parametrize(
    "end",
    [
        *("os._exit(3)", "raise OSError('full')"),
        *(pytest.param(end, marks=pytest.mark.long) for end in ("sys.exit(3)", "2 deaths")),
    ],
)
def test_how_a_rank_may_end(program, end):
    done = program(
        4,
        f"""
        comm = mpicoll.Intracomm(MPI.COMM_WORLD, survive=True)
        assert works(comm)
        dead = (0, 2) if {end!r} == "2 deaths" else (2,)
        if comm.rank in dead:
            {"kill_myself()" if end == "2 deaths" else end}
        lost = until_lost(comm)
        comm = comm.survivors()
        assert lost.ranks == dead and works(comm)
        """,
    )
    assert done.out.split() == ["done", "2" if end == "2 deaths" else "3"], done.err
    assert ("[rank 2] OSError: full" in done.err) == ("full" in end)


@ulfm
def test_a_rank_that_was_stopped_is_given_up_and_ends(program):
    done = program(
        3,
        """
        comm = mpicoll.Intracomm(MPI.COMM_WORLD, survive=True)
        assert works(comm)
        stopped = comm.bcast(os.getpid(), 1)
        if comm.rank == 1:
            os.kill(stopped, signal.SIGSTOP)
            while True:
                comm.Barrier(algorithm="dissemination")
        lost = until_lost(comm)
        comm = comm.survivors()
        assert lost.ranks == (1,) and works(comm)
        os.kill(stopped, signal.SIGCONT)
        time.sleep(1)
        assert works(comm) and not comm.lost_ranks()
        for _ in range(100):
            try:
                os.kill(stopped, 0)
            except ProcessLookupError:
                print("gone", flush=True) if comm.rank == 0 else None
                break
            time.sleep(0.1)
        """,
        options=(*FAULT_TOLERANT, *HEARTBEATS),
    )
    assert done.out.split() == ["gone", "done", "2"], done.err
    assert done.err.count("the other ranks have given up rank 1, which is this one") == 1
    assert "Traceback" not in done.err


@ulfm
def test_the_end_by_mpi_is_limited(program):
    done = program(
        3,
        """
        comm = mpicoll.Intracomm(MPI.COMM_WORLD, survive=True)
        assert works(comm)
        if comm.rank == 1:
            os._exit(3)
        until_lost(comm)
        assert works(comm.survivors())
        print("went on", flush=True)
        return
        """,
    )
    assert done.out.split("\n")[:2] == ["went on"] * 2, done.err


@ulfm
def test_hints_objects_on_the_handle_and_duplicates(program):
    done = program(
        4,
        """
        first = mpicoll.Intracomm(MPI.COMM_WORLD)
        assert works(first) and works(first)
        with pytest.raises(ValueError, match='mpicoll_survive = .yes.: only "true" is known'):
            first.Set_info(MPI.Info.Create({"mpicoll_survive": "yes"}))
        with pytest.raises(ValueError, match=r"build it by Intracomm\\(comm, survive=True\\)"):
            first.survivors()
        first.Set_info(MPI.Info.Create({"mpicoll_survive": "true"}))
        assert first.Get_info().Get("mpicoll_survive") == "true"
        again = mpicoll.Intracomm(MPI.COMM_WORLD, survive=True)
        dup, part = again.Dup(), again.Split(again.rank % 2)
        assert works(first) and works(dup) and works(part)
        assert first.lost_ranks() == ()
        if first.rank == 3:
            kill_myself()
        lost = until_lost(first)
        with pytest.raises(mpicoll.RankLost) as caught:
            again.Barrier()  # of the same handle
        assert caught.value is lost
        until_lost(dup)
        if first.rank == 1:
            until_lost(part)
        else:
            assert works(part)
        assert works(dup.survivors())
        comm = again.survivors()
        """,
    )
    assert done.out.split() == ["done", "3"], done.err


@ulfm
def test_several_requests_of_which_one_is_of_the_dead(program):
    """``MPI_Request_get_status`` never tells of that."""
    done = program(
        3,
        """
        comm = mpicoll.Intracomm(MPI.COMM_WORLD.Dup(), survive=True)
        assert works(comm)
        if comm.rank == 1:
            kill_myself()
        if comm.rank == 0:
            for complete in ("Testall", "Waitall", "waitall", "testall"):
                buffer = np.zeros(3)
                requests = [comm.Irecv(buffer, 1), comm.Isend(np.ones(1), 0)]
                requests.append(comm.Irecv(np.zeros(1), 0))
                with pytest.raises(MPI.Exception) as caught:
                    while True:
                        getattr(mpicoll.Request, complete)(requests)
                assert caught.value.Get_error_class() == MPI.ERR_PROC_FAILED, complete
        until_lost(comm)
        comm = comm.survivors()
        """,
    )
    assert done.out.split() == ["done", "2"], done.err


@ulfm
def test_a_death_that_mpi_reports_before_the_alarm_is_looked_at(program):
    done = program(
        3,
        """
        comm = mpicoll.Intracomm(MPI.COMM_WORLD, survive=True)
        buffer = np.zeros(2000)

        def call():
            request = comm.Iallreduce(np.ones(2000), buffer, algorithm="ring")
            mpicoll.Request.Waitall([request])

        for _ in range(5):  # the fast path
            call()
        comm._state.alarm._next = float("inf")  # of the next look
        if comm.rank == 1:
            kill_myself()
        with pytest.raises(mpicoll.RankLost):
            while True:
                call()
        comm = comm.survivors()
        assert works(comm)
        """,
    )
    assert done.out.split() == ["done", "2"], done.err


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_launch_that_ends_with_its_first_rank_is_refused(mpirun, tmp_path, ranks):
    path = tmp_path / "program.py"
    text = """
    comm = mpicoll.Intracomm(MPI.COMM_WORLD)
    for survives in (
        lambda: mpicoll.Intracomm(comm, survive=True),
        lambda: comm.Set_info(MPI.Info.Create({"mpicoll_survive": "true"})),
    ):
        with pytest.raises(RuntimeError, match="survive=True is not available: .*--with-ft ulfm"):
            survives()
    assert works(comm)
    """
    path.write_text(BEGIN + textwrap.dedent(text))
    done = mpirun(ranks, path)
    assert done.status == 0, done.err
