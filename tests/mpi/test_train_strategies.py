"""The traps of lockstep training: parity for every way to make a step, and ranks that differ."""

import time
from functools import cache

import numpy as np
import pytest
from float64 import MLP, Config, convnet
from mpi4py import MPI

from mpicoll.train import (
    Dataset,
    DistributedOptimizer,
    DistributedSampler,
    TrainingError,
    average_gradients,
    broadcast_parameters,
    optimizers,
    run,
)
from mpicoll.train.data.batch import Batch
from mpicoll.train.driver import parity

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(MPI.COMM_WORLD.size > 5, reason="test_train.py trains on more ranks"),
]


@cache
def clouds(train=101, test=37, shape=(12,), classes=4):
    generator = np.random.default_rng(7)
    centres = generator.standard_normal((classes, 12))
    labels = generator.integers(0, classes, train + test)
    inputs = centres[labels] + generator.standard_normal((train + test, 12))
    inputs = inputs.reshape(-1, *shape)
    return Dataset(
        "clouds", classes, inputs[:train], labels[:train], inputs[train:], labels[train:]
    )


def largest(ours, reference):
    return max(parity.differences(ours.parameters, reference.parameters).values())


#: What needs no further numbers of ranks.
few = pytest.mark.skipif(MPI.COMM_WORLD.size > 3, reason="3 ranks and fewer show it")
CASES = {
    "sgd": {"optimizer": "sgd", "lr": 0.1},
    "momentum": {"optimizer": "momentum"},
    "nesterov, small buckets": {"optimizer": "nesterov", "bucket": 64},
    "adam": {"optimizer": "adam", "lr": 0.01},
    "adamw, cosine": {"optimizer": "adamw", "weight_decay": 0.1, "schedule": "cosine", "warmup": 9},
    "accumulation": {"batch": 3, "accumulate": 3},
    "clipping": {"clip": 0.05},
    "another algorithm": {"algorithm": "recursive_doubling", "bucket": 200},
    "the communicator's choice": {"algorithm": None},
    "batch per rank": {"batch_per_rank": 3, "lr_scaling": "linear", "lr": 0.01},
    "zero1": {"strategy": "zero1", "optimizer": "momentum", "bucket": 100},
    "zero1, adam, clipping": {"strategy": "zero1", "optimizer": "adam", "lr": 0.01, "clip": 0.05},
    "zero1, more ranks than samples": {"strategy": "zero1", "batch": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_parity_after_200_steps(comm, case):
    config = Config(**{"batch": 8, "epochs": 100, "steps": 200, **CASES[case]})
    ours = run(config, comm, dataset=clouds())
    reference = run(config.alone(comm.size), dataset=clouds())
    assert ours.steps == 200 and ours.stopped == "steps"
    assert largest(ours, reference) <= 1e-12
    for mine, theirs in zip(ours.history, reference.history, strict=True):
        assert mine.test["accuracy"] == theirs.test["accuracy"]


@few
def test_parity_of_a_convolutional_net_with_dropout(comm):
    config = Config(model="conv", channels=(3,), hidden=(6,), dropout=0.3, batch=8, epochs=2)
    images = clouds(shape=(3, 4, 1))
    ours = run(config, comm, dataset=images)
    assert largest(ours, run(config, dataset=images)) <= 1e-12


@few
def test_every_bucket_size_gives_the_same_bits(comm):
    """By an algorithm whose sums do not depend on where in the vector they are."""
    found = [
        run(
            Config(epochs=1, batch=16, algorithm="recursive_doubling", bucket=bucket),
            comm,
            dataset=clouds(),
        ).parameters["layer1.weight"]
        for bucket in (None, 8, 104)
    ]
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


@few
@pytest.mark.parametrize("wire", ["fp16", "bf16", "int8", "topk:0.3"])
def test_narrow_gradients_train_as_well(comm, wire):
    config = {"model": "mlp", "hidden": (8,), "batch": 8, "epochs": 3, "bucket": 400}
    reference = run(Config(**config), dataset=clouds()).history[-1]
    ours = run(Config(wire=wire, check_every=1, **config), comm, dataset=clouds())
    assert ours.history[-1].loss == pytest.approx(reference.loss, abs=0.1)
    assert sum(epoch.skipped for epoch in ours.history) == 0


class Bent:
    """A model whose gradients are changed by `bend(calls so far, gradients)` before they leave."""

    def __init__(self, bend, model=None):
        self._bend, self._calls = bend, 0
        self._model = model or MLP((12, 4))
        self.initial_parameters = self._model.initial_parameters
        self.losses_and_outputs = self._model.losses_and_outputs

    def loss_and_gradients(self, parameters, batch):
        loss, gradients = self._model.loss_and_gradients(parameters, batch)
        self._calls += 1
        self._bend(self._calls, gradients)
        return loss, gradients


@few
@pytest.mark.parametrize("strategy", ["allreduce", "zero1"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_on_one_rank_is_skipped_by_all(comm, strategy, value):
    def bend(calls, gradients):
        if calls in (2, 5) and comm.rank == comm.size - 1:
            gradients["layer1.weight"][0, 0] = value

    def bend_alone(calls, gradients):
        if calls in (2, 5):
            gradients["layer1.weight"][0, 0] = value

    config, seen = Config(epochs=1, batch=8, strategy=strategy, skip_limit=1), []
    ours = run(
        config,
        comm,
        dataset=clouds(),
        model=Bent(bend),
        on_step=lambda s: seen.append(s.skipped) or None,
    )
    assert [number for number, skipped in enumerate(seen, 1) if skipped] == [2, 5]
    assert ours.history[0].skipped == 2
    assert largest(ours, run(config, dataset=clouds(), model=Bent(bend_alone))) <= 1e-12


@few
def test_overflow_in_half_precision_lowers_the_scale_on_all_ranks(comm):
    scales = Config(dtype="float16", loss_scale=2.0**24, epochs=4, batch=16, skip_limit=20)
    seen = []
    ours = run(scales, comm, dataset=clouds(), on_step=lambda s: seen.append(s.skipped) or None)
    assert seen[0] and 4 < sum(seen) < 12 and not any(seen[-5:])
    assert comm.allgather(seen) == [seen] * comm.size
    assert ours.parameters["layer1.weight"].dtype == np.float32
    assert ours.history[-1].loss < 0.4


@few
def test_too_many_skipped_steps_end_the_run_on_all_ranks(comm):
    def bend(calls, gradients):
        if comm.rank == comm.size - 1 and calls > 2:
            gradients["layer1.bias"][:] = np.nan

    with pytest.raises(TrainingError, match=rf"step 6 of .* failed on rank {comm.size - 1}: Float"):
        run(Config(batch=8, skip_limit=3), comm, dataset=clouds(), model=Bent(bend))


@few
def test_a_parameter_unused_on_some_ranks_counts_as_zeros_there(comm):
    def bend(_, gradients):
        if comm.rank:
            gradients["layer1.bias"] = None

    ours = run(Config(epochs=1, batch=8), comm, dataset=clouds(), model=Bent(bend))
    assert np.isfinite(ours.parameters["layer1.bias"]).all()
    assert ours.parameters["layer1.bias"].any()


class Shuffled(MLP):
    """Its gradients leave in another order on every rank."""

    def __init__(self, rank):
        super().__init__((12, 6, 4))
        self._rank = rank

    def push_gradients(self, parameters, batch, push):
        found = []
        loss = super().push_gradients(parameters, batch, lambda *g: found.append(g))
        for index in range(len(found)):
            push(*found[(index + self._rank) % len(found)])
        return loss


@few
def test_gradients_may_come_in_another_order_on_every_rank(comm):
    config = Config(epochs=1, batch=8, bucket=64)
    ours = run(config, comm, dataset=clouds(), model=Shuffled(comm.rank))
    assert largest(ours, run(config, dataset=clouds(), model=MLP((12, 6, 4)))) <= 1e-12


@few
@pytest.mark.mpi(min_size=2)
def test_a_rank_that_diverges_is_named_with_the_array(comm):
    class Stray(MLP):
        def push_gradients(self, parameters, batch, push):
            if comm.rank == comm.size - 1:
                parameters["layer1.bias"][0] += 1e-9
            return super().push_gradients(parameters, batch, push)

    message = f"after step 3 of epoch 1 parameter layer1.bias of rank {comm.size - 1} differs"
    with pytest.raises(TrainingError, match=message):
        run(Config(batch=8, check_every=3), comm, dataset=clouds(), model=Stray((12, 4)))


@few
@pytest.mark.mpi(min_size=3)
def test_a_straggler_is_named_and_the_others_wait(comm):
    last, seen = comm.size - 1, []

    class Slow(MLP):
        def push_gradients(self, parameters, batch, push):
            if comm.rank == last:
                time.sleep(0.2)
            return super().push_gradients(parameters, batch, push)

    config = Config(batch=64, epochs=1, steps=2)
    epoch = run(config, comm, dataset=clouds(), model=Slow((12, 4)), on_step=seen.append).history[0]
    assert epoch.straggler == last and epoch.compute[last] >= 0.4
    assert [step.slowest for step in seen] == [last, last]
    assert comm.rank == last or all(step.waiting > 0.05 for step in seen)


@few
@pytest.mark.parametrize("where", ["on_step", "on_epoch"])
def test_a_callback_that_raises_on_one_rank_ends_the_run_on_all(comm, where):
    def callback(record):
        if comm.rank == comm.size - 1 and record.number == 1:
            raise OSError("no space left")

    config = Config(batch=32, epochs=1)
    with pytest.raises(TrainingError, match=f"failed on rank {comm.size - 1}: OSError: no space"):
        run(config, comm, dataset=clouds(), **{where: callback})


@few
def test_a_callback_on_one_rank_stops_all(comm):
    def callback(step):
        return comm.rank == comm.size - 1 and step.number == 3

    result = run(Config(batch=8), comm, dataset=clouds(), on_step=callback)
    assert (result.steps, result.stopped, len(result.history)) == (4, "asked", 1)


# --- a loop of one's own --------------------------------------------------------------------------


@few
@pytest.mark.parametrize("ring", [None, "ring"])
def test_a_loop_of_ones_own_is_the_same_training(comm, ring):
    data, model = clouds(), MLP((12, 4))
    parameters = model.initial_parameters(comm.rank)
    broadcast_parameters(parameters, comm)
    optimizer = DistributedOptimizer(optimizers.make("adam"), parameters, comm, algorithm=ring)
    sampler = DistributedSampler(101, 8, comm, seed=0)
    assert len(sampler) == 13
    for epoch in (1, 2):
        for mine, total in sampler.batches(epoch):
            assert sum(comm.allgather(len(mine))) == total
            batch = Batch(data.train_inputs[mine], data.train_targets[mine], max(1, len(mine)))
            _, gradients = model.loss_and_gradients(parameters, batch)
            optimizer.step(gradients, 0.01, len(mine))
    config = Config(optimizer="adam", lr=0.01, batch=8, epochs=2)
    reference = run(config, dataset=data).parameters
    assert max(parity.differences(parameters, reference).values()) <= 1e-12


@few
def test_accumulated_batches_count_by_their_samples(comm):
    def optimizer():
        parameters = {"w": np.zeros(2)}
        return parameters, DistributedOptimizer(optimizers.make("sgd"), parameters, comm)

    generator = np.random.default_rng(comm.rank)
    samples = generator.standard_normal((comm.rank + 3, 2))
    parts, apart = optimizer()
    apart.accumulate({"w": samples[:2].mean(axis=0)}, 2)
    apart.step({"w": samples[2:].mean(axis=0)}, 1.0, comm.rank + 1)
    whole, at_once = optimizer()
    at_once.step({"w": samples.mean(axis=0)}, 1.0, comm.rank + 3)
    everything = np.concatenate(comm.allgather(samples)).mean(axis=0)
    np.testing.assert_allclose(parts["w"], -everything, rtol=1e-12)
    np.testing.assert_allclose(whole["w"], -everything, rtol=1e-12)


@few
def test_average_gradients_weighs_by_samples_and_forgets_what_is_a_mean_of_none(comm):
    last = comm.rank == comm.size - 1
    mine = {"w": np.full(3, np.nan if last and comm.size > 1 else comm.rank + 1.0)}
    count = 0 if last and comm.size > 1 else comm.rank + 1
    weights = [rank + 1 for rank in range(max(1, comm.size - 1))]
    expected = sum(w * w for w in weights) / sum(weights)
    np.testing.assert_allclose(average_gradients(mine, comm, count)["w"], expected, rtol=1e-14)
    with pytest.raises(ValueError, match="samples is -1"):
        average_gradients(mine, comm, -1)


@few
@pytest.mark.mpi(min_size=2)
def test_parameters_of_other_shapes_are_not_broadcast(comm):
    with pytest.raises(TrainingError, match=r"parameter w is float64 of shape \(1,\) on rank 0"):
        broadcast_parameters({"w": np.zeros(1 + comm.rank)}, comm)


@few
def test_validation_is_exact_whatever_the_number_of_ranks(comm):
    model = convnet((3, 4, 1), (2,), (), 4)
    config = Config(epochs=1, batch=101)
    ours = run(config, comm, dataset=clouds(), model=model).history[0]
    reference = run(config, dataset=clouds(), model=model)
    scores = model.losses_and_outputs(
        reference.parameters, clouds().test_inputs, clouds().test_targets
    )[1]
    exact = np.count_nonzero(scores.argmax(axis=1) == clouds().test_targets)
    assert ours.test["accuracy"] * 37 == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("batch", [8, 101])
def test_a_strategy_of_ones_own_is_one_process(comm, batch):
    import plain  # noqa: F401 - names it

    changes = {"optimizer": "momentum", "batch": batch, "epochs": 2}
    ours = run(Config(strategy="plain", **changes), comm, dataset=clouds())
    reference = run(Config(**changes), dataset=clouds())
    assert max(parity.differences(ours.parameters, reference.parameters).values()) <= 1e-12
    assert [e.test["accuracy"] for e in ours.history] == [
        e.test["accuracy"] for e in reference.history
    ]
