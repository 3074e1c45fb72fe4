"""Measured links become machine files that say the same."""

from __future__ import annotations

from itertools import permutations

import pytest

pytest.importorskip("pydantic")

from mpicoll.files.machine_files import parse
from mpicoll.files.measured_machines import Links, described

ATTO = 1e18


def links(hosts, beta, latency, out=None, into=None):
    size = range(len(hosts))
    rows = [
        tuple(tuple(0.0 if a == b else value(a, b) for b in size) for a in size)
        for value in (latency, beta)
    ]
    return Links(tuple(hosts), *rows, 2e-7, out or {}, into or {})


def test_hosts_with_adapters():
    """Two ranks share an adapter of 1 ns a byte; a host of one rank has one of 4 ns."""
    hosts = (0, 0, 2)
    rates = {0: 1e-9, 2: 4e-9}

    def beta(a, b):
        return 1e-10 if hosts[a] == hosts[b] else max(rates[hosts[a]], rates[hosts[b]])

    def latency(a, b):
        return 1e-6 if hosts[a] == hosts[b] else 9e-6

    text = described(links(hosts, beta, latency, {0: 1e-9}, {0: 1e-9}))
    network = parse(text).network
    assert network.hosts == (0, 0, 1)
    assert network.overhead == 2 * 10**11
    for a, b in permutations(range(3), 2):
        route = network.route(a, b)
        assert route.beta == pytest.approx(beta(a, b) * ATTO, rel=1e-2)
        assert route.latency == pytest.approx(latency(a, b) * ATTO, rel=0.15)
    # What leaves the first host goes over one link, whoever sends it.
    assert network.route(0, 2).links[0] == network.route(1, 2).links[0]


def test_links_that_no_adapter_explains():
    def beta(a, b):
        return 1e-9 * (1 + (3 * a + b) % 5)

    text = described(links((0, 1, 2, 3), beta, lambda a, b: 1e-5 * (1 + a + b)))
    network = parse(text).network
    for a, b in permutations(range(4), 2):
        assert network.route(a, b).beta == pytest.approx(beta(a, b) * ATTO, rel=1e-2)
        assert network.route(a, b).latency == pytest.approx(1e-5 * (1 + a + b) * ATTO, rel=1e-2)


def test_ranks_of_one_host():
    network = parse(described(links((0, 0), lambda a, b: 1e-10, lambda a, b: 1e-6))).network
    assert network.route(0, 1) == (10**12, 10**8, 10**8, ())
