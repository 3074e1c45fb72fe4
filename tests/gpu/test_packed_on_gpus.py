"""What is packed on a GPU, and arrays of other libraries, by each transport.

Several ranks may share a GPU: ``mpirun -n 3 python -m pytest tests/gpu/test_packed_on_gpus.py``.
"""

import os

import numpy as np
import pytest
import sharing
from exporting import Producer
from mpi4py import MPI

import mpicoll

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.filterwarnings("ignore::mpicoll.errors.TransportWarning"),
]

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
ROOT = P - 1
SUM = P * (P - 1) // 2
WAYS = ("blocking", "nonblocking", "persistent")


@pytest.fixture(scope="module")
def cupy():
    """CuPy, with this rank's GPU as the current one."""
    made = pytest.importorskip("cupy")
    made.cuda.Device(RANK % made.cuda.runtime.getDeviceCount()).use()
    return made


@pytest.fixture(scope="module", params=["cuda_ipc", "staged"])
def ours(request, cupy):
    os.environ["MPICOLL_GPU"] = request.param
    with sharing.allowed():
        comm = mpicoll.Intracomm(WORLD.Dup())
        del os.environ["MPICOLL_GPU"]
        transport = comm.gpu_transport()
        if not transport.startswith(request.param):
            comm.Free()
            pytest.skip(transport)
        yield comm
        comm.Free()


def run(comm, way, method, *arguments, **more):
    """One call, or two starts of a persistent one."""
    if way == "blocking":
        getattr(comm, method)(*arguments, **more)
    elif way == "nonblocking":
        getattr(comm, f"I{method.lower()}")(*arguments, **more).Wait()
    else:
        plan = getattr(comm, f"{method}_init")(*arguments, **more)
        for _ in range(2):
            plan.Start()
            plan.Wait()
        plan.Free()


#: Shapes, and parts of them that are not contiguous.
PARTS = [
    ((10,), np.s_[::2]),
    ((10,), np.s_[::-1]),
    ((40, 60), np.s_[:, 10:30]),
    ((40, 60), np.s_[::-2, ::-3]),
    ((40, 60), np.s_[:, 2]),
    ((20, 30, 40), np.s_[:, ::2]),
    ((20, 30, 40), np.s_[::-1, 1, ::-3]),
    ((1500, 3000), np.s_[:, ::2]),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "c16"])
def test_strided_arrays_are_broadcast(ours, cupy, dtype, way):
    for number, (shape, part) in enumerate(PARTS):
        root = number % P
        values = (np.arange(np.prod(shape)) % 100).astype(dtype).reshape(shape)
        mine = values if RANK == root else np.full_like(values, 7)
        array = cupy.asarray(mine)
        run(ours, way, "Bcast", array[part], root)
        expected = mine.copy()
        expected[part] = values[part]
        np.testing.assert_array_equal(array.get(), expected)


@pytest.mark.parametrize("way", WAYS)
def test_strided_arrays_are_reduced(ours, cupy, way):
    times = 1 if way != "persistent" else P  # in place, started twice
    for rows in (3, 70_000, 1_500_000):
        array = cupy.zeros((rows, 2), "i4") + RANK
        run(ours, way, "Allreduce", MPI.IN_PLACE, array[:, 0])
        assert set(cupy.unique(array[:, 0]).tolist()) == {SUM * times}
        assert set(cupy.unique(array[:, 1]).tolist()) == {RANK}
    array = cupy.zeros((P * 1000, 2), "f4") + RANK
    gathered = cupy.zeros((P * 1000, 3), "f4")
    run(ours, way, "Allgather", array[:1000, 1], gathered[:, 1])
    expected = np.zeros((P * 1000, 3), "f4")
    expected[:, 1] = np.arange(P).repeat(1000)
    np.testing.assert_array_equal(gathered.get(), expected)


def test_both_orders_are_brought_together(ours, cupy):
    values = np.arange(12, dtype="f4").reshape(3, 4) + RANK
    recv = cupy.zeros((3, 4), "f4", order="F")
    ours.Allreduce(cupy.asarray(values), recv)
    np.testing.assert_array_equal(recv.get(), P * (values - RANK) + SUM)


def test_it_is_in_the_order_of_streams(ours, cupy):
    for count in (1000, 3_000_000):
        for stream in (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null):
            with stream:
                array = cupy.zeros((count, 2), "f4")
                for step in range(5):
                    array[...] = RANK + step
                    ours.Allreduce(MPI.IN_PLACE, array[:, 0])
                    total = array.copy()
                    assert float(total[:, 0].min()) == float(total[:, 0].max()) == SUM + P * step
                    assert float(total[:, 1].min()) == float(total[:, 1].max()) == RANK + step
        array = cupy.ones((count, 2), "f4")
        cupy.cuda.Device().synchronize()
        named = cupy.cuda.Stream(non_blocking=True)
        ours.Allreduce(MPI.IN_PLACE, array[:, 1], stream=named)
        named.synchronize()
        assert float(array[:, 1].min()) == float(array[:, 1].max()) == P


def test_a_graph_does_not_hold_what_is_packed(ours, cupy):
    array, stream = cupy.zeros((10, 2)), cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(BufferError, match="captured for a graph"):
            ours.Allreduce(MPI.IN_PLACE, array[:, 0])
        stream.end_capture()
    ours.Allreduce(MPI.IN_PLACE, array[:, 0])
    assert float(array.max()) == 0


# --- derived datatypes ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_broadcast_as_in_mpi4pys_tests(ours, cupy, way):
    kinds = [("i1", MPI.SIGNED_CHAR), ("i2", MPI.SHORT), ("i4", MPI.INT), ("i8", MPI.LONG)]
    kinds += [("f4", MPI.FLOAT), ("f8", MPI.DOUBLE), ("c16", MPI.C_DOUBLE_COMPLEX)]
    for code, datatype in kinds:
        for first, root in ((0, 0), (1, P - 1)):
            values = np.arange(10) if root == RANK else np.full(10, -1)
            array = cupy.asarray(values.astype(code))
            indexed = datatype.Create_indexed_block(1, [*range(first, 10, 2)]).Commit()
            run(ours, way, "Bcast", [array, 1, indexed], root)
            indexed.Free()
            expected = values.copy()
            expected[first::2] = np.arange(first, 10, 2)
            np.testing.assert_array_equal(array.get(), expected.astype(code))


DERIVED = {
    "vector": lambda base: base.Create_vector(300, 2, 4),
    "indexed": lambda base: base.Create_indexed([1, 3, 2], [9, 0, 5]),
    "resized": lambda base: base.Create_vector(3, 1, 8).Create_resized(0, base.extent),
    "subarray": lambda base: base.Create_subarray([30, 40], [20, 7], [1, 30], MPI.ORDER_FORTRAN),
    "struct": lambda base: MPI.Datatype.Create_struct([1, 2], [3, 16], [MPI.CHAR, base]),
    "many": lambda base: base.Create_indexed_block(3, [5 * n + n % 2 for n in range(99_999)]),
}


@pytest.mark.parametrize("name", DERIVED)
def test_derived_datatypes(ours, cupy, name):
    for base in (MPI.SHORT, MPI.DOUBLE):
        datatype = DERIVED[name](base).Commit()
        message = [(2, 1), datatype]
        random = np.random.default_rng(RANK)
        values = random.integers(0, 256, 5_000_000 * base.size, np.uint8)[: 1 << 24]
        expected, array = values.copy(), cupy.asarray(values)
        WORLD.Bcast([expected, 2, datatype], ROOT)
        ours.Bcast([array, 2, datatype], ROOT)
        np.testing.assert_array_equal(array.get(), expected)
        right, left = (RANK + 1) % P, (RANK - 1) % P
        WORLD.Sendrecv([values, *message], right, recvbuf=[expected, *message], source=left)
        ours.Sendrecv(
            [cupy.asarray(values), *message], right, recvbuf=[array, *message], source=left
        )
        np.testing.assert_array_equal(array.get(), expected)
        datatype.Free()


def test_a_transposition_by_columns(ours, cupy):
    column = MPI.DOUBLE.Create_vector(P, 1, P).Create_resized(0, 8).Commit()
    mine = np.arange(P * P, dtype="f8").reshape(P, P) + 100 * RANK
    expected, found = np.zeros((P, P)), cupy.zeros((P, P))
    WORLD.Alltoall([mine, 1, column], [expected, P, MPI.DOUBLE])
    ours.Alltoall([cupy.asarray(mine), 1, column], [found, P, MPI.DOUBLE])
    np.testing.assert_array_equal(found.get(), expected)
    places, ones = [8 * rank for rank in range(P)], [1] * P
    sent = [P] * P, [8 * P * rank for rank in range(P)]
    got = cupy.zeros((P, P))
    ours.Alltoallw(
        [cupy.asarray(mine), sent, [MPI.DOUBLE] * P], [got, (ones, places), [column] * P]
    )
    WORLD.Alltoallw([mine, sent, [MPI.DOUBLE] * P], [expected, (ones, places), [column] * P])
    np.testing.assert_array_equal(got.get(), expected)
    column.Free()


def test_messages_of_strided_arrays(ours, cupy):
    right, left = (RANK + 1) % P, (RANK - 1) % P
    array, got = cupy.zeros((1000, 2), "f4") + RANK, cupy.zeros((1000, 2), "f4") - 1
    request = ours.Isend(array[:, 0], right)
    ours.Recv(got[:, 1], left)
    request.Wait()
    assert set(got[:, 1].tolist()) == {left} and set(got[:, 0].tolist()) == {-1}
    request = ours.Irecv(got[:, 0], left)
    ours.Send(array[:10, 1], right)  # shorter
    request.Wait()
    assert got[:, 0].tolist() == [left] * 10 + [-1] * 990


# --- other libraries ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(0, 8), (1, 0)])
def test_a_producer_that_frees_its_descriptor_with_its_capsule(ours, cupy, version):
    array = cupy.zeros(1000, "f4") + RANK
    device = 2, cupy.cuda.Device().id
    cupy.cuda.Device().synchronize()
    producer = Producer(array, array.data.ptr, device, version)
    ours.Allreduce(MPI.IN_PLACE, producer)
    cupy.cuda.Device().synchronize()
    assert set(array.tolist()) == {SUM}
    assert producer.deleted == 0 and producer.asked[0]["stream"] == -1


def test_arrays_of_jax(ours, cupy):
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # ranks may share the GPU
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU")
    here = [d for d in jax.devices() if d.local_hardware_id == cupy.cuda.Device().id]
    for dtype in ("float32", "int32", "bfloat16"):
        for count in (1000, 3_000_000):
            for _ in range(3):  # what JAX has computed a moment ago, and drops
                array = jax.device_put(jax.numpy.full(count, RANK, dtype), here[0]) + 1
                found = cupy.zeros(count, "u2" if dtype == "bfloat16" else dtype)
                if dtype == "bfloat16":
                    ours.Allgather([array[:1], MPI.BYTE], [cupy.zeros(2 * P, "u1"), MPI.BYTE])
                    break
                ours.Allreduce(array, found)
                del array
                assert float(found.min()) == float(found.max()) == SUM + P
    with pytest.raises(BufferError, match="receive buffer: a ArrayImpl that is read-only"):
        ours.Allreduce(found, jax.numpy.zeros(count, "uint16"))


def test_a_tensor_that_requires_a_gradient(ours, cupy):
    torch = pytest.importorskip("torch")
    tensor = torch.ones(10, device=f"cuda:{cupy.cuda.Device().id}", requires_grad=True)
    with pytest.raises(BufferError, match=r"requires a gradient; pass tensor.detach\(\)"):
        ours.Allreduce(MPI.IN_PLACE, tensor)
    ours.Allreduce(MPI.IN_PLACE, tensor.detach())
    assert set(tensor.tolist()) == {float(P)}
    wide = torch.zeros((100, 2), device=tensor.device) + RANK
    ours.Allreduce(MPI.IN_PLACE, wide[:, 0])
    assert set(wide[:, 0].tolist()) == {float(SUM)} and set(wide[:, 1].tolist()) == {float(RANK)}
