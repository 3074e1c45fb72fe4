"""An all-reduce over a list of arrays: small ones travel together, in buckets.

One message of many small vectors costs one latency instead of many.  Consecutive arrays of one type
fill a bucket up to :data:`BUCKET` bytes; a larger array goes by itself, and is not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from mpicoll import buffers
from mpicoll.buffers import Bytes
from mpicoll.call import METHODS
from mpicoll.collectives import Place

__all__ = ["BUCKET", "Bucket", "buckets", "is_list"]

#: Bytes from which on fusing gains nothing: latency is small beside the transfer.
BUCKET = 1 << 20


class Bucket(NamedTuple):
    """Arrays reduced as one.

    Attributes:
        dtype: of their elements.
        given, wanted: memory of each input and output; the same ones in place.
    """

    dtype: np.dtype[Any]
    given: list[Bytes]
    wanted: list[Bytes]

    def reduce(self, allreduce: Callable[[Any, Any], None]) -> None:
        """Reduce by an all-reduce of one send and one receive buffer."""
        if len(self.given) == 1:
            given, wanted = self.given[0], self.wanted[0]
            in_place = given is wanted
            allreduce(MPI.IN_PLACE if in_place else given.view(self.dtype), wanted.view(self.dtype))
            return
        memory = np.concatenate(self.given)
        allreduce(MPI.IN_PLACE, memory.view(self.dtype))
        offset = 0
        for target in self.wanted:
            target[:] = memory[offset : offset + target.size]
            offset += target.size


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
        TypeError, ValueError, BufferError, Unsupported: see :func:`mpicoll.buffers.operands`;
            the number of the array stands before the message.
    """
    if send is not MPI.IN_PLACE and (not is_list(send) or len(send) != len(recv)):
        raise ValueError(
            f"the receive buffer is a list of {len(recv)} arrays, so the send buffer must be one "
            "too, or MPI.IN_PLACE"
        )
    pairs = [_pair(place, send, recv, number) for number in range(len(recv))]
    found: list[Bucket] = []
    held = BUCKET
    for dtype, given, wanted in pairs:
        if held + given.size > BUCKET or found[-1].dtype != dtype:
            found.append(Bucket(dtype, [], []))
            held = 0
        found[-1].given.append(given)
        found[-1].wanted.append(wanted)
        held += given.size
    return found


def _pair(
    place: Place, send: Any, recv: Sequence[Any], number: int
) -> tuple[np.dtype[Any], Bytes, Bytes]:
    """Type and memory of one array, in and out."""
    given = send if send is MPI.IN_PLACE else send[number]
    try:
        pair = buffers.operands(METHODS["Allreduce"], place, given, recv[number])
    except (TypeError, ValueError, BufferError) as error:
        raise type(error)(f"array {number} of the list: {error}") from None
    assert pair.send is not None and pair.recv is not None and pair.recv.dtype is not None
    return pair.recv.dtype, pair.send.memory, pair.recv.memory
