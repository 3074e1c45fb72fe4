"""PyTorch modules: trained by `mpicoll.train.run`, or in a loop of your own::

    run(config, comm, dataset=data, model=TorchModel(module))

    optimizer = DistributedOptimizer(torch.optim.Adam(module.parameters()), module, comm)
    for mine, total in DistributedSampler(len(labels), 64, comm).batches(epoch):
        optimizer.weight = len(mine) / total
        loss(module(inputs[mine]), labels[mine]).backward()    # buckets leave meanwhile
        optimizer.step()

Tensors must be on the CPU; NumPy and PyTorch use the same memory. Only this module and
`mpicoll.torch` import PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from mpicoll.base.arrays import Array, dtype_of
from mpicoll.train.data.batch import Batch
from mpicoll.train.data.loaders import from_loader
from mpicoll.train.exchange import transfers
from mpicoll.train.exchange import wire as formats
from mpicoll.train.exchange.buckets import Exchange
from mpicoll.train.models.flat import Flat, Parameters, described
from mpicoll.train.models.networks import Push, PushingModel
from mpicoll.train.models.torch_layer import TorchLayer
from mpicoll.train.ranks.workers import AllReduceWorkers, require_equal

if TYPE_CHECKING:
    from mpi4py import MPI


__all__ = [
    "DistributedOptimizer",
    "TorchLayer",
    "TorchModel",
    "TorchSchedule",
    "arrays",
    "from_loader",
]


def arrays(module: torch.nn.Module) -> dict[str, Array]:
    """The trained parameters of a module by name, as arrays of the same memory.

    Raises:
        ValueError: One is not on the CPU, or there are none.
    """
    found = {}
    for name, parameter in _trained(module):
        if parameter.device.type != "cpu":
            raise ValueError(
                f"parameter {name} is on {parameter.device}: move the module to the CPU, or train "
                "it by torch.nn.parallel.DistributedDataParallel"
            )
        found[name] = _array(parameter.detach())
    if not found:
        raise ValueError("no parameter of the module is trained: let one require gradients")
    return found


def _trained(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return (item for item in module.named_parameters() if item[1].requires_grad)


def _array(tensor: torch.Tensor) -> Array:
    """A tensor as an array of the same memory."""
    if tensor.dtype is not torch.bfloat16:
        return tensor.numpy()
    return tensor.view(torch.int16).numpy().view(dtype_of("bfloat16"))


def _tensor(array: Array) -> torch.Tensor:
    """An array as a tensor of the same memory."""
    if array.dtype.name != "bfloat16":
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


class TorchModel(PushingModel):
    """A module as a `mpicoll.train.Model`.

    A run trains the module's own parameters, starting from rank 0's values. They become views of
    the run's vector, without copies. Batch norms normalise each rank's part of a batch. Their
    statistics, like all buffers in the module's `state_dict`, are averaged over the ranks, weighted
    by samples, before they are evaluated, saved or returned. PyTorch draws dropout by rank.

    Args:
        module: Its outputs go to the loss: for cross entropy a score of each class, shape (samples,
            classes).
        shape: Shape of a sample for the module; None for that of the data.
        loss: Function of outputs and targets that returns the loss of each sample, shape
            (samples,); None for cross entropy.

    Raises:
        ValueError: As `arrays`.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        shape: tuple[int, ...] | None = None,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        arrays(module)
        self._module, self._shape = module, shape
        self._loss = loss or partial(torch.nn.functional.cross_entropy, reduction="none")
        self._parameters = dict(_trained(module))
        saved = module.state_dict()
        self._buffers = [name for name, _ in module.named_buffers() if name in saved]
        self._push: Push | None = None
        for name, parameter in self._parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(self._found, name))

    @property
    def name(self) -> str:
        """What a report calls the model: the module's class."""
        return type(self._module).__name__

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        # Those that the module has.
        return {
            name: array.astype(np.promote_types(array.dtype, np.float32))
            for name, array in arrays(self._module).items()
        }

    def initial_buffers(self) -> dict[str, Array]:
        """Those that the module has."""
        return {name: _array(tensor).copy() for name, tensor in self._kept().items()}

    def push_gradients(self, parameters: Parameters, batch: Batch, push: Push) -> float:
        self._bind(parameters)
        self._module.train()
        self._missing = dict.fromkeys(self._parameters)
        total = 0.0
        if len(batch.targets):
            losses = self._losses(batch.inputs, batch.targets)[0].sum() / batch.total
            for name, tensor in self._kept().items():
                parameters[name][...] = _array(tensor)
            self._push = push
            try:
                losses.backward()
            finally:
                self._push = None
            total = float(losses.detach())
        for name in list(self._missing):
            push(name, None)
        return total

    def losses_and_outputs(
        self, parameters: Parameters, inputs: Array, targets: Array
    ) -> tuple[Array, Array]:
        self._bind(parameters)
        self._module.eval()
        with torch.no_grad():
            losses, outputs = self._losses(inputs, targets)
        return losses.numpy(), _array(outputs)

    def _losses(self, inputs: Array, targets: Array) -> tuple[torch.Tensor, torch.Tensor]:
        values = self._tensor(inputs)
        if self._shape is not None:
            values = values.reshape(len(inputs), *self._shape)
        outputs = self._module(values)
        losses = self._loss(outputs, self._tensor(targets))
        # Sums of narrow losses, scaled, would overflow.
        return losses.to(torch.promote_types(losses.dtype, torch.float32)), outputs

    def _tensor(self, values: Array) -> torch.Tensor:
        """Class numbers and tokens are whole numbers of 64 bits, others of the module's type."""
        if values.dtype.kind in "iu":
            return torch.from_numpy(values.astype(np.int64))
        return _tensor(values).to(next(iter(self._parameters.values())).dtype)

    def _bind(self, parameters: Parameters) -> None:
        """Let the module's parameters lie where those of the run are; its buffers are copies."""
        for name, parameter in self._parameters.items():
            array = parameters[name]
            if parameter.data_ptr() != array.ctypes.data:
                parameter.data = _tensor(array)
        for name, tensor in self._kept().items():
            tensor.copy_(_tensor(parameters[name]))

    def _kept(self) -> dict[str, torch.Tensor]:
        """The buffers of a run by name; a module may put other tensors in their place."""
        found = dict(self._module.named_buffers())
        return {name: found[name].detach() for name in self._buffers}

    def _found(self, name: str, parameter: torch.Tensor) -> None:
        """Autograd has a gradient; somebody else's, if this model has asked for none."""
        if self._push is None:
            return
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        del self._missing[name]
        self._push(name, _array(gradient))


class DistributedOptimizer:
    """Updates a module by the sum of the ranks' gradients, added during the backward pass.

    Parameters and buffers of the module are first set to those of rank 0. The all-reduce of a
    bucket starts as soon as all its gradients are computed. A step has the gradients of one
    backward pass; with `no_sync` those of earlier passes are added.

    Args:
        optimizer: An optimizer of PyTorch over the module's parameters.
        module: A module on the CPU whose trained parameters have one floating type.
        comm: The ranks; collective.
        bucket: Bytes of gradients summed together, None for `exchange.default_bucket`.
        algorithm: All-reduce algorithm, None for the communicator's choice.
        wire: Type of gradients in messages, as in `mpicoll.train.Config`.

    Attributes:
        weight: Factor of this rank's gradients: 1 / P gives the mean of the ranks' means.
        optimizer: PyTorch's.
        exposed, hidden: Seconds of the last step that the exchange took by itself, and in which
            buckets were under way during the backward pass.

    Raises:
        TrainingError: Names, shapes or types differ between ranks; on all ranks.
        TypeError: Parameters are of several types.
        ValueError: As `arrays`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        module: torch.nn.Module,
        comm: MPI.Intracomm,
        *,
        bucket: int | None = None,
        algorithm: str | None = None,
        wire: str = "full",
    ) -> None:
        self.optimizer = optimizer
        workers = AllReduceWorkers(comm, algorithm)
        own = arrays(module)
        require_equal(workers, described(own), "give all ranks the same module")
        for tensor in module.state_dict().values():
            packed = np.ascontiguousarray(tensor.numpy())
            workers.broadcast(packed)
            tensor.copy_(torch.from_numpy(packed))
        self._flat = Flat({name: np.zeros_like(a, order="C") for name, a in own.items()})
        self._views = {name: torch.from_numpy(view) for name, view in self._flat.views.items()}
        self._parameters = dict(_trained(module))
        self._exchange = Exchange(
            workers, self._flat, bucket, 1, transfers.summing(formats.codec(wire))
        )
        self.weight = 1.0 / workers.size
        self._waits = False
        self._handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._found, name))
            for name, parameter in self._parameters.items()
        ]
        self._begin()

    @property
    def exposed(self) -> float:
        """See `DistributedOptimizer`."""
        return self._exchange.exposed

    @property
    def hidden(self) -> float:
        """See `DistributedOptimizer`."""
        return self._exchange.hidden

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in the block add to the gradients of this rank, and nothing is sent."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def step(self) -> None:
        """Wait for the sums, update the parameters, and forget the gradients; collective."""
        for name in list(self._missing):  # unused in this pass, perhaps used in an earlier one
            self._send(name, self._parameters[name].grad)
        self._exchange.finish()
        for name, parameter in self._parameters.items():
            parameter.grad = self._views[name]
        self.optimizer.step()
        self._exchange.commit()
        for parameter in self._parameters.values():
            parameter.grad = None  # so that autograd gives its own and copies nothing
        self._begin()

    def free(self) -> None:
        """Leave the module alone, and free what the ranks made together; collective."""
        for handle in self._handles:
            handle.remove()
        self._exchange.free()

    def _begin(self) -> None:
        self._missing = dict.fromkeys(self._parameters)
        self._exchange.begin()

    def _found(self, name: str, parameter: torch.Tensor) -> None:
        """Autograd has added to the gradient of a parameter."""
        if self._waits:
            return
        if name not in self._missing:
            raise RuntimeError(
                f"a second gradient of {name} before step(): let all backward passes of a step but "
                "the last run in no_sync()"
            )
        self._send(name, parameter.grad)

    def _send(self, name: str, gradient: torch.Tensor | None) -> None:
        del self._missing[name]
        view = self._flat.views[name]
        if gradient is None:
            view[...] = 0
        else:
            np.multiply(gradient.detach().numpy(), view.dtype.type(self.weight), out=view)
        self._exchange.ready(name)


class TorchSchedule:
    """A scheduler of `torch.optim.lr_scheduler`, for `mpicoll.train.run(..., schedule=...)`::

        schedule = TorchSchedule(lambda optimizer: StepLR(optimizer, step_size=1000), lr=0.1)

    It is stepped once for each step of the run, from the first on, also if the run resumes.

    Args:
        make: Returns the scheduler for an optimizer.
        lr: Learning rate of that optimizer.

    Raises:
        ValueError: The scheduler follows measurements.
    """

    def __init__(
        self,
        make: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler],
        lr: float,
    ) -> None:
        # Nothing is trained by it: its rate is read.
        self._optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr)
        self._scheduler = make(self._optimizer)
        if isinstance(self._scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ValueError(
                "ReduceLROnPlateau follows measurements, and a run asks for the rate of each step "
                "before the first: give a scheduler that counts steps"
            )
        self._rates: list[float] = []

    def __call__(self, step: int) -> float:
        """The learning rate of a step, counted from 1."""
        while len(self._rates) < step:
            self._rates.append(float(self._optimizer.param_groups[0]["lr"]))
            self._optimizer.step()
            self._scheduler.step()
        return self._rates[step - 1]
