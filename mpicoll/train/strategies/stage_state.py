"""What a rank of a mesh holds of a run: for checkpoints, and where ranks may die."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train import optimizers
from mpicoll.train.data.sampler import Sampler
from mpicoll.train.groups import part_of
from mpicoll.train.parallel.mesh import Mesh
from mpicoll.train.parallel.parts import Parts
from mpicoll.train.parallel.pipeline import Pipeline
from mpicoll.train.ranks.workers import Workers, together
from mpicoll.train.strategies.buffers import Buffers
from mpicoll.train.strategies.kept import Held, Part, Piece, Saved, Seat
from mpicoll.train.strategies.retained import Retained, RetainedPieces, RetainedWhole
from mpicoll.train.strategies.training import Setup, Training


class StageState(Training):
    """The parameters of this rank's layers, and what the optimizer keeps of them.

    Args:
        setup: The run.
        mesh: The ranks.
        pipeline: This rank's layers.
        tensor: Which of their parameters are parts.
    """

    def __init__(self, setup: Setup, mesh: Mesh, pipeline: Pipeline, tensor: Parts) -> None:
        config = setup.config
        self._mesh, self._pipeline, self._tensor = mesh, pipeline, tensor
        # Replicas have equal buffers after each step: there is one set of them.
        buffers = Buffers(Workers(), pipeline.buffers, range(1), None)
        pipeline.buffers.update(buffers.views)
        samples = len(setup.dataset.train_targets)
        sampler = Sampler(samples, config.batch * config.accumulate, config.seed)
        super().__init__(setup, buffers, sampler, copied=False)
        # Each parameter is updated by itself, or this rank's piece of it.
        owned = pipeline.replicas.owned()
        self._owned = {name: own for name, (own, _, _) in owned.items()}
        self._updates = {
            name: (
                part_of(self._optimizer, start, end),
                optimizers.empty_state(self._optimizer, own),
            )
            for name, (own, start, end) in owned.items()
        }
        self._place = mesh.pipe.rank * mesh.tensor.size + mesh.tensor.rank, mesh.data.rank
        self._retained: Retained | None = None
        if config.survive:
            own = [*self._kept()], buffers.views, self._place[0]
            if pipeline.replicas.owns_pieces:
                self._retained = RetainedPieces(*own, self.weights.vector.dtype, mesh.data)
            else:
                self._retained = RetainedWhole(*own)
            self._lengths: dict[str, int | None] = {}
            for ends in setup.workers.gather(self._retained.ends):
                for kind, end in ends.items():
                    self._lengths[kind] = max(end, self._lengths.get(kind) or 0)

    def _kept(self) -> Iterator[Piece]:
        for kind, vectors in self._vectors():
            for name, values in vectors.items():
                yield f"{kind}/{name}", self._pipeline.replicas.first(name), values

    def _vectors(self) -> Iterator[tuple[str, dict[str, Array]]]:
        """What this rank updates, of each parameter a vector."""
        yield "parameter", self._owned
        for slot in self.slots:
            yield f"state/{slot}", {n: state[slot] for n, (_, state) in self._updates.items()}

    def parts(self) -> Iterator[Part]:
        # Of replicas the first gives what it has; of stages with a parameter, the first one too.
        first, replicas = self._mesh.data.rank == 0, self._pipeline.replicas
        for kind, vectors in self._vectors():
            for name, own in vectors.items():
                if self._pipeline.owners[name] == self._mesh.pipe.rank:
                    whole = replicas.whole(name, own)
                    if first:
                        yield from self._whole(f"{kind}/{name}", name, whole)
        for name, buffer in self.buffers.views.items():
            if first:
                yield from self._whole(f"buffer/{name}", name, buffer)

    def _whole(self, title: str, name: str, own: Array) -> Iterator[Part]:
        """A whole array, on the first of the ranks that have parts of it; collective among them."""
        whole = self._tensor.whole({name: own})[name]
        if self._mesh.tensor.rank == 0:
            yield Part(title, whole.shape, 0, whole.reshape(-1))

    @property
    def readers(self) -> range:
        return range(self._workers.size)

    def restore(self, saved: Saved, counters: Mapping[str, Any]) -> None:
        with together(self._workers, "reading a checkpoint"):
            for kind, vectors in self._vectors():
                for name, own in vectors.items():
                    shape = self.forms[name].shape
                    part = self._read_part(saved, f"{kind}/{name}", name, shape, own.dtype)
                    own[...] = self._pipeline.replicas.piece(name, part)
            for name, buffer in self.buffers.views.items():
                shape = self._setup.buffers[name].shape
                buffer[...] = self._read_part(saved, f"buffer/{name}", name, shape, buffer.dtype)
        self._pipeline.replicas.changed()
        self._recount(counters)

    def _read_part(
        self, saved: Saved, title: str, name: str, shape: tuple[int, ...], dtype: np.dtype
    ) -> Array:
        """What this rank's layers have of a saved array of a whole shape."""
        whole = np.empty(shape, dtype)
        saved.read(title, 0, whole.reshape(-1))
        return self._tensor.own({name: whole})[name] if name in self._tensor.cuts else whole

    # --- where ranks may die ---

    @property
    def lengths(self) -> dict[str, int | None]:
        return dict(self._lengths)

    def held(self) -> list[Held]:
        return [*self._own_states(), *super().held()]

    def seats(self) -> list[Seat]:
        own = (Seat(held.number, *self._place) for held in self._own_states())
        return [*own, *super().seats()]

    def _own_states(self) -> list[Held]:
        return [] if self._retained is None else self._retained.held(self.number, self.facts)

    def put(self, kind: str, values: Array) -> None:
        assert self._retained is not None
        self._retained.put(kind, values)

    def go_on(self, facts: Mapping[str, Any]) -> None:
        super().go_on(facts)
        self._pipeline.replicas.changed()
