"""What the ranks of a mesh do together in a step: cut the batch, add up, and fail."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from mpicoll.base.arrays import Array
from mpicoll.schedule.layout import part
from mpicoll.train.data.batch import Batch
from mpicoll.train.exchange import norms, tree
from mpicoll.train.parallel.mesh import Axis, Mesh
from mpicoll.train.parallel.program import Failure
from mpicoll.train.parallel.sums import Sums
from mpicoll.train.ranks.workers import (
    AllReduceWorkers,
    TrainingError,
    Workers,
    require_equal,
    together,
)


class NotFinite(TrainingError):
    """A loss or a gradient is not finite. Raised on all ranks; the next step may go on."""


class Given(NamedTuple):
    """A batch of all ranks, as the user gives it.

    Attributes:
        inputs, targets: Shape (samples, ...); None where nobody reads them.
        samples: Index of each in the training set; None: 0, 1, ....
        epoch, seed: What is drawn at random depends on.
        scale: Factor of the loss and its gradients.
    """

    inputs: Any
    targets: Any
    samples: NDArray[np.integer[Any]] | None = None
    epoch: int = 1
    seed: int = 0
    scale: float = 1.0

    def indices(self) -> NDArray[np.int64]:
        """Of the samples.

        Raises:
            ValueError: There are none, or nobody says how many.
        """
        if self.samples is not None:
            found = np.asarray(self.samples, np.int64)
        elif self.inputs is None and self.targets is None:
            raise ValueError("inputs, targets and samples are None on a rank: give one of them")
        else:
            found = np.arange(len(self.targets if self.inputs is None else self.inputs))
        if not found.size:
            raise ValueError("the batch has no samples: give at least one")
        return found


class Group:
    """The ranks of a mesh.

    Args:
        mesh: The ranks.
        microbatches: Of each replica.
        invariant: Whether parts of a batch are added up along the tree over all of them.
        algorithm: All-reduce algorithm of the sums over replicas; None for the communicator's
            choice.
        cuts: Parameters that the ranks of `mesh.tensor` have parts of; the others are whole there.

    Attributes:
        world, data, pipe, tensor: All ranks, and those along the axes of the mesh, as workers.
        count: Parts of a batch: the microbatches of all replicas.
        parts: Which of them are this replica's.
        tree_over: `count`, if they are added up along a tree; else None.
    """

    def __init__(
        self,
        mesh: Mesh,
        microbatches: int,
        invariant: bool,
        algorithm: str | None = None,
        cuts: Collection[str] = (),
    ) -> None:
        self.world, self.pipe, self.tensor = map(_workers, (mesh.world, mesh.pipe, mesh.tensor))
        self.data, self._cuts = _workers(mesh.data, algorithm), cuts
        self._replicas = mesh.data
        self.count = microbatches * mesh.data.size
        first = microbatches * mesh.data.rank
        self.parts = range(first, first + microbatches)
        self.tree_over = self.count if invariant else None
        self._is_first = True

    def require_equal(self, facts: Mapping[str, object]) -> None:
        """Raise `TrainingError` on all ranks if one was given other things; collective."""
        require_equal(self.world, facts, "give all ranks the same model and options")

    def together(self, what: str) -> AbstractContextManager[None]:
        """As `mpicoll.train.ranks.workers.together`."""
        return together(self.world, what)

    # --- samples ---

    def batches(self, given: Given, alone: bool) -> tuple[list[Batch], Failure | None]:
        """This replica's microbatches, without inputs and targets; if it is none, empty ones.

        Args:
            given: The batch.
            alone: Whether the loss of each is a mean of its own.
        """
        failure = None
        try:
            samples = given.indices()
        except Exception as error:
            samples, failure = np.arange(0), Failure.of("the samples", error)
        found = []
        for rows in self._rows(len(samples)):
            own = samples[rows]
            total = (len(own) if alone else len(samples)) / given.scale
            found.append(Batch(own[:0], own[:0], total, own, given.epoch, given.seed))
        return found, failure

    def filled(
        self, batches: Sequence[Batch], given: Given, first: bool, last: bool, dtype: np.dtype[Any]
    ) -> list[Batch]:
        """The same with what a stage reads: inputs of the first one, targets of the last one.

        Floating inputs are made the type of the model.

        Raises:
            ValueError: It was not given, or not for each sample.
        """
        count, found = len(given.indices()), list(batches)
        for name, values, wanted in (
            ("inputs", given.inputs, first),
            ("targets", given.targets, last),
        ):
            if not wanted:
                continue
            if values is None:
                raise ValueError(f"{name} are None on a rank that reads them: give the batch's")
            if len(values) != count:
                raise ValueError(
                    f"there are {len(values)} {name} of {count} samples: give one of each"
                )
            for index, rows in enumerate(self._rows(count)):
                own = np.asarray(values[rows])
                if name == "inputs" and own.dtype.kind not in "iub":
                    own = own.astype(dtype, copy=False)
                read: dict[str, Any] = {name: own}
                found[index] = replace(found[index], **read)
        return found

    def warn_of_empty(self, given: Given) -> None:
        """Say on rank 0 that the first batch has fewer samples than there are microbatches.

        Later ones may be short, as the last of an epoch often is.
        """
        count = len(given.indices())
        first, self._is_first = self._is_first, False
        if first and count < self.count and self.world.rank == 0:
            warnings.warn(
                f"{self.count - count} of {self.count} microbatches are empty: give at most "
                f"{max(count // self._replicas.size, 1)}",
                RuntimeWarning,
                stacklevel=4,
            )

    def _rows(self, count: int) -> list[slice]:
        cut = [part(count, self.count, index) for index in self.parts]
        return [slice(start, start + length) for start, length in cut]

    def agreed(self, failure: Failure | None) -> Failure | None:
        """What has gone wrong before a step; collective among ranks that share layers.

        All of them go through the step or none does: they need each other within each layer.
        """
        for other in self.tensor.gather(None if failure is None else failure.text):
            if failure is None and other is not None:
                failure = Failure(other)
        return failure

    # --- sums ---

    def losses(self, own: Mapping[int, float], failure: Failure | None, lost: bool) -> Array:
        """The losses of all parts of a batch, on all ranks; collective.

        Args:
            own: Of this rank's microbatches, where it has the last layers; of ranks that share
                these, the first one's count.
            failure: What has gone wrong on this rank.
            lost: Whether it was told that something has gone wrong.

        Raises:
            TrainingError: Something has gone wrong on some rank; on all, with the same message.
        """
        facts = np.zeros(2 + self.count)
        facts[:2] = failure is not None, lost
        for microbatch, loss in own.items() if self.tensor.rank == 0 else ():
            facts[2 + self.parts[microbatch]] = loss
        self.world.sum(facts)
        if facts[:2].any():
            self._refuse(failure)
        return facts[2:]

    def total(self, losses: Array) -> float:
        """The loss of the batch: the sum of its parts', in the order of their gradients."""
        if self.tree_over is not None:
            return tree.total_of_shards(map(float, losses))
        total = 0.0
        for loss in losses:  # Python's sum rounds otherwise from 3.12 on
            total += float(loss)
        return total

    def add_replicas(self, sums: Sums) -> None:
        """Let gradients be those of all replicas; collective among those of a stage."""
        rows, size = sums.rows, self._replicas.size
        if not rows.size:
            return
        if self.tree_over is None:
            self.data.sum(rows[0])
            return
        nodes = [tree.subtrees(self._parts_of(replica), self.count) for replica in range(size)]
        every = rows
        if self._replicas.comm is not None:
            counts = [len(own) * rows.shape[1] for own in nodes]
            every = np.empty((sum(map(len, nodes)), rows.shape[1]), rows.dtype)
            self._replicas.comm.Allgatherv(rows, [every, counts])
        all_nodes = [node for own in nodes for node in own]
        rows[0] = tree.total(dict(zip(all_nodes, every, strict=True)), self.count)

    def sum_of_replicas(self, nbytes: int) -> tuple[str, int]:
        """Name and bytes of the collective of `add_replicas`, of gradients of so many bytes."""
        if self.tree_over is None:
            return "allreduce", nbytes
        replicas = range(self._replicas.size)
        rows = sum(len(tree.subtrees(self._parts_of(r), self.count)) for r in replicas)
        return "allgather", rows * nbytes

    def _parts_of(self, replica: int) -> range:
        length = len(self.parts)
        return range(replica * length, (replica + 1) * length)

    def compare(self, parameters: Mapping[str, Array], pieces: bool = False) -> None:
        """Raise `TrainingError` if two ranks have other values of a parameter; collective.

        Args:
            parameters: Of this rank, by name.
            pieces: Whether each replica has pieces of its own.
        """
        known: dict[tuple[str, int, int], tuple[int, int]] = {}
        sums = {name: zlib.crc32(array.data) for name, array in parameters.items()}
        replica = self.data.rank if pieces else 0
        every = self.world.gather((self.tensor.rank, replica, sums))
        for rank, (own, replica, theirs) in enumerate(every):
            for name, found in theirs.items():
                place = name, own if name in self._cuts else 0, replica
                first, wanted = known.setdefault(place, (rank, found))
                if found != wanted:
                    raise TrainingError(
                        f"parameter {name} of rank {rank} differs from that of rank {first}: "
                        "change parameters by the gradients of a step alone, on all ranks alike"
                    )

    def norm(
        self, gradients: Mapping[str, Array], owners: Mapping[str, int], pieces: bool = False
    ) -> float:
        """Of the gradients of all stages, whole; collective.

        Args:
            gradients: Of this rank, by name.
            owners: The stage that counts a parameter, for each of the model.
            pieces: As of `compare`.
        """
        mine = [
            name
            for name, stage in owners.items()
            if stage == self.pipe.rank and (name in self._cuts or not self.tensor.rank)
        ]
        sums = norms.squares(gradients[name] for name in mine)
        self.tensor.sum(sums)
        self.pipe.sum(sums)
        if pieces:
            self.data.sum(sums)
        return norms.root(sums)

    def require_finite(self, gradients: Mapping[str, Array]) -> None:
        """Raise `NotFinite` on all ranks if a gradient is not finite on one; collective."""
        wrong = next((n for n, g in gradients.items() if not np.isfinite(g).all()), "")
        failure = Failure(f"the gradient of {wrong} is not finite") if wrong else None
        self.losses({}, failure, lost=False)

    def average(self, buffers: Mapping[str, Array], samples: int) -> None:
        """Let floating buffers be the mean over the replicas, by samples; collective."""
        floating = [array for array in buffers.values() if array.dtype.kind == "f"]
        if self._replicas.comm is None or not floating:
            return
        own = np.concatenate([array.reshape(-1) for array in floating], dtype=np.float64)
        values = np.append(own * samples if samples else np.zeros_like(own), samples)
        self.data.sum(values)
        means, start = values[:-1] / values[-1], 0
        for array in floating:
            array[...] = means[start : start + array.size].reshape(array.shape)
            start += array.size

    def _refuse(self, failure: Failure | None) -> NoReturn:
        """Say on all ranks what has gone wrong; an exception before what is not finite."""
        cause = None if failure is None else failure.error
        own = None if failure is None else failure.text
        every = self.world.gather((own, cause is not None))
        for rank, (text, is_error) in enumerate(every):
            if is_error:
                raise TrainingError(f"a step failed on rank {rank}: {text}") from cause
        for rank, (text, _) in enumerate(every):
            if text is not None:
                raise NotFinite(f"a step was left out, on rank {rank}: {text}")
        raise TrainingError(
            "ranks were given different numbers of samples: give all of them the same batch"
        )


def _workers(axis: Axis, algorithm: str | None = None) -> Workers:
    return Workers() if axis.comm is None else AllReduceWorkers(axis.comm, algorithm)
