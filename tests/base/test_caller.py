"""Threads that MPI was not initialised for, and processes forked afterwards."""

import pytest

from mpicoll.base import caller

SCRIPT = """
import threading

def call(found):
    try:
        comm.Allreduce(np.ones(4), np.zeros(4), algorithm="ring")
    except RuntimeError as error:
        found.append(str(error))

found = []
thread = threading.Thread(target=call, args=(found,))
thread.start()
thread.join()
call(found)
print(len(found), *found, flush=True)
"""


@pytest.mark.parametrize("level", ["funneled", "serialized"])
def test_another_thread_is_refused_below_multiple(job, level):
    status, out, err = job(1, SCRIPT, MPI4PY_RC_THREAD_LEVEL=level)
    assert (status, err) == (0, ""), err
    # Some libraries give more than they are asked for.
    refused = out.startswith("1 a call from another thread than the one that initialised MPI")
    assert refused or out.strip() == "0", out
    assert refused or level != "funneled", out


def test_a_forked_child_is_refused_and_the_parent_goes_on(job):
    script = """
    import os
    import subprocess
    import warnings

    def works():
        out = np.zeros(4)
        comm.Allreduce(np.ones(4), out, algorithm="ring")
        assert out.tolist() == [comm.size] * 4

    works()
    assert subprocess.run([sys.executable, "-c", "print(3)"], capture_output=True).stdout == b"3\\n"
    works()
    warnings.simplefilter("ignore")
    child = os.fork()
    if not child:
        status = 1
        try:
            works()
        except RuntimeError as error:
            status = 0 if "must not call MPI" in str(error) else 2
        try:
            Intracomm(MPI.COMM_SELF)
            status = 3
        except RuntimeError:
            pass
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    works()
    """
    assert job(2, script) == (0, "", "")


def test_a_warning_names_the_users_line():
    """Not mpi4py's, which calls mpicoll on the user's behalf."""
    scope = {"__name__": "mpi4py.futures._core", "warn_once": caller.warn_once}
    exec("def submit():\n    warn_once('a text of this test', UserWarning, 0)", scope)
    with pytest.warns(UserWarning, match="a text of this test") as caught:
        scope["submit"]()
    assert caught[0].filename == __file__
