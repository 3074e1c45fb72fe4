"""An all-reduce over a list of arrays: small ones travel together, in buckets.

One message of many small vectors costs one latency instead of many.  Consecutive arrays of one type
fill a bucket up to :data:`BUCKET` bytes; a larger array goes by itself, and is not copied, and so
does one in device memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from mpicoll.base.wording import plural
from mpicoll.buffers.buffer import Buffer
from mpicoll.buffers.pair import operands
from mpicoll.schedule.collectives import COLLECTIVES, Place

#: Bytes from which on fusing gains nothing: latency is small beside the transfer.
BUCKET = 1 << 20


class Bucket(NamedTuple):
    """Arrays reduced as one.

    Attributes:
        dtype: of their elements.
        pairs: each input and output; the same buffer in place.
    """

    dtype: np.dtype[Any]
    pairs: list[tuple[Buffer, Buffer]]

    def reduce(self, allreduce: Callable[[Any, Any], None]) -> None:
        """Reduce by an all-reduce of one send and one receive buffer."""
        first, last = self.pairs[0]
        if last.device is not None:
            allreduce(MPI.IN_PLACE if first is last else _owner(first), _owner(last))
            return
        for given, _ in self.pairs:
            if given.packed is not None:
                given.packed.load()
        if len(self.pairs) == 1:
            given, wanted = self.pairs[0]
            send = MPI.IN_PLACE if given is wanted else given.memory.view(self.dtype)
            allreduce(send, wanted.memory.view(self.dtype))
        else:
            memory = np.concatenate([given.memory for given, _ in self.pairs])
            allreduce(MPI.IN_PLACE, memory.view(self.dtype))
            offset = 0
            for _, wanted in self.pairs:
                wanted.memory[:] = memory[offset : offset + wanted.memory.size]
                offset += wanted.memory.size
        for _, wanted in self.pairs:
            if wanted.packed is not None:
                wanted.packed.write_back()


def is_list(message: Any) -> bool:
    """Whether a receive buffer is a list of arrays, not one array with a count or datatype."""
    return (
        isinstance(message, (list, tuple))
        and len(message) > 0
        and all(hasattr(item, "shape") and np.ndim(item) for item in message)
    )


def buckets(place: Place, send: Any, recv: Sequence[Any]) -> list[Bucket]:
    """Check a list of arrays, and put them into buckets.

    Args:
        place: of the all-reduce.
        send: as many arrays of the same types and sizes, or ``MPI.IN_PLACE``.
        recv: arrays.

    Raises:
        TypeError, ValueError, BufferError, Unsupported: see :func:`mpicoll.buffers.pair.operands`;
            the number of the array stands before the message.
    """
    if send is not MPI.IN_PLACE and (not is_list(send) or len(send) != len(recv)):
        raise ValueError(
            f"the receive buffer is a list of {plural(len(recv), 'array')}, so the send buffer "
            "must be a list of as many, or MPI.IN_PLACE"
        )
    pairs = [_pair(place, send, recv, number) for number in range(len(recv))]
    found: list[Bucket] = []
    held = BUCKET
    for given, wanted in pairs:
        assert wanted.dtype is not None
        alone = wanted.device is not None
        if alone or held + given.memory.size > BUCKET or found[-1].dtype != wanted.dtype:
            found.append(Bucket(wanted.dtype, []))
            held = 0
        found[-1].pairs.append((given, wanted))
        held += BUCKET if alone else given.memory.size
    return found


def _owner(buffer: Buffer) -> Any:
    """An array in device memory as the caller gave it."""
    assert buffer.device is not None
    return buffer.device.owner


def _pair(place: Place, send: Any, recv: Sequence[Any], number: int) -> tuple[Buffer, Buffer]:
    """One array, in and out."""
    given = send if send is MPI.IN_PLACE else send[number]
    try:
        pair = operands(COLLECTIVES["allreduce"], place, given, recv[number])
    except (TypeError, ValueError, BufferError) as error:
        raise type(error)(f"array {number} of the list: {error}") from None
    assert pair.send is not None and pair.recv is not None
    return pair.send, pair.recv
