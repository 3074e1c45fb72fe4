"""Whole parameters and their parts: for checkpoints, comparisons, and the norm of gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mpicoll.base.arrays import Array
from mpicoll.train.exchange import norms
from mpicoll.train.models.layers import Layer, Residual
from mpicoll.train.models.networks import Sequential
from mpicoll.train.parallel.conjugate import Group
from mpicoll.train.parallel.placements import Cut
from mpicoll.train.parallel.sharded import Sharded, own_parts

if TYPE_CHECKING:
    from mpi4py import MPI


class Parts:
    """The parts of a sharded model's parameters: for checkpoints, comparisons and norms.

    Args:
        model: A model of layers that `shard` made.
        comm: The ranks it was made for; None for this process alone.

    Attributes:
        cuts: The cut of each parameter and buffer that is divided; others are whole on all ranks.
    """

    def __init__(self, model: Sequential, comm: MPI.Intracomm | None) -> None:
        self._group = None if comm is None else Group(comm, comm.Get_size(), comm.Get_rank())
        self.cuts: dict[str, Cut] = {}
        for number, layer in enumerate(model.layers):
            own = _cuts(layer)
            names = model.names(number)
            self.cuts |= {names[name]: cut for name, cut in own.items() if name in names}

    def own(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """This rank's parts of whole arrays; not collective."""
        if self._group is None:
            return dict(arrays)
        return own_parts(arrays, self.cuts, self._group)

    def whole(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Whole arrays from this rank's parts; collective."""
        if self._group is None:
            return dict(arrays)
        return {
            name: self._group.gather(array, self.cuts[name]) if name in self.cuts else array
            for name, array in arrays.items()
        }

    def norm(self, gradients: Mapping[str, Array]) -> float:
        """Norm of the whole gradient, the same on all ranks; collective.

        Parameters that all ranks have count once.

        Equal gradients give the same bits on any number of ranks.
        """
        first = self._group is None or self._group.rank == 0
        own = norms.squares(g for name, g in gradients.items() if first or name in self.cuts)
        return norms.root(own if self._group is None else self._group.sum(own))


def _cuts(layer: Layer) -> dict[str, Cut]:
    """Of a layer's arrays, by the names that it knows."""
    if isinstance(layer, Sharded):
        return {**layer.cuts, **_cuts(layer.local)}
    if isinstance(layer, Residual):
        return {
            f"{number}.{name}": cut
            for number, inner in enumerate(layer.layers)
            for name, cut in _cuts(inner).items()
        }
    return {}
