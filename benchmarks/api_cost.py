"""What a call costs beside the MPI library's own: every method in every spelling of its buffers.

    mpirun -n 2 python benchmarks/api_cost.py --json benchmarks/results/api_cost.jsonl

A row calls a method of ``mpicoll.Intracomm`` and mpi4py's own on the same buffers, alternating in
one process; non-blocking ones are waited for, persistent ones started and waited for.  A sample is
the mean of calls that take about a millisecond.  Recorded are the least time of both in
microseconds, and the ratios of the least and of the medians: on a busy machine the least says more.
"""

from __future__ import annotations

import argparse
import array
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI
from pairs import KEPT

import mpicoll
from mpicoll.base.sizes import parse_size
from mpicoll.bench import environment
from mpicoll.schedule.methods import METHODS

SIZES = ("8", "1K", "64K", "1M")
#: Float32 numbers as programs pass them.
SPELLINGS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda x: x,
    "[x, T]": lambda x: [x, MPI.FLOAT],
    "[x, n, T]": lambda x: [x, x.size, MPI.FLOAT],
    "[x, (n, d), T]": lambda x: [x, (x.size, 0), MPI.FLOAT],
    "[buffer, n, T]": lambda x: [MPI.buffer.frombuffer(x), x.size, MPI.FLOAT],
    "memoryview": memoryview,
    "bytearray": lambda x: bytearray(x.tobytes()),
    "array.array": lambda x: array.array("f", x.tobytes()),
}

Call = Callable[[Any], object]


def torch_tensor(x: np.ndarray) -> Any:
    """The numbers as a tensor of PyTorch."""
    import torch

    return torch.from_numpy(x)


def spelled(spell: Callable[[np.ndarray], Any], x: np.ndarray, blocks: int) -> Any:
    """A buffer of some blocks; a count is that of one block."""
    message = spell(x)
    if blocks > 1 and isinstance(message, list) and len(message) == 3:
        count = x.size // blocks
        message[1] = (count, 0) if isinstance(message[1], tuple) else count
    return message


def arguments(method: str, spell: Callable[[np.ndarray], Any], n: int, comm: MPI.Comm) -> list[Any]:
    """What a method gets for blocks of ``n`` numbers."""
    size, definition = comm.Get_size(), METHODS[method].definition

    def buffer(blocks: int) -> Any:
        return spelled(spell, np.ones(n * blocks, np.float32), blocks)

    def vector() -> Any:
        message = spell(np.ones(n * size, np.float32))
        owner = message[0] if isinstance(message, list) else message
        counts, places = [n] * size, [n * rank for rank in range(size)]
        if method == "Alltoallw":
            return [owner, (counts, [4 * place for place in places]), [MPI.FLOAT] * size]
        return [owner, (counts, places), MPI.FLOAT]

    if method == "Barrier":
        return []
    if method == "Bcast":
        return [buffer(1)]
    if METHODS[method].varies and method != "Reduce_scatter":
        several = [not definition.input_alone, not definition.output_alone]
        return [vector() if each else buffer(1) for each in several]
    blocks = size if definition.block_per_rank else 1
    send = buffer(1 if definition.input_alone else blocks)
    recv = buffer(1 if definition.output_alone else blocks)
    if method == "Reduce_scatter":
        send, recv = (spell(np.ones(k, np.float32)) for k in (n * size, n))
        return [send, recv, [n] * size]
    return [send, recv]


def rows(comm: MPI.Comm, n: int, spellings: dict[str, Any]) -> Iterator[tuple[str, str, Call]]:
    """Method, spelling and call of every row; ``n``: float32 numbers of a block."""
    for method in METHODS:
        for name, spell in spellings.items():
            if method == "Barrier" and name != "array":
                continue
            if METHODS[method].definition.reduces and name == "bytearray":
                continue  # bytes are no numbers to MPI
            given = arguments(method, spell, n, comm)
            yield method, name, _caller(method, given)
            yield f"I{method.lower()}", name, _started(f"I{method.lower()}", given)
    yield from derived(comm, n)
    yield from messages(comm, n)


def derived(comm: MPI.Comm, n: int) -> Iterator[tuple[str, str, Call]]:
    """Datatypes with holes: every second number; a block of a matrix."""
    size, half = comm.Get_size(), max(n // 2, 1)
    holes = MPI.FLOAT.Create_vector(half, 1, 2)
    column = holes.Create_resized(0, 8 * half).Commit()
    block = MPI.FLOAT.Create_subarray([2, half], [2, max(half // 2, 1)], [0, 0]).Commit()
    one, many = (np.ones(2 * half * k, np.float32) for k in (1, size))
    other, apart = np.ones_like(one), [8 * half * rank for rank in range(size)]
    yield "Bcast", "vector", _caller("Bcast", [[other, 1, column]])
    yield "Allgather", "vector", _caller("Allgather", [[one, 1, column], [many, 1, column]])
    yield "Gather", "vector", _caller("Gather", [[one, 1, column], [many, 1, column]])
    given = [[x, ([1] * size, apart), [block] * size] for x in (many, np.ones_like(many))]
    yield "Alltoallw", "subarray", _caller("Alltoallw", given)
    yield "Ialltoallw", "subarray", _started("Ialltoallw", given)


def messages(comm: MPI.Comm, n: int) -> Iterator[tuple[str, str, Call]]:
    """Objects, and messages between two ranks."""
    right, left = (comm.Get_rank() + 1) % comm.Get_size(), (comm.Get_rank() - 1) % comm.Get_size()
    send, recv = np.ones(n, np.float32), np.zeros(n, np.float32)
    yield "bcast", "object", lambda comm: comm.bcast(1)
    yield "allreduce", "object", lambda comm: comm.allreduce(1)
    yield "Sendrecv", "array", lambda comm: comm.Sendrecv(send, right, 0, recv, left)
    pair = [send, MPI.FLOAT], [recv, MPI.FLOAT]
    yield "Sendrecv", "[x, T]", lambda comm: comm.Sendrecv(pair[0], right, 0, pair[1], left)


def _caller(method: str, given: list[Any]) -> Call:
    return lambda comm: getattr(comm, method)(*given)


def _started(method: str, given: list[Any]) -> Call:
    return lambda comm: getattr(comm, method)(*given).Wait()


def persistent(ours: Any, native: Any, n: int) -> Iterator[tuple[str, str, Call]]:
    """Starts of bound calls; a library before MPI 4.0 has none."""
    for method in ("Allreduce", "Bcast", "Allgather", "Alltoall"):
        given = arguments(method, SPELLINGS["array"], n, native)
        try:
            bound = {id(comm): getattr(comm, f"{method}_init")(*given) for comm in (native, ours)}
        except NotImplementedError:
            return

        def call(comm: Any, bound: dict[int, Any] = bound) -> None:
            bound[id(comm)].Start()
            bound[id(comm)].Wait()

        yield f"{method}_init", "array", call


def measure(call: Call, ours: Any, native: Any, samples: int) -> dict[str, float]:
    """Times of a call on both communicators, the slowest rank's."""
    for comm in (ours, native) * 3:
        call(comm)
    begin = time.perf_counter()
    call(native)
    one = native.allreduce(time.perf_counter() - begin, MPI.MAX)
    calls = int(min(max(1e-3 / one, 1), 200))
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(samples):
        for times, comm in zip(found, (ours, native), strict=True):
            native.Barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                call(comm)
            times.append((time.perf_counter() - begin) / calls * 1e6)
    least = [native.allreduce(min(times), MPI.MAX) for times in found]
    middle = [native.allreduce(statistics.median(times), MPI.MAX) for times in found]
    summary = {
        "ours": least[0],
        "native": least[1],
        "ratio": least[0] / least[1],
        "median_ratio": middle[0] / middle[1],
    }
    return {name: round(value, 3) for name, value in summary.items()}


def main() -> None:
    """Measure, print, and append to a file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", help="file that a line is added to for each row")
    parser.add_argument("--sizes", default=",".join(SIZES), help="bytes of a block: 8,1K,64K,1M")
    parser.add_argument("--samples", type=int, default=31)
    parser.add_argument("--methods", help="these alone: Bcast,Ibarrier,...")
    parser.add_argument(
        "--control", action="store_true", help="mpi4py's own against itself: what noise makes of it"
    )
    parser.add_argument("--torch", action="store_true", help="also tensors of PyTorch")
    options = parser.parse_args()
    world = MPI.COMM_WORLD
    ours, native = world.Dup(), world.Dup()
    if not options.control:
        ours = mpicoll.Intracomm(ours)
    spellings = dict(SPELLINGS)
    if options.torch:
        spellings["tensor"] = torch_tensor
    about = environment.gather(world)
    lines = [{key: about[key] for key in KEPT if key in about}]
    for size in map(parse_size, options.sizes.split(",")):
        n = max(size // 4, 1)
        table = [*rows(native, n, spellings), *persistent(ours, native, n)]
        for method, spelling, call in table:
            if options.methods and method not in options.methods.split(","):
                continue
            line = {"method": method, "spelling": spelling, "bytes": size}
            line |= {"ranks": world.Get_size(), **measure(call, ours, native, options.samples)}
            lines.append(line)
            if world.Get_rank() == 0:
                print(
                    f"{size:8} {method:20} {spelling:14} {line['ours']:9.2f} {line['native']:9.2f}"
                    f" {line['ratio']:6.2f} {line['median_ratio']:6.2f}",
                    flush=True,
                )
    if options.json and world.Get_rank() == 0:
        with open(options.json, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
