"""The clocks on networks of shared links, and with strands: by hand, and Python's against C's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicoll import algorithms
from mpicoll.registry import Algorithm
from mpicoll.schedule import Recv, Send, channels, period, pipelined, strands
from mpicoll.simulate import compiled, simulate
from mpicoll.simulate.clock import follow
from mpicoll.simulate.machine import Machine, Sizes
from mpicoll.simulate.network import Network, Route

ALLREDUCE = [algorithms.find("allreduce", name) for name in algorithms.names("allreduce")]


def network(size, route, links=(), overhead=0):
    rows = [[None if s == r else route(s, r) for r in range(size)] for s in range(size)]
    return Network(tuple(map(tuple, rows)), tuple(links), overhead)


def timed(schedule, machine, size, nbytes, nblocks=1):
    """The times of all ranks, by both clocks."""
    algorithm = algorithms.find("allreduce", "ring")._replace(
        schedule=schedule,
        blocks=lambda size: nblocks,
        parameters={},
        kinds={},
    )
    assert isinstance(algorithm, Algorithm)

    def programs():  # rounds are read once
        return [algorithm.channels(rank, size) for rank in range(size)]

    found = follow(algorithm, programs(), size, nbytes, machine)
    sizes = Sizes(nbytes, nblocks, programs()[0][0].segments)
    assert compiled.run(programs(), size, sizes, machine) == found
    return found.finish


# --- by hand --------------------------------------------------------------------------------------


def test_two_messages_of_a_link_go_one_after_the_other():
    """Ranks 0 and 1 send to 2 and 3 over one link of 10 a byte, from ports of 1 a byte."""
    shared = network(4, lambda s, r: Route(100, 1, 1, ((0, 10),)), ["core"])

    def schedule(rank, size):
        yield Send(rank + 2, 0) if rank < 2 else Recv(rank - 2, 0)

    # The link is free after 10 x 8; the second message begins then, and lasts 100 + 80.
    assert timed(schedule, Machine(network=shared), 4, 8) == (180, 260, 180, 260)


def test_a_port_is_free_after_the_overhead_while_a_message_travels():
    """Rank 0 sends to 1 and 2: a port is busy for 30 + 2 x 5, a message lasts 100 + 2 x 5."""
    wide = network(3, lambda s, r: Route(100, 2, 2), overhead=30)

    def schedule(rank, size):
        yield (Send(1, 0), Send(2, 0)) if rank == 0 else Recv(0, 0)

    assert timed(schedule, Machine(network=wide), 3, 5) == (150, 110, 150)


def test_hosts_share_their_adapters():
    """Two hosts of two ranks exchange: each adapter passes two messages, one after the other."""
    numbers = {0: 0, 1: 0, 2: 1, 3: 1}

    def route(s, r):
        if numbers[s] == numbers[r]:
            return Route(10, 1, 1)
        return Route(50, 1, 1, ((numbers[s], 4), (2 + numbers[r], 4)))

    def schedule(rank, size):
        yield Send((rank + 2) % 4, 0), Recv((rank + 2) % 4, 0)

    links = ["out 0", "out 1", "in 0", "in 1"]
    times = timed(schedule, Machine(network=network(4, route, links)), 4, 100)
    assert sorted(set(times)) == [450, 850]


# --- strands --------------------------------------------------------------------------------------


def uneven(rank, size):
    """Two strands: the first sends twice, the second once."""

    def strand(times):
        for _ in range(times):
            yield Send(1, 0) if rank == 0 else Recv(0, 0)

    return strands(strand(2), strand(1), segments=3, window=2)


def test_the_compiled_clock_sees_every_strand():
    """It read the first strand alone, and took it for all."""
    machine = Machine(alpha=10, beta=1, gamma=0)
    assert timed(uneven, machine, 2, 600) == (9 * 110, 9 * 110)


def test_the_period_of_segments():
    assert period(pipelined(iter([Send(1, 0)]), 6).items) == 1
    assert period(uneven(0, 2).items) == 2
    apart = channels(iter([Send(1, 0)]), iter([Send(1, 1)]))
    assert period(apart.items) == 1
    loose = [c._replace(rounds=list(c.rounds)) for c in uneven(0, 2).items]
    assert period(loose) == 6  # none is the other, though some are equal


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_both_clocks_agree_on_any_strands_and_networks(data):
    size = data.draw(st.integers(2, 5))
    numbers = st.integers(0, 9)
    table = {
        (s, r): Route(
            data.draw(numbers) + 1, data.draw(numbers), data.draw(numbers),
            tuple((link, data.draw(numbers)) for link in data.draw(st.sets(st.integers(0, 2)))),
        )
        for s in range(size)
        for r in range(size)
        if s != r
    }  # fmt: skip
    shared = network(size, lambda s, r: table[s, r], "abc", data.draw(st.integers(0, 5)))
    ring = [data.draw(st.permutations(range(size))) for _ in range(data.draw(st.integers(1, 3)))]

    def schedule(rank, of):
        def strand(order):
            place = order.index(rank)
            for turn in range(1 + order[0]):
                to, by = order[(place + 1) % of], order[(place - 1) % of]
                yield Send(to, turn), Recv(by, turn)

        return strands(*map(strand, ring), segments=data.draw(st.just(2)), window=1)

    machine = Machine(
        gamma=1, step=data.draw(numbers), ports=data.draw(st.integers(1, 2)),
        network=data.draw(st.sampled_from((None, shared))),
    )  # fmt: skip
    timed(schedule, machine, size, data.draw(st.integers(0, 50)), nblocks=3)


@pytest.mark.parametrize("algorithm", ALLREDUCE, ids=lambda entry: entry.name)
def test_a_network_of_links_of_their_own_is_the_plain_machine(algorithm):
    for size in (2, 4, 7, 8):
        for ports in (1, 2):
            plain = Machine(alpha=1000, beta=7, gamma=3, step=5, ports=ports)
            apart = network(size, lambda s, r: Route(1000, 7, 7), overhead=1000)
            same = Machine(gamma=3, step=5, ports=ports, network=apart)
            for method in ("events", "compiled"):
                call = algorithm, size, 1024
                want = simulate(*call, plain, method=method)
                assert simulate(*call, same, method=method) == want


# --- what does not know networks ------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sweep", "representative"])
def test_ways_that_do_not_know_shared_links_refuse(method):
    machine = Machine(network=network(4, lambda s, r: Route(1, 1, 1)))
    with pytest.raises(ValueError, match="does not know links that messages share"):
        simulate(algorithms.find("allreduce", "ring"), 4, 64, machine, method=method)


def test_a_network_has_its_own_number_of_ranks():
    machine = Machine(network=network(4, lambda s, r: Route(1, 1, 1)))
    with pytest.raises(ValueError, match="the network has 4 ranks, not 5"):
        simulate(algorithms.find("allreduce", "ring"), 5, 64, machine)
