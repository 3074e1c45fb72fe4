"""Which rank holds which part of the parameters, and what the ranks are that may die."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpicoll.base.deaths import survives
from mpicoll.schedule.layout import part
from mpicoll.train.config import Config
from mpicoll.train.ranks.guarded import GuardedWorkers
from mpicoll.train.ranks.health import DATA_SERVER, SERVER, WORKER
from mpicoll.train.ranks.survivors import Survivors
from mpicoll.train.ranks.waiting import tells_of_deaths
from mpicoll.train.ranks.workers import AllReduceWorkers
from mpicoll.train.servers.shard import ShardRange
from mpicoll.train.strategies.protocol import strategy_of

if TYPE_CHECKING:
    from mpi4py import MPI


def shard_ranges(config: Config, ranks: int, length: int) -> list[ShardRange]:
    """Where each shard is at the start, of so many parameters."""
    if config.servers == "decentralized":
        return [ShardRange(rank, 0, length) for rank in range(ranks)]
    first = 0 if config.servers == "colocated" else config.worker_count(ranks)
    parts = [part(length, ranks - first, number) for number in range(ranks - first)]
    return [
        ShardRange(first + number, start, start + count)
        for number, (start, count) in enumerate(parts)
    ]


def holders(config: Config, ranks: int, rank: int) -> list[int]:
    """Ranks that hold the shard of a rank: itself, and with replicas the next servers."""
    if not config.replicas:
        return [rank]
    servers = int(config.servers)
    first = ranks - servers
    return [first + (rank - first + k) % servers for k in range(config.replicas + 1)]


def titles(config: Config, ranks: int) -> list[str]:
    """What each of so many ranks is, in words."""
    data = ranks - config.data_servers
    first = data - strategy_of(config).servers(config)
    return [
        WORKER if rank < first else SERVER if rank < data else DATA_SERVER for rank in range(ranks)
    ]


def members(config: Config, comm: MPI.Intracomm) -> AllReduceWorkers:
    """The ranks of a run; where they outlive one that serves, such as notice that; collective.

    Raises:
        RankLost: A rank died meanwhile.
    """
    if survives() and (strategy_of(config).notices_deaths or config.data_servers):
        return Survivors(comm, titles(config, comm.Get_size()))
    if tells_of_deaths(comm):
        return GuardedWorkers(comm, config.algorithm)
    return AllReduceWorkers(comm, config.algorithm)
