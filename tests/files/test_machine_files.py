"""Machine files: hosts, adapters and links become routes."""

from __future__ import annotations

import pytest

pytest.importorskip("pydantic")

from machines import HEAD, MACHINES, hosts, links

from mpicoll.files.machine_files import from_costs, parse, read
from mpicoll.simulate.costs import INTER, INTRA, Costs, Piece

US, PS = 10**12, 10**6  # attoseconds


def test_routes_between_hosts_go_over_two_adapters():
    network = parse(hosts([2, 1], [100, 400])).network
    assert network.route(0, 1) == (US, 100 * PS, 100 * PS, ())
    assert network.route(0, 2) == (6 * US, 100 * PS, 100 * PS, ((0, 100 * PS), (3, 400 * PS)))
    assert network.links[3] == "adapter of host 1, in"
    assert network.hosts == (0, 0, 1)
    assert network.overhead == 3 * US // 10


def test_an_adapter_may_be_slower_one_way():
    network = parse(hosts([1, 1], [100, 100], [100, 700])).network
    assert (network.route(0, 1).beta, network.route(1, 0).beta) == (700 * PS, 100 * PS)


def test_ways_avoid_other_ranks_then_take_the_least_latency():
    text = (
        HEAD.format(3, 1) + links([(0, 1), (1, 2)], 10) + links([(0, '"s"'), ('"s"', 2)], 90, "9us")
    )
    network = parse(text).network
    assert network.route(0, 2).latency == 18 * US
    assert network.route(0, 1).links == ((0, 10 * PS),)


def test_overhead_is_a_part_of_the_least_latency():
    assert parse(HEAD.format(2, 1) + links([(0, 1)], 1, "0.1us")).network.overhead == 3 * US // 100
    said = 'overhead = "5ns"\n'
    assert parse(HEAD.format(2, 1) + said + links([(0, 1)], 1)).network.overhead == 5 * US // 1000


def test_one_way_links():
    text = HEAD.format(2, 1)
    for a, b, beta in ((0, 1, 5), (1, 0, 7)):
        text += f'[[link]]\nfrom = {a}\nto = {b}\nlatency = "1us"\nbeta = "{beta}ps"\n'
    network = parse(text).network
    assert (network.route(0, 1).beta, network.route(1, 0).beta) == (5 * PS, 7 * PS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD.format(2, 1), "no path leads from rank 0 to rank 1"),
        (HEAD.format(2, 1) + links([(0, 2)], 1), "rank 2 is not among 0 .. 1"),
        (HEAD.format(2, 1) + links([(0, 0)], 1), "0 is linked to itself"),
        (HEAD.format(2, 1) + 'gamma = "fast"\n', "gamma: .*'fast' is not a time"),
        (HEAD.format(2, 1) + "gamma = 5\n", "gamma: .*5 is not a time"),
        (HEAD.format(2, 1) + "more = 1\n", "more: Extra inputs"),
        (HEAD.format(0, 1), "ranks: "),
        (hosts([2], [1]).replace('"0-1"', '"0-2"'), "'0-2' is not among the ranks 0 .. 1"),
        (hosts([2], [1]).replace('"0-1"', '"x"'), "host.0.ranks: 'x' must be ranks"),
        (hosts([1, 1], [1, 1]).replace('"1-1"', '"0-1"'), "rank 0 is on two hosts"),
        (HEAD.format(2, 1) + '[[link]]\nfrom = 0\nlatency = "1s"\nbeta = "1s"\n', "either between"),
        ("ranks = ", "Invalid value"),
    ],
)
def test_what_is_no_machine_names_the_place(tmp_path, text, words):
    path = tmp_path / "m.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"(?s)machine .*m.toml.*{words}"):
        read(path)


def test_a_file_that_is_missing(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        read(tmp_path / "none.toml")


def test_fitted_costs_are_links_of_their_own():
    pieces = {
        INTRA: (Piece(100, 9.0, 9.0), Piece(None, 1e-6, 1e-10)),
        INTER: (Piece(None, 5e-6, 1e-9),),
    }
    machine = from_costs(Costs(pieces, gamma=5e-11, step=1e-6), 4, 2)
    network = machine.network
    assert network.route(0, 1) == (US, 100 * PS, 100 * PS, ())
    assert network.route(0, 2) == (5 * US, 1000 * PS, 1000 * PS, ())
    assert (machine.gamma, machine.step, machine.nodes) == (50 * PS, US, (0, 0, 1, 1))


def test_the_machines_of_the_tests_are_what_they_say():
    assert {name: m.network.ranks for name, m in MACHINES.items()} == {
        "uniform": 8, "slow host": 16, "4 + 2 + 1": 7, "slow adapter": 8, "slow down-link": 8,
        "fat tree": 16, "cube mesh": 8, "broken ring": 8, "wide area": 6,
    }  # fmt: skip
