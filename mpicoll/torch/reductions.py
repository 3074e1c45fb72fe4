"""PyTorch's reduce operators, as MPI's with work before and after."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from mpi4py import MPI
from torch.distributed import ReduceOp

from mpicoll.torch.tensors import buffer

_KINDS = ReduceOp.RedOpType
_OPERATORS = {
    _KINDS.SUM: MPI.SUM,
    _KINDS.AVG: MPI.SUM,
    _KINDS.PREMUL_SUM: MPI.SUM,
    _KINDS.PRODUCT: MPI.PROD,
    _KINDS.MIN: MPI.MIN,
    _KINDS.MAX: MPI.MAX,
    _KINDS.BAND: MPI.BAND,
    _KINDS.BOR: MPI.BOR,
    _KINDS.BXOR: MPI.BXOR,
}
#: Of booleans, whose sum is true where one of them is.
_LOGICAL = {
    _KINDS.SUM: MPI.LOR,
    _KINDS.PRODUCT: MPI.LAND,
    _KINDS.MIN: MPI.LAND,
    _KINDS.MAX: MPI.LOR,
    _KINDS.BAND: MPI.LAND,
    _KINDS.BOR: MPI.LOR,
    _KINDS.BXOR: MPI.LXOR,
}
_BITWISE = (_KINDS.BAND, _KINDS.BOR, _KINDS.BXOR)
_ORDERED = (_KINDS.MIN, _KINDS.MAX)


class Reduction(NamedTuple):
    """How tensors of one type are reduced.

    Attributes:
        op: MPI's operator.
        average: whether the result is divided by the number of ranks.
        scaled: whether each rank's elements are multiplied first.
        factor: by this.
    """

    op: MPI.Op
    average: bool = False
    scaled: bool = False
    factor: Any = None


def reduction(op: Any, dtype: torch.dtype, what: str) -> Reduction:
    """How PyTorch's operator reduces tensors of a type.

    Raises:
        TypeError: it does not.
    """
    kind = op.op if isinstance(op, ReduceOp) else op
    found = _known(kind.value, dtype)
    if found is None:
        raise TypeError(
            f"{what}: {kind} of {dtype} tensors is not defined; convert them by tensor.to, or take "
            "another operator"
        )
    return found._replace(factor=_factor(op)) if found.scaled else found


@cache
def _known(number: int, dtype: torch.dtype) -> Reduction | None:
    """The same for what is defined, without a factor; None for what is not.

    By the kind's number: PyTorch's own objects are slow to compare.
    """
    kind = _KINDS(number)
    narrow = dtype is torch.complex32 or (dtype.is_floating_point and dtype.itemsize == 1)
    bits = kind in _BITWISE and (dtype.is_floating_point or dtype.is_complex)
    if narrow or bits or (kind in _ORDERED and dtype.is_complex):
        return None
    found = (_LOGICAL if dtype is torch.bool else _OPERATORS).get(kind)
    if found is None:
        return None
    return Reduction(found, kind == _KINDS.AVG, kind == _KINDS.PREMUL_SUM)


def _factor(op: Any) -> Any:
    """The number or tensor of a PREMUL_SUM; PyTorch before 2.8 shows it to pickle alone."""
    factor = op.__getstate__()[1]
    return factor.detach() if isinstance(factor, torch.Tensor) else factor


def operand(tensor: torch.Tensor, how: Reduction) -> torch.Tensor:
    """A dense tensor as this rank gives it."""
    if not how.scaled:
        return tensor
    return (tensor * how.factor).to(tensor.dtype)


def average(tensor: torch.Tensor, ranks: int) -> None:
    """Divide sums, in their memory; integers towards zero, as NCCL does."""
    exact = tensor.is_floating_point() or tensor.is_complex()
    tensor.div_(ranks, rounding_mode=None if exact else "trunc")


def array(tensor: torch.Tensor) -> Any:
    """What a communicator takes to reduce a dense tensor: an array of the same memory.

    Raises:
        ModuleNotFoundError: bfloat16, and ml_dtypes is not installed.
    """
    if tensor.is_cuda:
        return buffer(tensor)
    if tensor.dtype is torch.bfloat16:
        return buffer(tensor).view(_bfloat16())
    return tensor.numpy()


@cache
def _bfloat16() -> Any:
    try:
        from ml_dtypes import bfloat16
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "sums of bfloat16 need ml_dtypes: pip install mpicoll[torch]"
        ) from error
    return bfloat16
