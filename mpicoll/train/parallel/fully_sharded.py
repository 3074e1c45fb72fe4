"""Fully sharded data parallelism: each rank owns a part of parameters, gradients and optimizer.

S. Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020,
section 5, stage 3; stage 2 where gathered parameters are kept for the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.data.batch import Batch
from mpicoll.train.exchange import norms
from mpicoll.train.models.flat import Parameters, described, require_names
from mpicoll.train.models.layers import Layer, Residual
from mpicoll.train.models.networks import Sequential
from mpicoll.train.models.precision import Rounding, computing
from mpicoll.train.optimizers import Optimizer, empty_state
from mpicoll.train.parallel.gathered import Gathered
from mpicoll.train.parallel.units import (
    GATHERS,
    EvenParts,
    Event,
    Unit,
    WholeUnits,
    grouped,
    program,
)
from mpicoll.train.ranks.workers import (
    AllReduceWorkers,
    Running,
    Workers,
    raise_together,
    require_equal,
    together,
)

if TYPE_CHECKING:
    from mpi4py import MPI


class FullySharded(Mapping[str, Array]):
    """Parameters that are whole only while a layer uses them; collective.

    A unit is all parameters whose names begin alike: `layer3` for `layer3.weight` and
    `layer3.bias`.  It is gathered before it is used and freed afterwards, and its gradients are
    summed into the parts of the ranks that own them; the optimizer sees these parts alone.

        parameters = FullySharded(Drawn(model, seed=1), comm)
        for inputs, targets in ...:                      # this rank's samples
            loss = parameters.compute(model, Batch(inputs, targets, total))
            parameters.update(optimizer, lr=0.1)

    Args:
        parameters: Arrays by name, float32 or float64, equal on all ranks.  They are read a unit at
            a time, and not kept: of a model larger than the memory of a rank give `Drawn`.
        comm: The ranks, an `mpicoll.Intracomm`; None for this process alone.
        gather: How units are divided.  "all": every rank owns an even part of each (all-gather,
            reduce-scatter).  "broadcast": unit u is owned by rank u mod N (broadcast, reduce).
        ahead: Units that are gathered while another is used; each has a buffer as long as the
            longest unit.
        keep: Gathered units stay until the update, each in a buffer of its own.
        algorithm: Of the collectives, None for the communicator's choices.

    Attributes:
        units: Names of the units, in order.
        updates: Updates made.

    Raises:
        ValueError: `gather` or `ahead` is none.
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
        if gather not in GATHERS:
            raise ValueError(f"gather is {gather!r}: give one of {', '.join(GATHERS)}")
        if ahead < 0:
            raise ValueError(f"ahead is {ahead}: give a number of units, at least 0")
        self._workers = Workers()
        if comm is not None and comm.Get_size() > 1:
            self._workers = AllReduceWorkers(comm, algorithm)
        self._division = division = (EvenParts if gather == "all" else WholeUnits)(self._workers)
        self._units: list[Unit] = []
        facts: dict[str, object] = {}
        with together(self._workers, "reading parameters"):
            for index, (name, names) in enumerate(grouped(list(parameters)).items()):
                arrays = {full: parameters[full] for full in names}
                _require_floating(arrays, self._units)
                self._units.append(Unit(name, index, arrays, division))
                facts |= described(arrays)
            if not self._units:
                raise ValueError("the model has no parameters: give at least one array")
        facts |= {"gather": gather, "ahead": ahead, "keep": keep}
        require_equal(self._workers, facts, "give all ranks the same")
        self.units = [unit.name for unit in self._units]
        self._by_name = dict(zip(self.units, self._units, strict=True))
        self._keep = keep
        self._gathered = Gathered(self._units, division, ahead, keep)
        self._gradients = np.zeros(max(u.length for u in self._units), self._units[0].weights.dtype)
        self._reducing: tuple[Unit, Running] | None = None
        self._done = 0  # events of the program of a batch
        self.updates = 0

    def __getitem__(self, name: str) -> Array:
        """A parameter whose unit is gathered.

        Raises:
            RuntimeError: It is not.
        """
        return self._gathered[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._gathered)

    def __len__(self) -> int:
        return len(self._gathered)

    @property
    def nbytes(self) -> int:
        """Bytes that this rank holds: its parts, the optimizer's arrays, and all buffers."""
        own = (a for u in self._units for a in (u.weights, u.gradient, *u.state.values()))
        return sum(a.nbytes for a in own) + self._gathered.nbytes + self._gradients.nbytes

    # --- layer by layer ---

    def expect(self, order: Sequence[str]) -> None:
        """Say which units will be used next, in order: so they are gathered ahead; collective."""
        self._gathered.expect(order)

    def unit(self, name: str) -> AbstractContextManager[dict[str, Array]]:
        """Gather a unit, and free it at the end of the `with` statement; collective.

        Returns:
            What yields its parameters by name, which are not to be read any more behind it.

        Raises:
            KeyError: There is no such unit.
            RuntimeError: Another is expected, or all buffers are in use.
        """
        return self._gathered.unit(name)

    def reduce(self, gradients: Mapping[str, Array]) -> None:
        """Add the ranks' gradients of a unit to the parts of those that own them; collective.

        The sum is made while the caller goes on.

        Args:
            gradients: Of all parameters of one unit, by name.

        Raises:
            ValueError: They are not.
        """
        unit = self._by_name[next(iter(gradients)).partition(".")[0]]
        require_names(gradients, unit.spans)
        self._await_reduction()
        for name, view in unit.views(self._gradients).items():
            view[...] = gradients[name]
        self._start_reduction(unit)

    def norm(self) -> float:
        """Norm of the gradient of all parameters, the same for every way to divide it; collective."""
        self._await_reduction()
        sums = norms.squares(unit.gradient for unit in self._units)
        self._workers.sum(sums)
        return norms.root(sums)

    def update(self, optimizer: Optimizer, lr: float, clip: float | None = None) -> None:
        """Update this rank's parts by the gradients that were added up, and forget these.

        Collective where gradients are clipped.

        Args:
            optimizer: Such as `mpicoll.train.optimizers.make("adam")`, the same in each call.
            lr: Learning rate.
            clip: Largest norm of the gradient; longer ones are shortened to it.
        """
        self._await_reduction()
        norm = 0.0 if clip is None else self.norm()
        self.updates += 1
        for unit in self._units:
            if clip is not None and norm > clip:
                unit.gradient *= clip / norm
            if not unit.state:
                unit.state = empty_state(optimizer, unit.weights)
            optimizer.update(unit.weights, unit.gradient, unit.state, lr, self.updates)
        self._forget()
        self._gathered.drop()

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
        layers = self._layers(model)
        with self._together(program(layers), "computing gradients") as share:
            share.append(self._passes(model, layers, batch, buffers or {}))
        return share[-1]

    def losses_and_outputs(
        self,
        model: Sequential,
        inputs: Array,
        targets: Array,
        buffers: Parameters | None = None,
    ) -> tuple[Array, Array]:
        """As `Sequential.losses_and_outputs`, of this rank's samples; collective."""
        layers = self._layers(model)
        events = [("use", unit) for unit in layers if unit is not None]
        found: list[tuple[Array, Array]] = []
        with self._together(events, "evaluating"):
            values = inputs
            for number, unit in enumerate(layers):
                with self._given(model, unit, buffers or {}) as (parameters, rounded):
                    chunk = model.chunk(number, number + 1)
                    values, _ = chunk.forward(parameters, values, None, rounded)
            found.append((model.loss.evaluate(values, targets)[0], values))
        return found[0]

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
        for unit in self._units:
            unit.assign({name: parameters[name] for name in unit.spans})
        self._gathered.drop()

    # --- parts of these ---

    def _layers(self, model: Sequential) -> list[int | None]:
        """The unit of each layer of a model; None for one without parameters."""
        require_names(model.parameter_shapes, self)
        for number, layer in enumerate(model.layers):
            if not self._keep and _keeps_parameters(layer):
                raise ValueError(
                    f"layer {number} of the model, a {type(layer).__name__}, needs in the backward "
                    "pass the parameters of the forward pass: give keep=True"
                )
        found: list[int | None] = []
        for number in range(len(model.layers)):
            own = [name for name in model.names(number).values() if name in model.holders]
            found.append(self._by_name[own[0].partition(".")[0]].index if own else None)
        return found

    def _passes(
        self, model: Sequential, layers: Sequence[int | None], batch: Batch, buffers: Parameters
    ) -> float:
        """Both passes; this rank's share of the loss."""
        values, memories = batch.inputs, []
        for number, unit in enumerate(layers):
            with self._given(model, unit, buffers) as (parameters, rounded):
                chunk = model.chunk(number, number + 1)
                values, memory = chunk.forward(parameters, values, batch, rounded)
            memories.append(memory)
        losses, slopes = model.loss.evaluate(values, batch.targets)
        slopes /= batch.total
        error: Array | None = slopes
        del values, slopes  # which nothing needs while the slopes by the layers are found
        waiting: dict[str, list[Array]] = {}
        for number in reversed(range(len(layers))):
            unit = layers[number]
            with self._given(model, unit, buffers) as (parameters, rounded):
                chunk = model.chunk(number, number + 1)
                (found,) = chunk.backward(parameters, memories.pop(), error, rounded)
            error = found.error
            for name, gradient in found.gradients.items():
                waiting.setdefault(name, []).append(gradient)
            if unit is None:
                continue
            names = self._units[unit].spans
            if all(len(waiting.get(name, ())) == len(model.holders[name]) for name in names):
                parts = {name: waiting.pop(name) for name in names}
                self.reduce({name: sum(own[1:], start=own[0]) for name, own in parts.items()})
                self._done += 1
        return float(losses.sum(dtype=np.float64)) / batch.total

    @contextmanager
    def _given(
        self, model: Sequential, unit: int | None, buffers: Parameters
    ) -> Iterator[tuple[Parameters, Rounding]]:
        """What a layer computes with."""
        if unit is None:
            yield computing(buffers, model.dtype)
            return
        self._done += 1
        with self.unit(self.units[unit]) as views:
            yield computing({**buffers, **views}, model.dtype)
        self._gathered.poll()
        if self._reducing is not None:
            self._reducing[1].Test()

    @contextmanager
    def _together(self, events: Sequence[Event], what: str) -> Iterator[list[float]]:
        """Guard what makes these events, which may fail on some ranks only.

        A rank that fails makes the rest of them without computing, so that no other waits for it.

        Yields:
            Where this rank's share of a number may be put; behind the statement the sum comes last.
        """
        shares: list[float] = []
        failure = None
        self._done = 0
        self.expect([self.units[unit] for event, unit in events if event == "use"])
        try:
            yield shares
        except Exception as error:
            failure = error
            for event, unit in events[self._done :]:
                if event == "use":
                    with self.unit(self.units[unit]):
                        pass
                else:
                    self._await_reduction()
                    self._start_reduction(self._units[unit])
        self._await_reduction()
        facts = np.array([failure is not None, sum(shares)], float)
        self._workers.sum(facts)
        if facts[0]:
            self._forget()
            raise_together(self._workers, what, failure)
        shares.append(float(facts[1]))

    def _start_reduction(self, unit: Unit) -> None:
        """Start to sum what is in the buffer of gradients."""
        own = slice(unit.start, unit.start + unit.count)
        if unit.summed:  # by adding them here, sums of earlier batches need no other place
            self._gradients[own] += unit.gradient
        vector = self._gradients[: unit.length]
        self._reducing = unit, self._division.reduce(unit.index, vector, unit.gradient)

    def _await_reduction(self) -> None:
        """The buffer of gradients is free."""
        if self._reducing is not None:
            unit, running = self._reducing
            running.Wait()
            unit.summed, self._reducing = True, None

    def _forget(self) -> None:
        """The sums of gradients have been used, or are of no use."""
        for unit in self._units:
            unit.gradient[:] = 0
            unit.summed = False


def _keeps_parameters(layer: Layer) -> bool:
    if isinstance(layer, Residual):
        return any(map(_keeps_parameters, layer.layers))
    return layer.keeps_parameters


def _require_floating(arrays: Parameters, before: Sequence[Unit]) -> None:
    for name, array in arrays.items():
        dtype: np.dtype[Any] = array.dtype
        wanted = before[0].weights.dtype if before else next(iter(arrays.values())).dtype
        if dtype not in (np.float32, np.float64) or dtype != wanted:
            raise TypeError(
                f"parameter {name} is {dtype}, the first is {wanted}: give all parameters the same "
                "type, float32 or float64"
            )
