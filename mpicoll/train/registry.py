"""The strategies by name. Each is a module that is imported when its name is first asked for.

A configuration asks its strategy what it takes, and stands below all of them: so it knows them by
name alone. One of your own is any object with the methods of
`mpicoll.train.strategies.protocol.Strategy`::

    STRATEGIES["mine"] = Mine()
    run(Config(strategy="mine"), comm)
"""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from typing import Any


class _Registry(UserDict[str, Any]):
    """Strategies, or where they are: "module:class" in `mpicoll.train.strategies`."""

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if isinstance(found, str):
            module, _, kind = found.partition(":")
            found = getattr(import_module(f"mpicoll.train.strategies.{module}"), kind)()
            self[name] = found
        return found

    def taking(self, option: str) -> tuple[str, ...]:
        """Names of the strategies that go together with an option."""
        return tuple(name for name in self if option in self[name].takes)


STRATEGIES = _Registry(
    {
        "allreduce": "allreduce:AllReduce",
        "zero1": "allreduce:Zero1",
        "fsdp": "fully_sharded:FullySharded",
        "parameter_server": "parameter_server:ParameterServer",
        "local_sgd": "apart:LocalSGD",
        "gossip": "apart:Gossiping",
    }
)
