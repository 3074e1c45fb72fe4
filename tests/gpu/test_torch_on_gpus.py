"""The backend "mpicoll" of torch.distributed, on tensors in device memory."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("group"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its own names
]
DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64),
    *(torch.uint8, torch.bool, torch.complex64),
]


@pytest.fixture(scope="module")
def group(world):
    """All ranks, each with a device of its own as far as there are any."""
    import mpicoll.torch  # noqa: F401 - registers the backend

    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    device = torch.device("cuda", world.Get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("mpicoll", init_method="mpi://", device_id=device)
    yield dist.group.WORLD
    dist.destroy_process_group()


def values(rank, dtype, shape=(3, 4)):
    count = torch.Size(shape).numel()
    return ((torch.arange(count, device="cuda") + rank) % 2).to(dtype).view(shape)


def total(dtype):
    parts = [values(rank, dtype) for rank in range(dist.get_world_size())]
    found = parts[0]
    for part in parts[1:]:
        found = found | part if dtype is torch.bool else found + part
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_operation(dtype):
    rank, size = dist.get_rank(), dist.get_world_size()
    for later in (False, True):
        tensor = values(rank, dtype)
        work = dist.all_reduce(tensor, async_op=later)
        if later:
            assert work.get_future().wait()[0].is_cuda
        assert torch.equal(tensor, total(dtype))
    tensor = values(rank, dtype)
    dist.reduce(tensor, size - 1)
    assert torch.equal(tensor, total(dtype) if rank == size - 1 else values(rank, dtype))
    dist.broadcast(tensor, size - 1)
    assert torch.equal(tensor, total(dtype))
    mine = values(rank, dtype)
    found = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(found, mine)
    assert all(torch.equal(each, values(r, dtype)) for r, each in enumerate(found))
    whole = torch.empty((3 * size, 4), dtype=dtype, device="cuda")
    dist.all_gather_into_tensor(whole, mine)
    assert torch.equal(whole, torch.cat(found))
    if dtype is not torch.bool:
        out = torch.empty_like(mine)
        dist.reduce_scatter_tensor(out, torch.cat([mine] * size))
        assert torch.equal(out, total(dtype))
    out = torch.empty_like(whole)
    dist.all_to_all_single(out, torch.cat([values(rank + r, dtype) for r in range(size)]))
    assert torch.equal(out, torch.cat([values(rank + r, dtype) for r in range(size)]))
    got = torch.empty_like(mine)
    works = [dist.isend(mine, (rank + 1) % size), dist.irecv(got, (rank - 1) % size)]
    for work in works:
        work.wait()
    assert torch.equal(got, values((rank - 1) % size, dtype))


def test_averages_strides_and_what_is_refused():
    size = dist.get_world_size()
    tensor = torch.full((4,), float(dist.get_rank()), device="cuda")
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    assert tensor.tolist() == [(size - 1) / 2] * 4
    columns = torch.ones(3, 4, device="cuda").t()
    dist.all_reduce(columns)
    assert bool((columns == size).all())
    dist.barrier()
    with pytest.raises(ValueError, match="several devices"):
        dist.group.WORLD.all_gather_single(torch.empty(size), torch.ones(1, device="cuda"))


def test_repeated_calls_go_the_fast_path(group, monkeypatch):
    size, comm = dist.get_world_size(), group.comm
    out = torch.empty(1000 * size, device="cuda")
    for _ in range(2):
        tensor = torch.ones(1000, device="cuda")
        dist.all_reduce(tensor)
        dist.all_gather_into_tensor(out, tensor)
        assert set(out.tolist()) == {float(size)}
    if not (comm.gpu_transport() or "").startswith("cuda_ipc"):
        pytest.skip("tensors go through the host")
    monkeypatch.setattr(type(comm), "_blocking", None)  # the slow path
    stream = torch.cuda.Stream()
    tensor = torch.full((1000,), 2.0, device="cuda")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000)
        tensor.mul_(2)
        dist.all_reduce(tensor)
        dist.all_gather_into_tensor(out, tensor)
    torch.cuda.current_stream().wait_stream(stream)
    assert set(out.tolist()) == {4.0 * size}


def test_the_current_stream_orders_calls():
    size = dist.get_world_size()
    stream = torch.cuda.Stream()
    tensor = torch.zeros(1 << 22, device="cuda")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(5):
            torch.cuda._sleep(1_000_000)
            tensor.fill_(1)
            dist.all_reduce(tensor)
            tensor.add_(1)
    torch.cuda.current_stream().wait_stream(stream)
    assert bool((tensor == size + 1).all())


def test_what_is_not_waited_for_runs_beside_the_current_stream():
    size = dist.get_world_size()
    tensors = [torch.full((1 << 20,), float(k), device="cuda") for k in range(4)]
    for tensor in tensors:
        torch.cuda._sleep(2_000_000)
        tensor.add_(1)
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    torch.cuda._sleep(1_000_000_000)  # the current stream is busy, the collectives are not
    for work in works:
        while not work.is_completed():
            pass
    assert not torch.cuda.current_stream().query()
    for k, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        work.wait()
        tensor.mul_(2)
        assert bool((tensor == 2 * size * (k + 1)).all())


def test_memory_of_what_is_not_waited_for_is_not_given_to_others():
    size = dist.get_world_size()
    out = torch.zeros(size * (1 << 20), device="cuda")
    torch.cuda._sleep(20_000_000)
    work = dist.all_gather_into_tensor(out, torch.ones(1 << 20, device="cuda"), async_op=True)
    for _ in range(20):  # would be where the input was
        torch.full((1 << 20,), 7.0, device="cuda")
    work.wait()
    assert bool((out == 1).all())


def test_groups_by_split(group):
    size = dist.get_world_size()
    split = dist.split_group(group, [[*range(size)]])
    tensor = torch.ones(2, device="cuda")
    dist.all_reduce(tensor, group=split)
    assert tensor.tolist() == [size] * 2
    dist.destroy_process_group(split)


def test_ddp_and_fsdp2_learn_as_one_process_does():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 17), nn.Tanh(), nn.Linear(17, 6)).double().cuda()
    inputs = torch.randn(4 * size, 6, dtype=torch.float64, device="cuda")
    dist.broadcast(inputs, 0)

    def learn(model, mine):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            model(mine).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model

    part = inputs[4 * rank : 4 * rank + 4]
    alone = learn(copy.deepcopy(net), inputs)
    copied = learn(DistributedDataParallel(copy.deepcopy(net)), part)
    mesh = init_device_mesh("cuda", (size,))
    sharded = learn(fully_shard(copy.deepcopy(net), mesh=mesh), part)
    for a, b, c in zip(alone.parameters(), copied.parameters(), sharded.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-12) and torch.allclose(a, c.full_tensor(), rtol=1e-12)
