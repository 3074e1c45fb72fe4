"""How each kind of layer can be divided among ranks: what it takes, what it gives, what is cut."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

from mpicoll.schedule.layout import part
from mpicoll.train.models.batch_norm import BatchNorm
from mpicoll.train.models.images import AveragePool, Convolution, MaxPool
from mpicoll.train.models.layers import Dense, Layer, Shape
from mpicoll.train.models.pointwise import Dropout, Gelu, ReLU, Reshape
from mpicoll.train.models.sequences import (
    Attention,
    Embedding,
    LayerNorm,
    Position,
    Unembedding,
)
from mpicoll.train.parallel.conjugate import Group
from mpicoll.train.parallel.placements import (
    PARTIAL,
    SHARED,
    WHOLE,
    Cut,
    Kind,
    Placement,
    cut_placement,
)
from mpicoll.train.parallel.sharded import AttentionHeads, Cuts, DropoutPart, EmbeddingRows

#: Of sequences (tokens, width), the axis of tokens.
TOKENS = -2


@dataclass(frozen=True)
class Rule:
    """One way to divide a layer.

    Attributes:
        before, after: Where its inputs and outputs are.
        layer: The whole layer, of inputs of `shape`: from it parameters are drawn.
        local: This rank's part.
        shape: Of a sample at the inputs of `layer`.
        cuts, once, summed: As of `Sharded`.
        seconds: What the collectives inside take.
    """

    before: Placement
    after: Placement
    layer: Layer
    local: Layer
    shape: Shape
    cuts: Cuts = field(default_factory=dict)
    once: frozenset[str] = frozenset()
    summed: frozenset[str] = frozenset()
    seconds: float = 0.0


@dataclass(frozen=True)
class Setting:
    """What rules depend on beside the layer.

    Attributes:
        group: The ranks.
        sequence: Whether what has no matrix works on its part of the tokens.
    """

    group: Group
    sequence: bool = False

    def own(self, length: int) -> int:
        """This rank's part of so many items."""
        return part(length, self.group.size, self.group.rank)[1]

    def fits(self, length: int) -> bool:
        """Whether every rank gets one of so many items."""
        return length >= self.group.size

    def tokens(self, shape: Shape) -> Placement | None:
        """Sequences of this shape with their tokens cut; None unless that is asked for.

        Raises:
            ValueError: There are more ranks than tokens.
        """
        if not self.sequence or len(shape) != 2:
            return None
        self.require(shape[0], f"sequences of {shape[0]} tokens", " or sequence=False")
        return cut_placement(TOKENS, shape[0])

    def require(self, length: int, what: str, otherwise: str = "") -> None:
        """Refuse a layer that has fewer items than there are ranks.

        Raises:
            ValueError: It has.
        """
        if not self.fits(length):
            raise ValueError(
                f"tensor={self.group.size} and {what}: give tensor of at most {length}{otherwise}"
            )


#: From a layer, the shape of its inputs, and where they may be.
Rules = Callable[[Layer, Shape, Collection[Placement], Setting], Iterator[Rule]]


def rules_of(
    layer: Layer, shape: Shape, placements: Collection[Placement], setting: Setting
) -> list[Rule]:
    """The ways to divide a layer among the ranks; a layer of another kind is whole on all.

    Args:
        layer: Not a `Residual`, which is a chain of its own.
        shape: Of a sample at its inputs.
        placements: Where these may be.
        setting: The ranks, and what is wanted of them.

    Raises:
        ValueError: The layer has fewer items to divide than there are ranks.
    """
    return list(_RULES.get(type(layer), _whole)(layer, shape, placements, setting))


def _whole(
    layer: Layer, shape: Shape, placements: Collection[Placement], setting: Setting
) -> Iterator[Rule]:
    yield Rule(WHOLE, WHOLE, layer, layer, shape)


def _cut_last(placements: Collection[Placement]) -> list[Cut]:
    """Of the placements those that are cut along the last axis."""
    return [p.cut for p in placements if p.cut is not None and p.cut.axis == -1]


def _dense(
    layer: Layer, shape: Shape, placements: Collection[Placement], setting: Setting
) -> Iterator[Rule]:
    assert isinstance(layer, Dense)
    inputs, outputs = shape[-1], layer.outputs
    setting.require(max(inputs, outputs), f"a dense layer of {inputs} inputs and {outputs} outputs")
    if setting.fits(outputs):
        cuts = {"weight": Cut(-1, outputs), "bias": Cut(-1, outputs)}
        local = replace(layer, outputs=setting.own(outputs))
        yield Rule(SHARED, cut_placement(-1, outputs), layer, local, shape, cuts)
    given = _cut_last(placements)
    if setting.fits(inputs):
        given.append(Cut(-1, inputs))
    for cut in dict.fromkeys(given):
        cuts = {"weight": cut._replace(axis=-2)}
        yield Rule(
            Placement(Kind.CUT, cut), PARTIAL, layer, layer, shape, cuts, frozenset({"bias"})
        )


def _convolution(
    layer: Layer, shape: Shape, placements: Collection[Placement], setting: Setting
) -> Iterator[Rule]:
    assert isinstance(layer, Convolution)
    inputs, outputs = shape[-1], layer.channels
    setting.require(
        max(inputs, outputs), f"a convolution of {inputs} input and {outputs} output channels"
    )
    if setting.fits(outputs):
        cuts = {"weight": Cut(-1, outputs), "bias": Cut(-1, outputs)}
        local = replace(layer, channels=setting.own(outputs))
        yield Rule(SHARED, cut_placement(-1, outputs), layer, local, shape, cuts)
    if setting.fits(inputs):
        cuts = {"weight": Cut(-2, inputs, outer=layer.width**2)}
        before = cut_placement(-1, inputs)
        yield Rule(before, PARTIAL, layer, layer, shape, cuts, frozenset({"bias"}))


def _attention(
    layer: Layer, shape: Shape, placements: Collection[Placement], setting: Setting
) -> Iterator[Rule]:
    assert isinstance(layer, Attention)
    heads = layer.heads
    setting.require(heads, f"attention of {heads} heads")
    head = shape[1] // heads
    local = AttentionHeads(setting.own(heads), layer.causal, layer.gain, head)
    own = Cut(-1, heads, inner=head)
    cuts = {
        "weight": own._replace(outer=3),
        "query_bias": own,
        "value_bias": own,
        "out_weight": own._replace(axis=-2),
    }
    yield Rule(SHARED, PARTIAL, layer, local, shape, cuts, frozenset({"out_bias"}))


def _embedding(
    layer: Layer, shape: Shape, placements: Collection[Placement], setting: Setting
) -> Iterator[Rule]:
    assert isinstance(layer, Embedding)
    setting.require(layer.tokens, f"an embedding of {layer.tokens} tokens")
    start, _ = part(layer.tokens, setting.group.size, setting.group.rank)
    local = EmbeddingRows(layer.tokens, layer.width, layer.name, start)
    yield Rule(WHOLE, PARTIAL, layer, local, shape, {"weight": Cut(-2, layer.tokens)})


def _unembedding(
    layer: Layer, shape: Shape, placements: Collection[Placement], setting: Setting
) -> Iterator[Rule]:
    assert isinstance(layer, Unembedding)
    setting.require(layer.tokens, f"an unembedding of {layer.tokens} tokens")
    cuts = {"weight": Cut(-2, layer.tokens)}
    local = replace(layer, tokens=setting.own(layer.tokens))
    yield Rule(SHARED, cut_placement(-1, layer.tokens), layer, local, shape, cuts)


def _position(
    layer: Layer, shape: Shape, placements: Collection[Placement], setting: Setting
) -> Iterator[Rule]:
    yield Rule(WHOLE, WHOLE, layer, layer, shape)
    yield Rule(PARTIAL, PARTIAL, layer, layer, shape, once=frozenset({"weight"}))


def _layer_norm(
    layer: Layer, shape: Shape, placements: Collection[Placement], setting: Setting
) -> Iterator[Rule]:
    tokens = setting.tokens(shape)
    if tokens is None:
        yield Rule(WHOLE, WHOLE, layer, layer, shape)
    else:
        summed = frozenset({"weight", "bias"})
        yield Rule(tokens, tokens, layer, layer, shape, summed=summed)


def _batch_norm(
    layer: Layer, shape: Shape, placements: Collection[Placement], setting: Setting
) -> Iterator[Rule]:
    yield Rule(WHOLE, WHOLE, layer, layer, shape)
    for cut in _cut_last(placements):
        cuts = dict.fromkeys(("weight", "bias", "mean", "variance"), cut)
        place = Placement(Kind.CUT, cut)
        yield Rule(place, place, layer, layer, shape, cuts)


def _pointwise(
    layer: Layer, shape: Shape, placements: Collection[Placement], setting: Setting
) -> Iterator[Rule]:
    """What does the same to each value, or each channel, works on whatever part is there."""
    tokens = setting.tokens(shape)
    for place in dict.fromkeys((WHOLE, *placements, *([tokens] if tokens else []))):
        if place.kind is Kind.WHOLE or (place.cut is not None):
            yield Rule(place, place, layer, _local(layer, place.cut, shape, setting), shape)


def _local(layer: Layer, cut: Cut | None, shape: Shape, setting: Setting) -> Layer:
    if cut is None or not isinstance(layer, Dropout):
        return layer
    group = setting.group
    return DropoutPart(layer.rate, layer.stream, cut, shape, group.size, group.rank)


def _pool(
    layer: Layer, shape: Shape, placements: Collection[Placement], setting: Setting
) -> Iterator[Rule]:
    for place in dict.fromkeys((WHOLE, *placements)):
        if place.kind is Kind.WHOLE or (place.cut is not None and place.cut.axis == -1):
            yield Rule(place, place, layer, layer, shape)


def _reshape(
    layer: Layer, shape: Shape, placements: Collection[Placement], setting: Setting
) -> Iterator[Rule]:
    """Channels stay cut where all values become one axis: pixels lie before them."""
    assert isinstance(layer, Reshape)
    yield Rule(WHOLE, WHOLE, layer, layer, shape)
    if layer.output_shape(shape) == (layer.output_shape(shape)[-1],):
        for cut in _cut_last(placements):
            before = Placement(Kind.CUT, cut)
            pixels = layer.output_shape(shape)[0] // shape[-1]
            after = Placement(Kind.CUT, cut._replace(outer=pixels * cut.outer))
            yield Rule(before, after, layer, Reshape(), shape)


_RULES: dict[type[Layer], Rules] = {
    Attention: _attention,
    AveragePool: _pool,
    BatchNorm: _batch_norm,
    Convolution: _convolution,
    Dense: _dense,
    Dropout: _pointwise,
    Embedding: _embedding,
    Gelu: _pointwise,
    LayerNorm: _layer_norm,
    MaxPool: _pool,
    Position: _position,
    ReLU: _pointwise,
    Reshape: _reshape,
    Unembedding: _unembedding,
}
