"""What is chosen from: every way to train on so many ranks that this package knows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from mpicoll.train.parallel.mesh import groups
from mpicoll.train.step import catalogue

#: Orders of pipelines, with their parameters.
ORDERS: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = (
    ("gpipe", ()),
    ("1f1b", (("ahead", 0),)),
    ("1f1b", (("ahead", 1),)),
    ("interleaved", (("chunks", 2),)),
    ("zb_h1", ()),
    ("zb_h2", ()),
    ("zb_v", ()),
)
_MOST_MICROBATCHES = 256
#: The order of zb_v is found slot by slot.
_MOST_ZB_V = 1024
#: What the space has, by what is decided.
WORDS = {
    "mesh": "every data x pipe x tensor of all ranks",
    "strategy": "allreduce; with data alone also zero1 and fsdp",
    "microbatches": f"powers of two up to {_MOST_MICROBATCHES}, and 1, 2, 4 and 8 times pipe; with "
    "data alone they are batches whose gradients are added up",
    "order": "with pipe: gpipe, 1f1b with ahead 0 and 1, zb_h1, zb_h2; interleaved with 2 chunks "
    "if pipe divides the microbatches; zb_v if pipe times microbatches is at most "
    f"{_MOST_ZB_V}",
    "sequence": "with tensor, if samples are sequences: no and yes",
    "recompute": "with pipe: no and yes",
    "cut": "every cut between layers whose values are whole on all ranks, or divided by tokens; "
    "if a rank has several chunks, only the cut whose longest chunk is shortest",
}


class Sharing(NamedTuple):
    """What replicas of the same parameters share out, rather than all keep.

    Attributes:
        updates: Each updates a part, and keeps the optimizer's arrays of that part alone.
        parameters: Each keeps a part of parameters and gradients, too, and gathers what it needs.
        words: What each replica does.
    """

    updates: bool = False
    parameters: bool = False
    words: str = ""


#: By strategy.
STRATEGIES = {
    "allreduce": Sharing(),
    "zero1": Sharing(
        updates=True,
        words="Each replica updates a part of the parameters, and sends it to all (zero1).",
    ),
    "fsdp": Sharing(
        updates=True,
        parameters=True,
        words="Each replica keeps a part of the parameters, and gathers those of a layer just "
        "before they are used (fsdp).",
    ),
}


class Candidate(NamedTuple):
    """One way to train, but for the cut.

    Attributes:
        data, pipe, tensor: Ranks along each axis.
        strategy: Of the replicas, one of `STRATEGIES`.
        microbatches: Parts of a replica's share of the batch.
        recompute: Whether forward passes are run again.
        order: Of computation; "" without a pipeline.
        parameters: Of the order, name and value.
        sequence: Whether ranks that share layers divide the values between them by tokens.
    """

    data: int
    pipe: int
    tensor: int
    strategy: str = "allreduce"
    microbatches: int = 1
    recompute: bool = False
    order: str = ""
    parameters: tuple[tuple[str, int], ...] = ()
    sequence: bool = False

    @property
    def sharing(self) -> Sharing:
        """What the replicas share out."""
        return STRATEGIES[self.strategy]

    @property
    def mesh(self) -> str:
        """As it is written: "data=2,pipe=2,tensor=1"."""
        return f"data={self.data},pipe={self.pipe},tensor={self.tensor}"

    def groups(self, axis: str) -> list[range]:
        """The ranks of each group along an axis of the mesh."""
        return groups(axis, self.data, self.pipe, self.tensor)

    @property
    def family(self) -> tuple[int, int, int, str]:
        """Mesh and strategy."""
        return self.data, self.pipe, self.tensor, self.strategy

    @property
    def words(self) -> str:
        """In words: "data=2,pipe=2,tensor=1, 1f1b ahead=1, 8 microbatches"."""
        parts = [self.mesh]
        if self.sequence:
            parts.append("sequence")
        if self.sharing.updates:
            parts.append(self.strategy)
        if self.order:
            parts.append(" ".join([self.order, *(f"{n}={v}" for n, v in self.parameters)]))
        if self.microbatches > 1:
            parts.append(f"{self.microbatches} microbatches")
        if self.recompute:
            parts.append("recompute")
        return ", ".join(parts)

    @property
    def chunks(self) -> int:
        """Of all stages together."""
        if not self.order:
            return 1
        return self.pipe * catalogue.find(self.order).chunks(dict(self.parameters))

    @property
    def splits(self) -> bool:
        """Whether its order makes backward passes in two parts."""
        return bool(self.order) and catalogue.find(self.order).splits

    @property
    def schedule(self) -> catalogue.Schedule:
        """Of a replica; of one without a pipeline, microbatches one after the other."""
        order = self.order or "1f1b"
        return _schedule(order, self.pipe, self.microbatches, self.recompute, self.parameters)


@lru_cache(maxsize=8)
def _schedule(
    order: str, pipe: int, count: int, recompute: bool, parameters: tuple[tuple[str, int], ...]
) -> catalogue.Schedule:
    """One whose programs are made once."""
    return catalogue.schedule(order, pipe, count, recompute=recompute, **dict(parameters))


def candidates(
    ranks: int, batch: int, layers: int, halves: bool = True, sequences: bool = False
) -> Iterator[Candidate]:
    """All of them.

    Args:
        ranks: How many.
        batch: Samples of a step, of all ranks together.
        layers: Of the model.
        halves: Whether all backward passes can be made in two parts.
        sequences: Whether samples are sequences of tokens.
    """
    for candidate in _whole(ranks, batch, layers, halves):
        yield candidate
        if sequences and candidate.tensor > 1:
            yield candidate._replace(sequence=True)


def _whole(ranks: int, batch: int, layers: int, halves: bool) -> Iterator[Candidate]:
    """Those that divide no sequences."""
    for pipe, data, tensor in _meshes(ranks):
        if pipe > layers or data > batch:
            continue
        for count in _microbatches(pipe, batch // data):
            if pipe == 1:
                alone = tensor == 1
                if not alone or batch % count == 0:
                    names = [*STRATEGIES] if alone and data > 1 else ["allreduce"]
                    for name in names:
                        yield Candidate(data, pipe, tensor, name, count)
                continue
            for order, parameters in ORDERS:
                found = Candidate(data, pipe, tensor, "allreduce", count, False, order, parameters)
                refused = {
                    "interleaved": count % pipe > 0,
                    "zb_v": pipe * count > _MOST_ZB_V,
                }
                whole = found.splits and not halves
                if found.chunks > layers or whole or refused.get(order):
                    continue
                yield found
                yield found._replace(recompute=True)


def _meshes(ranks: int) -> Iterator[tuple[int, int, int]]:
    for pipe in range(1, ranks + 1):
        for data in range(1, ranks // pipe + 1):
            if ranks % (pipe * data) == 0:
                yield pipe, data, ranks // (pipe * data)


def _microbatches(pipe: int, most: int) -> list[int]:
    """How many a replica with so many samples may make."""
    most = min(most, _MOST_MICROBATCHES)
    powers = (1 << power for power in range(most.bit_length()))
    return sorted({*powers, *(pipe * times for times in (1, 2, 4, 8) if pipe * times <= most)})
