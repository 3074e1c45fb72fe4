"""Which rank holds which part of the parameters, and what the ranks are that may die."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpicoll.layout import part
from mpicoll.train.config import Config
from mpicoll.train.health import Health, survives
from mpicoll.train.survivors import Survivors
from mpicoll.train.workers import Workers, together

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass
class Place:
    """Where a shard is.

    Attributes:
        rank: The rank that answers for it.
        start, end: Its part of the vector of all parameters.
    """

    rank: int
    start: int
    end: int


def places(config: Config, ranks: int, length: int) -> list[Place]:
    """Where each shard is at the start, of so many parameters."""
    if config.servers == "decentralized":
        return [Place(rank, 0, length) for rank in range(ranks)]
    first = 0 if config.servers == "colocated" else config.worker_count(ranks)
    parts = [part(length, ranks - first, number) for number in range(ranks - first)]
    return [
        Place(first + number, start, start + count) for number, (start, count) in enumerate(parts)
    ]


def holders(config: Config, ranks: int, rank: int) -> list[int]:
    """Ranks that hold the shard of a rank: itself, and with replicas the next servers."""
    if not config.replicas:
        return [rank]
    servers = int(config.servers)
    first = ranks - servers
    return [first + (rank - first + k) % servers for k in range(config.replicas + 1)]


def members(config: Config, workers: Workers, comm: MPI.Intracomm) -> Workers:
    """The ranks of a run with servers: where some may die, such as go on without them; collective.

    Raises:
        TrainingError: Replicas are wanted where none may die.
    """
    if not survives():
        with together(workers, "keeping replicas"):
            if config.replicas:
                raise ValueError(
                    f"replicas is {config.replicas}, but this launcher ends all ranks when one "
                    "dies: start with mpirun --with-ft ulfm of Open MPI 5, or leave replicas out"
                )
        return workers
    held = [holders(config, workers.size, place.rank) for place in places(config, workers.size, 0)]
    count = config.worker_count(workers.size)
    return Survivors(comm, Health(comm, count, held), count)
