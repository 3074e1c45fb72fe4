"""Tensors as the buffers that a communicator takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from mpicoll.base.wording import plural

#: The types that NumPy or an MPI library has no name for, and others of the same size.
_STAND_INS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.complex32: torch.int32}
_STAND_INS |= {
    getattr(torch, name): torch.uint8 for name in dir(torch) if name.startswith("float8_")
}
DEVICES = ("cpu", "cuda")


def dense(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """The tensor without its gradient; a copy in row-major order if it is not in that order.

    Raises:
        TypeError: it is sparse, or quantized.
        ValueError: it is on another device than the CPU or a CUDA device.
    """
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        raise TypeError(f"{what}: a tensor of layout {layout}; pass a dense one: tensor.to_dense()")
    if not (tensor.is_cpu or tensor.is_cuda):
        raise ValueError(
            f"{what}: a tensor on {tensor.device}, and mpicoll takes {' and '.join(DEVICES)}; pass "
            "tensor.cpu()"
        )
    if tensor.is_quantized:
        raise TypeError(f"{what}: a quantized tensor; pass tensor.int_repr()")
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    return tensor.resolve_conj().resolve_neg().contiguous()


def buffer(tensor: torch.Tensor) -> Any:
    """What a communicator takes to move a dense tensor: an array of the same memory."""
    kind = tensor.dtype
    if tensor.is_cuda:
        plain = kind is not torch.bool and (kind.itemsize > 1 or kind not in _STAND_INS)
        return tensor if plain else tensor.view(torch.uint8)
    stand_in = _STAND_INS.get(kind)
    return (tensor if stand_in is None else tensor.view(stand_in)).numpy()


def write_back(target: torch.Tensor, held: torch.Tensor) -> None:
    """Copy what stands for a tensor to it, if that is another memory."""
    if held.data_ptr() != target.data_ptr():
        target.detach().copy_(held)


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two dense tensors share memory."""
    first, second = a.data_ptr(), b.data_ptr()
    return first < second + b.nbytes and second < first + a.nbytes


def one(tensors: Any, what: str) -> torch.Tensor:
    """The tensor of a list of one.

    Raises:
        ValueError: there are more, or none.
    """
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{what}: {plural(len(tensors), 'tensor')}; pass one a rank")
    found: torch.Tensor = tensors[0]
    return found


def alike(tensors: Iterable[torch.Tensor], what: str) -> torch.dtype:
    """The type of elements, and the device, that tensors of one call share.

    Raises:
        TypeError, ValueError: they do not.
    """
    found = {(tensor.dtype, tensor.device) for tensor in tensors}
    if len({dtype for dtype, _ in found}) > 1:
        kinds = ", ".join(sorted(str(dtype) for dtype, _ in found))
        raise TypeError(f"{what}: tensors of several types ({kinds}); pass tensors of one")
    if len(found) > 1:
        places = ", ".join(sorted(str(device) for _, device in found))
        raise ValueError(f"{what}: tensors on several devices ({places}); move them to one")
    return next(iter(found))[0]


def packed(tensors: Sequence[torch.Tensor], what: str) -> torch.Tensor:
    """The elements of tensors, one behind the other."""
    return torch.cat([dense(tensor, what).reshape(-1) for tensor in tensors])


def unpack(memory: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy elements that lie one behind the other to tensors."""
    at = 0
    for tensor in tensors:
        count = tensor.numel()
        tensor.detach().copy_(memory[at : at + count].view(tensor.shape))
        at += count
