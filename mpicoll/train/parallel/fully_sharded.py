"""Fully sharded data parallelism: each rank owns a part of parameters, gradients and optimizer.

S. Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020,
section 5, stage 3; stage 2 where gathered parameters are kept for the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.base.wording import plural
from mpicoll.train.data.batch import Batch
from mpicoll.train.models.flat import Parameters, require_names
from mpicoll.train.models.networks import Sequential
from mpicoll.train.optimizers import Optimizer, empty_state
from mpicoll.train.parallel.parameter_shards import ParameterShards
from mpicoll.train.parallel.passes import Passes
from mpicoll.train.parallel.traffic import sent_together
from mpicoll.train.ranks.workers import AllReduceWorkers, Workers, raise_together

if TYPE_CHECKING:
    from mpi4py import MPI


class FullySharded(ParameterShards):
    """Parameters that are whole only while a layer uses them; collective.

    A unit is all parameters of a layer: `layer3` has `layer3.weight` and `layer3.bias`.  It is
    gathered before it is used and freed afterwards.  Its gradients are added into the parts of the
    ranks that own them; the optimizer updates only these parts::

        parameters = FullySharded(Drawn(model, seed=1), comm)
        for inputs, targets in ...:                      # this rank's samples
            loss = parameters.compute(model, Batch(inputs, targets, total))
            parameters.update(optimizer, lr=0.1)

    Args:
        parameters: Arrays by name, equal on all ranks, of one floating type.  They are gathered in
            this type, and kept in float32 if it is narrower.  They are read one unit at a time; for
            a model larger than the memory of a rank give `Drawn`.
        comm: The ranks, an `mpicoll.Intracomm`; None for this process alone.
        gather: How units are divided.  "all": every rank owns an even part of each (all-gather,
            reduce-scatter).  "broadcast": unit u is owned by rank u mod N (broadcast, reduce).
        ahead: Number of units gathered while another is used; each has a buffer as long as the
            longest unit.
        keep: Keep gathered units until the update, each in its own buffer.
        algorithm: Algorithm of the collectives, None for the communicator's choices.

    Attributes:
        units: Names of the units, in order.
        updates: Number of updates.

    Raises:
        ValueError: `gather` or `ahead` is not valid.
        TrainingError: Parameters cannot be read, or differ between ranks; on all ranks.
    """

    def __init__(
        self,
        parameters: Parameters,
        comm: MPI.Intracomm | None = None,
        *,
        gather: str = "all",
        ahead: int = 1,
        keep: bool = False,
        algorithm: str | None = None,
    ) -> None:
        workers = Workers()
        if comm is not None and comm.Get_size() > 1:
            workers = AllReduceWorkers(comm, algorithm)
        super().__init__(parameters, workers, gather, ahead, keep)
        self._state: dict[str, Array] = {}
        self.updates = 0

    @property
    def nbytes(self) -> int:
        """Bytes that this rank holds: its parts, the optimizer's arrays, and all buffers."""
        own = (self.weights, self.gradient, *self._state.values())
        return sum(array.nbytes for array in own) + self.buffers_nbytes

    def update(self, optimizer: Optimizer, lr: float, clip: float | None = None) -> None:
        """Update this rank's parts by the added gradients, and reset these.

        Collective if gradients are clipped.

        Args:
            optimizer: Such as `mpicoll.train.optimizers.make("adam")`, the same in each call.
            lr: Learning rate.
            clip: Largest norm of the gradient; larger gradients are scaled down.
        """
        self.await_reduction()
        norm = 0.0 if clip is None else self.norm()
        self.updates += 1
        if clip is not None and norm > clip:
            self.gradient *= clip / norm
        if not self._state:
            self._state = empty_state(optimizer, self.weights)
        optimizer.update(self.weights, self.gradient, self._state, lr, self.updates)
        self.forget()
        self.changed()

    # --- whole models ---

    def compute(self, model: Sequential, batch: Batch, buffers: Parameters | None = None) -> float:
        """Add the gradients of a batch to those that wait for the update; collective.

        Args:
            model: Of these parameters.
            batch: This rank's part of it; `total` is the number of samples of all ranks together.
            buffers: The model's buffers by name, if it has any; changed in place.

        Returns:
            The loss of the whole batch.

        Raises:
            TrainingError: The computation failed on a rank; on all ranks.
        """
        passes = Passes(self, model)
        share = 0.0
        with self._together("computing gradients") as shares:
            with passes.training():
                share = passes.gradients(batch, buffers or {})
            shares.append(share)
        return shares[-1]

    def explain(self, model: Sequential) -> str:
        """What `compute` sends, in words; not collective.

        Bytes are those of whole vectors; of them rings and trees send so many times as much as
        there are ranks, less one.

        Example:
            10 allgather of 2,400 bytes, 5 reduce_scatter of 1,200 bytes: 10,800 bytes sent by 4
            ranks
        """
        calls = Passes(self, model).collectives()
        found, size = [], self.workers.size
        for name in dict.fromkeys(name for name, _ in calls):
            each = [nbytes for other, nbytes in calls if other == name]
            found.append(f"{len(each)} {name} of {sum(each):,} bytes")
        sent = sum(sent_together(name, size, nbytes) for name, nbytes in calls)
        return f"{', '.join(found)}: {sent:,} bytes sent by {plural(size, 'rank')}"

    def losses_and_outputs(
        self,
        model: Sequential,
        inputs: Array,
        targets: Array,
        buffers: Parameters | None = None,
    ) -> tuple[Array, Array]:
        """As `Sequential.losses_and_outputs`, of this rank's samples; collective."""
        passes = Passes(self, model)
        with self._together("evaluating"):
            with passes.evaluation():
                outputs = passes.outputs(inputs, buffers or {})
            losses = model.loss.evaluate(outputs, targets)[0]
        return losses, outputs

    def whole(self) -> Iterator[tuple[str, Array]]:
        """Name and copy of each parameter, one after the other; all ranks iterate to the end."""
        for name in self.units:
            with self.unit(name) as views:
                for full, view in views.items():
                    yield full, view.copy()

    def assign(self, parameters: Parameters) -> None:
        """Take other values, equal on all ranks; not collective.

        Raises:
            ValueError: Names differ.
        """
        require_names(parameters, self)
        for unit in self.all_units:
            unit.assign({name: parameters[name] for name in unit.spans})
        self.changed()

    @contextmanager
    def _together(self, what: str) -> Iterator[list[float]]:
        """Guard what may fail on some ranks only; leaving is collective.

        Yields:
            Where this rank's share of a number may be put; behind the statement the sum comes last.
        """
        shares: list[float] = []
        failure = None
        try:
            yield shares
        except Exception as error:
            failure = error
        facts = np.array([failure is not None, sum(shares)], float)
        self.workers.sum(facts)
        if facts[0]:
            self.forget()
            raise_together(self.workers, what, failure)
        shares.append(float(facts[1]))
