"""Models in NumPy. A model is anything that has the methods of `Model`.

Parameters and gradients are mappings from names to arrays. A model holds no state of its own: the
training loop owns the parameters and passes them in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Protocol, TypeGuard

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.data.batch import Batch
from mpicoll.train.models.chunks import Chunk
from mpicoll.train.models.flat import Parameters, require_names
from mpicoll.train.models.images import Convolution, MaxPool
from mpicoll.train.models.layers import Dense, Layer, Residual, held, shapes_of
from mpicoll.train.models.losses import CrossEntropy, Loss
from mpicoll.train.models.pointwise import Dropout, Gelu, ReLU, Reshape
from mpicoll.train.models.precision import computing
from mpicoll.train.models.sequences import (
    Attention,
    Embedding,
    LayerNorm,
    Position,
    Unembedding,
)

Push = Callable[[str, "Array | None"], None]


class Model(Protocol):
    """What the training loop asks of a model.

    A model may have three more methods. `push_gradients(parameters, batch, push)` returns only the
    loss, and calls `push(name, gradient)` for each parameter as soon as its gradient is final. Then
    the gradients of the last layers are sent while those of the first are still computed.

    `initial_buffers()` returns arrays by name that the model keeps beside its parameters, such as
    statistics. They are among the parameters that its methods get, and it changes them in place
    when it computes gradients.

    `sums()` returns the lengths of the vectors that it passes to `Batch.sum` for a batch, in order.
    For a batch without samples it passes as many.
    """

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """Parameters to start from; the same for the same seed."""

    def loss_and_gradients(
        self, parameters: Parameters, batch: Batch
    ) -> tuple[float, Mapping[str, Array | None]]:
        """This rank's share of the loss and of its gradients.

        Both are sums over the samples of `batch`, divided by `batch.total`. Added over the ranks
        they are means over the global batch, however unevenly it is cut. Without samples they are
        zeros. A gradient of None means that the parameter was not used in this batch.
        """

    def losses_and_outputs(
        self, parameters: Parameters, inputs: Array, targets: Array
    ) -> tuple[Array, Array]:
        """Loss of each sample, shape (samples,), and outputs, shape (samples, ...).

        For class numbers the outputs are scores, with the classes on the last axis.
        """


class PushingModel(Model, Protocol):
    """A model that has it, and makes `loss_and_gradients` of it."""

    def push_gradients(self, parameters: Parameters, batch: Batch, push: Push) -> float:
        """This rank's share of the loss; its gradients go to `push`."""

    def loss_and_gradients(
        self, parameters: Parameters, batch: Batch
    ) -> tuple[float, dict[str, Array | None]]:
        found: dict[str, Array | None] = {}
        loss = self.push_gradients(parameters, batch, found.__setitem__)
        return loss, {name: found[name] for name in parameters if name in found}


def push_gradients(
    model: Model,
    parameters: Parameters,
    batch: Batch,
    push: Push,
    buffers: Parameters | None = None,
) -> float:
    """Loss of a batch; its gradients go to `push`, as they are found where the model can do that.

    Raises:
        ValueError: The model returned gradients of other names than the parameters'.
    """
    given = {**parameters, **(buffers or {})}
    own = getattr(model, "push_gradients", None)
    if own is not None:
        return float(own(given, batch, push))
    loss, gradients = model.loss_and_gradients(given, batch)
    require_names(gradients, parameters)
    for name in reversed(list(parameters)):
        push(name, gradients[name])
    return float(loss)


def buffers_of(model: Model) -> dict[str, Array]:
    """The buffers of a model to start from, by name; none if it has none."""
    own = getattr(model, "initial_buffers", None)
    return {} if own is None else dict(own())


def sums_of(model: Model) -> tuple[int, ...]:
    """Lengths of the sums over the ranks that a model makes in a batch; none if it makes none."""
    own = getattr(model, "sums", None)
    return () if own is None else tuple(own())


class Sequential(PushingModel):
    """A chain of layers, and a loss.

    Parameters have the names `layer1.weight`, `layer1.bias`, ..., where only layers with parameters
    count; those of a layer with a name have `name.weight`. Layers of one name share their
    parameters.

    Args:
        layers: First to last.
        inputs: Shape of a sample.
        dtype: Floating type of the parameters.
        loss: The loss of the last layer's outputs.

    Attributes:
        layers, loss: As given.
        dtype: As NumPy has it.
        shapes: Shape of a sample before each layer, and after the last.
        parameter_shapes: Shapes of the parameters by name.
        holders: Numbers of the layers that have a parameter, by its name.

    Raises:
        ValueError: A layer does not fit the shape of its inputs, or layers of one name have
            different parameters.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        inputs: tuple[int, ...],
        dtype: str,
        loss: Loss | None = None,
    ) -> None:
        self.layers = tuple(layers)
        self.dtype = np.dtype(dtype)
        self.loss = loss or CrossEntropy()
        self.shapes = shapes_of(self.layers, inputs)
        self._names: list[dict[str, str]] = []
        self._buffers: list[dict[str, str]] = []
        self.holders: dict[str, list[int]] = {}
        self.parameter_shapes: dict[str, tuple[int, ...]] = {}
        shapes = self.parameter_shapes
        number = 0
        for index, layer in enumerate(self.layers):
            own = self._drawn(index, 0)
            buffers = layer.buffers(self.shapes[index])
            number += bool(own or buffers)
            start = getattr(layer, "name", None) or f"layer{number}"
            self._names.append({name: f"{start}.{name}" for name in own})
            self._buffers.append({name: f"{start}.{name}" for name in buffers})
            for name, array in own.items():
                full = f"{start}.{name}"
                if shapes.setdefault(full, array.shape) != array.shape:
                    raise ValueError(
                        f"parameter {full} has shape {shapes[full]} in one layer and {array.shape} "
                        "in another: give layers of one name the same shapes"
                    )
                self.holders.setdefault(full, []).append(index)

    def activations(self, samples: int) -> int:
        """Values of forward and backward pass that are there at a time, an estimate."""
        kept, most = 0, 0
        every = zip(self.layers, self.shapes, held(self.layers, self.shapes), strict=False)
        for layer, shape, more in every:
            kept += more
            most = max(most, kept + layer.working(shape))
        # The loss has the outputs, their slopes, and one array more.
        return samples * max(most, kept + 3 * prod(self.shapes[-1]))

    def initial_parameters(
        self, seed: int, layers: Iterable[int] | None = None
    ) -> dict[str, Array]:
        """As `Model` has it; of all layers, or of some: each draws from a stream of its own."""
        parameters: dict[str, Array] = {}
        for index in self._numbers(layers):
            names = self._names[index]
            for name, array in self._drawn(index, seed).items():
                parameters.setdefault(names[name], array.astype(self.dtype))
        return parameters

    def initial_buffers(self, layers: Iterable[int] | None = None) -> dict[str, Array]:
        """Floating ones in the type of the parameters, or in single precision if that is wider."""
        wide, found = np.promote_types(self.dtype, np.float32), {}
        for index in self._numbers(layers):
            names = self._buffers[index]
            for name, array in self.layers[index].buffers(self.shapes[index]).items():
                found[names[name]] = array.astype(wide if array.dtype.kind == "f" else array.dtype)
        return found

    def names(self, layer: int) -> dict[str, str]:
        """Names of the parameters and buffers of a layer, by those that it knows."""
        return {**self._names[layer], **self._buffers[layer]}

    def chunk(self, start: int, end: int) -> Chunk:
        """The layers from `start` to before `end`."""
        names = [self.names(index) for index in range(start, end)]
        return Chunk(self.layers[start:end], names, start)

    def sums(self) -> tuple[int, ...]:
        """Those of the layers' forward passes, then of their backward ones, in reverse order."""
        inputs = zip(self.layers, self.shapes, strict=False)
        found = [length for layer, shape in inputs for length in layer.sums(shape)]
        return (*found, *reversed(found))

    def push_gradients(self, parameters: Parameters, batch: Batch, push: Push) -> float:
        parameters, rounded = computing(parameters)
        whole = self.chunk(0, len(self.layers))
        values, memories = whole.forward(parameters, batch.inputs, batch, rounded)
        losses, slopes = self.loss.evaluate(values, batch.targets)
        slopes /= batch.total
        steps = whole.backward(parameters, memories, slopes, rounded)
        del values, slopes  # which nothing needs while the slopes by the layers are found
        waiting: dict[str, list[Array]] = {}
        for _, _, gradients in steps:
            for full in reversed(gradients):
                waiting.setdefault(full, []).append(gradients[full])
                if len(waiting[full]) == len(self.holders[full]):
                    found = waiting.pop(full)
                    push(full, sum(found[1:], start=found[0]))
                    del found
            del gradients  # before the next layer's are there
        return float(losses.sum(dtype=np.float64)) / batch.total

    def losses_and_outputs(
        self, parameters: Parameters, inputs: Array, targets: Array
    ) -> tuple[Array, Array]:
        parameters, rounded = computing(parameters)
        whole = self.chunk(0, len(self.layers))
        values, _ = whole.forward(parameters, inputs, None, rounded)
        return self.loss.evaluate(values, targets)[0], values

    def _drawn(self, index: int, seed: int) -> dict[str, Array]:
        """The first parameters of a layer, from a stream of its own."""
        generator = np.random.default_rng((seed, index))
        return self.layers[index].initial(self.shapes[index], generator)

    def _numbers(self, layers: Iterable[int] | None) -> Iterable[int]:
        """Numbers of layers; None stands for all."""
        return range(len(self.layers)) if layers is None else layers


def is_chain(model: Model) -> TypeGuard[Sequential]:
    """Whether a model is a chain of layers and nothing more, such as exits on the way."""
    return isinstance(model, Sequential) and type(model).push_gradients is Sequential.push_gradients


class MLP(Sequential):
    """Fully connected layers with ReLU between them.

    Without a hidden layer this is softmax regression (multinomial logistic regression).

    Args:
        sizes: Features, sizes of the hidden layers, classes.
        dtype: Floating type of the parameters.
        dropout: Share of the hidden values set to zero while training.

    Raises:
        ValueError: There are not at least two sizes, or one is not at least 1.
    """

    def __init__(
        self, sizes: tuple[int, ...], dtype: str = "float32", dropout: float = 0.0
    ) -> None:
        if len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(f"layer sizes are {sizes}: give at least two, each at least 1")
        super().__init__(head(sizes[1:-1], sizes[-1], dropout), sizes[:1], dtype)


def convnet(
    image: tuple[int, int, int],
    channels: tuple[int, ...],
    hidden: tuple[int, ...],
    classes: int,
    dtype: str = "float32",
    dropout: float = 0.0,
) -> Sequential:
    """Convolutions of width 3, each with ReLU and pooling by 2, then an `MLP`.

    Args:
        image: Height, width and channels.
        channels: Output channels of each convolution.
        hidden: Sizes of the hidden layers of the MLP.
        classes: Number of classes.
        dtype: Floating type of the parameters.
        dropout: Share of the MLP's hidden values set to zero while training.

    Raises:
        ValueError: The image is too small for so many convolutions.
    """
    layers: list[Layer] = [Reshape(image)]
    for count in channels:
        layers += [Convolution(count), ReLU(), MaxPool()]
    layers += [Reshape(), *head(hidden, classes, dropout)]
    return Sequential(layers, (prod(image),), dtype)


def head(hidden: tuple[int, ...], outputs: int, dropout: float = 0.0) -> list[Layer]:
    """Fully connected layers with ReLU between them.

    Args:
        hidden: Sizes of the hidden layers.
        outputs: Of the last layer.
        dropout: Share of the hidden values set to zero while training.
    """
    layers: list[Layer] = []
    for stream, size in enumerate(hidden):
        layers += [Dense(size), ReLU()]
        if dropout:
            layers.append(Dropout(dropout, stream))
    return [*layers, Dense(outputs, gain=1.0)]


def transformer(
    tokens: int,
    context: int,
    width: int = 128,
    blocks: int = 2,
    heads: int = 4,
    dtype: str = "float32",
    dropout: float = 0.0,
) -> Sequential:
    """A decoder: it computes a score for each next token from the tokens before it.

    A. Radford et al., "Language models are unsupervised multitask learners", 2019: norms come
    before attention and before the two dense layers, and embedding and scores share their vectors.

    Args:
        tokens: Size of the vocabulary.
        context: Tokens in a sample.
        width: Length of the vector of a token.
        blocks: Number of blocks, each of attention and two dense layers.
        heads: Attention heads in each block.
        dtype: Floating type of the parameters.
        dropout: Share of what each block adds that is set to zero while training.

    Raises:
        ValueError: The width is no multiple of the number of heads.
    """
    layers: list[Layer] = [Embedding(tokens, width, "embedding"), Position()]
    for block in range(blocks):
        # Of all that is added up, a like share.
        mixing: tuple[Layer, ...] = (LayerNorm(), Attention(heads, gain=0.5 / blocks))
        dense: tuple[Layer, ...] = (
            LayerNorm(),
            Dense(4 * width),
            Gelu(),
            Dense(width, gain=0.5 / blocks),
        )
        if dropout:
            mixing += (Dropout(dropout, 2 * block),)
            dense += (Dropout(dropout, 2 * block + 1),)
        layers += [Residual(mixing), Residual(dense)]
    layers += [LayerNorm(), Unembedding(tokens, "embedding")]
    return Sequential(layers, (context,), dtype)


#: Names of the models that come with mpicoll.
MODELS = ("softmax", "mlp", "conv", "resnet", "transformer")
