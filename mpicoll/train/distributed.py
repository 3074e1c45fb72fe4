"""For a training loop of one's own: start from the same parameters, average gradients, update.

broadcast_parameters(parameters, comm)
optimizer = DistributedOptimizer(optimizers.make("adam"), parameters, comm)
for epoch in range(1, 11):
    for mine, total in DistributedSampler(len(labels), 64, comm).batches(epoch):
        gradients = ...                       # means over the rows `mine`
        optimizer.step(gradients, lr=1e-3, samples=len(mine))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from mpicoll.base.arrays import Array
from mpicoll.train.models.flat import Flat, described, require_names
from mpicoll.train.optimizers import Optimizer, empty_state
from mpicoll.train.ranks.workers import AllReduceWorkers, require_equal

if TYPE_CHECKING:
    from mpi4py import MPI


def broadcast_parameters(
    parameters: Mapping[str, Array], comm: MPI.Intracomm, root: int = 0
) -> None:
    """Copy the parameters of one rank to all; collective.

    Args:
        parameters: Arrays by name, changed in place.
        comm: The ranks.
        root: The rank whose parameters are copied.

    Raises:
        TrainingError: Names, shapes or types differ between ranks; on all ranks.
    """
    workers = AllReduceWorkers(comm, None)
    require_equal(workers, described(parameters), "give all ranks the same model")
    for array in parameters.values():
        packed = np.ascontiguousarray(array)
        comm.Bcast(packed, root=root)
        array[...] = packed


def average_gradients(
    gradients: Mapping[str, Array],
    comm: MPI.Intracomm,
    samples: int | None = None,
    *,
    algorithm: str | None = None,
) -> dict[str, Array]:
    """Mean of the ranks' gradients, each weighted by the samples it is a mean of; collective.

    Args:
        gradients: This rank's mean gradients by name, one floating type, same shapes on all ranks.
        comm: The ranks.
        samples: How many samples of this rank they are means of; None: as many as any other's.
        algorithm: All-reduce algorithm, None for the communicator's choice.

    Returns:
        New arrays. Zeros, if no rank has samples.

    Raises:
        TypeError: Types differ, or are no floating types.
        ValueError: `samples` is negative.
    """
    if samples is not None and samples < 0:
        raise ValueError(f"samples is {samples}: give the number of samples, at least 0")
    return _averaged(Flat(gradients), comm, 1 if samples is None else samples, algorithm)


class DistributedOptimizer:
    """An optimizer that updates by the mean of all ranks' gradients.

    Args:
        optimizer: Such as `mpicoll.train.optimizers.make("adam")`.
        parameters: Arrays by name, changed in place; equal on all ranks.
        comm: The ranks.
        algorithm: All-reduce algorithm, None for the communicator's choice.

    Attributes:
        updates: Steps made.
        state: Arrays of the optimizer by parameter and slot.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        parameters: Mapping[str, Array],
        comm: MPI.Intracomm,
        *,
        algorithm: str | None = None,
    ) -> None:
        self._optimizer, self._parameters, self._comm = optimizer, parameters, comm
        self._algorithm = algorithm
        self._sums = Flat({name: np.zeros_like(array) for name, array in parameters.items()})
        self._samples = 0
        self.updates = 0
        self.state = {name: empty_state(optimizer, array) for name, array in parameters.items()}

    def accumulate(self, gradients: Mapping[str, Array], samples: int = 1) -> None:
        """Keep gradients of a batch for the next step; nothing is sent.

        Args:
            gradients: Means over the samples, by name.
            samples: How many; batches count by them.

        Raises:
            ValueError: Names or shapes are not those of the parameters, or `samples` is negative.
        """
        if samples < 0:
            raise ValueError(f"samples is {samples}: give the number of samples, at least 0")
        require_names(gradients, self._sums.views)
        for name, gradient in gradients.items():
            view = self._sums.view(name, gradient)
            if samples:  # what is a mean of nothing may be not a number
                view += samples * gradient
        self._samples += samples

    def step(self, gradients: Mapping[str, Array], lr: float, samples: int = 1) -> None:
        """Update the parameters by the mean over all samples of all ranks; collective.

        A rank without samples takes part with `samples=0`.

        Args:
            gradients: As in `accumulate`, of the last batch of the step.
            lr: Learning rate.
            samples: As in `accumulate`.
        """
        self.accumulate(gradients, samples)
        if self._samples:
            self._sums.vector /= self._samples
        means = _averaged(self._sums, self._comm, self._samples, self._algorithm)
        self._sums.vector[:] = 0
        self._samples = 0
        self.updates += 1
        for name, weights in self._parameters.items():
            self._optimizer.update(weights, means[name], self.state[name], lr, self.updates)


def _averaged(
    flat: Flat, comm: MPI.Intracomm, samples: int, algorithm: str | None
) -> dict[str, Array]:
    workers = AllReduceWorkers(comm, algorithm)
    total = np.array([float(samples)])
    workers.sum(total)
    summed = Flat(flat.views)
    if samples:
        summed.vector *= samples / total[0]
    else:  # what is a mean of nothing may be not a number
        summed.vector[:] = 0
    workers.sum(summed.vector)
    return summed.views
