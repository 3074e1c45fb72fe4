"""From measured links to the machine file that describes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from statistics import median

#: How many times as long a byte may take as adapters say; else each pair has a link of its own.
_EXPLAINED = 1.3


@dataclass(frozen=True)
class Links:
    """What was measured, in seconds.

    Attributes:
        hosts: the host of each rank.
        latency, beta: of a message from one rank to another without others, and of its bytes.
        overhead: of a message, for which a sender is busy.
        out, into: by host, time of a byte of all its ranks together, to and from other hosts.
    """

    hosts: tuple[int, ...]
    latency: tuple[tuple[float, ...], ...]
    beta: tuple[tuple[float, ...], ...]
    overhead: float
    out: dict[int, float]
    into: dict[int, float]

    def pairs(self, inside: bool) -> Iterator[tuple[int, int]]:
        """Pairs of ranks, on one host or on two."""
        for a, b in permutations(range(len(self.hosts)), 2):
            if (self.hosts[a] == self.hosts[b]) == inside:
                yield a, b


def described(links: Links) -> str:
    """The machine file of some links: hosts with adapters, or links of all pairs."""
    ranks = len(links.hosts)
    head = f'mpicoll = "machine 1"\nranks = {ranks}\noverhead = "{_time(links.overhead)}"\n'
    adapters = _adapters(links)
    if not _explains(links, adapters):
        return head + "".join(_link(links, a, b) for a, b in permutations(range(ranks), 2))
    return head + "".join(_host(links, host, adapters) for host in dict.fromkeys(links.hosts))


#: By host, time of a byte out of it, and into it.
_Adapters = dict[int, tuple[float, float]]


def _adapters(links: Links) -> _Adapters:
    """What each adapter takes for a byte: what all ranks together see, where they share it."""
    found = {}
    for host in dict.fromkeys(links.hosts):
        ends = [
            (a, b) for a, b in links.pairs(inside=False) if host in (links.hosts[a], links.hosts[b])
        ]
        if not ends:
            continue
        out = min(links.beta[a][b] for a, b in ends if links.hosts[a] == host)
        into = min(links.beta[a][b] for a, b in ends if links.hosts[b] == host)
        found[host] = links.out.get(host, out), links.into.get(host, into)
    return found


def _explains(links: Links, adapters: _Adapters) -> bool:
    """Whether hosts and adapters say how long a byte takes between any two ranks."""
    inside = [links.beta[a][b] for a, b in links.pairs(inside=True)]
    away = [links.beta[a][b] for a, b in links.pairs(inside=False)]
    uneven = inside and max(inside) > _EXPLAINED**2 * median(inside)
    # Where adapters take much longer, it does not matter.
    if uneven and not (away and max(inside) < min(away) / 2):
        return False
    for a, b in links.pairs(inside=False):
        said = max(adapters[links.hosts[a]][0], adapters[links.hosts[b]][1])
        alone, several = links.beta[a][b], links.hosts.count(links.hosts[a]) > 1
        # A rank alone may be slower than the adapter that several share.
        if alone < said / _EXPLAINED or (alone > said * _EXPLAINED and not several):
            return False
    return True


def _host(links: Links, host: int, adapters: _Adapters) -> str:
    members = [rank for rank, other in enumerate(links.hosts) if other == host]
    inside = [(a, b) for a, b in links.pairs(inside=True) if links.hosts[a] == host]
    away = [(a, b) for a, b in links.pairs(inside=False) if links.hosts[a] == host]
    if inside:
        latency = median(links.latency[a][b] for a, b in inside)
        beta = median(links.beta[a][b] for a, b in inside)
    else:  # a rank alone: its port is as fast as its adapter
        latency = min(links.latency[a][b] for a, b in away) / 2
        beta = min(adapters[host])
    text = (
        f'\n[[host]]\nranks = "{",".join(map(str, members))}"\n'
        f'inside = {{ latency = "{_time(latency)}", beta = "{_time(beta)}" }}\n'
    )
    if away:
        # A message has half of the latency inside at either end, and each adapter's.
        whole = median(links.latency[a][b] for a, b in away)
        out, into = adapters[host]
        text += (
            f'nic = {{ latency = "{_time(max(0.0, (whole - latency) / 2))}", '
            f'beta = "{_time(out)}", into = "{_time(into)}", to = "core" }}\n'
        )
    return text


def _link(links: Links, a: int, b: int) -> str:
    return (
        f'\n[[link]]\nfrom = {a}\nto = {b}\nlatency = "{_time(links.latency[a][b])}"\n'
        f'beta = "{_time(links.beta[a][b])}"\n'
    )


def _time(seconds: float) -> str:
    """A time with three digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)):
        if seconds * factor >= 1:
            return f"{float(f'{seconds * factor:.3g}'):g}{unit}"
    return f"{seconds * 1e12:.3g}ps"
