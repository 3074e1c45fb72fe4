"""CuPy's arrays through every method of a communicator, by each transport."""

import os

import numpy as np
import pytest
import sharing
from mpi4py import MPI

import mpicoll
from mpicoll.runtime import staging
from mpicoll.schedule.collectives import COLLECTIVES

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.filterwarnings("ignore::mpicoll.errors.TransportWarning"),
]

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank
ROOT = P - 1

REDUCING = ("Allreduce", "Reduce", "Reduce_scatter_block", "Scan", "Exscan")
METHODS = (*REDUCING, "Allgather", "Alltoall", "Gather", "Scatter", "Bcast")


@pytest.fixture(scope="module")
def cupy():
    """CuPy, with this rank's GPU as the current one."""
    made = pytest.importorskip("cupy")
    try:
        count = made.cuda.runtime.getDeviceCount()
    except Exception as error:
        pytest.skip(f"no GPU: {error}")
    made.cuda.Device(RANK % count).use()
    return made


@pytest.fixture(scope="module", params=["cuda_ipc", "staged"])
def ours(request, cupy):
    os.environ["MPICOLL_GPU"] = request.param
    with sharing.allowed():
        comm = mpicoll.Intracomm(WORLD.Dup())
        del os.environ["MPICOLL_GPU"]
        transport = comm.gpu_transport()
        if request.param == "cuda_ipc" and transport != "cuda_ipc":
            pytest.skip(transport)  # linked by less than NVLink, on several nodes, ...
        assert transport.startswith(request.param)
        yield comm
        comm.Free()


def is_staged(comm):
    return comm.gpu_transport().startswith("staged")


def test_what_is_taken_by_itself(cupy):
    comm = mpicoll.Intracomm(WORLD.Dup())
    transport = comm.gpu_transport()
    if P > cupy.cuda.runtime.getDeviceCount():
        assert transport.startswith(("aware (", "staged ("))
        assert "several ranks have the same GPU" in transport or "several nodes" in transport
    else:
        assert transport.startswith(("cuda_ipc", "aware", "staged"))
    comm.Free()


def shapes(method, count):
    """Elements that this rank sends and receives; None where it does not."""
    alone, own = ("Allgather", "Gather"), ("Reduce_scatter_block", "Scatter")
    whole = count * P if method in (*alone, *own, "Alltoall") else count
    sent = count if method in alone else whole
    received = count if method in own else whole
    if method in ("Reduce", "Gather", "Scatter") and RANK != ROOT:
        return (None, received) if method == "Scatter" else (sent, None)
    return sent, received


def named(method):
    """An algorithm of mpicoll's, of which the host keeps the steps."""
    name = {definition.method: name for name, definition in COLLECTIVES.items()}[method]
    return {"algorithm": mpicoll.algorithms.names(name)[0]}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", ["blocking", "nonblocking", "persistent", "named"])
def test_every_collective(ours, cupy, method, way):
    if is_staged(ours):  # of one segment, of several, and of a last one that is not full
        long = staging.CHUNK // 4 // P + 3, staging.CHUNK // P + 77
    else:
        long = 70_001, 600_007
    for count in (1, 1000, *long):
        sent, received = shapes(method, count)
        random = np.random.default_rng([count, RANK])
        send = None if sent is None else random.integers(-99, 99, sent).astype("i4")
        recv = None if received is None else np.full(received, 7, "i4")
        if method == "Bcast":
            send, recv = None, (send if RANK == ROOT else recv)
        # Filled on the stream, so that a call that does not wait for it is found out.
        given, wanted = (None if a is None else cupy.asarray(a) + 0 for a in (send, recv))
        arguments = [MPI.SUM] if method in REDUCING else []
        arguments += [ROOT] if method in ("Reduce", "Gather", "Scatter", "Bcast") else []
        buffers, given = (
            ([recv], [wanted]) if method == "Bcast" else ([send, recv], [given, wanted])
        )
        getattr(WORLD, method)(*buffers, *arguments)
        if way == "blocking":
            getattr(ours, method)(*given, *arguments)
        elif way == "nonblocking":
            getattr(ours, f"I{method.lower()}")(*given, *arguments).Wait()
        else:
            more = named(method) if way == "named" else {}
            plan = getattr(ours, f"{method}_init")(*given, *arguments, **more)
            plan.Start()
            plan.Wait()
            plan.Free()
        if recv is not None and not (method == "Exscan" and RANK == 0):
            np.testing.assert_array_equal((wanted + 0).get(), recv)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "i8", "u1"])
@pytest.mark.parametrize("count", [1, 777, 3 * 1024 * 1024])
def test_in_place_and_types(ours, cupy, dtype, count):
    values = (10 * np.random.default_rng(RANK).standard_normal(count)).astype(dtype)
    host, array = values.copy(), cupy.asarray(values)
    ours.Allreduce(MPI.IN_PLACE, host, algorithm="parameter_server")
    ours.Allreduce(MPI.IN_PLACE, array, algorithm="parameter_server")
    assert array.get().tobytes() == host.tobytes()
    array = cupy.asarray(values)
    for _ in range(3):  # the second and the third by the fast path, if there is one
        ours.Allreduce(MPI.IN_PLACE, array, MPI.MAX if dtype != "c8" else MPI.SUM)
    assert array.shape == (count,)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "i8"])
def test_bits_of_what_gpus_reduce(ours, cupy, dtype):
    """A large one, with numbers below the least normal one too."""
    if not is_staged(ours):
        pytest.skip("not through the host")
    count = 2 * staging.CHUNK // np.dtype(dtype).itemsize + 1001
    values = np.random.default_rng(RANK).standard_normal(count)
    if np.dtype(dtype).kind == "f":
        values[::3] *= float(np.finfo(dtype).tiny)
    values = (values if np.dtype(dtype).kind != "i" else 1e6 * values).astype(dtype)
    host, array = values.copy(), cupy.asarray(values)
    ours.Allreduce(MPI.IN_PLACE, host, algorithm="parameter_server")
    ours.Allreduce(MPI.IN_PLACE, array)
    assert array.get().tobytes() == host.tobytes()
    odd = cupy.zeros(count + 1, dtype)  # not where a vector load may begin
    odd[1:] = cupy.asarray(values)
    ours.Allreduce(MPI.IN_PLACE, odd[1:])
    assert odd[1:].get().tobytes() == host.tobytes()
    assert P == 1 or ours.stats().calls["allreduce", "staged"] >= 2


def test_streams(ours, cupy):
    for count in (1000, 5_000_000):
        for stream in (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null):
            with stream:
                array = cupy.zeros(count, "f4")
                for step in range(5):
                    array[...] = RANK + step
                    ours.Allreduce(MPI.IN_PLACE, array)
                    total = array.copy()
                    assert float(total.min()) == float(total.max()) == P * step + P * (P - 1) / 2
        array = cupy.full(count, 1, "f4")
        cupy.cuda.Device().synchronize()
        stream = cupy.cuda.Stream(non_blocking=True)
        ours.Allreduce(MPI.IN_PLACE, array, stream=stream)
        stream.synchronize()
        assert float(array.min()) == float(array.max()) == P


def test_blocks_of_different_lengths(ours, cupy):
    counts = [rank % 3 for rank in range(P)]
    whole = cupy.zeros(sum(counts), "f4")
    ours.Allgatherv(cupy.full(counts[RANK], RANK, "f4"), [whole, counts])
    np.testing.assert_array_equal(whole.get(), np.repeat(np.arange(P), counts))
    sent = [(RANK + rank) % 3 for rank in range(P)]
    got = cupy.zeros(sum(sent), "i4")
    ours.Alltoallv([cupy.full(sum(sent), RANK, "i4"), sent], [got, sent])
    np.testing.assert_array_equal(got.get(), np.repeat(np.arange(P), sent))


def test_messages(ours, cupy):
    right, left = (RANK + 1) % P, (RANK - 1) % P
    for count in (3, 1_000_000):
        array, got = cupy.full(count, RANK, "f4"), cupy.zeros(count, "f4")
        request = ours.Isend(array, right)
        ours.Recv(got, left)
        request.Wait()
        assert float(got.min()) == float(got.max()) == left
        got[...] = -1
        request = ours.Irecv(got, left)
        ours.Send(array, right)
        request.Wait()
        assert float(got.min()) == left
        got[...] = -1
        ours.Sendrecv(array, right, 0, got, left)
        assert float(got.min()) == left
        plans = [ours.Send_init(array, right), ours.Recv_init(got, left)]
        for _ in range(2):
            got[...] = -1
            mpicoll.Prequest.Startall(plans)
            mpicoll.Request.Waitall(plans)
            assert float(got.min()) == left


def test_an_array_of_another_device(ours, cupy):
    count = cupy.cuda.runtime.getDeviceCount()
    if count < 2:
        pytest.skip("one GPU")
    here = cupy.cuda.Device().id
    for length in (10, 3_000_000):
        with cupy.cuda.Device((here + 1) % count):
            array = cupy.full(length, RANK, "i4")
            ours.Allreduce(MPI.IN_PLACE, array)
            assert int(array.min()) == int(array.max()) == P * (P - 1) // 2
        array = cupy.full(length, RANK, "i4")
        ours.Allreduce(MPI.IN_PLACE, array)
        assert int(array.min()) == P * (P - 1) // 2


def test_what_is_refused(ours, cupy):
    array = cupy.zeros((4, 4), "f4")
    with pytest.raises(TypeError, match="send buffer in device memory but receive buffer in host"):
        ours.Allreduce(array, np.zeros((4, 4), "f4"))
    if not ours._state.gpus.devices[RANK].aware:
        with pytest.raises(BufferError, match="Bsend: a buffer in device memory"):
            ours.Bsend(array, RANK)
        with pytest.raises(BufferError, match=r"Win\.Create: a buffer in device memory"):
            mpicoll.Win.Create(array)
        with pytest.raises(BufferError, match=r"File\.Write: a buffer in device memory"):
            mpicoll.File().Write(array)
    ours.Allreduce(MPI.IN_PLACE, array.T)  # in Fortran order


def test_dlpack_and_pytorch(ours, cupy):
    torch = pytest.importorskip("torch")
    tensor = torch.full((1000,), float(RANK), device=f"cuda:{cupy.cuda.Device().id}")
    for _ in range(2):
        tensor.fill_(float(RANK))
        ours.Allreduce(MPI.IN_PLACE, tensor)
        assert set(tensor.tolist()) == {P * (P - 1) / 2}
    narrow = tensor.to(torch.bfloat16).fill_(1)
    ours.Bcast(narrow)

    class Exporter:
        def __dlpack__(self, **more):
            return tensor.__dlpack__(**more)

        def __dlpack_device__(self):
            return tensor.__dlpack_device__()

    tensor.fill_(1.0)
    torch.cuda.synchronize()
    ours.Allreduce(MPI.IN_PLACE, Exporter())
    cupy.cuda.Device().synchronize()
    assert set(tensor.tolist()) == {float(P)}


@pytest.mark.parametrize(
    "more",
    [
        {"strategy": "allreduce", "model": "mlp", "algorithm": None},
        {"strategy": "allreduce", "dtype": "float16", "optimizer": "adam"},
        {"strategy": "zero1", "optimizer": "adamw", "algorithm": None},
        {"strategy": "local_sgd", "algorithm": None},
        {"strategy": "gossip"},
        {"strategy": "parameter_server"},
        {"strategy": "allreduce", "model": "conv", "channels": (3, 4)},
        {"strategy": "allreduce", "model": "resnet", "channels": (3, 4)},
        {"strategy": "zero1", "optimizer": "adamw", "weight_decay": 0.1, "decay_on": "matrices"},
        {"strategy": "allreduce", "weight_decay": 0.1, "groups": ("*.bias:lr=0.5:decay=0",)},
    ],
    ids=lambda more: "-".join(str(value) for value in more.values()),
)
def test_training(ours, cupy, more):
    from mpicoll.train import Config, Dataset, run

    random = np.random.default_rng(5)
    labels = np.arange(600) % 4
    inputs = random.standard_normal((600, 64)) + labels[:, None]
    inputs = inputs.reshape(-1, 8, 8, 1)
    data = Dataset("clouds", 4, inputs[:500], labels[:500], inputs[500:], labels[500:])
    config = {"dtype": "float64", "steps": 50, "batch": 40, "epochs": 5, "check_every": 10, **more}
    if more["strategy"] in ("local_sgd", "gossip"):
        run(Config(**config, device="gpu"), ours, dataset=data)
        return
    half = more.get("dtype") == "float16"
    if half:
        config["algorithm"] = "ring"  # not every MPI library has the type
        config["loss_scale"] = 1024.0  # where a step overflows depends on who computes
        host, limit = run(Config(**config), ours, dataset=data), 0.01
    else:
        host, limit = run(Config(**config).alone(P), dataset=data), 1e-10
    device = run(Config(**config, device="gpu"), ours, dataset=data)
    assert_near(device, host, limit)
    if not half:  # one GPU, by batches as large as those of all ranks together
        alone = mpicoll.Intracomm(MPI.COMM_SELF)
        one = run(Config(**config, device="gpu").alone(P), alone, dataset=data)
        assert_near(device, one, limit)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_training_a_decoder(ours, cupy, dtype):
    from mpicoll.train import Config, data, run

    tokens = np.random.default_rng(3).integers(0, 7, (200, 9)).cumsum(axis=1) % 11
    arrays = {"train_inputs": tokens[:, :-1], "train_labels": tokens[:, 1:], "vocabulary": 11}
    texts = data.from_arrays("sums", arrays)
    config = {"model": "transformer", "width": 16, "layers": 1, "optimizer": "adam", "lr": 0.001}
    config |= {"steps": 30, "batch": 20, "epochs": 5, "dtype": dtype, "algorithm": "ring"}
    device = run(Config(**config, device="gpu"), ours, dataset=texts)
    if dtype == "float64":
        assert_near(device, run(Config(**config).alone(P), dataset=texts), 1e-9)
    else:
        assert_near(device, run(Config(**config), ours, dataset=texts), 0.02)


def assert_near(found, expected, limit):
    """Parameters of two runs, by what is the larger one of 1 and the largest one of an array."""
    for name, values in expected.parameters.items():
        difference = np.abs(found.parameters[name].astype("f8") - values).max()
        assert difference <= limit * max(1.0, np.abs(values).max()), name
