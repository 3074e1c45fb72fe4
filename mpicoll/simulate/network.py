"""A network whose links are shared: what a message occupies on its way, and for how long.

A message of m bytes between two ranks takes ``latency + beta m``, with the beta of the slowest part
of its route.  Meanwhile it occupies a port at either end for ``overhead`` and that end's beta for
each byte, and each link on its route for the link's beta for each byte; it begins when all of them
are free.  So what a latency is made of keeps nothing busy but for the overhead, and a link that
several pairs share carries one message at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

#: What a message occupies: an output port, an input port, a link; and its number.
OUT, INTO, LINK = 0, 1, 2


class Route(NamedTuple):
    """The way from one rank to another, in the machine's unit of time.

    Attributes:
        latency: of a message without content.
        out, into: of each byte, at the ports of the sender and of the receiver.
        links: numbers of the links on the way, each with its time of a byte.
    """

    latency: int
    out: int
    into: int
    links: tuple[tuple[int, int], ...] = ()

    @property
    def beta(self) -> int:
        """Time of a byte at the slowest part."""
        return max(self.out, self.into, *(beta for _, beta in self.links))


@dataclass(frozen=True)
class Network:
    """Links and routes between ranks.

    Attributes:
        routes: of each sender the route to each receiver; None to itself.
        links: what each link is called.
        overhead: time of a message for which it occupies a port whatever its length; never more
            than its latency.
        hosts: a label for each rank, the same for the ranks of a host.
    """

    routes: tuple[tuple[Route | None, ...], ...]
    links: tuple[str, ...] = ()
    overhead: int = 0
    hosts: tuple[int, ...] = ()

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.routes)

    def route(self, sender: int, receiver: int) -> Route:
        """The route of a message."""
        found = self.routes[sender][receiver]
        assert found is not None, "a rank sends nothing to itself"
        return found

    def message(self, sender: int, receiver: int, nbytes: int) -> int:
        """How long a message takes."""
        route = self.route(sender, receiver)
        return route.latency + route.beta * nbytes

    def held(self, sender: int, receiver: int, nbytes: int) -> Iterator[tuple[int, int, int]]:
        """What a message occupies, and how long: time, kind and number."""
        route = self.route(sender, receiver)
        overhead = min(self.overhead, route.latency)
        yield overhead + route.out * nbytes, OUT, sender
        yield overhead + route.into * nbytes, INTO, receiver
        for link, beta in route.links:
            yield beta * nbytes, LINK, link

    @cached_property
    def senders(self) -> tuple[tuple[int, ...], ...]:
        """Of each link the ranks whose messages go over it."""
        found: list[dict[int, None]] = [{} for _ in self.links]
        for sender, row in enumerate(self.routes):
            for route in filter(None, row):
                for link, _ in route.links:
                    found[link][sender] = None
        return tuple(map(tuple, found))
