"""Layers divided among ranks are the whole layers."""

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import count

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll.train import TrainingError, optimizers
from mpicoll.train.driver import parity
from mpicoll.train.models import (
    Attention,
    AveragePool,
    Batch,
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Embedding,
    Gelu,
    Layer,
    LayerNorm,
    MaxPool,
    Position,
    ReLU,
    Reshape,
    Residual,
    Sequential,
    Unembedding,
    transformer,
)
from mpicoll.train.parallel import Parts, shard
from mpicoll.train.parallel.conjugate import Group, Step
from mpicoll.train.parallel.placements import Cut, Pair
from mpicoll.train.parallel.sharded import collectives

P = MPI.COMM_WORLD.size
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(P > 5, reason="5 ranks and fewer show it"),
    *([pytest.mark.long] if P == 4 else []),
]
several = pytest.mark.skipif(P == 1, reason="one rank has everything")

BLOCK = (LayerNorm(), Attention(5)), (LayerNorm(), Dense(12), Gelu(), Dense(10))
DECODER = (
    Embedding(13, 10, "words"),
    Position(),
    *(Residual(chain) for chain in BLOCK),
    LayerNorm(),
    Unembedding(13, "words"),
)


class Own(Layer):
    """A layer of somebody else."""

    def forward(self, parameters, inputs, batch):
        return inputs * 2, None

    def backward_input(self, parameters, memory, error, first):
        return error * 2, None


#: Layers, and the shape of a sample.  Of whole numbers their sums are exact.
EXACT = {
    "dense": ((Dense(7),), (6,)),
    "dense without bias": ((Dense(7, bias=False), ReLU(), Dense(3, bias=False)), (6,)),
    "column and row": ((Dense(9), ReLU(), Dense(5)), (6,)),
    "three": ((Dense(9), ReLU(), Dense(8), ReLU(), Dense(3)), (6,)),
    "few outputs": ((Dense(8), ReLU(), Dense(2)), (6,)),
    "of sequences": ((Dense(9), ReLU(), Dense(5)), (3, 6)),
    "convolution": ((Convolution(7),), (4, 5, 6)),
    "channels": ((Convolution(7), ReLU(), MaxPool(), Convolution(6, bias=False)), (4, 5, 1)),
    "pooling": ((Convolution(6), MaxPool(), Reshape(), Dense(4)), (5, 4, 2)),
    "average": ((Convolution(8), ReLU(), AveragePool(), Dense(5)), (4, 4, 1)),
    "shaped": ((Reshape((4, 4, 1)), Convolution(6), Reshape(), Dense(5)), (16,)),
    "residual": ((Dense(6), Residual((Dense(9), ReLU(), Dense(6))), Dense(5)), (6,)),
    "somebody else's": ((Dense(9), Own(), Dense(5)), (6,)),
    "embedding": ((Embedding(11, 4),), (5,)),
    "places": ((Embedding(11, 4), Position()), (5,)),
    "dropout": ((Dense(9), Dropout(0.5, 1), Dense(5), Dropout(0.5, 2)), (6,)),
}
NEAR = {
    "attention": ((Attention(5), Dense(3)), (4, 10)),
    "uneven heads": ((Attention(7, causal=False), Dense(3)), (4, 14)),
    "norms": ((Dense(10), LayerNorm(), Dense(6)), (4, 5)),
    "batch norm": ((Convolution(7), BatchNorm(), ReLU(), Reshape(), Dense(3)), (4, 4, 1)),
    "batch norm of pixels": ((Convolution(5), Reshape(), BatchNorm(), Dense(3)), (3, 4, 1)),
    "decoder": (DECODER, (6,)),
}


def made(layers, shape, comm, sequence=False, whole_numbers=False, **options):
    """The whole model and the divided one, their parameters, and a batch."""
    model = Sequential(layers, shape, "float64")
    sharded = shard(layers, comm, shape, sequence=sequence, **options)
    ours = Sequential(sharded, shape, "float64")
    assert list(ours.parameter_shapes) == list(model.parameter_shapes)
    generator = np.random.default_rng(7)
    whole = model.initial_parameters(1)
    parts = Parts(ours, comm)
    for name, array in ours.initial_parameters(1).items():
        np.testing.assert_array_equal(array, parts.own(whole)[name])
    if whole_numbers:
        whole = {n: generator.integers(-4, 5, a.shape).astype(float) for n, a in whole.items()}
    else:  # norms start with plain weights
        whole = {n: a + 0.1 * generator.standard_normal(a.shape) for n, a in whole.items()}
    if isinstance(layers[0], Embedding):
        inputs = generator.integers(0, layers[0].tokens, (4, *shape))
    elif whole_numbers:
        inputs = generator.integers(-4, 5, (4, *shape)).astype(float)
    else:
        inputs = generator.standard_normal((4, *shape))
    batch = Batch(inputs, np.zeros(4, int), 4, np.array([5, 2, 9, 0]), seed=3)
    return model, ours, whole, parts, batch


def both_passes(model, parameters, batch, error):
    """Outputs, and slopes by parameters and inputs of the second layer, without a loss."""
    chunk = model.chunk(0, len(model.layers))
    outputs, memories = chunk.forward(parameters, batch.inputs, batch, lambda values: values)
    kept = chunk.backward(parameters, memories, error, lambda values: values)
    found = {}
    for _, _, gradients in kept:
        for name, gradient in gradients.items():
            found[name] = found[name] + gradient if name in found else gradient
    return outputs, found


def compared(comm, case, compare, **options):
    layers, shape = case
    model, ours, whole, parts, batch = made(layers, shape, comm, **options)
    buffers, own_buffers = model.initial_buffers(), ours.initial_buffers()
    generator = np.random.default_rng(9)
    error = generator.integers(-4, 5, (4, *model.shapes[-1])).astype(float)
    expected, gradients = both_passes(model, {**whole, **buffers}, batch, error)
    given = {**parts.own(whole), **own_buffers}
    outputs, own = both_passes(ours, given, batch, error)
    compare(outputs, expected)
    for name, gradient in parts.whole(own).items():
        compare(gradient, gradients[name])
    for name, array in parts.whole(own_buffers).items():
        compare(array, buffers[name])
    evaluated, _ = ours.chunk(0, len(layers)).forward(given, batch.inputs, None, lambda v: v)
    wanted, _ = model.chunk(0, len(layers)).forward(
        {**whole, **buffers}, batch.inputs, None, lambda v: v
    )
    compare(evaluated, wanted)
    assert parts.norm(own) == pytest.approx(
        np.sqrt(sum(np.square(gradient).sum() for gradient in gradients.values())), rel=1e-13
    )


def near(array, expected):
    limit = 1e-13 * max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(array, expected, rtol=0, atol=limit)


@pytest.mark.parametrize("case", EXACT)
def test_whole_numbers_have_equal_bits(comm, case):
    compared(comm, EXACT[case], np.testing.assert_array_equal, whole_numbers=True)


@pytest.mark.parametrize("case", NEAR)
def test_other_numbers_are_near(comm, case):
    compared(comm, NEAR[case], near)


@pytest.mark.parametrize("layers", [DECODER, (Embedding(13, 10), *DECODER[1:-1], Dense(6))])
def test_sequences_that_are_cut_are_near(comm, layers):
    compared(comm, (layers, (7,)), near, sequence=True)


def test_dropout_of_sequences_that_are_cut_is_that_of_whole_ones(comm):
    layers = (
        *(Embedding(13, 4), Residual((LayerNorm(), Dense(5), Dropout(0.4, 1), Dense(4)))),
        *(Dropout(0.5, 2), LayerNorm(), Dropout(0.3, 3), Dense(6), Dropout(0.2, 4)),
    )
    compared(comm, (layers, (7,)), near, sequence=True)


@pytest.mark.parametrize("pair", Pair)
@pytest.mark.parametrize(
    ("shape", "cut"),
    [
        ((3, 11), Cut(-1, 11)),
        ((3, 2, 24), Cut(-1, 6, 2, 2)),
        ((3, 9, 2), Cut(-2, 9)),
        ((1, 8), Cut(-1, 8)),
        ((0, 8), Cut(-1, 8)),
    ],
)
@several
def test_pairs_are_transposes_of_each_other(comm, pair, shape, cut):
    """<A x, y> = <x, A' y>: of what is divided or summed each rank has its own values."""
    group = Group(comm, P, comm.rank)
    step = Step(pair, cut, shape[1:])
    part = cut.part_shape(shape, P, comm.rank)
    there, back = pair.value
    # What each side is: the same on all ranks, a part, or a term of a sum.
    before = {"gather": "part", "sum": "term", "scatter": "term"}.get(there, "same")
    after = {"gather": "part", "sum": "term", "scatter": "term"}.get(back, "same")
    own, common = np.random.default_rng((1, comm.rank)), np.random.default_rng(2)

    def drawn(kind):
        generator = common if kind == "same" else own
        return generator.integers(-50, 50, part if kind == "part" else shape).astype(float)

    def product(kind, a, b):
        inner = float((a * b).sum())
        return inner if kind == "same" else comm.allreduce(inner)

    x, y = drawn(before), drawn(after)
    kept = x.copy(), y.copy()
    ax, aty = step.forward(x, group), step.backward(y, group)
    assert ax.shape == y.shape and aty.shape == x.shape
    assert step.output_shape(x.shape[1:], group) == y.shape[1:]
    assert product(after, ax, y) == product(before, x, aty)
    np.testing.assert_array_equal(x, kept[0])
    np.testing.assert_array_equal(y, kept[1])


@pytest.mark.parametrize("sequence", [False, True])
@several
def test_what_is_sent_is_what_was_said(comm, events, sequence):
    _, ours, whole, parts, batch = made(DECODER, (7,), comm, sequence=sequence)
    own = parts.own(whole)
    batch = Batch(batch.inputs, batch.inputs, 4, batch.samples)
    events.clear()
    ours.loss_and_gradients(own, batch)
    seen = Counter((event.collective, event.nbytes) for event in events)
    said = Counter((name, 8 * values) for name, values in collectives(ours.layers, 4))
    said["allreduce", 8] += 1  # whether a rank has failed
    assert {name.removesuffix("v"): n for (name, _), n in seen.items()} and seen == said


class Texts:
    def __init__(self, tokens=7):
        generator = np.random.default_rng(1)
        rows = generator.integers(0, 13, (43, tokens + 1))
        rows[:, 1::2] = (rows[:, :-1:2] + 3) % 13  # something to learn
        self.inputs, self.targets = rows[:, :-1], rows[:, 1:]

    def batches(self, steps, size=10):
        for step in range(steps):
            rows = np.arange(step * size, (step + 1) * size) % 43
            yield Batch(self.inputs[rows], self.targets[rows], size, rows, step, 5)


def learnt(model, parts, parameters, optimizer, lr, clip):
    """The losses of 200 steps; parameters are changed in place."""
    chosen = optimizers.make(optimizer)
    state = {name: optimizers.empty_state(chosen, array) for name, array in parameters.items()}
    losses = []
    for number, batch in zip(count(1), Texts().batches(200)):
        loss, gradients = model.loss_and_gradients(parameters, batch)
        losses.append(loss)
        norm = parts.norm(gradients) if clip else 0.0
        for name, array in parameters.items():
            gradient = gradients[name] * (clip / norm) if norm > (clip or 1.0) else gradients[name]
            chosen.update(array, gradient, state[name], lr, number)
    return np.array(losses)


def holds(comm, sequence=False, dropout=0.0, optimizer="sgd", lr=0.1, clip=None):
    layers = transformer(13, 7, 10, 1, 5, "float64", dropout).layers
    ours = Sequential(shard(layers, comm, (7,), sequence=sequence), (7,), "float64")
    parts, own = Parts(ours, comm), ours.initial_parameters(1)
    losses = learnt(ours, parts, own, optimizer, lr, clip)
    found = parts.whole(own)
    if comm.rank == 0:
        model = Sequential(layers, (7,), "float64")
        whole = model.initial_parameters(1)
        expected = learnt(model, Parts(model, None), whole, optimizer, lr, clip)
        assert losses[-1] < 0.8 * losses[0]
        assert np.abs(losses - expected).max() <= 1e-12 * losses[0]
        assert max(parity.differences(found, whole).values()) <= 1e-12


@pytest.mark.timeout(180)
def test_a_divided_decoder_learns_what_one_process_learns(comm):
    holds(comm)


@pytest.mark.timeout(180)
@pytest.mark.skipif(P != 2, reason="2 ranks show it; others take long")
def test_a_decoder_of_cut_sequences_learns_what_one_process_learns(comm):
    """With dropout, Adam and clipping."""
    holds(comm, True, 0.2, "adam", 0.003, 0.5)


@pytest.mark.timeout(180)
@pytest.mark.long
@pytest.mark.skipif(P < 3, reason="fewer ranks run it anyway")
def test_a_decoder_of_sequences_cut_in_more_parts_learns_it_too(comm):
    holds(comm, True, 0.2, "adam", 0.003, 0.5)


@several
def test_what_all_ranks_have_has_the_same_bits(comm):
    """Of values that are rounded: norms and biases after some steps."""
    layers = transformer(13, 7, 10, 1, 5, "float64").layers
    model = Sequential(shard(layers, comm, (7,), sequence=True), (7,), "float64")
    parameters = model.initial_parameters(1)
    cuts = Parts(model, comm).cuts
    for batch in Texts().batches(5):
        _, gradients = model.loss_and_gradients(parameters, batch)
        for name, array in parameters.items():
            array -= 0.1 * gradients[name]
    common = {name: array for name, array in parameters.items() if name not in cuts}
    assert common
    for theirs in comm.allgather(common):
        for name, array in common.items():
            np.testing.assert_array_equal(theirs[name], array)


@several
def test_a_token_that_nobody_has_is_refused_by_all(comm):
    model = Sequential(shard((Embedding(11, 4), Dense(8)), comm, (3,)), (3,), "float64")
    tokens = np.array([[1, 11, 2]])
    with pytest.raises(IndexError, match="a token is 11, and the vocabulary has 11: give numbers"):
        model.losses_and_outputs(model.initial_parameters(1), tokens, np.zeros((1, 3), int))


@several
def test_narrow_types_have_equal_bits(comm):
    """Layers compute in float32 there, and so do the sums between them."""
    layers = (Dense(8), ReLU(), Dense(5))
    model = Sequential(layers, (6,), "float16")
    ours = Sequential(shard(layers, comm, (6,)), (6,), "float16")
    generator = np.random.default_rng(1)
    whole = {n: generator.integers(-2, 3, a.shape) for n, a in model.initial_parameters(1).items()}
    whole = {name: array.astype(np.float16) for name, array in whole.items()}
    inputs, targets = generator.integers(-2, 3, (4, 6)).astype(np.float16), np.zeros(4, int)
    _, expected = model.losses_and_outputs(whole, inputs, targets)
    _, outputs = ours.losses_and_outputs(Parts(ours, comm).own(whole), inputs, targets)
    assert outputs.dtype == expected.dtype
    np.testing.assert_array_equal(outputs, expected)


class Breaks(Layer):
    """A rank's part of a layer, which fails in a pass."""

    def __init__(self, local, which):
        self._local, self._which = local, which

    def __getattr__(self, name):
        return getattr(self._local, name)

    def _called(self, which, *arguments):
        if which == self._which:
            raise OSError(f"the {which} is on fire")
        return getattr(self._local, which)(*arguments)

    def output_shape(self, shape):
        return self._local.output_shape(shape)

    def forward(self, *arguments):
        return self._called("forward", *arguments)

    def backward_input(self, *arguments):
        return self._called("backward_input", *arguments)

    def backward_weight(self, *arguments):
        return self._called("backward_weight", *arguments)


def broken(layers, which, fails):
    """The same layers for each of them, each time with another that fails; on some ranks."""
    for number, layer in enumerate(layers):
        if isinstance(layer.local, Residual):
            for inner in broken(layer.local.layers, which, fails):
                whole = replace(layer, local=Residual(tuple(inner)))
                yield [*layers[:number], whole, *layers[number + 1 :]]
        else:
            local = Breaks(layer.local, which) if fails else layer.local
            yield [*layers[:number], replace(layer, local=local), *layers[number + 1 :]]


@pytest.mark.skipif(P not in (2, 3), reason="2 and 3 ranks show it")
@pytest.mark.parametrize("which", ["forward", "backward_input", "backward_weight", "evaluation"])
@pytest.mark.parametrize("case", ["decoder", "cut tokens", "batch norm", "somebody else's"])
def test_a_layer_that_fails_on_one_rank_fails_on_all_at_once(comm, case, which):
    """Each layer in turn; the next batch is computed as if nothing had been."""
    layers, shape = (DECODER, (7,)) if case == "cut tokens" else {**EXACT, **NEAR}[case]
    sequence = case == "cut tokens"
    _, ours, whole, parts, batch = made(layers, shape, comm, sequence=sequence)
    if "decoder" in case or sequence:
        batch = replace(batch, targets=batch.inputs)
    given = {**parts.own(whole), **ours.initial_buffers()}
    expected, _ = ours.loss_and_gradients(given, batch)
    fails = comm.rank == P - 1
    name = "forward" if which == "evaluation" else which
    for made_of in broken(list(ours.layers), name, fails):
        model = Sequential(made_of, shape, "float64")
        compute = partial(model.loss_and_gradients, given, batch)
        if which == "evaluation":
            compute = partial(model.losses_and_outputs, given, batch.inputs, batch.targets)
        message = f"computing a layer failed on rank {P - 1}: OSError: the {name} is on fire"
        with pytest.raises(TrainingError, match=message):
            compute()
    fresh = {**parts.own(whole), **ours.initial_buffers()}
    assert ours.loss_and_gradients(fresh, batch)[0] == expected
