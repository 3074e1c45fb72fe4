"""A PyTorch module as a layer; tensors and arrays look at the same memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mpicoll.base.arrays import Array
from mpicoll.train.data.batch import Batch
from mpicoll.train.models.flat import Parameters
from mpicoll.train.models.layers import Layer, Outputs, Shape, Slopes


class TorchLayer(Layer):
    """A module of PyTorch in a chain of layers.

    `forward` keeps the graph that autograd has made, `backward` goes along it.  The module is
    called with the parameters that are passed in; its own are what a run begins with, on rank 0,
    and stay as they are.  PyTorch draws dropout by rank.

    Args:
        module: Takes the samples as one tensor, and gives one tensor with a row for each.
        name: Of the layer; layers of one name share their parameters.

    Raises:
        ValueError: A parameter is not on the CPU.
    """

    keeps_outputs = True

    def __init__(self, module: torch.nn.Module, name: str | None = None) -> None:
        for own, parameter in module.named_parameters():
            if parameter.device.type != "cpu":
                raise ValueError(
                    f"parameter {own} is on {parameter.device}: move the module to the CPU"
                )
        self._module, self.name = module, name
        self._trained = [own for own, p in module.named_parameters() if p.requires_grad]

    def output_shape(self, shape: Shape) -> Shape:
        """Found by a call of the module with one sample of zeros."""
        try:
            outputs = self._evaluated({}, self._sample(shape, 1))
        except (RuntimeError, IndexError) as error:
            raise ValueError(
                f"{type(self._module).__name__} takes no samples of shape {shape}: {error}"
            ) from None
        return tuple(outputs.shape[1:])

    def initial(self, shape: Shape, generator: np.random.Generator) -> dict[str, Array]:
        """Those that the module has."""
        return {
            name: parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32)).numpy()
            for name, parameter in self._module.named_parameters()
            if name in self._trained
        }

    def buffers(self, shape: Shape) -> dict[str, Array]:
        """Those that the module has and saves."""
        saved = self._module.state_dict()
        return {
            name: buffer.detach().numpy().copy()
            for name, buffer in self._module.named_buffers()
            if name in saved
        }

    def forward(self, parameters: Parameters, inputs: Array, batch: Batch | None) -> Outputs:
        values = torch.from_numpy(np.ascontiguousarray(inputs))
        if not values.is_floating_point():
            values = values.long()  # as tables of PyTorch take their rows
        tensors = {name: torch.from_numpy(array) for name, array in parameters.items()}
        if batch is None:
            return self._evaluated(tensors, values).numpy(), None
        for tensor in (values, *(tensors[name] for name in self._trained)):
            if tensor.is_floating_point():
                tensor.requires_grad_()
        self._module.train()
        with torch.enable_grad():
            outputs = torch.func.functional_call(self._module, tensors, (values,))
        return outputs.detach().numpy(), (values, tensors, outputs)

    def backward(self, parameters: Parameters, memory: Any, error: Array, first: bool) -> Slopes:
        values, tensors, _ = memory
        wanted = {name: tensors[name] for name in self._trained}
        if values.requires_grad and not first:
            wanted[""] = values
        found = _slopes(memory, wanted, error)
        return found.pop("", None), found

    def backward_input(
        self, parameters: Parameters, memory: Any, error: Array, first: bool
    ) -> tuple[Array | None, Array]:
        """The first part of `backward`; the second needs what it returns beside the slopes."""
        values = memory[0]
        wanted = {"": values} if values.requires_grad and not first else {}
        return _slopes(memory, wanted, error, more=True).get(""), error

    def backward_weight(self, parameters: Parameters, memory: Any, kept: Array) -> dict[str, Array]:
        """The second part of `backward`, at any later time."""
        tensors = memory[1]
        return _slopes(memory, {name: tensors[name] for name in self._trained}, kept)

    def random_state(self) -> torch.Tensor:
        """That of PyTorch's generator of the CPU, which all modules draw from."""
        return torch.get_rng_state()

    def set_random_state(self, state: torch.Tensor) -> None:
        """Go back to it."""
        torch.set_rng_state(state)

    def kept(self, shape: Shape) -> int:
        """Found by a call of the module in training, with two samples of zeros.

        Counted is what autograd keeps for the backward pass beside parameters, inputs and outputs;
        memory that several tensors look at counts once.
        """
        values = self._sample(shape, 2)
        tensors = {
            name: tensor.detach().clone().requires_grad_(name in self._trained)
            for name, tensor in (*self._module.named_parameters(), *self._module.named_buffers())
        }
        known = {t.untyped_storage().data_ptr() for t in (values, *tensors.values())}
        found: dict[int, int] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                found[storage.data_ptr()] = storage.nbytes()
            return tensor

        state = self.random_state()
        self._module.train()
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            outputs = torch.func.functional_call(self._module, tensors, (values,))
        self.set_random_state(state)
        found.pop(outputs.untyped_storage().data_ptr(), None)
        return math.ceil(sum(found.values()) / (2 * outputs.element_size()))

    def _sample(self, shape: Shape, count: int) -> torch.Tensor:
        """Samples of zeros, in a type that the module takes."""
        trained = next(self._module.parameters(), None)
        dtype = torch.get_default_dtype() if trained is None else trained.dtype
        values = torch.zeros((count, *shape), dtype=dtype)
        try:
            self._evaluated({}, values)
        except (RuntimeError, IndexError):  # as of tables, which take whole numbers
            return torch.zeros((count, *shape), dtype=torch.long)
        return values.requires_grad_()

    def _evaluated(self, tensors: Mapping[str, torch.Tensor], values: torch.Tensor) -> torch.Tensor:
        self._module.eval()
        with torch.no_grad():
            outputs: torch.Tensor = torch.func.functional_call(
                self._module, dict(tensors), (values,)
            )
        return outputs


def _slopes(
    memory: Any, wanted: Mapping[str, torch.Tensor], error: Array, more: bool = False
) -> dict[str, Array]:
    """Slopes of the loss by some of the tensors that a call was made with.

    Args:
        memory: As `forward` gives it.
        wanted: The tensors by name.
        error: Slopes of the loss by the outputs.
        more: Whether others will be asked for later: the graph stays.
    """
    if not wanted:
        return {}
    found = torch.autograd.grad(
        memory[2],
        list(wanted.values()),
        torch.from_numpy(np.ascontiguousarray(error)),
        retain_graph=more,
        allow_unused=True,
        materialize_grads=True,
    )
    return {name: slope.numpy() for name, slope in zip(wanted, found, strict=True)}
