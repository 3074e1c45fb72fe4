"""What PyTorch builds on a backend, on "mpicoll" as on gloo."""

import contextlib
import copy

import pytest
from mpi4py import MPI

if MPI.COMM_WORLD.size not in (2, 4):
    pytest.skip("2 and 4 ranks show it", allow_module_level=True)
torch = pytest.importorskip("torch", minversion="2.6", reason="PyTorch 2.6 is not installed")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("world"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its own names
    pytest.mark.timeout(300),
]
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
RANKS = torch.arange(SIZE)


@pytest.fixture(scope="module")
def backends():
    """A group of all ranks on each backend."""
    return [dist.new_group(backend=name) for name in ("mpicoll", "gloo")]


class Net(nn.Module):
    """Two ways through it, of which a sample may take one."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 16), nn.BatchNorm1d(16)
        self.left, self.right = nn.Linear(16, 3), nn.Linear(16, 3)

    def forward(self, x, left=True, right=True):
        hidden = torch.relu(self.norm(self.first(x)))
        return self.left(hidden) * left if not right else self.left(hidden) + self.right(hidden)


def data(step, rows=8):
    generator = torch.Generator().manual_seed(100 * step + RANK)
    return torch.randn(rows, 6, generator=generator)


def seeded(make, dtype=torch.float64):
    torch.manual_seed(0)
    return make().to(dtype)


def ddp(group, passes=3, **options):
    """The parameters after some steps of DDP."""
    net = seeded(Net)
    model = DistributedDataParallel(net, process_group=group, **options)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(passes):
        right = not options.get("find_unused_parameters") or step % 2 == 1
        model(data(step).double(), right=right).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in net.parameters()]


def near(ours, theirs, limit=1e-6):
    for a, b in zip(ours, theirs, strict=True):
        scale = max(1.0, float(b.abs().max()))
        assert float((a - b).abs().max()) <= limit * scale
        if SIZE == 2:  # two numbers have one order only
            assert torch.equal(a, b)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0005},
    ],
    ids=["plain", "unused", "static", "buckets"],
)
def test_ddp(backends, options):
    near(*(ddp(group, **options) for group in backends))


def test_ddp_no_sync_join_and_hooks(backends):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.distributed.algorithms.join import Join

    found = []
    for group in backends:
        net = seeded(Net)
        model = DistributedDataParallel(net, process_group=group, broadcast_buffers=False)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(4):
            with model.no_sync() if step % 2 == 0 else contextlib.nullcontext():
                model(data(step).double()).square().mean().backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
        with Join([model]):
            for step in range(2 + RANK):  # another number on each rank
                model(data(step).double()).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        low = DistributedDataParallel(seeded(Net, torch.float32), process_group=group)
        low.register_comm_hook(group, default_hooks.fp16_compress_hook)
        low(data(1)).square().mean().backward()
        models = [low]
        if not torch.cuda.is_available():  # with it, PyTorch's PowerSGD takes the CPU for a device
            models.append(DistributedDataParallel(seeded(Net, torch.float32), process_group=group))
            state = powerSGD_hook.PowerSGDState(
                group, 1, start_powerSGD_iter=2, min_compression_rate=1
            )
            models[1].register_comm_hook(state, powerSGD_hook.powerSGD_hook)
            for step in range(4):
                models[1](data(step)).square().mean().backward()
        found.append([[p.detach() for p in net.parameters()]])
        found[-1] += [[p.grad for p in model.parameters()] for model in models]
    # Half precision rounds by the order of sums.
    for ours, theirs, limit in zip(*found, (1e-6, 2e-3, 1e-5), strict=False):
        near(ours, theirs, limit)


def mesh_on(group):
    return DeviceMesh.from_group(group, "cpu")


def grids():
    """A mesh of two axes on each backend."""
    shape, names = (2, SIZE // 2), ("replicate", "shard")
    ours = init_device_mesh("cpu", shape, mesh_dim_names=names)
    places = RANKS.view(shape)
    shard, replicate = (_mine(lines.tolist()) for lines in (places, places.t()))
    theirs = DeviceMesh.from_group([replicate, shard], "cpu", mesh=places, mesh_dim_names=names)
    return ours, theirs


def _mine(lines):
    groups = [dist.new_group(ranks, backend="gloo") for ranks in lines]
    return next(g for g, ranks in zip(groups, lines, strict=True) if RANK in ranks)


def fsdp(mesh, **options):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 17), nn.Tanh(), nn.Linear(17, 6), nn.Linear(6, 3))
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh, **options)
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    for step in range(3):
        net(data(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.full_tensor().detach() for p in net.parameters()]


def test_fsdp2(backends):
    near(*(fsdp(mesh_on(group)) for group in backends))
    near(*(fsdp(mesh_on(group), reshard_after_forward=False) for group in backends))


def test_hsdp():
    near(*(fsdp(mesh) for mesh in grids()))


def test_tensor_parallel(backends):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    found = []
    for group in backends:
        mesh = mesh_on(group)
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 8))
        net = parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        torch.manual_seed(1)
        net(torch.randn(5, 6)).square().mean().backward()
        moved = distribute_tensor(torch.arange(24.0).view(4, 6), mesh, [Shard(0)])
        moved = moved.redistribute(mesh, [Shard(1)]).redistribute(mesh, [Replicate()])
        found.append([p.grad.full_tensor() for p in net.parameters()] + [moved.to_local()])
    near(*found)


def test_functional_collectives():
    from torch.distributed import _functional_collectives as functional

    group = dist.group.WORLD
    found = functional.all_reduce(torch.full((2,), float(RANK)), "sum", group)
    assert (found + 1).tolist() == [sum(range(SIZE)) + 1.0] * 2
    found = functional.all_gather_tensor(torch.tensor([float(RANK)]), 0, group)
    assert found.tolist() == [*map(float, range(SIZE))]
    found = functional.reduce_scatter_tensor(torch.ones(SIZE), "avg", 0, group)
    assert found.tolist() == [1.0]
    mine = torch.arange(float(SIZE)) + 10 * RANK
    found = functional.all_to_all_single(mine, [1] * SIZE, [1] * SIZE, group)
    assert found.tolist() == [10.0 * r + RANK for r in range(SIZE)]
    found = functional.all_reduce_coalesced([torch.ones(1), torch.ones(2)], "sum", group)
    assert [t.tolist() for t in found] == [[SIZE], [SIZE] * 2]
    assert functional.broadcast(torch.tensor([RANK]), 0, group).item() == 0


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return torch.tanh(self.linear(x))


SCHEDULES = {
    "ScheduleGPipe": 1,
    "Schedule1F1B": 1,
    "ScheduleInterleaved1F1B": 2,
    "ScheduleInterleavedZeroBubble": 2,
    "ScheduleZBVZeroBubble": 2,
}


def pipeline(name, per_rank, group):
    """The gradients of this rank's stages, and the losses."""
    from torch.distributed import pipelining

    schedule = getattr(pipelining, name)
    count = SIZE * per_rank
    layers = [seeded(Stage, torch.float32) for _ in range(count)]
    mine = [RANK + SIZE * i for i in range(per_rank)]
    if name == "ScheduleZBVZeroBubble":
        mine = [RANK, count - 1 - RANK]
    stages = [
        pipelining.PipelineStage(
            copy.deepcopy(layers[i]), i, count, torch.device("cpu"), group=group
        )
        for i in mine
    ]
    loss = nn.functional.mse_loss
    run = schedule(stages[0] if per_rank == 1 else stages, 2 * SIZE, loss_fn=loss)
    torch.manual_seed(5)
    whole, losses = torch.randn(4 * SIZE, 6), []
    last = count - 1 in mine
    run.step(
        *([whole] if 0 in mine else []),
        **({"target": whole, "losses": losses} if last else {}),
    )
    gradients = [p.grad for stage in stages for p in stage.submod.parameters()]
    return [*gradients, *(each.detach() for each in losses)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_pipelines(backends, name):
    near(*(pipeline(name, SCHEDULES[name], group) for group in backends))


def test_checkpoints(folder):
    from torch.distributed import checkpoint
    from torch.distributed.fsdp import fully_shard

    def made(mesh, seed):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(6, 17), nn.Linear(17, 3))
        return fully_shard(net, mesh=mesh)

    whole = init_device_mesh("cpu", (SIZE,))
    net = made(whole, 1)
    state = {"net": net.state_dict(), "step": torch.tensor(7)}
    checkpoint.save(state, checkpoint_id=folder / "saved")
    full = [p.full_tensor().detach() for p in net.parameters()]
    half = dist.new_group([*range(SIZE // 2)])  # on fewer ranks than it was saved on
    if half is not dist.GroupMember.NON_GROUP_MEMBER:
        other = made(DeviceMesh.from_group(half, "cpu"), 2)
        state = {"net": other.state_dict(), "step": torch.tensor(0)}
        checkpoint.load(state, checkpoint_id=folder / "saved", process_group=half)
        assert int(state["step"]) == 7
        for a, b in zip(full, other.parameters(), strict=True):
            assert torch.equal(a, b.full_tensor())
    dist.barrier()
    future = checkpoint.async_save({"step": torch.tensor(9)}, checkpoint_id=folder / "later")
    future.result()
