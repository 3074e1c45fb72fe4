"""Pipelines on ranks: bits, replicas, failures, and what a timeline says."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from stages import Breaks, alone, batches, pipedream_alone, problem, uneven, updated

import mpicoll
from mpicoll.train import TrainingError
from mpicoll.train.models import BatchNorm, Dense, Layer, ReLU, Sequential, transformer
from mpicoll.train.parallel import Mesh, NotFinite, Pipeline, runner
from mpicoll.train.parallel.replicas import FreedBehindLayers
from mpicoll.train.parallel.wires import Parcel, Wire, Wires

COMM = MPI.COMM_WORLD
P, RANK = COMM.size, COMM.rank
pytestmark = [pytest.mark.mpi, *([pytest.mark.long] if P > 4 else [])]
ORDERS = {
    "naive": {},
    "gpipe": {},
    "1f1b": {"ahead": 4},  # more messages on their way than are asked for
    "interleaved": {"chunks": 2},
    "zb_h1": {},
    "zb_h2": {},
    "zb_v": {},
}


@pytest.fixture
def comm():
    made = mpicoll.Intracomm(COMM.Dup())
    yield made
    made.Free()


@pytest.fixture
def mesh(comm):
    made = Mesh(comm, pipe=P)
    yield made
    made.free()


def same_bits(found, expected):
    for name, array in found.items():
        assert array.tobytes() == expected[name].tobytes(), name


def everything(found):
    """What all ranks have by name; what several have is equal."""
    every = {}
    for own in COMM.allgather({name: array.copy() for name, array in found.items()}):
        same_bits({name: every[name] for name in own.keys() & every.keys()}, own)
        every.update(own)
    return every


def raised(error, call, *arguments):
    """The message that a call raises on all ranks."""
    with pytest.raises(error) as caught:
        call(*arguments)
    [message] = set(COMM.allgather(str(caught.value)))
    return message


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recompute", [False, True] if P < 4 else [P % 2 == 0])
def test_steps_have_the_bits_of_one_process(mesh, order, recompute):
    dtype = "float64" if recompute else "float32"
    model, inputs, targets = problem(dtype, 6 * P - 1)
    pipeline = Pipeline(
        model,
        mesh,
        order,
        microbatches=2 * P,
        cut=uneven(20, P * (2 if order in ("interleaved", "zb_v") else 1)),
        recompute=recompute,
        **ORDERS[order],
    )
    given = batches(inputs, targets, 2 * P)
    for step in range(2):
        losses, expected, _ = alone(model, given)
        loss, gradients = pipeline.step(inputs, targets)
        whole = 0.0
        for part in losses:
            whole += part
        assert loss == whole
        assert everything(gradients).keys() == expected.keys()
        same_bits(gradients, expected)
        sent = np.array([pipeline.sent, pipeline.sent_bytes])
        COMM.Allreduce(MPI.IN_PLACE, sent)
        named = pipeline.schedule.parameters
        messages = pipeline.schedule.order.messages(P, 2 * P, **named)
        assert sent[0] == (step + 1) * messages
        place = pipeline.schedule.place
        across = [e for e in range(1, len(pipeline.starts)) if place(e - 1) != place(e)]
        values = sum(int(np.prod(model.shapes[pipeline.starts[edge]])) for edge in across)
        assert sent[1] == (step + 1) * 2 * len(inputs) * values * model.dtype.itemsize
        held = pipeline.schedule.order.held(RANK, P, 2 * P, **named)
        assert pipeline.held == held or (pipeline.held < held and order == "zb_v")
    pipeline.free()


@pytest.mark.skipif(P < 2, reason="a message needs two ranks")
def test_what_is_to_come_arrives_between_layers(comm, tmp_path):
    """A long message needs its receiver: `poll` is what a rank calls that computes."""
    gone, array = Path(COMM.bcast(str(tmp_path / "gone"))), np.ones((1, 1 << 20))
    wires, parcel = Wires(comm), Parcel(array.shape, array.dtype)
    if RANK == 0:
        wire = Wire(1, False, 1)
        wires.expect([(wire, parcel)])
        end = time.monotonic() + 20
        while not gone.exists() and time.monotonic() < end:
            wires.poll()
        assert gone.exists()
        assert wires.take(wire).tobytes() == array.tobytes()
    elif RANK == 1:
        wires.put(Wire(1, False, 0), array, parcel)
        wires.finish()
        gone.touch()
    wires.finish()
    wires.free()


def test_all_meshes_have_the_same_bits(comm):
    """Replicas times microbatches are the same number of parts, added along one tree."""
    parts, order = 2 * P, "zb_h1" if P % 2 else "1f1b"
    generator = np.random.default_rng(5)
    tokens = generator.integers(0, 11, (3 * parts - 2, 6))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]

    def learnt(mesh, **options):
        model = transformer(11, 5, 8, blocks=3, heads=2, dtype="float64", dropout=0.1)
        pipeline = Pipeline(model, mesh, order, microbatches=parts // mesh.data.size, **options)
        losses, norms = [], []
        for epoch in (1, 2, 3):
            loss, gradients = pipeline.step(inputs, targets, epoch=epoch)
            losses.append(loss)
            norms.append(pipeline.clip(gradients, 0.1))
            for name, gradient in gradients.items():
                pipeline.parameters[name] -= 0.1 * gradient
        found = {name: array.copy() for name, array in pipeline.parameters.items()}
        pipeline.compare()
        if pipeline.parameters.keys() & {"embedding.weight"} and RANK == 0:
            pipeline.parameters["embedding.weight"][3, 1] += 1e-12
        if mesh.world.size > 1:
            message = raised(TrainingError, pipeline.compare)
            assert message.startswith("parameter embedding.weight of rank ")
        pipeline.free()
        return losses, norms, found

    one = learnt(Mesh(), invariant=parts)
    for pipe in (n for n in range(1, P + 1) if P % n == 0):
        mesh = Mesh(comm, pipe=pipe)
        assert (mesh.data.size, mesh.pipe.size) == (P // pipe, pipe)
        losses, norms, found = learnt(mesh, invariant=parts)
        assert (losses, norms) == one[:2]
        same_bits(found, one[2])
        assert everything(found).keys() == one[2].keys()
        losses, norms, found = learnt(mesh)
        assert losses == pytest.approx(one[0], rel=1e-12)
        for name, array in found.items():
            np.testing.assert_allclose(array, one[2][name], rtol=1e-10, atol=1e-13)
        mesh.free()


@pytest.mark.parametrize("vertical", [0, 1])
def test_pipedream_has_the_bits_of_a_simulator(mesh, vertical):
    model, inputs, targets = problem("float64", 25)
    starts = uneven(20, P)
    pipeline = Pipeline(model, mesh, "pipedream", microbatches=9, cut=starts, vertical=vertical)
    given = batches(inputs, targets, 9, alone=True)
    losses, expected = pipedream_alone(model, given, P, starts, vertical)
    assert pipeline.stream(inputs, targets, updated).tolist() == losses
    same_bits(pipeline.parameters, expected)
    assert everything(pipeline.parameters).keys() == expected.keys()
    assert pipeline.versions == pipeline.schedule.order.versions(RANK, P, 9, vertical=vertical)
    inputs[3:6] = np.nan  # microbatch 1
    found = pipeline.stream(inputs, targets, updated)
    assert np.flatnonzero(~np.isfinite(found)).tolist() == [1]
    assert all(np.isfinite(array).all() for array in pipeline.parameters.values())

    def breaks(parameters, gradients):
        if RANK == P - 1:
            raise OSError("the update is on fire")

    message = raised(TrainingError, pipeline.stream, inputs, targets, breaks)
    assert message.startswith(
        f"a step failed on rank {P - 1}: U of chunk {P - 1}, microbatch 0: OS"
    )
    pipeline.free()


@pytest.mark.parametrize("kind", ["forward", "backward", "weight"])
def test_a_layer_that_fails_on_any_rank(comm, kind):
    meshes = [Mesh(comm, pipe=P), *([Mesh(comm, data=2, pipe=2)] if P == 4 else [])]
    for mesh in meshes:
        for rank in range(P):
            stage = rank // mesh.data.size
            layers = [Dense(4), ReLU(), Dense(3)] * mesh.pipe.size
            breaks = Breaks(kind, 2) if rank == RANK else Breaks(kind, -1)
            layers[3 * stage + 1] = breaks
            pipeline = Pipeline(
                layers,
                mesh,
                "1f1b",
                microbatches=4,
                inputs=(4,),
                cut=[3 * s for s in range(mesh.pipe.size)],
            )
            inputs, targets = np.ones((16, 4), np.float32), np.arange(16) % 3
            message = raised(TrainingError, pipeline.step, inputs, targets)
            task = "F" if kind == "forward" else "B"
            assert message == (
                f"a step failed on rank {rank}: {task} of chunk {stage}, microbatch 2: OSError: "
                f"the {kind} pass is on fire"
            )
            loss, _ = pipeline.step(inputs, targets)
            assert loss > 0
            pipeline.free()
        mesh.free()


def test_what_is_not_finite_is_left_out(comm):
    mesh = Mesh(comm, pipe=P)
    layers = [layer for _ in range(P) for layer in (Dense(4), BatchNorm())] + [Dense(3)]
    pipeline = Pipeline(layers, mesh, microbatches=3, inputs=(4,), dtype="float64")
    generator = np.random.default_rng(0)
    inputs, targets = generator.standard_normal((12, 4)), np.arange(12) % 3
    pipeline.step(inputs, targets)
    before = {name: array.copy() for name, array in pipeline.buffers.items()}
    wrong = inputs.copy()
    wrong[5, 0] = np.inf
    with np.errstate(all="ignore"):
        message = raised(NotFinite, pipeline.step, wrong, targets)
    last = P - 1
    assert message == (
        f"a step was left out, on rank {last}: F of chunk {last}, microbatch 1: the loss is nan"
    )
    same_bits(pipeline.buffers, before)
    if RANK == 0:
        pipeline.parameters["layer1.weight"][0, 0] = 1e308
    with np.errstate(all="ignore"):
        assert "a step was left out" in raised(NotFinite, pipeline.step, inputs, targets)
    pipeline.free()
    mesh.free()


def test_ranks_that_are_given_different_things(mesh):
    layers = [Dense(4)] * P + [Dense(3)]
    if P > 1:
        message = raised(
            TrainingError,
            lambda: Pipeline(layers, mesh, microbatches=2 + (RANK == P - 1), inputs=(4,)),
        )
        assert message.startswith("schedule is 1f1b ahead=0, S=") and "M=3" in message
    pipeline = Pipeline(layers, mesh, microbatches=3, inputs=(4,))
    inputs, targets = np.ones((12, 4), np.float32), np.arange(12) % 3
    if P > 1:
        count = 12 if RANK else 9
        message = raised(TrainingError, pipeline.step, inputs[:count], targets[:count])
        assert message.startswith("ranks were given different numbers of samples: give all of them")
        # What is longer than awaited fits in no buffer.
        count = 9 if RANK else 12
        message = raised(TrainingError, pipeline.step, inputs[:count], targets[:count])
        assert message.startswith("ranks were given different numbers of samples: give all of them")
    if P > 1:
        own = (inputs, targets) if RANK else (None, None)
        message = raised(TrainingError, pipeline.step, *own)
        assert "rank 0: the samples: ValueError: inputs, targets and samples are None" in message
        refused = pytest.raises(
            TrainingError, match="what is refused is nothing on rank 0 and pipe"
        )
        with refused:
            Pipeline(layers[: 9 if RANK < P - 1 else 1], mesh, microbatches=3, inputs=(4,))
    given = inputs if RANK == 0 else None
    message = raised(TrainingError, pipeline.step, given, targets[:11])
    assert "ValueError: there are 11 targets of 12 samples" in message or P > 1
    first = RANK == 0
    loss, _ = pipeline.step(
        inputs if first else None, targets if RANK == P - 1 else None, samples=np.arange(12)
    )
    assert loss > 0
    message = raised(TrainingError, pipeline.step, None, targets)
    assert "the samples: ValueError: inputs are None on a rank that reads them" in message
    pipeline.free()


def test_evaluation_is_that_of_one_process(comm):
    model, inputs, targets = problem("float64", 17)
    model = Sequential([*model.layers[:3], BatchNorm(), *model.layers[3:]], (6,), "float64")
    parameters = {**model.initial_parameters(0), **model.initial_buffers()}
    losses, outputs = model.losses_and_outputs(parameters, inputs, targets)
    for pipe in (n for n in range(1, P + 1) if P % n == 0):
        mesh = Mesh(comm, pipe=pipe)
        for order in ("1f1b", "zb_v", "interleaved"):
            pipeline = Pipeline(model, mesh, order, microbatches=4 * pipe)
            loss, found = pipeline.evaluate(inputs, targets)
            assert loss == pytest.approx(losses.mean(), rel=1e-14)
            assert COMM.allgather(loss) == [loss] * P
            rows = {row.tobytes() for row in np.round(outputs, 12) + 0.0}
            every = [own for own in COMM.allgather(found) if own is not None]
            assert sum(map(len, every)) == 17
            assert {row.tobytes() for own in every for row in np.round(own, 12) + 0.0} == rows
            pipeline.free()
        mesh.free()


def test_buffers_of_replicas_are_their_mean(comm):
    mesh = Mesh(comm, data=P)
    model = Sequential([Dense(4), BatchNorm(), Dense(3)], (4,), "float64")
    pipeline = Pipeline(model, mesh, "gpipe", microbatches=1)
    generator = np.random.default_rng(0)
    inputs, targets = generator.standard_normal((5 * P + 1, 4)), np.arange(5 * P + 1) % 3
    pipeline.step(inputs, targets)
    found = COMM.allgather(pipeline.buffers["layer2.mean"])
    assert all(array.tobytes() == found[0].tobytes() for array in found)
    rows = inputs @ pipeline.parameters["layer1.weight"] + pipeline.parameters["layer1.bias"]
    np.testing.assert_allclose(found[0], 0.1 * rows.mean(axis=0), rtol=1e-10)
    pipeline.free()
    mesh.free()


class Padded(Layer):
    """Takes as long as it is told to."""

    def __init__(self, forward, backward):
        self._forward, self._backward = forward, backward

    def forward(self, parameters, inputs, batch):
        time.sleep(self._forward)
        return inputs, None

    def backward_input(self, parameters, memory, error, first):
        time.sleep(self._backward)
        return error, None


@pytest.mark.skipif(P > 3, reason="3 ranks and fewer show it")
def test_the_parts_of_a_timeline_are_the_whole(mesh, tmp_path):
    path = COMM.bcast(str(tmp_path / "trace.json"))
    layers = [layer for _ in range(P) for layer in (Dense(3), Padded(0.03, 0.06))]
    cut = [2 * stage for stage in range(P)]
    pipeline = Pipeline(layers, mesh, microbatches=4, inputs=(3,), cut=cut)
    inputs, targets = np.ones((8, 3), np.float32), np.arange(8) % 3
    with pipeline.traced(path) as timeline:
        for _ in range(3):
            pipeline.step(inputs, targets)
    pipeline.step(inputs, targets)
    assert len(timeline.steps) == 3
    off, idle = ([[] for _ in range(P)] for _ in range(2))
    for step in range(3):
        for rank, shares in enumerate(timeline.shares(step)):
            parts = shares.computing + shares.bubble + shares.exposed + shares.straggling
            off[rank].append(abs(parts - shares.step) / shares.step)
            assert shares.computing >= 4 * 0.09
            idle[rank].append(shares.bubble + shares.straggling)
    assert max(map(min, off)) < 0.01
    # A rank is idle while the pipeline fills and drains; a busy machine may hide some of it.
    assert min(map(max, idle)) >= 0.09 * (P - 1) - 0.03
    COMM.Barrier()
    if RANK == 0:
        events = json.loads(Path(path).read_text(encoding="utf-8"))["traceEvents"]
        computing = [e for e in events if e.get("cat") == "computing"]
        assert len(computing) == 3 * P * 4 * 2
    message = "writing the trace failed on rank 0: FileNotFound"
    with pytest.raises(TrainingError, match=message), pipeline.traced("/nowhere/at/all.json"):
        pass
    pipeline.free()


@pytest.mark.skipif(P > 2, reason="2 ranks and fewer show it")
def test_modules_of_pytorch_on_ranks(mesh):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from mpicoll.train.pytorch import TorchLayer

    torch.set_num_threads(1)
    torch.manual_seed(4)

    def modules():
        found = [TorchLayer(torch.nn.Linear(6, 6)), TorchLayer(torch.nn.GELU())]
        for _ in range(P):
            found += [TorchLayer(torch.nn.Linear(6, 6)), TorchLayer(torch.nn.LayerNorm(6))]
        return [*found, TorchLayer(torch.nn.Linear(6, 3))]

    model = Sequential(modules(), (6,), "float32")
    generator = np.random.default_rng(1)
    inputs = generator.standard_normal((14, 6)).astype(np.float32)
    targets = generator.integers(0, 3, 14)
    _, expected, _ = alone(model, batches(inputs, targets, 5))
    for order, recompute in (("1f1b", True), ("zb_h1", False)):
        pipeline = Pipeline(model, mesh, order, microbatches=5, recompute=recompute)
        _, gradients = pipeline.step(inputs, targets)
        same_bits(gradients, expected)
        assert everything(gradients).keys() == expected.keys()
        pipeline.free()


class Interrupts(Dense):
    """Raises KeyboardInterrupt in its backward pass."""

    def backward_input(self, *_):
        raise KeyboardInterrupt


def test_a_step_that_was_interrupted_is_the_last_of_its_pipeline(comm):
    """Its collectives stay as they are: what MPI writes to must not be freed."""
    layers = [Dense(200), Interrupts(200), Dense(200)]  # a sum for each
    mesh = Mesh(comm, data=P)
    pipeline = Pipeline(layers, mesh, microbatches=1, inputs=(200,), replicas=FreedBehindLayers)
    batch = np.ones((2 * P, 200), np.float32), np.zeros(2 * P, int)
    with pytest.raises(KeyboardInterrupt):
        pipeline.step(*batch)
    for call in (pipeline.step, pipeline.evaluate):
        with pytest.raises(TrainingError, match="ended early, by KeyboardInterrupt; its messages"):
            call(*batch)
    pipeline.free()
    del pipeline
    (number, coming), *others = runner._under_way.pop(0)
    summing = runner._under_way.pop(0)
    assert (number, others, runner._under_way) == (0, [], [])
    # All ranks were interrupted at the same place: so here the collectives can be completed.
    assert {array.shape for array in coming.finish().values()} == {(200,), (200, 200)}
    assert {layer for layer, _ in summing.finish()} == {2}
    mesh.free()
