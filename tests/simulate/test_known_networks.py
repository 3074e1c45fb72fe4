"""Networks by name: every number has a source."""

import pytest

from mpicoll.simulate.known_networks import NETWORKS, find


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_plausible_and_has_a_source(name):
    network = find(name.upper())
    assert network is NETWORKS[name]
    assert 5e-7 < network.alpha < 1e-4
    gigabits = float("".join(c for c in name.split("-")[0] if c.isdigit()))
    assert 0.75 * gigabits < 8e-9 / network.beta <= gigabits * (1 + 1e-9)
    assert any(year in network.source for year in ("2014", "2016", "2018", "2019", "2023"))
