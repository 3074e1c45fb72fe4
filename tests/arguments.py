"""Arguments of any collective, and calls with them."""

import numpy as np
from mpi4py import MPI

from mpicoll.schedule import collectives

P, RANK = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank


def fill(dtype, count, rank):
    """Small numbers, so that sums and products are exact in every type."""
    numbers = (np.arange(count) + rank) % 3 + (rank == 1)
    if np.dtype(dtype).names:
        pairs = np.zeros(count, dtype)
        value, index = pairs.dtype.names
        pairs[value], pairs[index] = numbers, rank
        return pairs
    return (numbers + 1j * (rank % 2) if np.dtype(dtype).kind == "c" else numbers).astype(dtype)


def made(name, count, dtype, root, in_place):
    """Arguments of one rank: (send, recv), the latter filled with something to be overwritten."""
    definition = collectives.collective(name)
    blocks = P if definition.block_per_rank else 1
    place = collectives.Place(RANK, P, root, blocks)
    sent, got = len([*definition.held(place)]), len([*definition.wanted(place)])
    got = max(got, name == "exscan")  # rank 0 passes a buffer too, and keeps it as it is
    send = fill(dtype, count * sent, RANK) if sent else None
    recv = np.ones(count * got, dtype) if got else None
    if name == "bcast":
        return None, send if sent else recv
    if in_place and name == "scatter":
        return send, MPI.IN_PLACE if root == RANK else recv
    if in_place and got:
        whole = fill(dtype, count * max(sent, got), RANK)
        return MPI.IN_PLACE, whole
    return send, recv


def call(on, name, send, recv, op=MPI.SUM, root=0, spec=lambda buffer: buffer, mode="", **keywords):
    """Call a collective: blocking, non-blocking (mode "I") or persistent (mode "_init")."""
    definition = collectives.collective(name)
    arguments = {"barrier": (), "bcast": (spec(recv),)}.get(name, (spec(send), spec(recv)))
    arguments += (op,) if definition.reduces else ()
    arguments += (root,) if definition.rooted else ()
    method = {"": "{}", "I": "I{}", "_init": "{}_init"}[mode]
    spelt = definition.method.lower() if mode == "I" else definition.method
    return getattr(on, method.format(spelt))(*arguments, **keywords)
