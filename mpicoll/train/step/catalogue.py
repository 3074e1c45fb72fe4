"""The catalogue of orders: one entry each, with numbers that a simulation must find again.

``mpicoll verify pipeline``, the drawings, the documentation and the training driver read it.  An
order of your own is one generator and one call of :func:`register`; those of mpicoll are in
``registered.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mpicoll.train.step.passes import recomputed, versioned, with_messages
from mpicoll.train.step.tasks import Durations, Place, Task, looped

#: The tasks of a rank: ``tasks(rank, stages, microbatches, **parameters)``.
Tasks = Callable[..., Iterator[Task]]
#: A number of one rank: ``count(rank, stages, microbatches, **parameters)``.
OfRank = Callable[..., int]


@dataclass(frozen=True)
class Order:
    """An order of computation, with its registered numbers.

    S is the number of ranks, M of microbatches, and ``**parameters`` are the order's own.

    Attributes:
        name: name of the order.
        tasks: generator of the tasks of a rank.
        parameters: name and default of each parameter.
        place: function that returns the rank of a chunk.
        fixed_chunks: chunks of a rank, unless the order has a parameter ``chunks``.
        trains: whether there are backward passes.
        updates: whether weights are updated between microbatches.
        splits: whether backward passes are made in two parts.
        held: ``held(r, S, M, **parameters)``: the most microbatches whose activations rank r
            holds at a time, counted for each chunk.
        held_is_bound: whether ``held`` is an upper bound.
        recomputed: ``recomputed(r, S, M, **parameters)``: with recomputation, the most microbatches
            whose recomputed activations rank r holds.
        versions: ``versions(r, S, M, **parameters)``: the most versions of its weights that rank r
            keeps at a time.
        staleness: ``staleness(m, r, S, M, **parameters)``: number of updates on rank r between the
            weights that microbatch m uses and the update with its gradient.
        slots: ``slots(S, M, **parameters)``: number of messages of one direction of an edge for
            which the receiver needs room, so that senders that wait for room do not deadlock.
        messages: ``messages(S, M, **parameters)``: number of messages of all ranks.
        makespan: ``makespan(S, M, durations, **parameters)``: time of a step if messages take no
            time; ``durations`` are those of all chunks of a rank.
        valid: ``valid(S, M, durations, **parameters)``: whether ``makespan`` holds.
        where: the same in words; "" if it always holds.
        formula: ``makespan`` as text.
        reference: the source of the order.
    """

    name: str
    tasks: Tasks
    parameters: Mapping[str, int] = field(default_factory=dict)
    place: Place = looped
    fixed_chunks: int = 1
    trains: bool = True
    updates: bool = False
    splits: bool = False
    held: OfRank | None = None
    held_is_bound: bool = False
    recomputed: OfRank | None = lambda r, S, M, **parameters: 1
    versions: OfRank = lambda r, S, M, **parameters: 1
    staleness: Callable[..., int] = lambda m, r, S, M, **parameters: 0
    slots: Callable[..., int] = lambda S, M, **parameters: 1
    messages: Callable[..., int] | None = None
    makespan: Callable[..., int] | None = None
    valid: Callable[..., bool] = lambda S, M, t, **parameters: True
    where: str = ""
    formula: str = ""
    reference: str = ""

    @property
    def summary(self) -> str:
        """One sentence: the first line of the generator's docstring."""
        return (inspect.getdoc(self.tasks) or "").split("\n", 1)[0]

    def complete(self, parameters: Mapping[str, int] | None = None) -> dict[str, int]:
        """Parameters with the defaults filled in.

        Raises:
            ValueError: an unknown parameter, or a value out of range.
        """
        given = dict(parameters or {})
        for name, value in given.items():
            if name not in self.parameters:
                known = ", ".join(self.parameters) or "none"
                raise ValueError(f"{self.name} has no parameter {name!r}: known are {known}")
            least = 1 if name == "chunks" else 0
            if value < least:
                raise ValueError(f"{self.name}: {name}={value} is too small: give at least {least}")
            if value > 1 and isinstance(self.parameters[name], bool):
                raise ValueError(f"{self.name}: {name}={value} is neither 0 nor 1")
        return {**self.parameters, **given}

    def chunks(self, parameters: Mapping[str, int]) -> int:
        """Chunks of a rank."""
        return parameters.get("chunks", self.fixed_chunks)


@dataclass(frozen=True)
class Schedule:
    """An order for a number of ranks and microbatches: the programs of all ranks.

    Attributes:
        order: the order.
        stages: number of ranks.
        microbatches: number of microbatches.
        parameters: all of the order's parameters.
        recompute: whether forward passes run again before backward passes.
    """

    order: Order
    stages: int
    microbatches: int
    parameters: Mapping[str, int]
    recompute: bool = False

    @property
    def chunks(self) -> int:
        """Number of chunks of all ranks together."""
        return self.stages * self.order.chunks(self.parameters)

    @property
    def facts(self) -> dict[str, object]:
        """What identifies the schedule, as plain data for JSON."""
        return {
            "order": self.order.name,
            "S": self.stages,
            "M": self.microbatches,
            "parameters": dict(self.parameters),
            "recompute": self.recompute,
        }

    def place(self, chunk: int) -> int:
        """The rank that has a chunk."""
        return self.order.place(chunk, self.stages)

    def chunks_of(self, rank: int) -> tuple[int, ...]:
        """The chunks of a rank, in ascending order."""
        return tuple(chunk for chunk in range(self.chunks) if self.place(chunk) == rank)

    def held(self, rank: int) -> tuple[int, int]:
        """Most microbatches whose activations a rank holds, and most that it recomputes."""
        order, named = self.order, (rank, self.stages, self.microbatches)
        count = order.held(*named, **self.parameters) if order.held else self.microbatches
        if not self.recompute:
            return count, 0
        again = order.recomputed(*named, **self.parameters) if order.recomputed else count
        return count, again

    def waiting(self, rank: int) -> int:
        """Microbatches that a rank holds between both parts of their backward pass, at most.

        Counted for each chunk.  A forward pass that is run again comes just before the first part,
        so there are as many as would be computed again.
        """
        order = self.order
        if not order.splits:
            return 0
        if order.recomputed is None:
            return self.held(rank)[0]
        return order.recomputed(rank, self.stages, self.microbatches, **self.parameters)

    def program(self, rank: int) -> tuple[Task, ...]:
        """The program of a rank, messages included."""
        tasks = self.order.tasks(rank, self.stages, self.microbatches, **self.parameters)
        if self.recompute and self.order.trains:
            tasks = recomputed(tasks)
        if self.parameters.get("vertical"):
            tasks = versioned(tasks, self.stages - 1)
        else:
            tasks = versioned(tasks)
        return tuple(with_messages(tasks, self.stages, self.chunks, self.order.place))

    @cached_property
    def programs(self) -> tuple[tuple[Task, ...], ...]:
        """The programs of all ranks."""
        return tuple(map(self.program, range(self.stages)))

    def makespan(self, durations: Durations) -> int | None:
        """The registered time of a step if messages take no time; None if nothing is registered.

        Args:
            durations: times of all chunks of a rank together, equal on all ranks.
        """
        order, S, M = self.order, self.stages, self.microbatches
        if order.makespan is None or not order.valid(S, M, durations, **self.parameters):
            return None
        again = M * durations.forward if self.recompute and order.trains else 0
        return order.makespan(S, M, durations, **self.parameters) + again

    @property
    def name(self) -> str:
        """The order and its parameters: "1f1b ahead=1"."""
        named = (f"{name}={value:d}" for name, value in self.parameters.items())
        return " ".join([self.order.name, *named])

    @property
    def words(self) -> str:
        """The schedule in words: "1f1b ahead=1, S=4, M=8"."""
        recompute = ", recompute" if self.recompute else ""
        return f"{self.name}, S={self.stages}, M={self.microbatches}{recompute}"


_CATALOGUE: dict[str, Order] = {}


def register(name: str, tasks: Tasks, **numbers: object) -> Order:
    """Add an order to the catalogue; :class:`Order` describes the keyword arguments.

    Arguments of the generator that have a default are parameters of the order.

    Raises:
        ValueError: there is an order of that name already.
    """
    if name in _CATALOGUE:
        raise ValueError(f"the order {name} is registered already")
    arguments = inspect.signature(tasks).parameters.values()
    parameters = {a.name: a.default for a in arguments if a.default is not a.empty}
    _CATALOGUE[name] = Order(name, tasks, parameters, **numbers)  # type: ignore[arg-type]
    return _CATALOGUE[name]


def names() -> tuple[str, ...]:
    """Names of all orders, in the order of their registration."""
    return tuple(_CATALOGUE)


def find(name: str) -> Order:
    """One order.

    Raises:
        ValueError: unknown; the message names the known ones.
    """
    if name not in _CATALOGUE:
        raise ValueError(f"unknown order {name!r}: known are {', '.join(_CATALOGUE)}")
    return _CATALOGUE[name]


def schedule(
    name: str, stages: int, microbatches: int, *, recompute: bool = False, **parameters: int
) -> Schedule:
    """The schedule of an order for a number of ranks and microbatches.

    Args:
        name: name of the order.
        stages: number of ranks.
        microbatches: number of microbatches.
        recompute: keep only inputs of chunks, and run forward passes again before backward passes.
        parameters: parameters of the order, such as ``ahead`` or ``chunks``.

    Raises:
        ValueError: unknown order or parameter, or a number out of range.
    """
    order = find(name)
    for what, number in (("stages", stages), ("microbatches", microbatches)):
        if number < 1:
            raise ValueError(f"{what}={number} is too small: give at least 1")
    return Schedule(order, stages, microbatches, order.complete(parameters), recompute)
