"""Training with a parameter server, as a choice: what it takes, and what it takes up."""

from __future__ import annotations

import re

from mpicoll.base.wording import plural
from mpicoll.train.config import Config, one_of
from mpicoll.train.ranks.workers import together
from mpicoll.train.servers import consistency
from mpicoll.train.servers.shard import PUSH_RATES
from mpicoll.train.strategies.allreduce import AllReduce
from mpicoll.train.strategies.holding import Holding
from mpicoll.train.strategies.placement import holders, shard_ranges
from mpicoll.train.strategies.protocol import Strategy, slots
from mpicoll.train.strategies.server_trainer import ServerTrainer
from mpicoll.train.strategies.training import Setup, Training


class ParameterServer(Strategy):
    """Workers push gradients to servers and pull parameters."""

    takes = frozenset({"survive"})
    notices_deaths = True

    def check(self, config: Config) -> None:
        """Refuse placements that are none, and what needs the whole gradient or the whole step."""
        consistency.parse(config.consistency)
        one_of("push_rate", config.push_rate, PUSH_RATES)
        if not re.fullmatch(r"colocated|decentralized|[1-9]\d{0,5}", config.servers):
            raise ValueError(
                f"servers is {config.servers!r}: give a number of ranks of at least 1, colocated "
                "or decentralized"
            )
        if config.replicas:
            _check_replicas(config)
        if config.apply_at_once and config.send_every is None:
            raise ValueError(
                "apply_at_once is of parameters that servers send unasked: give send_every, such "
                "as 1, or leave it out"
            )
        for name, wanted, why in (
            ("clip", None, "no server knows the norm of the whole gradient"),
            ("checkpoint_every", None, "shards are at one clock at the end of an epoch only"),
        ):
            if getattr(config, name) != wanted:
                raise ValueError(
                    f"strategy parameter_server does not take {name}, because {why}: leave it out"
                )
        if config.apply_at_once and config.is_narrow:
            raise ValueError(
                f"apply_at_once takes over parameters within a step, whose copy in {config.dtype} "
                "is made before it: leave it out, or give dtype float32"
            )

    def servers(self, config: Config) -> int:
        """As many as were asked for; none where every rank is a worker."""
        return int(config.servers) if config.servers.isdigit() else 0

    def memory(self, config: Config, rank: int, ranks: int, holding: Holding) -> dict[str, int]:
        """Gradients, messages, and the parts of the parameters that this rank holds or copies."""
        weights = holding.weights
        size, workers = weights.vector.nbytes, config.worker_count(ranks)
        every = shard_ranges(config, ranks, weights.vector.size)
        parts = [(shard.end - shard.start) * weights.vector.itemsize for shard in every]
        held = sum(
            part
            for shard, part in zip(every, parts, strict=True)
            if rank in holders(config, ranks, shard.rank)
        )
        needed = {"gradients": size}
        if held:
            needed["parts of the parameters"] = held
            needed["optimizer"] = slots(config) * held
            # From each worker, and to it; gradients that wait for those of the clock, or for
            # replicas.
            kept = (consistency.parse(config.consistency).kind == "bsp") + bool(config.replicas)
            needed["messages"] = (2 + kept) * workers * held + bool(config.replicas) * held
        if config.is_narrow:
            needed[f"parameters in {config.dtype}"] = 2 * weights.vector.size
        if rank < workers:
            news = 1 if config.send_every is None else 2
            needed["messages"] = needed.get("messages", 0) + sum(parts) + news * size
        return needed

    def describe(self, config: Config) -> str:
        """Where the parameters are, and how consistent they are."""
        count = self.servers(config)
        placed = plural(count, "server") if count else config.servers
        return f"parameter server, {placed}, {config.consistency}"

    def is_exact(self, config: Config) -> bool:
        """In bulk-synchronous steps alone."""
        return consistency.parse(config.consistency).kind == "bsp"

    def make(self, setup: Setup) -> Training:
        if setup.comm is None:  # one process without MPI needs no server
            return AllReduce().make(setup)
        config, workers = setup.config, setup.workers
        with together(workers, "keeping replicas"):
            if config.replicas and not workers.may_die:
                raise ValueError(
                    f"replicas is {config.replicas}, but this launcher ends all ranks when one "
                    "dies: start with mpirun --with-ft ulfm of Open MPI 5, or leave replicas out"
                )
        return ServerTrainer(setup)


def _check_replicas(config: Config) -> None:
    if not config.servers.isdigit():
        raise ValueError(
            f"replicas is {config.replicas} with servers {config.servers}, where a rank that dies "
            "takes a worker with it: give a number of servers, or leave replicas out"
        )
    if config.data_servers:
        raise ValueError(
            "data servers do not outlive another rank: leave data_servers out, or replicas"
        )
    if int(config.servers) <= config.replicas:
        raise ValueError(
            f"{config.replicas} replica(s) of each part need at least {config.replicas + 1} "
            f"servers, not {config.servers}: give more servers, or fewer replicas"
        )
    if config.send_every is not None:
        raise ValueError("a replica answers what a worker asks: leave send_every out, or replicas")
