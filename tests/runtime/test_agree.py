"""MPICOLL_CHECK=1: calls that differ are an error on every rank, and name who differs."""

import pytest

from mpicoll import errors
from mpicoll.runtime import agree

CALLS = """
def call(rank):
    one, out, big = np.ones(8), np.zeros(8), np.zeros(8 * comm.size)
    {body}

for number in range(2):
    comm.Allreduce(np.ones(3), np.zeros(3), algorithm="ring")
    try:
        call(comm.rank)
    except Exception as error:
        print(f"<{{comm.rank}} {{type(error).__name__}}: {{error}}>", flush=True)
    comm.Barrier()
"""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "comm.Barrier() if rank == 1 else comm.Allreduce(one, out)",
            "collective: Allreduce on ranks 0, 2, Barrier on rank 1",
        ),
        (
            "comm.Allreduce(one[:8 - rank // 2], out[:8 - rank // 2], algorithm='native')",
            "count: 8 on ranks 0-1, 7 on rank 2",
        ),
        (
            "comm.Allreduce(one.astype('if'[rank == 2]), out.astype('if'[rank == 2]))",
            "datatype: int32 on ranks 0-1, float32 on rank 2",
        ),
        (
            "comm.Reduce(one, out, MPI.MAX if rank else MPI.SUM, algorithm='linear')",
            "operator: sum on rank 0, max on ranks 1-2",
        ),
        (
            "comm.Bcast(one, root=rank // 2, algorithm='linear')",
            "root: 0 on ranks 0-1, 1 on rank 2",
        ),
        (
            "comm.Allreduce(one, out, algorithm='ring' if rank else 'linear')",
            "algorithm: linear on rank 0, ring on ranks 1-2",
        ),
        (
            "comm.Allreduce(one, out, algorithm='double_binary_tree', segments=1 + rank)",
            "algorithm: double_binary_tree segments=1",
        ),
        (
            "comm.Allgather(one[:6 + rank], big[:comm.size * (6 + rank)])",
            "bytes of a block: 48 on rank 0, 56 on rank 1, 64 on rank 2",
        ),
    ],
)
def test_every_rank_is_told(job, body, words):
    status, out, err = job(3, CALLS.format(body=body), MPICOLL_CHECK="1", MPICOLL_TIMEOUT="20")
    assert (status, err) == (0, ""), err
    for rank in range(3):
        assert out.count(f"<{rank} Disagreement: ") == 2, out
    assert out.count(words) == 6, out


def test_a_mistake_of_one_rank_reaches_all(job):
    body = "comm.Allreduce(one, out[: 8 - (rank == 1)], algorithm='ring')"
    status, out, err = job(3, CALLS.format(body=body), MPICOLL_CHECK="1", MPICOLL_TIMEOUT="20")
    assert (status, err) == (0, ""), err
    assert out.count("<1 ValueError: send buffer of 8 elements but") == 2, out
    told = (
        "Disagreement: the ranks do not make the same call: rank 1 raised ValueError: send buffer"
    )
    assert out.count(told) == 4, out


NONBLOCKING = """
def call(rank):
    one, out = np.ones(8), np.zeros(8)
    {body}

comm.Iallreduce(np.ones(3), np.zeros(3), algorithm="ring").Wait()
try:
    call(comm.rank).Wait()
except Exception as error:
    print(f"<{{comm.rank}} {{type(error).__name__}}: {{error}}>", flush=True)
try:
    comm.Barrier()
except RuntimeError as error:
    print("poisoned" if "cannot be used any more" in str(error) else error, flush=True)
world.Barrier()
os._exit(0)  # the library may still have its part of a call under way
"""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "return comm.Ibarrier() if rank == 1 else comm.Iallreduce(one, out)",
            "collective: Allreduce on ranks 0, 2, Barrier on rank 1",
        ),
        (
            "return comm.Iallreduce(one[:8 - rank // 2], out[:8 - rank // 2], algorithm='ring')",
            "count: 8 on ranks 0-1, 7 on rank 2",
        ),
        (
            "return comm.Iallreduce(one, out, algorithm='ring' if rank else 'native')",
            "algorithm: native on rank 0, ring on ranks 1-2",
        ),
        (
            "return comm.Ibcast(one, root=rank // 2, algorithm='linear')",
            "root: 0 on ranks 0-1, 1 on rank 2",
        ),
    ],
)
def test_every_request_is_told(job, body, words):
    script = "import os\n" + NONBLOCKING.format(body=body)
    _, out, err = job(3, script, MPICOLL_CHECK="1", MPICOLL_TIMEOUT="20")
    for rank in range(3):
        assert out.count(f"<{rank} Disagreement: ") == 1, out + err
    assert out.count(words) == 3, out
    assert out.count("poisoned") == 3, out


def test_a_mistake_in_a_non_blocking_call_reaches_all(job):
    body = "return comm.Iallreduce(one, out[: 8 - (rank == 1)], algorithm='ring')"
    script = "import os\n" + NONBLOCKING.format(body=body)
    _, out, err = job(3, script, MPICOLL_CHECK="1", MPICOLL_TIMEOUT="20")
    assert out.count("<1 ValueError: send buffer of 8 elements but") == 1, out + err
    assert out.count("Disagreement: the ranks do not make the same call: rank 1 raised") == 2, out
    assert out.count("poisoned") == 3, out


@pytest.mark.parametrize("algorithm", ["'ring'", "'native'"])
def test_plans_are_compared_when_they_are_made(job, algorithm):
    body = f"comm.Allreduce_init(one, out, MPI.MAX if rank else MPI.SUM, algorithm={algorithm})"
    status, out, err = job(3, CALLS.format(body=body), MPICOLL_CHECK="1", MPICOLL_TIMEOUT="20")
    assert (status, err) == (0, ""), err
    assert out.count("operator: sum on rank 0, max on ranks 1-2") == 6, out


@pytest.mark.parametrize("algorithm", ["'ring'", "None"])
def test_a_non_blocking_call_waits_for_nobody(job, algorithm):
    """Rank 1 enters only after a message that rank 0 sends after its own call."""
    script = f"""
    out, mail = np.zeros(8), np.zeros(1)
    if comm.rank == 1:
        comm.Recv(mail, 0)
    request = comm.Iallreduce(np.ones(8), out, algorithm={algorithm})
    if comm.rank == 0:
        comm.Send(np.ones(1), 1)
    request.Wait()
    assert out.tolist() == [comm.size] * 8
    """
    assert job(2, script, MPICOLL_CHECK="1", MPICOLL_TIMEOUT="20") == (0, "", "")


def test_another_schedule_under_the_same_name(job):
    script = """
    from mpicoll import algorithms, registry
    ring = algorithms.find("allreduce", "ring")
    if comm.rank == 1:
        swing = algorithms.find("allreduce", "swing").schedule
        other = lambda rank, size, order: swing(rank, size)
        other.__module__ = ring.schedule.__module__  # of another version of mpicoll
        mine = ring._replace(schedule=other)
        registry._CATALOGUE["allreduce", "ring"] = mine
    try:
        comm.Allreduce(np.ones(8), np.zeros(8), algorithm="ring")
    except RuntimeError as error:
        print("told" if "schedule: " in str(error) else error)
    """
    status, out, err = job(2, script, MPICOLL_CHECK="1")
    assert (status, err) == (0, ""), err
    assert out.count("told") == 2, out


def test_calls_that_agree_run(job):
    script = """
    out = np.zeros(6)
    for how in ("ring", "native"):
        comm.Allreduce(np.ones(6), out, algorithm=how)
        assert out.tolist() == [comm.size] * 6
    data = np.zeros(2) if comm.rank else np.ones(2)
    comm.Bcast(data if comm.rank else data.view("u1"), algorithm="linear")
    assert data.tolist() == [1, 1]
    comm.Reduce(np.ones(6), out if comm.rank == 1 else None, root=1)
    comm.Barrier()
    comm.Dup().Allreduce(MPI.IN_PLACE, out)
    """
    assert job(3, script, MPICOLL_CHECK="1") == (0, "", "")


def test_a_long_error_still_fits(job):
    script = """
    from mpicoll.runtime import agree
    facts = {"collective": "Allreduce", "error": "x" * 5000 if comm.rank else None}
    facts = agree.share(world, facts, lambda request, *_: request.Wait())
    assert [len(own["error"] or "") for own in facts] == [0, 400]
    """
    assert job(2, script) == (0, "", "")


def test_what_a_rank_cannot_tell_is_not_compared():
    agree.compare([{"count": 3}, {"count": None}, {}])
    with pytest.raises(errors.Disagreement, match="count: 3 on ranks 0, 2, 4 on rank 1"):
        agree.compare([{"count": 3}, {"count": 4}, {"count": 3}])
