"""MPICOLL_TIMEOUT: calls that do not end raise, and name the ranks that have not entered them."""

import re

import pytest

from mpicoll.base import wording

LATE = """
import time
{before}
def late(call):
    try:
        call()
    except TimeoutError as error:
        return str(error)
    return ""

out = np.zeros(8)
comm.Allreduce(np.ones(8), out, algorithm="ring")
if comm.rank in {absent}:
    time.sleep({nap})
else:
    text = late(lambda: comm.{call})
    assert "call 2 on this communicator" in text, text
    assert "{words}" in text, text
    try:
        comm.Barrier()
    except RuntimeError as error:
        assert "cannot be used any more" in str(error)
        print("raised")
sys.stdout.flush()
world.Abort(0) if comm.rank == {absent}[0] else time.sleep(9)
"""
MESSAGES = """
from mpicoll.runtime import state, watch
state.Watch = lambda private, seconds: watch.Watch(private, seconds, share=False)
comm = Intracomm(world.Dup())
"""


@pytest.mark.parametrize(
    ("absent", "call", "words"),
    [
        ((1,), "Allreduce(np.ones(8), out, algorithm='ring')", "rank 1 has not entered it"),
        ((2,), "Allreduce(np.ones(8), out, algorithm='native')", "rank 2 has not entered it"),
        ((0, 1), "Barrier(algorithm='dissemination')", "ranks 0-1 have not entered it"),
    ],
)
def test_ranks_that_have_not_entered_are_named(job, absent, call, words):
    script = LATE.format(absent=absent, call=call, words=words, before="", nap=1)
    _, out, err = job(3, script, MPICOLL_TIMEOUT="0.3")
    assert out.count("raised") == 3 - len(absent), out + err


def test_ranks_of_other_nodes_are_asked(job):
    script = LATE.format(
        absent=(1,),
        call="Allreduce(np.ones(8), out, algorithm='ring')",
        words="rank 1 has not answered, and has not entered it or left it early",
        before=MESSAGES,
        nap=2,
    )
    _, out, err = job(3, script, MPICOLL_TIMEOUT="0.3")
    assert out.count("raised") == 2, out + err


@pytest.mark.parametrize("before", ["", MESSAGES])
def test_a_rank_that_left_early_or_waits_elsewhere_is_not_confused(job, before):
    """Rank 0 is done with a broadcast in which rank 1 waits for rank 2, which never comes."""
    script = f"""
import time
{before}
comm.Barrier(algorithm="dissemination")
if comm.rank == 2:
    time.sleep(2.2)
    world.Abort(0)
try:
    comm.Bcast(np.zeros(1 << 20), algorithm="chain", segments=1)
    comm.Barrier(algorithm="dissemination")
except TimeoutError as error:
    print(f"<{{comm.rank}}: {{error}}>", flush=True)
time.sleep(9)
"""
    _, out, err = job(3, script, MPICOLL_TIMEOUT="0.5")
    lines = {text.split(":")[0]: text for text in out.split("<")}
    who = "rank 2 has not answered" if before else "rank 2 has not entered it"
    assert "Bcast by chain, call 2" in lines["1"] and who in lines["1"], out + err
    assert "Barrier by dissemination, call 3" in lines["0"], out + err
    found = "rank 1 has (failed in another call|not entered it)|ranks 1-2 have not entered it"
    assert re.search(found, lines["0"]), out + err


@pytest.mark.parametrize("before", ["", f"{MESSAGES}watch.GRACE = 0.2"])
def test_a_rank_that_has_failed_is_named_as_such(job, before):
    """Rank 1 gives up a broadcast long before rank 0, which is done with it, calls a barrier."""
    script = f"""
import time
{before}
try:
    if comm.rank < 2:
        comm.Bcast(np.zeros(1 << 20), algorithm="chain", segments=1)
    if comm.rank == 0:
        time.sleep(1)
        comm.Barrier(algorithm="dissemination")
except TimeoutError as error:
    print(f"<{{comm.rank}}: {{error}}>", flush=True)
if comm.rank == 0:
    world.Abort(0)
time.sleep(9)
"""
    _, out, err = job(3, script, MPICOLL_TIMEOUT="0.3")
    lines = {text.split(":")[0]: text for text in out.split("<")}
    assert "rank 1 has failed in another call; rank 2 has not" in lines["0"], out + err
    assert "failed" not in lines["1"] and "2 ha" in lines["1"], out + err


def test_a_rank_that_has_refused_the_call_is_named_as_such(job):
    script = """
    import time
    out = np.zeros(8)
    for way in ("Allreduce", "Iallreduce"):
        comm = Intracomm(world.Dup())
        try:
            request = getattr(comm, way)(np.ones(8 if comm.rank else 9), out)
            if request is not None:
                request.Wait()
        except TimeoutError as error:
            print(f"<{error}>", flush=True)
        except ValueError:
            pass
    if comm.rank == 0:
        time.sleep(1)
        world.Abort(0)
    time.sleep(9)
    """
    _, out, err = job(3, script, MPICOLL_TIMEOUT="0.3")
    assert out.count("rank 0 has refused it for its arguments>") == 4, out + err


REQUESTS = """
import time
from mpicoll.requests import Request
{before}
def late(call):
    try:
        call()
    except TimeoutError as error:
        return str(error)
    return ""

out = np.zeros(8)
comm.Iallreduce(np.ones(8), out, algorithm="ring").Wait()
plan = comm.Allreduce_init(np.ones(8), out, algorithm={how!r})
spare = comm.Barrier_init(algorithm="dissemination")
for one in (plan, spare) if comm.rank else (spare, plan):  # numbered apart
    one.Start()
Request.Waitall([plan, spare])
if comm.rank == 1:
    spare.Start()
    time.sleep({nap})
else:
    {start}
    text = late(lambda: {wait})
    assert {words!r} in text, text
    assert "{what}" in text, text
    try:
        comm.Barrier()
    except RuntimeError as error:
        assert "cannot be used any more" in str(error)
        print("raised", flush=True)
world.Abort(0) if comm.rank == 1 else time.sleep(9)
"""
WAITS = [
    ("request.Wait()", "rank 1 has not entered it", ""),
    ("Request.Waitall([request, comm.Irecv(np.zeros(1), 1)])", "rank 1 has not entered it", ""),
    ("Request.Waitany([request])", "rank 1 has not answered", MESSAGES),
]


@pytest.mark.parametrize("how", ["ring", "native"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(("wait", "words", "before"), WAITS)
def test_waiting_for_requests_is_limited(job, how, persistent, wait, words, before):
    start = f"request = comm.Iallreduce(np.ones(8), out, algorithm='{how}')"
    if persistent:
        start = "request = plan; plan.Start()"
    # Calls before it: the first one, and those that have made the two plans.
    what = f"Allreduce by {how}, " + ("start 2 of this plan" if persistent else "call 4 on this")
    script = REQUESTS.format(
        how=how,
        start=start,
        wait=wait,
        words=words,
        before=before,
        what=what,
        nap=3 if before else 1,
    )
    _, out, err = job(3, script, MPICOLL_TIMEOUT="0.4")
    assert out.count("raised") == 2, out + err


def test_what_has_ended_is_not_late(job):
    """The limit is that of a wait, not of the time since the start."""
    script = """
    import time
    from mpicoll.requests import Request
    for how in ("ring", "native"):
        out = np.zeros(8)
        request = comm.Iallreduce(np.ones(8), out, algorithm=how)
        time.sleep(0.5)
        done = comm.Iallreduce(np.ones(8), np.zeros(8), algorithm=how)
        done.Wait()
        Request.Waitall([request, done])
        assert out.tolist() == [comm.size] * 8
    """
    assert job(2, script, MPICOLL_TIMEOUT="0.4") == (0, "", "")


def test_ended_in_time_nothing_is_different(job):
    script = """
    import time
    for late in range(comm.size):
        if comm.rank == late:
            time.sleep(0.05)
        for algorithm in ("ring", "native", "parameter_server"):
            out = np.zeros(8)
            comm.Allreduce(np.ones(8), out, algorithm=algorithm)
            assert out.tolist() == [comm.size] * 8
    comm.Bcast(np.zeros(4), 1)
    comm.Barrier()
    comm.Dup().Free()
    """
    assert job(3, script, MPICOLL_TIMEOUT="20") == (0, "", "")


@pytest.mark.parametrize(
    ("algorithm", "environment"),
    [("ring", {}), ("ring", {"MPICOLL_TIMEOUT": "30"}), ("native", {"MPICOLL_TIMEOUT": "30"})],
)
def test_an_interrupt_gets_through(job, algorithm, environment):
    script = """
    import os, signal, time
    if comm.rank == 0:
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            comm.Allreduce(np.ones(8), np.zeros(8), algorithm="ALGORITHM")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        try:
            comm.Barrier()
        except RuntimeError as error:
            assert "KeyboardInterrupt" in str(error)
        world.Abort(0)
    time.sleep(9)
    """.replace("ALGORITHM", algorithm)
    _, out, err = job(2, script, **environment)
    assert "interrupted" in out, err


def test_a_limit_that_is_no_number_is_refused_everywhere(job):
    script = """
    """
    status, _, err = job(2, script, MPICOLL_TIMEOUT="soon")
    assert status != 0
    assert "MPICOLL_TIMEOUT='soon' must be a number of seconds" in err


@pytest.mark.parametrize(
    ("ranks", "words"), [([3], "rank 3"), ([4, 0, 1], "ranks 0-1, 4"), ([2, 5], "ranks 2, 5")]
)
def test_ranks_in_words(ranks, words):
    assert wording.ranges(ranks) == words


@pytest.mark.parametrize(
    ("numbers", "words"), [([], ""), ([7], "7"), ([0, 1, 2, 5], "0-2,5"), ([3, 0, 1], "3,0-1")]
)
def test_numbers_as_intervals(numbers, words):
    assert wording.intervals(numbers) == words
