"""Every algorithm of the catalogue through the communicator: the bits of the in-process runner.

The launcher runs this on every number of ranks; in the long suite also on 7, and once more with the
smallest eager limit that the library accepts, where a message waits for its receiver.
"""

import os
import time
from itertools import product

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll import algorithms, local, ops
from mpicoll.comm import Intracomm
from mpicoll.registry import COMMUTATIVE
from mpicoll.verify import tried

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
P, RANK = WORLD.size, WORLD.rank

COUNTS = sorted({0, 1, P - 1, P, P + 1, 101})
CATALOGUE = [a for a in algorithms.catalogue() if a.runs_on(P)]


def compose(left, right):
    """The function x -> a x + b after another; not commutative, and exact in these numbers."""
    right[:] = left.real * right.real + 1j * (left.imag * right.real + right.imag)


def compose_buffers(left, right, datatype):
    compose(np.frombuffer(left, "c16"), np.frombuffer(right, "c16"))


@pytest.fixture(scope="module")
def ours():
    comm = Intracomm(WORLD.Dup())
    yield comm
    comm.Free()


@pytest.fixture(scope="module")
def operators():
    """Operators with a type: a float, an integer and one that is not commutative."""
    op = MPI.Op.Create(compose_buffers, commute=False)
    yield [
        ("f4", MPI.SUM, ops.reduction("sum", np.dtype("f4"))),
        ("i8", MPI.MAX, ops.reduction("max", np.dtype("i8"))),
        ("c16", op, ops.user(compose, "c16", commutative=False)),
    ]
    op.Free()


def vectors(entry, count, dtype):
    """The vectors of all ranks; what is no complex number depends on the order of its sum."""
    length = count * P if entry.definition.block_per_rank else count
    random = np.random.default_rng([count, P])
    if dtype == "c16":
        return [
            random.integers(1, 4, length) + 1j * random.integers(0, 3, length) for _ in range(P)
        ]
    scale = 1000.0 ** random.integers(-1, 4, (P, length))
    return [(row * random.standard_normal(length)).astype(dtype) for row in scale]


def inputs(entry, whole, count, root):
    """What each rank gives."""
    if entry.collective in ("allgather", "gather"):
        return [vector[:count] for vector in whole]
    if entry.collective in ("bcast", "scatter"):
        return [vector if rank == root else None for rank, vector in enumerate(whole)]
    return whole


def buffers(entry, mine, want, count, root, in_place):
    """Send and receive buffer of this rank, and where the result will be, if it gets one."""
    name = entry.collective
    recv = None if want is None else np.full(want.size, 7, want.dtype)
    if name == "bcast":
        return None, recv if mine is None else mine.copy(), slice(None)
    if in_place and name == "scatter" and RANK == root:
        return mine.copy(), MPI.IN_PLACE, None
    if in_place and (want is not None or name == "exscan") and name != "scatter":
        if entry.definition.input_alone:
            recv[RANK * count : (RANK + 1) * count] = mine
        else:
            recv = mine.copy()
        return MPI.IN_PLACE, recv, slice(0 if want is None else want.size)
    if name == "exscan" and want is None:
        recv = np.full(mine.size, 7, mine.dtype)
    return mine, recv, None if want is None else slice(None)


def run(comm, entry, send, recv, op, root, parameters):
    arguments = (recv,) if entry.collective == "bcast" else (send, recv)
    arguments += (op,) if entry.definition.reduces else ()
    arguments += (root,) if entry.definition.rooted else ()
    method = getattr(comm, entry.definition.method)
    method(*arguments, algorithm=entry.name, **parameters)


def settings(entry):
    """Parameters: those of several segments, and of several placements of the ranks."""
    found = tried(entry, P, [3])
    for parameters in found:
        if "segments" in parameters:
            parameters["window"] = 2
        if parameters.get("nodes") == ():
            parameters["nodes"] = tuple(range(P))  # where the ranks are is another question
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda a: f"{a.collective}-{a.name}")
def test_the_bits_of_the_in_process_runner(ours, operators, entry):
    if entry.collective == "barrier":
        ours.Barrier(algorithm=entry.name)
        return
    roots = sorted({0, P - 1}) if entry.definition.rooted else [0]
    types = operators if entry.definition.reduces else operators[:2]
    cases = product(COUNTS, types, roots, settings(entry))
    for count, (dtype, op, reduction), root, parameters in cases:
        whole = vectors(entry, count, dtype)
        given = inputs(entry, whole, count, root)
        if COMMUTATIVE in entry.needs and not reduction.commutative:
            recv = whole[0][: count if entry.definition.output_alone else None].copy()
            with pytest.raises(TypeError, match="needs a commutative operator"):
                run(ours, entry, whole[RANK], recv, op, root, parameters)
            continue
        found = local.execute(entry, given, reduction, root, parameters) if RANK == 0 else None
        want = WORLD.scatter(found)
        for in_place in (False, True):
            send, recv, where = buffers(entry, given[RANK], want, count, root, in_place)
            run(ours, entry, send, recv, op, root, parameters)
            case = (count, dtype, root, parameters, in_place)
            if where is not None and want is not None:
                assert recv[where].tobytes() == want.tobytes(), case
            elif recv is MPI.IN_PLACE:
                assert send.tobytes() == given[RANK].tobytes(), case


@pytest.mark.mpi(min_size=2)
def test_the_eager_limit_is_that_of_the_launch():
    """A message of 1 KiB that nobody has asked for stays on its way where nothing is eager."""
    if os.environ.get("MPICOLL_TEST_EAGER") != "smallest":
        pytest.skip("not launched with the smallest eager limit")
    WORLD.Barrier()
    if RANK == 0:
        request = WORLD.Isend(np.zeros(1024, "u1"), 1, tag=1)
        for _ in range(300):
            assert not request.Test()
            time.sleep(0.001)
        WORLD.Send(b"", 1, tag=2)
        request.Wait()
    elif RANK == 1:
        WORLD.Recv(bytearray(), 0, tag=2)
        WORLD.Recv(bytearray(1024), 0, tag=1)
