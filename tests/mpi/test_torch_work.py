"""The backend "mpicoll": what is under way, its futures and limits, and the end of a group."""

import contextlib
import time
from datetime import timedelta

import pytest
from mpi4py import MPI

if MPI.COMM_WORLD.size > 3:
    pytest.skip("3 ranks and fewer show it", allow_module_level=True)
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402

from mpicoll.errors import Disagreement  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("world"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
SHORT = timedelta(seconds=0.5)


def total(tensor):
    return tensor.tolist() == [SIZE] * tensor.numel()


def test_calls_that_block_meet_those_that_do_not():
    for later in (RANK == 0, RANK == 1, RANK > 0):
        tensors = [torch.ones(n) for n in (3, 50_000, 2)]
        works = [dist.all_reduce(t, async_op=later) for t in tensors]
        for work in works[::-1]:
            if work is not None:
                work.wait()
        assert all(map(total, tensors))


def test_many_under_way_on_several_groups():
    groups = [dist.new_group() for _ in range(3)]
    order = groups if RANK % 2 else groups[::-1]  # another one on each rank
    tensors = {g: [torch.ones(1000 * n) for n in range(1, 6)] for g in groups}
    works = [dist.all_reduce(t, group=g, async_op=True) for g in order for t in tensors[g]]
    while not all(work.is_completed() for work in works):
        time.sleep(1e-4)  # nobody waits: the groups' threads run them
    assert all(total(t) for each in tensors.values() for t in each)
    for group in groups:
        dist.destroy_process_group(group)


def test_futures_and_their_callbacks():
    tensor = torch.ones(3)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    assert future.wait()[0].data_ptr() == tensor.data_ptr() and total(tensor)

    def again(done):
        # As PowerSGD's hook does: another collective, waited for within the callback.
        value = done.value()[0] / SIZE
        inner = dist.all_reduce(value, async_op=True).get_future().wait()[0]
        dist.all_reduce(value.div_(SIZE))
        return inner

    chained = dist.all_reduce(torch.ones(4), async_op=True).get_future().then(again)
    assert total(chained.wait())
    work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    assert work.get_future().done()
    late = dist.all_gather(
        [torch.empty(1) for _ in range(SIZE)], torch.ones(1), async_op=True
    ).get_future()
    late.wait()
    assert len(late.value()[0]) == SIZE


def test_a_failure_is_for_who_waits():
    group = dist.new_group(timeout=SHORT)
    tensor = torch.ones(2)
    if RANK == 0:
        alone = SIZE == 1
        work = dist.all_reduce(tensor, group=group, async_op=True)
        future = work.get_future()
        if not alone:
            with pytest.raises(
                dist.DistBackendError, match=r"all_reduce of group .* 0\.5 s: a ran"
            ):
                work.wait()
            with pytest.raises(RuntimeError, match=r"within its timeout of 0\.5 s"):
                future.wait()
            assert work.is_completed() and not work.is_success()
            assert isinstance(work.exception(), dist.DistBackendError)
            with pytest.raises(RuntimeError, match="cannot be used any more"):
                dist.all_reduce(tensor, group=group)
    dist.barrier()
    dist.destroy_process_group(group)


@pytest.mark.mpi(min_size=2)
def test_limits_are_kept():
    group = dist.new_group(timeout=SHORT)
    if RANK == 0:
        begin = time.monotonic()
        with pytest.raises(dist.DistBackendError, match="a rank has not called it"):
            dist.barrier(group=group)
        assert time.monotonic() - begin < 20
    dist.barrier()
    dist.destroy_process_group(group)
    group = dist.new_group()
    if RANK == 0:
        with pytest.raises(dist.DistBackendError, match=r"recv of 2 elements from rank 1 with tag"):
            dist.irecv(torch.empty(2), 1, group=group).wait(SHORT)
        group.set_timeout(SHORT)
        future = dist.irecv(torch.empty(2), 1, group=group, tag=5).get_future()
        with pytest.raises(RuntimeError, match="other rank has not called it"):
            future.wait()
        with pytest.raises(dist.DistBackendError, match=r"timeout of 0\.5 s"):
            dist.all_reduce(torch.ones(1), group=group, async_op=True).wait(SHORT)
    dist.barrier()
    dist.destroy_process_group(group)


@pytest.mark.mpi(min_size=2)
def test_a_limit_where_mpi_carries_the_messages(monkeypatch):
    monkeypatch.setenv("MPICOLL_TRANSPORT", "mpi")
    group = dist.new_group(timeout=SHORT)
    dist.barrier(group=group)
    if RANK == 0:
        with pytest.raises(dist.DistBackendError, match=r"call 2 .* (has|have) not entered it"):
            dist.all_reduce(torch.ones(3), group=group)
    dist.barrier()
    dist.destroy_process_group(group)


@pytest.mark.mpi(min_size=2)
def test_calls_that_differ(monkeypatch):
    monkeypatch.setenv("MPICOLL_CHECK", "1")
    group = dist.new_group()
    for later in (False, True):
        mine = torch.ones(3 + (RANK > 0))
        with pytest.raises(Disagreement, match=r"count: 3 on rank 0, 4 on rank"):
            (dist.all_reduce(mine, group=group, async_op=later) or group).wait()
        dist.barrier(group=group)  # it goes on
    dist.destroy_process_group(group)
    monkeypatch.delenv("MPICOLL_CHECK")
    for short, long in [(3, 5000), (5000, 3), (3, 4), (200_000, 100_000)]:
        for call in (dist.all_reduce, lambda t, group: dist.broadcast(t, 0, group=group)):
            group = dist.new_group(timeout=SHORT)
            begin = time.monotonic()
            with contextlib.suppress(RuntimeError):  # what it gives is not defined
                call(torch.ones(short if RANK else long), group=group)
            assert time.monotonic() - begin < 20
            dist.barrier()
            dist.destroy_process_group(group)


@pytest.mark.mpi(min_size=3)
def test_a_monitored_barrier_names_who_is_missing():
    group = dist.new_group()
    group.monitored_barrier()
    if RANK == 0:
        with pytest.raises(dist.DistBackendError, match="Rank 1 failed to pass it in 500"):
            group.monitored_barrier(SHORT)
    elif RANK > 1:
        with pytest.raises(dist.DistBackendError, match="rank 0 has not answered"):
            group.monitored_barrier(SHORT * 2)
    dist.barrier()
    if RANK == 1:
        with pytest.raises(dist.DistBackendError, match="rank 0 has not answered"):
            group.monitored_barrier(SHORT / 10)  # its number, late
    dist.barrier()
    group.monitored_barrier(wait_all_ranks=True)  # and it works again
    dist.destroy_process_group(group)


@pytest.mark.mpi(min_size=2)
def test_messages_of_another_length():
    tag = 11
    if RANK == 0:
        dist.send(torch.ones(2), 1, tag=tag)
        dist.send(torch.ones(4), 1, tag=tag)
    if RANK == 1:
        with pytest.raises(RuntimeError, match="8 bytes have come for 12; let both ranks pass"):
            dist.recv(torch.empty(3), 0, tag=tag)
        with pytest.raises(RuntimeError, match=r"(?i)trunc"):
            dist.recv(torch.empty(3), 0, tag=tag)
    dist.barrier()


@pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "shutdown"), reason="PyTorch 2.5 tells no group of its end"
)
def test_the_end_of_a_group_with_work_outstanding():
    group = dist.new_group()
    tensor = torch.ones(100_000)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    dist.destroy_process_group(group)  # all ranks have called it: it completes
    assert work.is_success() and total(tensor)
    with pytest.raises(dist.DistBackendError, match="which has been destroyed"):
        group.allreduce([tensor])
    if SIZE == 1:
        return
    group = dist.new_group(timeout=SHORT)
    if RANK == 0:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        message = dist.irecv(torch.empty(1), 1, group=group)
        begin = time.monotonic()
        dist.destroy_process_group(group)
        assert time.monotonic() - begin < 20
        for each in (work, message):
            with pytest.raises(RuntimeError, match=r"outstanding|has not ended"):
                each.wait()
    dist.barrier()
    group = dist.new_group()
    if RANK == 0:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        group.abort()
        with pytest.raises(RuntimeError, match="aborted with work outstanding"):
            work.wait()
    dist.barrier()


def test_memory_of_dropped_work_stays():
    for _ in range(20):
        dist.all_reduce(torch.ones(5000), async_op=True)  # nobody keeps it
        if SIZE > 1 and RANK < 2:
            dist.isend(torch.full((5000,), 1.0), 1 - RANK, tag=3)
    if SIZE > 1 and RANK < 2:
        for _ in range(20):
            got = torch.empty(5000)
            dist.recv(got, 1 - RANK, tag=3)
            assert bool((got == 1).all())
    dist.barrier()
