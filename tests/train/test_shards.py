"""How layers are divided: the shortest path, what each rank gets, what is refused; without MPI."""

from collections import Counter
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicoll.train.models import (
    Attention,
    Convolution,
    Dense,
    Embedding,
    Gelu,
    LayerNorm,
    MaxPool,
    ReLU,
    Reshape,
    Residual,
    Sequential,
    Unembedding,
    transformer,
)
from mpicoll.train.parallel import Parts, shard
from mpicoll.train.parallel.conjugate import Group, Step
from mpicoll.train.parallel.placements import SHARED, WHOLE, conversion
from mpicoll.train.parallel.rules import Setting, rules_of
from mpicoll.train.parallel.sharded import collectives


def group(size, rank=0):
    """Nothing is sent while layers are divided."""
    return SimpleNamespace(Get_size=lambda: size, Get_rank=lambda: rank)


def test_the_shortest_path_is_column_then_row():
    """One all-reduce in each pass for two layers, none by the inputs of the model."""
    layers = (Dense(40), ReLU(), Dense(8), ReLU(), Dense(40), Gelu(), Dense(6))
    found = shard(layers, group(4), (8,))
    # Of 8 values after the third layer, of 6 at the end; of 8 back into the fifth.
    sent = [("allreduce", 80), ("allreduce", 60), ("allreduce", 80)]
    assert Counter(collectives(found, 10)) == Counter(sent)
    assert isinstance(found[1].local, ReLU) and isinstance(found[5].local, Gelu)  # of the parts


def test_a_block_of_a_decoder_has_two_all_reduces_in_each_pass():
    layers = transformer(50, 6, 8, 3, 4).layers
    found = Counter(name for name, _ in collectives(shard(layers, group(4), (6,)), 1))
    # Three blocks; one after the embedding, one before the scores, which are gathered.
    assert found == {"allreduce": 3 * 4 + 2, "allgather": 1}


def brute_force(layers, size, shape, cost):
    """The least over all rules of all layers; 32 samples of float32."""
    shapes = [shape]
    for layer in layers:
        shapes.append(layer.output_shape(shapes[-1]))
    setting, least = Setting(Group(None, size, 0)), np.inf
    known = {WHOLE}
    choices = []
    for layer, before in zip(layers, shapes, strict=False):
        rules = rules_of(layer, before, known, setting)
        known = known | {rule.after for rule in rules}
        choices.append(rules)
    for rules in product(*choices):
        places = [WHOLE, *(rule.after for rule in rules)]
        wanted = [*(rule.before for rule in rules), WHOLE]
        total = 0.0
        for number, (source, target) in enumerate(zip(places, wanted, strict=True)):
            pairs = conversion(source, target)
            if pairs is None:
                total = np.inf
                break
            for pair, cut in pairs:
                there, back = Step(pair, cut, shapes[number]).collectives(32)
                total += sum(cost(name, 4 * n) for name, n in there + (back if number else []))
        least = min(least, total)
    return least


sizes = st.integers(4, 30)
prices = st.tuples(*[st.integers(0, 20)] * 3, st.integers(0, 3))


@settings(deadline=None, max_examples=25)
@given(st.lists(sizes, min_size=1, max_size=4), sizes, st.integers(2, 4), prices)
def test_no_other_choice_takes_less(widths, inputs, size, price):
    layers = [Dense(width) for width in widths]
    costs = dict(zip(("allreduce", "allgather", "reduce_scatter"), price, strict=False))

    def cost(name, nbytes):
        return costs[name] * nbytes + 1000.0 * price[3]

    found = shard(layers, group(size), (inputs,), seconds=cost)
    taken = sum(cost(name, 4 * values) for name, values in collectives(found, 32))
    assert taken == pytest.approx(brute_force(layers, size, (inputs,), cost))


def test_no_other_choice_takes_less_for_images():
    layers = [Convolution(6), MaxPool(), Convolution(9), Reshape(), Dense(5)]
    for weights in product((1, 3), repeat=3):
        costs = dict(zip(("allreduce", "allgather", "reduce_scatter"), weights, strict=True))

        def cost(name, nbytes, costs=costs):
            return float(costs[name] * nbytes)

        found = shard(layers, group(3), (6, 4, 1), seconds=cost)
        taken = sum(cost(name, 4 * values) for name, values in collectives(found, 32))
        assert taken == brute_force(layers, 3, (6, 4, 1), cost)


def test_costs_decide():
    layers = (Dense(30), ReLU(), Dense(20), ReLU(), Dense(10))
    for dear, others in (("allreduce", {"allgather"}), ("allgather", {"allreduce"})):

        def cost(name, nbytes, dear=dear):
            return nbytes * (name == dear)

        names = {n for n, _ in collectives(shard(layers, group(4), (8,), seconds=cost), 1)}
        assert names <= others | {"reduce_scatter"}


def test_sequences_that_are_cut_send_the_same_bytes_in_halves():
    """An all-reduce is a reduce-scatter and an all-gather."""
    chain = (LayerNorm(), Attention(4)), (LayerNorm(), Dense(12), Gelu(), Dense(8))
    layers = tuple(Residual(inner) for inner in chain) * 2

    def sent(sequence):
        found = shard(layers, group(4), (6, 8), sequence=sequence)
        return sum(n * (1 + (name == "allreduce")) for name, n in collectives(found, 1))

    norms = 4 * 2 * (2 * 8)  # gradients of the weights of norms, by all-reduce
    assert sent(True) == sent(False) + norms + 6 * 8  # they are gathered at the end


def test_64_features_on_3_ranks():
    layers = (Dense(64), ReLU(), Dense(64))
    models = [
        Sequential(shard(layers, group(3, rank), (64,)), (64,), "float32") for rank in range(3)
    ]
    shapes = [model.parameter_shapes for model in models]
    assert [found["layer1.weight"] for found in shapes] == [(64, 22), (64, 21), (64, 21)]
    assert [found["layer2.weight"] for found in shapes] == [(22, 64), (21, 64), (21, 64)]
    whole = Sequential(layers, (64,), "float32").initial_parameters(1)
    own = [model.initial_parameters(1) for model in models]
    for axis, name in ((1, "layer1.weight"), (0, "layer1.bias"), (0, "layer2.weight")):
        joined = np.concatenate([parameters[name] for parameters in own], axis)
        np.testing.assert_array_equal(joined, whole[name])
    for parameters in own:
        np.testing.assert_array_equal(parameters["layer2.bias"], whole["layer2.bias"])
    assert set(Parts(models[0], None).cuts) == {"layer1.weight", "layer1.bias", "layer2.weight"}


def test_one_rank_has_the_layers_themselves():
    layers = [Dense(3), ReLU()]
    assert shard(layers, None, (4,)) == layers == shard(layers, group(1), (4,))


def test_estimates_are_of_the_parts():
    layers = transformer(13, 7, 10, 2, 5, "float64").layers

    def values(size, sequence=False):
        found = shard(layers, group(size), (7,), sequence=sequence)
        return Sequential(found, (7,), "float64").activations(8)

    assert values(5, True) < values(5) < values(2) < values(1)


TOO_SHORT = {
    "attention of 4 heads: give tensor of at most 4": ((Attention(4),), (3, 8)),
    "a dense layer of 5 inputs and 3 outputs: give tensor of at most 5": ((Dense(3),), (5,)),
    "a convolution of 1 input and 6 output channels: give tensor of at most 6": (
        (Convolution(6),),
        (4, 4, 1),
    ),
    "an embedding of 7 tokens: give tensor of at most 7": ((Embedding(7, 9),), (3,)),
    "an unembedding of 7 tokens: give tensor of at most 7": ((Unembedding(7),), (3, 9)),
}


@pytest.mark.parametrize("size", [8, 64])
@pytest.mark.parametrize("message", TOO_SHORT)
def test_what_has_too_little_to_divide_is_refused(message, size):
    layers, shape = TOO_SHORT[message]
    assert shard(layers, group(3), shape)
    for rank in (0, size - 1):
        with pytest.raises(ValueError, match=f"^tensor={size} and {message}$"):
            shard(layers, group(size, rank), shape)


def test_sequences_that_are_too_short_are_refused():
    message = "tensor=5 and sequences of 4 tokens: give tensor of at most 4 or sequence=False"
    with pytest.raises(ValueError, match=message):
        shard((LayerNorm(), Dense(9)), group(5), (4, 8), sequence=True)


@pytest.mark.parametrize("size", [1, 8])
def test_what_has_no_sequences_is_refused(size):
    with pytest.raises(ValueError, match=r"sequence=True and samples of shape \(4,\): give layers"):
        shard((Dense(9),), group(size), (4,), sequence=True)


def test_what_takes_its_inputs_whole_is_given_them_whole():
    kinds = {
        rule.before for rule in rules_of(Attention(4), (3, 8), [WHOLE], Setting(Group(None, 2, 0)))
    }
    assert kinds == {SHARED}
