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
