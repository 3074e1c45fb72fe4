"""The backend "mpicoll" of torch.distributed: every operation, by what it must give."""

import inspect
from datetime import timedelta

import pytest
from mpi4py import MPI

if MPI.COMM_WORLD.size > 4:
    pytest.skip("4 ranks and fewer show it", allow_module_level=True)
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("world"),
    # Newer names of what older versions have, too.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
EVERY = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128]
MOVED = [*EVERY, torch.float8_e4m3fn, torch.float8_e5m2]


def values(rank, dtype, shape=(3, 4)):
    """Small numbers that sums, products and quotients of a few keep exactly."""
    count = torch.Size(shape).numel()
    numbers = (torch.arange(count) + rank) % 3
    if dtype is torch.bool:
        return (numbers > 1).view(shape)
    if dtype.is_complex:
        return torch.complex(numbers.double(), numbers.double() - 1).to(dtype).view(shape)
    return numbers.to(torch.float32).to(dtype).view(shape)


def folded(function, dtype, ranks=range(SIZE)):
    total = values(0, dtype)
    for rank in [*ranks][1:]:
        total = function(total, values(rank, dtype))
    return total.to(dtype)


def same(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    if found.dtype.itemsize == 1:
        found, expected = found.view(torch.uint8), expected.view(torch.uint8)
    assert torch.equal(found, expected), (found, expected)


@pytest.mark.parametrize("later", [False, True])
def test_all_reduce(later):
    sums = {torch.bool: torch.logical_or}
    cases = [(dist.ReduceOp.SUM, sums.get(d, torch.add), d) for d in EVERY]
    cases += [(dist.ReduceOp.PRODUCT, torch.mul, d) for d in [*FLOATS, *INTEGERS]]
    ordered = [*FLOATS, *INTEGERS]
    cases += [(dist.ReduceOp.MIN, torch.minimum, d) for d in ordered]
    cases += [(dist.ReduceOp.MAX, torch.maximum, d) for d in ordered]
    bits = [*INTEGERS, torch.bool]
    cases += [(dist.ReduceOp.BAND, torch.bitwise_and, d) for d in bits]
    cases += [(dist.ReduceOp.BOR, torch.bitwise_or, d) for d in bits]
    cases += [(dist.ReduceOp.BXOR, torch.bitwise_xor, d) for d in bits]
    for op, function, dtype in cases:
        tensor = values(RANK, dtype)
        work = dist.all_reduce(tensor, op, async_op=later)
        if later:
            work.wait()
            assert work.is_completed() and work.is_success() and work.exception() is None
            assert work.result()[0].data_ptr() == tensor.data_ptr()
        same(tensor, folded(function, dtype))


def test_averages_and_factors():
    for dtype in FLOATS:
        tensor = values(RANK, dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        same(tensor, folded(torch.add, dtype).div(SIZE))
    tensor = torch.full((3,), -1 - RANK)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    total = -sum(range(1, SIZE + 1))
    same(tensor, torch.full((3,), int(total / SIZE)))
    for factor in (0.5, torch.tensor([0.5])):
        mine = values(RANK, torch.float64)
        before = mine.clone()
        dist.all_reduce(mine, dist._make_nccl_premul_sum(factor))
        same(mine, folded(torch.add, torch.float64) * 0.5)
        mine = before.clone()
        dist.reduce(mine, 0, dist._make_nccl_premul_sum(factor))
        same(mine, folded(torch.add, torch.float64) * 0.5 if RANK == 0 else before)
    out = torch.empty(2)
    dist.reduce_scatter_tensor(out, torch.ones(2 * SIZE) * (RANK + 1), dist.ReduceOp.AVG)
    same(out, torch.full((2,), (SIZE + 1) / 2))


def test_reduce_leaves_what_others_have():
    for root in range(SIZE):
        tensor = values(RANK, torch.float32)
        dist.reduce(tensor, root)
        total = folded(torch.add, torch.float32)
        same(tensor, total if RANK == root else values(RANK, torch.float32))


@pytest.mark.parametrize("dtype", MOVED)
def test_what_only_moves(dtype):
    root = SIZE - 1
    tensor = values(RANK, dtype)
    dist.broadcast(tensor, root)
    same(tensor, values(root, dtype))
    found = [torch.empty_like(tensor) for _ in range(SIZE)]
    mine = values(RANK, dtype)
    dist.all_gather(found, mine)
    for rank in range(SIZE):
        same(found[rank], values(rank, dtype))
    whole = torch.empty((SIZE * 3, 4), dtype=dtype)
    dist.all_gather_into_tensor(whole, mine)
    stacked = torch.cat([values(r, dtype).view(torch.uint8) for r in range(SIZE)])
    same(whole.view(torch.uint8), stacked)
    into = [torch.empty_like(mine) for _ in range(SIZE)] if RANK == root else None
    dist.gather(mine, into, root)
    for rank, each in enumerate(into or []):
        same(each, values(rank, dtype))
    given = [values(r, dtype) for r in range(SIZE)] if RANK == root else None
    tensor = torch.empty_like(mine)
    dist.scatter(tensor, given, root)
    same(tensor, values(RANK, dtype))
    found = [torch.empty_like(mine) for _ in range(SIZE)]
    dist.all_to_all(found, [values(RANK + r, dtype) for r in range(SIZE)])
    for rank in range(SIZE):
        same(found[rank], values(rank + RANK, dtype))


def test_reduce_scatter():
    out = torch.empty(2)
    dist.reduce_scatter(out, [torch.full((2,), float(RANK + r)) for r in range(SIZE)])
    total = sum(range(SIZE)) + SIZE * RANK
    same(out, torch.full((2,), float(total)))
    counts = [r + 1 for r in range(SIZE)]
    out = torch.empty(counts[RANK], dtype=torch.int64)
    dist.reduce_scatter(out, [torch.full((n,), n) for n in counts])
    same(out, torch.full((RANK + 1,), SIZE * (RANK + 1)))
    whole = torch.arange(3 * SIZE, dtype=torch.float64)
    out = torch.empty(3, dtype=torch.float64)
    dist.reduce_scatter_tensor(out, whole)
    same(out, SIZE * whole.view(SIZE, 3)[RANK])
    block = whole.view(SIZE, 3)[RANK]  # a part of the input
    expected = SIZE * block.clone()
    dist.reduce_scatter_tensor(block, whole)
    same(block, expected)


def test_lengths_may_differ():
    found = [torch.empty(r + 1) for r in range(SIZE)]
    dist.all_gather(found, torch.full((RANK + 1,), float(RANK)))
    assert [t.tolist() for t in found] == [[float(r)] * (r + 1) for r in range(SIZE)]
    found = [torch.empty(r + 2, 2) for r in range(SIZE)]
    dist.all_to_all(found, [torch.full((RANK + 2, 2), 10.0 * RANK + r) for r in range(SIZE)])
    for rank, each in enumerate(found):
        same(each, torch.full((rank + 2, 2), 10.0 * rank + RANK))
    gives, gets = [*range(SIZE)], [RANK] * SIZE
    mine = torch.cat([torch.full((r, 3), 10 * RANK + r) for r in range(SIZE)])
    out = torch.empty((sum(gets), 3), dtype=mine.dtype)
    dist.all_to_all_single(out, mine, gets, gives)
    same(out, torch.cat([torch.full((RANK, 3), 10 * r + RANK) for r in range(SIZE)]))
    out = torch.empty(2 * SIZE)
    dist.all_to_all_single(out, torch.arange(2.0 * SIZE))
    same(out, torch.tensor([2.0 * RANK, 2.0 * RANK + 1] * SIZE))


def test_in_place_gather():
    whole = torch.zeros(SIZE, 5)
    whole[RANK] = RANK + 1
    dist.all_gather_into_tensor(whole, whole[RANK])
    same(whole, torch.arange(1.0, SIZE + 1).view(-1, 1).expand(SIZE, 5).contiguous())
    whole = torch.arange(2.0 * SIZE)
    dist.all_gather_into_tensor(whole, whole[:2])  # a part of it, and not this rank's
    same(whole, torch.tensor([0.0, 1.0] * SIZE))


def test_tensors_of_any_strides_and_no_elements():
    base = torch.arange(12.0).view(3, 4) + RANK
    tensor = base.clone().t()
    dist.all_reduce(tensor)
    same(tensor.contiguous(), (SIZE * torch.arange(12.0).view(3, 4) + sum(range(SIZE))).t())
    wide = torch.zeros(4, 6)
    dist.broadcast(wide[:, ::2].copy_(torch.full((4, 3), float(RANK))), 0)
    assert wide.sum() == 0
    columns = torch.zeros(4, 2 * SIZE)
    dist.all_gather_into_tensor(columns.t(), torch.full((2, 4), float(RANK)))
    same(columns[0].contiguous(), torch.arange(SIZE).repeat_interleave(2).float())
    conjugate = torch.full((2,), 1 + 2j).conj()
    dist.all_reduce(torch.view_as_real(conjugate.resolve_conj()))
    work = dist.group.WORLD.allreduce([conjugate])
    work.wait()
    same(conjugate.resolve_conj(), torch.full((2,), SIZE * (1 - 2j)))
    for empty in (torch.empty(0), torch.empty(3, 0)):
        dist.all_reduce(empty)
        dist.broadcast(empty, 0)
        dist.all_gather([torch.empty_like(empty) for _ in range(SIZE)], empty)
        dist.all_gather_into_tensor(torch.empty(0), empty)
        dist.reduce_scatter_tensor(empty, torch.empty(0))
        dist.all_to_all_single(torch.empty(0), torch.empty(0))
    scalar = torch.tensor(2.0)
    dist.all_reduce(scalar)
    assert scalar.item() == 2 * SIZE


def test_what_requires_gradients_is_taken_as_it_is():
    leaf = torch.ones(3, requires_grad=True)
    dist.all_reduce(leaf)
    same(leaf.detach(), torch.full((3,), float(SIZE)))
    assert leaf.requires_grad and leaf.grad_fn is None
    view = torch.ones(2, 3, requires_grad=True).t()
    dist.broadcast(view, 0)
    dist.all_gather([torch.empty(3) for _ in range(SIZE)], leaf)


def test_coalesced():
    tensors = [torch.full((n,), float(RANK)) for n in (1, 3, 2)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        same(tensor, torch.full_like(tensor, sum(range(SIZE))))
    wholes = [torch.empty(n * SIZE) for n in (1, 2)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for number, whole in enumerate(wholes, 1):
            dist.all_gather_into_tensor(whole, torch.full((number,), float(RANK)))
    manager.wait()
    for number, whole in enumerate(wholes, 1):
        same(whole, torch.arange(SIZE).repeat_interleave(number).float())
    parts = [torch.empty(n) for n in (1, 2)]
    with dist._coalescing_manager():
        for number, part in enumerate(parts, 1):
            dist.reduce_scatter_tensor(part, torch.ones(number * SIZE))
    for part in parts:
        same(part, torch.full_like(part, SIZE))
    # The older way, in which each call reaches the group.
    others = [torch.full((2,), float(RANK)) for _ in range(2)]
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        for tensor in others:
            dist.broadcast(tensor, SIZE - 1)
    manager.wait()
    assert all(t.tolist() == [SIZE - 1.0] * 2 for t in others)
    lists = [[torch.empty(2), torch.empty(3, 1)] for _ in range(SIZE)]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(RANK)), torch.ones(3, 1)])
    assert [each[0].tolist() for each in lists] == [[float(r)] * 2 for r in range(SIZE)]


def test_messages():
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    out = torch.empty(4)
    operations = [
        dist.P2POp(dist.isend, torch.full((4,), float(RANK)), after),
        dist.P2POp(dist.irecv, out, before),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(out, torch.full((4,), float(before)))
    big = 1 << 18  # more than MPI sends without the receiver
    for dtype in MOVED:
        given, got = values(RANK, dtype, (big // 2, 2)), torch.empty((2, big // 2), dtype=dtype)
        works = [dist.isend(given, after, tag=7), dist.irecv(got.t(), before, tag=7)]
        for work in works:
            work.wait()
        same(got.t().contiguous(), values(before, dtype, (big // 2, 2)))
    if SIZE > 1 and RANK == 0:
        for tag in (2, 1):
            dist.send(torch.tensor([float(tag)]), 1, tag=tag)
    if RANK == 1:
        for tag in (1, 2):  # by tag, in another order
            assert dist.recv(torch.empty(1), 0, tag=tag) == 0
    if RANK == 0:
        seen = sorted(dist.recv(torch.empty(1)) for _ in range(1, SIZE))
        assert seen == [*range(1, SIZE)]
    else:
        dist.send(torch.ones(1), 0)


def test_objects_and_barriers():
    found = [None] * SIZE
    dist.all_gather_object(found, {"rank": RANK, "more": "x" * (100 * RANK)})
    assert [each["rank"] for each in found] == [*range(SIZE)]
    objects = [RANK, str(RANK)]
    dist.broadcast_object_list(objects, SIZE - 1)
    assert objects == [SIZE - 1, str(SIZE - 1)]
    out = [None]
    dist.scatter_object_list(out, [*map(str, range(SIZE))] if RANK == 0 else None, 0)
    assert out == [str(RANK)]
    into = [None] * SIZE if RANK == 0 else None
    dist.gather_object(RANK, into, 0)
    assert into is None or into == [*range(SIZE)]
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.group.WORLD.monitored_barrier(timedelta(seconds=20))


def test_groups():
    everyone = dist.group.WORLD
    assert (dist.get_backend(), everyone.size(), everyone.rank()) == ("mpicoll", SIZE, RANK)
    alone = [dist.new_group([r]) for r in range(SIZE)][RANK]
    tensor = torch.full((2,), float(RANK))
    dist.all_reduce(tensor, group=alone)
    assert tensor.tolist() == [float(RANK)] * 2
    dist.destroy_process_group(alone)
    for odd in (0, 1):
        ranks = [r for r in range(SIZE) if r % 2 == odd]
        if not ranks:
            continue
        group = dist.new_group(ranks, timeout=timedelta(seconds=30), use_local_synchronization=True)
        if RANK in ranks:
            tensor = torch.tensor([float(RANK)])
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == sum(ranks)
            dist.broadcast(tensor, ranks[-1], group=group)
            half = group.split_group([0], group_name=f"first{odd}")
            assert (half is None) == (group.rank() > 0)
            if half is not None:
                half.barrier().wait()
                assert (half.size(), half.group_name) == (1, f"first{odd}")
                half.shutdown()
            dist.destroy_process_group(group)
    mine = dist.new_group()
    if "sort_ranks" in inspect.signature(dist.new_group).parameters:  # PyTorch 2.13
        backward = dist.new_group([*reversed(range(SIZE))], sort_ranks=False)
        found = [torch.empty(1) for _ in range(SIZE)]
        dist.all_gather(found, torch.tensor([float(RANK)]), group=backward)
        assert [t.item() for t in found] == [*reversed(range(SIZE))]
    before = mine._get_sequence_number_for_group()
    dist.barrier(group=mine)
    assert mine._get_sequence_number_for_group() == before + 1
    dist.destroy_process_group(mine)


def test_what_is_refused():
    group = dist.group.WORLD
    sparse = torch.eye(3).to_sparse()
    cases = [
        (lambda: dist.all_reduce(sparse), TypeError, r"layout sparse_coo; pass a dense one"),
        (lambda: dist.broadcast(sparse, 0), TypeError, "to_dense"),
        (lambda: dist.all_reduce(torch.ones(2, device="meta")), ValueError, r"on meta.*\.cpu\(\)"),
        (
            lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND),
            TypeError,
            r"BAND of torch.float32 tensors is not defined",
        ),
        (
            lambda: dist.all_reduce(torch.ones(2, dtype=torch.float8_e5m2)),
            TypeError,
            r"SUM of torch.float8_e5m2 tensors is not defined",
        ),
        (
            lambda: group.all_gather_single(torch.ones(2 * SIZE + 1), torch.ones(2)),
            ValueError,
            f"an output of {2 * SIZE + 1} elements for an input of 2",
        ),
        (
            lambda: group.reduce_scatter_single(torch.ones(2), torch.ones(2 * SIZE + 1)),
            ValueError,
            f"must have {2 * SIZE}",
        ),
        (
            lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), [4] * SIZE, [3] * SIZE),
            ValueError,
            "split_sizes",
        ),
        (
            lambda: group.allgather([[torch.ones(2)] * (SIZE + 1)], [torch.ones(2)]),
            ValueError,
            "pa",
        ),
        (lambda: group.allreduce([torch.ones(2)] * 2), ValueError, "2 tensors; pass one"),
        (lambda: dist.isend(torch.ones(2), 0, tag=-1), ValueError, "tag -1 must be at least 0"),
        (
            lambda: group.allgather([[torch.ones(2)] * SIZE], [torch.ones(2).double()]),
            TypeError,
            r"several types \(torch.float32, torch.float64\)",
        ),
    ]
    for call, kind, text in cases:
        with pytest.raises(kind, match=text):
            call()
    dist.barrier()  # and the group goes on
