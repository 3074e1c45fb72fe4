"""Machine files: the hosts, adapters, links and switches of a network.

A file is TOML::

    mpicoll = "machine 1"
    ranks = 6
    ports = 1                  # messages that a rank sends and receives at a time
    overhead = "0.3us"         # time for which a message occupies a port at either end
    gamma = "50ps"             # time to reduce one byte
    step = "0"                 # time of each round in which a rank receives

    [[host]]                   # ranks that share memory and an adapter
    ranks = "0-3"
    inside = { latency = "1us", beta = "100ps" }
    nic = { latency = "2us", beta = "100ps", into = "400ps", to = "core" }

    [[link]]                   # anything else: numbers are ranks, names are switches
    between = [4, 5]           # or from = 4, to = 5 for one way
    latency = "0.7us"
    beta = "20ps"

``beta`` is the time of one byte.  An adapter sends one message and receives one at a time; ``into``
is the time of a received byte if it differs from ``beta``.  ``latency`` is that of one adapter, so
a message between two hosts has two.  A link carries one message at a time in each direction.  A
message takes the path through the fewest other ranks, then the one with the lowest latency.  The
default of ``overhead`` is 0.3 of the lowest latency between two ranks, at most 0.3us; that of
``gamma`` and ``step`` is 0.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from mpicoll.base.files import naming, parse_toml
from mpicoll.base.times import ATTOSECONDS, attoseconds
from mpicoll.simulate.costs import INTER, INTRA, Costs
from mpicoll.simulate.machine import Machine
from mpicoll.simulate.network import Network, Route

#: What is read at most; ranks at most, as all pairs of them have a route.
_MOST_BYTES, _MOST_RANKS = 1 << 20, 1024

Vertex = int | str


class _Hop(NamedTuple):
    """A way from a vertex to a neighbour; ``link`` is its number among those shared, or None."""

    to: Vertex
    latency: int
    beta: int
    link: int | None


def read(path: str | Path) -> Machine:
    """The machine of a file, in attoseconds.

    Raises:
        ValueError: it cannot be read, or is none; the message names the file and the place.
        ModuleNotFoundError: pydantic is missing.
    """
    with naming(f"machine {str(path)!r}"):
        content = Path(path).read_bytes()
        if len(content) > _MOST_BYTES:
            raise ValueError(f"{len(content)} bytes are more than {_MOST_BYTES}")
        return parse(content.decode())


def parse(text: str) -> Machine:
    """The machine that a text in TOML describes, in attoseconds.

    Raises:
        ValueError: it is no machine; the message names the place.
        ModuleNotFoundError: pydantic is missing.
    """
    file = _validated(parse_toml(text))
    graph = _Graph(file["ranks"])
    for number, host in enumerate(file["host"]):
        graph.add_host(number, host)
    for link in file["link"]:
        graph.add_link(link)
    routes = graph.routes()
    overhead = file["overhead"]
    least = min((route.latency for row in routes for route in row if route), default=0)
    network = Network(
        routes,
        tuple(graph.links),
        min(3 * least // 10, ATTOSECONDS * 3 // 10**7) if overhead is None else overhead,
        graph.hosts,
    )
    return Machine(
        0, 0, file["gamma"], file["ports"], file["step"], nodes=graph.hosts, network=network
    )


def from_costs(costs: Costs, ranks: int, per_node: int = 0) -> Machine:
    """The machine of fitted costs, in attoseconds: links of their own, of long messages.

    Args:
        costs: in seconds.
        ranks: number of ranks.
        per_node: ranks of a node, one after the other; 0: all.
    """
    nodes = tuple(rank // per_node for rank in range(ranks)) if per_node else (0,) * ranks
    whole = Machine.of(costs, ATTOSECONDS)

    def route(sender: int, receiver: int) -> Route | None:
        if sender == receiver:
            return None
        kind = INTRA if nodes[sender] == nodes[receiver] else INTER
        piece = whole.pieces(kind)[-1]
        return Route(int(piece.alpha), int(piece.beta), int(piece.beta))

    rows = tuple(tuple(route(s, r) for r in range(ranks)) for s in range(ranks))
    largest = max((r.latency for row in rows for r in row if r), default=0)
    network = Network(rows, (), largest, nodes)  # a fit has seen all of a latency at the port
    return Machine(
        0, 0, whole.gamma, step=whole.step, call=whole.call, nodes=nodes, network=network
    )


def _validated(content: dict[str, Any]) -> dict[str, Any]:
    try:
        import pydantic
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "machine files need pydantic: pip install mpicoll[config]"
        ) from None

    def time(value: object) -> int:
        if not isinstance(value, str):
            raise ValueError(f'{value!r} is not a time; write it as "1.5us"')
        return attoseconds(value)

    Time = pydantic.BeforeValidator(time)

    class Strict(pydantic.BaseModel, extra="forbid", strict=True):
        pass

    class Inside(Strict):
        latency: Annotated[int, Time]
        beta: Annotated[int, Time]

    class Nic(Inside):
        into: Annotated[int | None, Time] = None
        to: str = pydantic.Field(min_length=1)

    class Host(Strict):
        ranks: str
        inside: Inside
        nic: Nic | None = None

    class Link(Strict):
        between: list[int | str] | None = pydantic.Field(None, min_length=2, max_length=2)
        from_: int | str | None = pydantic.Field(None, alias="from")
        to: int | str | None = None
        latency: Annotated[int, Time]
        beta: Annotated[int, Time]

    class File(Strict):
        mpicoll: Literal["machine 1"]
        ranks: int = pydantic.Field(ge=1, le=_MOST_RANKS)
        ports: int = pydantic.Field(1, ge=1)
        overhead: Annotated[int | None, Time] = None
        gamma: Annotated[int, Time] = 0
        step: Annotated[int, Time] = 0
        host: list[Host] = pydantic.Field(default_factory=list)
        link: list[Link] = pydantic.Field(default_factory=list)

    try:
        return File.model_validate(content).model_dump()
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ValueError(f"{place}: {first['msg']}") from None


class _Graph:
    """Ranks, switches, and the ways between neighbours."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.links: list[str] = []
        self._hops: dict[Vertex, list[_Hop]] = {rank: [] for rank in range(ranks)}
        self._host: dict[int, int] = {}

    @property
    def hosts(self) -> tuple[int, ...]:
        """The host of each rank; one that is on none is on one of its own."""
        hosts = 1 + max(self._host.values(), default=-1)
        return tuple(self._host.get(rank, hosts + rank) for rank in range(self.ranks))

    def _shared(self, name: str) -> int:
        self.links.append(name)
        return len(self.links) - 1

    def _way(self, a: Vertex, b: Vertex, latency: int, beta: int, link: int | None) -> None:
        self._hops.setdefault(a, []).append(_Hop(b, latency, beta, link))
        self._hops.setdefault(b, [])

    def add_host(self, number: int, host: Mapping[str, Any]) -> None:
        members = _ranks(host["ranks"], self.ranks, f"host.{number}.ranks")
        inside, nic = host["inside"], host["nic"]
        inner = f"\0host {number}"  # no name that a file can give
        for rank in members:
            if rank in self._host:
                raise ValueError(
                    f"host.{number}.ranks: rank {rank} is on two hosts; keep it on one"
                )
            self._host[rank] = number
            # A message within a host goes up and down: it has half of the latency each time.
            half = inside["latency"] // 2
            self._way(rank, inner, half, inside["beta"], None)
            self._way(inner, rank, inside["latency"] - half, inside["beta"], None)
        if nic is not None:
            into = nic["beta"] if nic["into"] is None else nic["into"]
            out = self._shared(f"adapter of host {number}, out")
            back = self._shared(f"adapter of host {number}, in")
            self._way(inner, nic["to"], nic["latency"], nic["beta"], out)
            self._way(nic["to"], inner, nic["latency"], into, back)

    def add_link(self, link: Mapping[str, Any]) -> None:
        ends = link["between"]
        one_way = link["from_"], link["to"]
        if (ends is None) == (one_way == (None, None)) or (ends is None and None in one_way):
            raise ValueError("link: give either between, or from and to")
        pairs = [tuple(one_way)] if ends is None else [tuple(ends), tuple(reversed(ends))]
        for a, b in pairs:
            for end in (a, b):
                if isinstance(end, int) and not 0 <= end < self.ranks:
                    raise ValueError(f"link: rank {end} is not among 0 .. {self.ranks - 1}")
            if a == b:
                raise ValueError(f"link: {a!r} is linked to itself")
            self._way(a, b, link["latency"], link["beta"], self._shared(f"link {a} -> {b}"))

    def routes(self) -> tuple[tuple[Route | None, ...], ...]:
        """The route between any two ranks.

        Raises:
            ValueError: there is none.
        """
        return tuple(self._from(rank) for rank in range(self.ranks))

    def _from(self, rank: int) -> tuple[Route | None, ...]:
        # Ranks passed, latency, hops; then the order of the file, so that no two are equal.
        best: dict[Vertex, tuple[int, int, int]] = {}
        ways: dict[Vertex, tuple[_Hop, ...]] = {}
        number = 0
        heap: list[tuple[tuple[int, int, int], int, Vertex, tuple[_Hop, ...]]] = [
            ((0, 0, 0), number, rank, ())
        ]
        while heap:
            cost, _, at, way = heapq.heappop(heap)
            if at in best:
                continue
            best[at], ways[at] = cost, way
            passed = cost[0] + (isinstance(at, int) and at != rank)
            for hop in self._hops[at]:
                if hop.to not in best:
                    number += 1
                    further = (passed, cost[1] + hop.latency, cost[2] + 1)
                    heapq.heappush(heap, (further, number, hop.to, (*way, hop)))
        for other in range(self.ranks):
            if other not in ways:
                raise ValueError(
                    f"no path leads from rank {rank} to rank {other}: add a link or an adapter"
                )
        return tuple(None if r == rank else _route(ways[r]) for r in range(self.ranks))


def _route(way: tuple[_Hop, ...]) -> Route:
    links: dict[int, int] = {hop.link: hop.beta for hop in way if hop.link is not None}
    latency = sum(hop.latency for hop in way)
    return Route(latency, way[0].beta, way[-1].beta, tuple(links.items()))


def _ranks(text: str, ranks: int, place: str) -> list[int]:
    """Ranks as ``0-3,6``."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise ValueError(f"{place}: {text!r} must be ranks, such as 0-3 or 0,2")
        low, high = int(first), int(last or first)
        if high >= ranks or low > high:
            raise ValueError(f"{place}: {part.strip()!r} is not among the ranks 0 .. {ranks - 1}")
        found += range(low, high + 1)
    if not found:
        raise ValueError(f"{place}: no rank")
    return found
