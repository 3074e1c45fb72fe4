"""MPICOLL_PROGRESS=thread: what is not blocking moves on, whatever the program does."""

import pytest

THREAD = {"MPICOLL_PROGRESS": "thread"}
#: Legal: rank 1 waits for a message that rank 0 sends when the all-reduce is complete.
LEGAL = """
out, mail = np.zeros(500), np.zeros(1)
for number in range(20):
    request = START
    if comm.rank == 0:
        request.Wait()
        comm.Send(np.ones(1), 1)
    elif comm.rank == 1:
        comm.Recv(mail, 0)
        request.Wait()
    else:
        request.Wait()
    assert out.tolist() == [comm.size] * 500
    out[:] = 0
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_legal_program_ends(job, ranks):
    script = LEGAL.replace("START", "comm.Iallreduce(np.ones(500), out)")
    script += 'assert comm.stats().calls == {("allreduce", "ring"): 20}\n'
    assert job(ranks, script, MPICOLL_ALLREDUCE="ring", **THREAD) == (0, "", "")


def test_the_legal_program_ends_with_plans(job):
    script = "out = np.zeros(500)\nplan = comm.Allreduce_init(np.ones(500), out)\n"
    script += LEGAL.replace("out, mail = np.zeros(500),", "mail =").replace(
        "START", "plan; plan.Start()"
    )
    script += 'assert comm.stats().calls == {("allreduce", "ring"): 20}\nplan.Free()\n'
    assert job(2, script, MPICOLL_ALLREDUCE="ring", **THREAD) == (0, "", "")


def test_the_table_still_chooses(job):
    script = """
    requests = [comm.Iallreduce(np.ones(n), np.zeros(n)) for n in (8, 1 << 17)]
    for request in requests:
        request.Wait()
    assert comm.stats().calls == {("allreduce", "native"): 1, ("allreduce", "ring"): 1}
    """
    # Without shared memory the table has the library's own for small vectors.
    assert job(2, script, MPICOLL_TRANSPORT="mpi", **THREAD) == (0, "", "")


def test_everything_at_once(job):
    """Many operations of all kinds, by two threads of the program beside the one of mpicoll."""
    script = """
    import threading
    from mpicoll.requests import Request

    def add(invec, inoutvec, datatype):
        np.frombuffer(inoutvec, "f8")[:] += np.frombuffer(invec, "f8")

    op = MPI.Op.Create(add, commute=True)
    failures = []

    def work(comm, seed):
        random = np.random.default_rng(seed)  # the same on all ranks
        column = MPI.DOUBLE.Create_vector(5, 1, 2).Commit()
        bound = np.zeros(6)
        plan = comm.Allreduce_init(np.ones(6), bound, algorithm="linear")
        total = 0
        for _ in range(15):
            pending, results = [plan], []
            plan.Start()
            for number in range(random.integers(1, 8)):
                out = np.zeros(5 + number)
                how = ("ring", "linear", None)[random.integers(3)]
                kind = op if how == "linear" else MPI.SUM
                send = np.full(5 + number, 1.0 + number)
                pending.append(comm.Iallreduce(send, out, kind, algorithm=how))
                results.append((out, comm.size * (1.0 + number)))
            holes = np.full(10, float(comm.rank))
            pending.append(comm.Ibcast([holes, 1, column], algorithm="linear"))
            other = np.zeros(3)
            comm.Allreduce(np.ones(3), other, algorithm="ring")
            assert other.tolist() == [comm.size] * 3
            local = np.random.default_rng(comm.rank)
            while (index := Request.Waitany(pending)) != MPI.UNDEFINED:
                del pending[index]
                local.shuffle(pending)
            total += len(results) + 2
            for out, value in results:
                assert (out == value).all()
            assert holes.tolist() == [0, comm.rank] * 5
            assert bound.tolist() == [comm.size] * 6
        plan.Free()
        column.Free()
        calls = comm.stats().calls
        assert sum(calls.values()) == total + 15, (calls, total)
        assert not comm._state.under_way and not comm._state.lanes._queues

    def safely(*arguments):
        try:
            work(*arguments)
        except BaseException as error:
            failures.append(error)
            world.Abort(3)

    comms = [comm, comm.Dup()]
    threads = [threading.Thread(target=safely, args=(c, s)) for s, c in enumerate(comms)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    op.Free()
    comms[1].Free()
    """
    assert job(3, script, MPICOLL_ALLREDUCE="recursive_doubling", **THREAD) == (0, "", "")


def test_hooks_and_failures_of_the_thread_reach_who_waits(job):
    script = """
    import threading, time
    from mpicoll import hooks
    where = []
    hooks.add(lambda event: where.append(threading.current_thread().name))
    comm.Iallreduce(np.ones(3), np.zeros(3), algorithm="ring")
    while not where:
        time.sleep(0.01)  # in no call of mpicoll
    assert where == ["mpicoll progress"] or comm.size == 1, where
    op = MPI.Op.Create(lambda *_: 1 / 0, commute=True)
    request = comm.Ireduce(np.ones(1), np.zeros(1), op, algorithm="linear")
    if comm.rank == 0:
        try:
            request.Wait()
        except ZeroDivisionError:
            print("raised")
    else:
        request.Wait()
    """
    status, out, err = job(2, script, **THREAD)
    assert (status, out, err) == (0, "raised\n", ""), err


@pytest.mark.parametrize("end", ["", "MPI.Finalize()", "sys.exit(0)", "comm = None"])
def test_it_ends_with_the_program(job, end):
    """Also with an operation under way that nobody waits for."""
    script = f"""
    from mpicoll.engine import progress
    assert progress.is_running()
    out = np.zeros(5)
    comm.Iallreduce(np.ones(5), out, algorithm="ring").Wait()
    mine = comm.Dup()
    mine.Ibarrier(algorithm="dissemination")
    world.Barrier()
    {end}
    """
    assert job(2, script, **THREAD) == (0, "", "")


def test_it_sleeps_while_nothing_is_under_way(job):
    script = """
    import time
    comm.Iallreduce(np.ones(5), np.zeros(5), algorithm="ring").Wait()
    world.Barrier()
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.2
    request = comm.Iallreduce(np.ones(5), np.zeros(5), algorithm="ring")
    while comm._state.under_way:
        time.sleep(0.001)  # it is awake again
    request.Wait()
    """
    assert job(2, script, **THREAD) == (0, "", "")


def test_a_forked_child_has_none(job):
    script = """
    import os, time
    from mpicoll.engine import progress
    requests = [comm.Iallreduce(np.ones(5), np.zeros(5), algorithm="ring") for _ in range(5)]
    child = os.fork()
    if not child:
        try:
            requests[0].Wait()
        except RuntimeError as error:
            assert not progress.is_running() and progress.lock.acquire(timeout=1)
            os._exit(7 if "must not call MPI" in str(error) else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    for request in requests:
        request.Wait()
    assert progress.is_running()
    """
    assert job(2, script, **THREAD) == (0, "", "")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({**THREAD, "MPI4PY_RC_THREAD_LEVEL": "serialized"}, "which ranks 0-1 did not get"),
        ({"MPICOLL_PROGRESS": "yes"}, "MPICOLL_PROGRESS='yes' must be thread"),
    ],
)
def test_what_cannot_be_is_refused_everywhere(job, settings, words):
    status, _, err = job(2, "raise SystemExit(0)", **settings)
    assert status != 0
    assert words in err


def test_an_interrupt_while_it_runs(job):
    script = """
    import os, signal, time
    if comm.rank == 0:
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            comm.Iallreduce(np.ones(8), np.zeros(8), algorithm="ring").Wait()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        world.Abort(0)
    time.sleep(9)
    """
    _, out, err = job(2, script, **THREAD)
    assert "interrupted" in out, err
