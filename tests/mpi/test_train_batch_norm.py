"""Batch norms over all ranks: speeds, failures between their sums, buffers of the local one."""

import time
from dataclasses import replace

import numpy as np
import pytest
from clouds import clouds
from mpi4py import MPI

from mpicoll.train import Config, TrainingError, run
from mpicoll.train.data import from_arrays
from mpicoll.train.data.sampler import Sampler, shared
from mpicoll.train.driver import checkpoints, parity
from mpicoll.train.models import (
    Batch,
    BatchNorm,
    Dense,
    Gelu,
    Layer,
    Residual,
    Sequential,
)

P = MPI.COMM_WORLD.size
pytestmark = [pytest.mark.mpi, pytest.mark.skipif(P > 5, reason="5 ranks and fewer show it")]
LABELS = np.arange(131) % 4  # of clouds()
few = pytest.mark.skipif(P > 3, reason="3 ranks and fewer show it")


def configured(**options):
    return Config(**{"dtype": "float64", **options})


def pictures():
    """The same clouds, as pictures of 3 x 4 pixels."""
    data = clouds()
    return from_arrays(
        "pictures",
        {
            "train_inputs": data.train_inputs.reshape(-1, 3, 4, 1),
            "train_labels": LABELS[:101],
            "test_inputs": data.test_inputs.reshape(-1, 3, 4, 1),
            "test_labels": LABELS[101:],
        },
    )


def net(*extra, local=False):
    normed = (Dense(6, bias=False), BatchNorm(local=local))
    layers = [*normed, Gelu(), *extra, Residual((*normed, Gelu())), Dense(4)]
    return Sequential(layers, (12,), "float64")


def largest(ours, reference):
    return max(parity.differences(ours, reference).values())


class Breaks(Layer):
    """Passes everything on, and fails on some ranks in a pass of the model."""

    def __init__(self, breaks, forward, call):
        self._left = {"forward": 0, "backward": 0}
        self._at = (forward, call) if breaks else None

    def _pass(self, which):
        self._left[which] += 1
        if self._at == (which, self._left[which]):
            raise OSError(f"the {which} pass is on fire")

    def forward(self, parameters, inputs, batch):
        if batch is not None:
            self._pass("forward")
        return inputs, None

    def backward_input(self, parameters, memory, error, first):
        self._pass("backward")
        return error, None


@pytest.mark.parametrize("strategy", ["allreduce", "zero1"])
@pytest.mark.parametrize("which", ["forward", "backward"])
@pytest.mark.parametrize("call", [1, 5, 6], ids=["first step", "third step", "its second batch"])
@pytest.mark.parametrize("place", ["first", "between sums", "last"])
@few
def test_a_layer_that_fails_on_one_rank_ends_the_run_on_all(comm, strategy, which, call, place):
    for rank in sorted({0, P - 1}):
        extra = Breaks(comm.rank == rank, which, call)
        if place == "between sums":
            model = net(extra)
        else:
            layers = net().layers
            layers = (extra, *layers) if place == "first" else (*layers, extra)
            model = Sequential(layers, (12,), "float64")
        config = configured(batch=8, accumulate=2, strategy=strategy, bucket=100)
        step = (call + 1) // 2
        message = f"step {step} of epoch 1 failed on rank {rank}: OSError: the {which} pass is on"
        with pytest.raises(TrainingError, match=message):
            run(config, comm, dataset=clouds(), model=model)
        assert comm.allgather(comm.rank) == list(range(P))  # all are here, in step


@few
def test_all_ranks_may_fail_at_once_and_the_first_is_named(comm):
    model = net(Breaks(True, "forward", 3))
    with pytest.raises(TrainingError, match="step 3 of epoch 1 failed on rank 0: OSError"):
        run(configured(batch=8), comm, dataset=clouds(), model=model)


@few
@pytest.mark.mpi(min_size=2)
def test_a_model_that_makes_other_sums_than_it_says_is_refused_on_all(comm):
    class Short(BatchNorm):
        def sums(self, shape):
            return (5,)

    class Odd(BatchNorm):
        def forward(self, parameters, inputs, batch):
            if batch is not None and comm.rank == P - 1:
                given = batch.sum
                batch = replace(batch, sum=lambda values: given(values[1:]))
            return super().forward(parameters, inputs, batch)

    for layer, rank, words in (
        (Short(), 0, r"a sum of shape \(25,\) came where one of shape \(5,\) is awaited"),
        (Odd(), P - 1, r"a sum of shape \(24,\) came where one of shape \(25,\) is awaited"),
    ):
        model = Sequential([layer, Dense(4)], (12,), "float64")
        with pytest.raises(TrainingError, match=f"step 1 of .* failed on rank {rank}: .*{words}"):
            run(configured(batch=8), comm, dataset=clouds(), model=model)


@few
@pytest.mark.mpi(min_size=2)
def test_ranks_whose_models_make_other_sums_are_refused(comm):
    model = net(local=comm.rank == P - 1)
    with pytest.raises(TrainingError, match=f"lengths of sums is .* on rank {P - 1}: give all"):
        run(configured(batch=8), comm, dataset=clouds(), model=model)


@few
@pytest.mark.mpi(min_size=2)
def test_what_is_not_finite_on_one_rank_leaves_the_statistics_alone(comm):
    class Spoilt(Layer):
        calls = 0

        def forward(self, parameters, inputs, batch):
            Spoilt.calls += batch is not None
            wrong = batch is not None and Spoilt.calls == 2 and comm.rank == P - 1
            return (inputs * np.nan if wrong else inputs), None

        def backward_input(self, parameters, memory, error, first):
            return error, None

    skipped = []
    result = run(
        configured(batch=8, epochs=1),
        comm,
        dataset=clouds(),
        model=Sequential([Spoilt(), *net().layers], (12,), "float64"),
        on_step=lambda step: skipped.append(step.skipped) or None,
    )
    assert skipped == [number == 2 for number in range(1, 14)]
    assert all(np.isfinite(array).all() for array in result.buffers.values())


@pytest.mark.skipif(P not in (2, 4), reason="2 and 4 ranks show it")
def test_waiting_for_sums_is_not_computing(comm):
    """So that shares follow the speed, and stragglers are named, as without a batch norm."""
    seen, counts = [], []

    class Paced(Layer):
        awake = False

        def forward(self, parameters, inputs, batch):
            if batch is not None and not Paced.awake:
                counts.append(len(inputs))
                time.sleep(len(inputs) * (0.003 if comm.rank == P - 1 else 0.001))
            return inputs, None

        def backward_input(self, parameters, memory, error, first):
            return error, None

    model = Sequential([Paced(), *net().layers], (12,), "float64")
    config = configured(balance="speed", batch=40, epochs=7)
    ours = run(config, comm, dataset=clouds(80), model=model, on_step=seen.append)
    shares = np.array(comm.allgather(counts))
    assert shares[:, 0].tolist() == [40 // P] * P
    assert shares[P - 1, -1] < 0.6 * shares[0, -1]
    assert seen[0].slowest == P - 1
    if comm.rank == 0:
        assert seen[0].waiting > 0.01
    Paced.awake = True
    reference = run(config.alone(P), dataset=clouds(80), model=model)
    assert largest(ours.parameters, reference.parameters) <= 1e-12


@few
@pytest.mark.parametrize("strategy", ["allreduce", "local_sgd", "parameter_server"])
def test_local_statistics_are_averaged_by_the_samples_that_made_them(comm, strategy):
    """Without learning, each rank's part of them can be written down."""
    options = {} if strategy != "local_sgd" else {"average_every": 3}
    config = configured(batch=7, epochs=1, lr=1e-300, momentum=0, strategy=strategy, **options)
    data, model = clouds(), net(local=True)
    ours = run(config, comm, dataset=data, model=model).buffers
    parts, seen = [], []
    for rank in range(P):
        known = {**model.initial_parameters(0), **model.initial_buffers()}
        seen.append(0)
        for samples in Sampler(101, 7).batches(1):
            mine = shared(samples, P, rank)
            batch = Batch(data.train_inputs[mine], LABELS[mine], 7, mine)
            model.loss_and_gradients(known, batch)
            seen[-1] += len(mine)
        parts.append(known)
    for name, array in ours.items():
        mean = sum(n * part[name] for n, part in zip(seen, parts, strict=True)) / sum(seen)
        np.testing.assert_allclose(array, mean, rtol=1e-12)
    everyone = comm.allgather({name: array.tobytes() for name, array in ours.items()})
    assert everyone == [everyone[0]] * P


@few
@pytest.mark.parametrize("kind", ["global", "local", "invariant"])
def test_statistics_are_in_checkpoints_and_go_on_elsewhere(comm, folder, kind):
    shards = 5 if kind == "invariant" else None
    # Those of parts that are by themselves are made equal by a checkpoint, and so move a little.
    every = 5 if kind == "global" else None
    config = configured(batch=8, epochs=2, lr=0.01, checkpoint_every=every, invariant=shards)
    model, data = net(local=kind == "local"), clouds()
    run(replace(config, epochs=1, checkpoint=str(folder)), comm, dataset=data, model=model)
    path = checkpoints.find(folder)
    whole = run(config, comm, dataset=data, model=model)
    resumed = run(replace(config, resume=str(path)), comm, dataset=data, model=model)
    for ours, reference in (
        (resumed.parameters, whole.parameters),
        (resumed.buffers, whole.buffers),
    ):
        assert all(ours[name].tobytes() == reference[name].tobytes() for name in reference)
    if kind != "local":
        alone = run(replace(config, resume=str(path)), dataset=data, model=model)
        limit = 1e-12 if kind == "global" else 0
        assert largest(alone.parameters, whole.parameters) <= limit
        assert largest(alone.buffers, whole.buffers) <= limit


@few
def test_the_command_trains_a_residual_net(comm, monkeypatch, capfd):
    from mpicoll.train import main
    from mpicoll.train.data import DATASETS

    monkeypatch.setitem(DATASETS, "digits", pictures)
    config = configured(dataset="digits", model="resnet", channels=(3, 4), epochs=1, batch=16)
    assert main(config, comm, progress=False, compare=True) == 0
    out = capfd.readouterr().out
    if comm.rank == 0:
        assert "resnet 3-4-1-3-4-4 in float64" in out and "(limit 1e-09: ok)" in out
    assert main(replace(config, norm="local"), comm, progress=False, compare=True) == 0
    out = capfd.readouterr().out
    if comm.rank == 0:
        assert "largest difference" not in out


@few
def test_residual_nets_have_the_same_bits_on_any_number_of_ranks(comm):
    config = configured(model="resnet", channels=(3,), batch=24, epochs=2, invariant=6, lr=0.01)
    alone = run(config, dataset=pictures())
    ours = run(config, comm, dataset=pictures())
    for mine, theirs in ((ours.parameters, alone.parameters), (ours.buffers, alone.buffers)):
        assert all(mine[name].tobytes() == theirs[name].tobytes() for name in theirs)
    assert [e.loss for e in ours.history] == [e.loss for e in alone.history]


@pytest.mark.skipif(P != 3, reason="3 ranks show it")
def test_ranks_that_are_given_their_samples_normalise_together(comm):
    config = configured(model="resnet", channels=(3,), batch=10, epochs=1, data_servers=1)
    ours = run(config, comm, dataset=pictures())
    if comm.rank < P - 1:
        alone = run(config.alone(P - 1), dataset=pictures())
        assert largest(ours.parameters, alone.parameters) <= 1e-12
        assert largest(ours.buffers, alone.buffers) <= 1e-12
