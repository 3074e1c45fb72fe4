"""Simulation: few ranks for all, rounds of all ranks, and every message lead to the same times."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll import algorithms
from mpicoll.registry import Algorithm
from mpicoll.schedule import Recv, Send, blocks, layout, number_of_blocks, scratch
from mpicoll.schedule import given as of_input
from mpicoll.schedule.matching import Pair
from mpicoll.schedule.memory import ScheduleError
from mpicoll.simulate import TooLargeError, simulate, simulation
from mpicoll.simulate.costs import INTER, INTRA, Costs, Piece
from mpicoll.simulate.machine import Machine, Sizes
from mpicoll.simulate.ports import Ports
from mpicoll.simulate.rounds import Plain, repeat
from mpicoll.simulate.symmetry import repeats_every

CATALOGUE = algorithms.catalogue()
LONG = os.environ.get("MPICOLL_TEST_LONG", "") not in ("", "0")

COSTS = Machine(alpha=1_000_003, beta=701, gamma=307, step=11, call=5)
LINKS = {
    INTRA: (Piece(None, 1000, 3),),
    INTER: (Piece(100, 5000, 30), Piece(None, 70_000, 7)),
}


def name(value):
    return f"{value.collective}-{value.name}" if isinstance(value, Algorithm) else None


every_algorithm = pytest.mark.parametrize("algorithm", CATALOGUE, ids=name)


def outcome(result):
    return result.finish, result.sent, result.messages


def parameters_on(algorithm, nodes):
    return {"nodes": nodes} if "nodes" in algorithm.parameters else {}


# --- all ways agree -------------------------------------------------------------------------------


def machines(size):
    yield COSTS
    if size in (6, 8, 12):
        yield replace(COSTS, ports=2)
    if size in (8, 12):
        nodes = tuple(rank // 4 for rank in range(size))
        yield replace(COSTS, links=LINKS, nodes=nodes)
        yield replace(COSTS, links=LINKS, nodes=nodes, ports=3)


@every_algorithm
def test_all_ways_find_the_same(algorithm):
    found = set()
    for size in filter(algorithm.runs_on, (1, 2, 3, 6, 8, 12, 64)):
        for model in machines(size):
            chosen = parameters_on(algorithm, model.nodes)
            call = algorithm, size, 96 * size, model, 0, chosen
            want = outcome(simulate(*call, method="events"))
            for method in ("compiled", "representative", "sweep"):
                try:
                    result = simulate(*call, method=method)
                except ValueError:
                    continue
                assert outcome(result) == want, (size, model, method)
                assert result.exact
                found.add((method, size > 8))
    assert ("representative", True) in found or not algorithm.symmetric


@every_algorithm
@pytest.mark.parametrize("size", [1, 2, 5, 6, 16])
def test_without_following_messages_the_same_is_found(monkeypatch, algorithm, size):
    if not algorithm.runs_on(size):
        return
    root = size // 2 if algorithm.definition.rooted else 0
    want = simulate(algorithm, size, 48 * size, COSTS, root, method="events")
    monkeypatch.setattr(simulation, "_FEW", 0)
    assert outcome(simulate(algorithm, size, 48 * size, COSTS, root)) == outcome(want)
    # Rounds that cannot be read of all ranks repeat, or a few ranks stand for all.
    monkeypatch.setattr(simulation, "_READABLE", 3 * size)
    try:
        result = simulate(algorithm, size, 48 * size, COSTS, root)
    except TooLargeError:
        assert not algorithm.symmetric
    else:
        assert outcome(result) == outcome(want)


def test_the_rounds_of_scatter_and_allgather_repeat(monkeypatch):
    monkeypatch.setattr(simulation, "_FEW", 0)
    monkeypatch.setattr(simulation, "_READABLE", 64 * 20)
    algorithm = algorithms.find("bcast", "scatter_allgather")
    call = algorithm, 64, 6400, COSTS, 5
    result = simulate(*call)
    assert result.how == "rounds of all ranks; then rounds that repeat"
    assert outcome(result) == outcome(simulate(*call, method="events"))


@given(st.data())
def test_all_ways_find_the_same_on_any_machine(data):
    algorithm = data.draw(st.sampled_from(CATALOGUE))
    size = data.draw(st.integers(1, 12).filter(algorithm.runs_on))
    cost = st.integers(0, 1000)
    piece = st.builds(Piece, st.just(None), cost, cost)
    short = st.builds(Piece, st.integers(1, 5000), cost, cost)
    links = st.lists(short, max_size=1).flatmap(lambda p: st.tuples(*map(st.just, p), piece))
    per_node = data.draw(st.integers(1, size))
    model = Machine(
        gamma=data.draw(cost),
        ports=data.draw(st.integers(1, 3)),
        step=data.draw(cost),
        links={INTRA: data.draw(links), INTER: data.draw(links)},
        nodes=tuple(rank // per_node for rank in range(size)),
        slow=data.draw(
            st.dictionaries(
                st.integers(0, size - 1), st.fractions(1, 3, max_denominator=4), max_size=2
            )
        ),
    )
    nbytes = size * data.draw(st.integers(0, 100))
    root = data.draw(st.integers(0, size - 1)) if algorithm.definition.rooted else 0
    chosen = parameters_on(algorithm, model.nodes)
    for parameter in {"segments", "window"} & {*algorithm.parameters}:
        chosen[parameter] = data.draw(st.integers(1, 5))
    uneven = data.draw(st.integers(0, 3))
    call = algorithm, size, 2 * nbytes + uneven, model, root, chosen
    want = outcome(simulate(*call, method="events"))
    for method in ("compiled", "representative", "sweep"):
        try:
            result = simulate(*call, method=method)
        except ValueError:
            continue
        if result.exact:
            assert outcome(result) == want, method


@every_algorithm
def test_representatives_find_the_textbooks_time(algorithm):
    if not algorithm.symmetric:
        return
    model = Machine(alpha=1_000_000, beta=700, gamma=300)
    for size in (2, 8, 64):
        found = simulate(algorithm, size, 160 * size, model, method="representative")
        formula = algorithm.textbook_time(size, 160 * size, 1_000_000, 700, 300)
        assert found.makespan == pytest.approx(formula, rel=1e-12)


def test_of_unequal_blocks_the_largest_counts():
    ring = algorithms.find("allreduce", "ring")
    exact = simulate(ring, 6, 1001, COSTS)
    found = simulate(ring, 6, 1001, COSTS, method="representative")
    assert (exact.exact, found.exact) == (True, False)
    assert found.how == "1 rank for all, largest block"
    assert found.makespan == simulate(ring, 6, 6 * 167, COSTS).makespan >= exact.makespan


def test_times_longer_than_numpys_integers_are_exact():
    algorithm = algorithms.find("allreduce", "recursive_doubling")
    model = Machine(alpha=1 << 61, beta=1 << 50, gamma=1)
    call = algorithm, 6, 1 << 20, model
    want = simulate(*call, method="events")
    assert want.makespan > 1 << 64
    assert outcome(simulate(*call, method="sweep")) == outcome(want)
    assert outcome(simulate(*call, method="compiled")) == outcome(want)
    # The clock adds up what NumPy's integers cannot hold; so does what repeats.
    rounds = [Plain((r + 1) % 4, (r - 1) % 4, 1 << 20, 1 << 20, 0) for r in range(4)]
    assert repeat(rounds, 40, model).makespan == 40 * ((1 << 61) + (1 << 70))


@pytest.mark.parametrize("method", ["events", "compiled"])
@pytest.mark.parametrize(
    ("programs", "message"),
    [
        (([Send(1, 0)], []), "never completes|sent and not received"),
        (([Send(2, 0)], []), "has no such peer among 2"),
        (([Send(0, 0)], []), "has no such peer among 2"),
        (([Recv(1, 0), Send(1, 0)], [Recv(0, 0), Send(0, 0)]), "never complete"),
        (([Send(1, 0)], [Recv(0, (0, 1))]), "1 block to rank 1|sends other blocks"),
    ],
)
def test_broken_schedules_are_told(method, programs, message):
    entry = algorithms.find("allgather", "ring")._replace(
        schedule=lambda rank, size: iter(programs[rank]),
        parameters={},
    )
    with pytest.raises(ScheduleError, match=message):
        simulate(entry, 2, 8, COSTS, method=method)


# --- which ranks do the same ----------------------------------------------------------------------


@every_algorithm
def test_ranks_are_found_alike_where_the_catalogue_says_so(algorithm):
    for size in filter(algorithm.runs_on, (5, 8)):
        programs = algorithm.program(algorithm.schedule, size, 0, algorithm.complete())
        alike = repeats_every(1, size, programs, range(size))
        assert alike or not algorithm.symmetric
        assert not (alike and algorithm.definition.rooted)


def test_a_message_is_not_preferred_for_the_number_of_its_sender():
    """Rank 0 hears from both sides of the ring's end, rank 3 does not: both are served alike."""

    def schedule(rank, size):
        if rank % 3 == 0:
            yield Recv((rank - 1) % size, 0), Recv((rank + 1) % size, 0)
        else:
            yield Send((rank + 1 if rank % 3 == 2 else rank - 1) % size, 0)

    entry = algorithms.find("allgather", "ring")._replace(schedule=schedule, parameters={})
    model = Machine(alpha=100, nodes=tuple(rank // 3 for rank in range(12)))
    found = simulate(entry, 12, 0, model, method="events")
    assert found.finish == (200, 200, 100) * 4
    assert outcome(simulate(entry, 12, 0, model, method="representative")) == outcome(found)


def test_one_rank_that_differs_is_seen():
    ring = algorithms.find("allgather", "ring")

    def programs(rank):
        return ring.channels(rank, 8)[: 0 if rank == 6 else 1]

    assert repeats_every(1, 8, programs, [0, 3, 5])
    assert not repeats_every(1, 8, programs, [0, 3, 6])
    assert not repeats_every(3, 8, programs, [])


# --- stragglers -----------------------------------------------------------------------------------


def test_a_straggler_holds_up_a_ring():
    ring = algorithms.find("allgather", "ring")
    model = Machine(alpha=100, beta=1, slow={2: Fraction(5, 2)})
    found = simulate(ring, 8, 80, model)
    assert found.makespan > simulate(ring, 8, 80, replace(model, slow={})).makespan == 7 * 110
    assert found.makespan == 7 * 275  # all wait for it, round by round
    assert outcome(simulate(ring, 8, 80, model, method="sweep")) == outcome(found)


def test_a_straggler_that_sends_one_message_costs_that():
    gather = algorithms.find("gather", "linear")
    model = Machine(alpha=100, beta=0, slow={2: Fraction(3)})
    assert simulate(gather, 8, 80, model).makespan == 6 * 100 + 300


# --- the machine ----------------------------------------------------------------------------------


def test_a_model_of_costs_in_seconds():
    links = {INTRA: (Piece(64, 1e-6, 2e-10), Piece(None, 3e-6, 1e-10))}
    model = Machine.of(Costs(links, gamma=5e-11, call=2e-6, step=1e-7), ports=2)
    assert (model.gamma, model.call, model.step, model.ports) == (50, 2_000_000, 100_000, 2)
    assert model.message(0, 1, 64) == 1_000_000 + 200 * 64
    assert model.message(0, 1, 65) == 3_000_000 + 100 * 65
    assert replace(model, nodes=(0, 1)).message(0, 1, 65) == model.message(0, 1, 65)


def test_links_within_and_between_nodes():
    model = Machine(links=LINKS, nodes=(0, 0, 1, 1))
    assert model.message(0, 1, 10) == 1030
    assert model.message(1, 2, 10) == 5300
    assert model.per_node == 2
    assert replace(model, nodes=(0, 1, 0, 1)).per_node is None
    assert replace(model, nodes=(0, 0, 1)).per_node is None
    assert replace(model, nodes=(3, 3, 3)).per_node == 3


ARGUMENTS = st.recursive(
    st.integers(-9, 20) | st.builds(range, st.integers(-9, 9), st.integers(-9, 20)),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | inner.map(of_input) | inner.map(scratch),
    max_leaves=4,
)


@given(ARGUMENTS, st.integers(1, 8), st.integers(0, 60), st.integers(1, 3))
def test_bytes_of_blocks(argument, nblocks, nbytes, segments):
    lengths = layout.even(nbytes, nblocks).counts
    named = blocks(argument, nblocks, nblocks)
    assert number_of_blocks(argument) == len(named)
    for segment in range(segments):
        want = sum(layout.part(lengths[place.block], segments, segment)[1] for place in named)
        assert Sizes(nbytes, nblocks, segments).of(argument, segment) == want
        longest = layout.part(max(lengths), segments, segment)[1]
        assert Sizes(nbytes, nblocks, segments, True).of(argument, segment) == longest * len(named)


@given(st.data(), st.integers(2, 5), st.integers(1, 2))
def test_ports_are_given_as_if_all_that_wait_were_looked_at(data, size, limit):
    """Against the plain rule: in order, whatever finds both its ports free goes."""
    rank = st.integers(0, size - 1)
    ports, number = Ports(size, limit), 0
    free, waiting, under_way = ([limit] * size, [limit] * size), [], []
    for now in range(6):
        for source, target in data.draw(st.lists(st.tuples(rank, rank), max_size=4)):
            number += 1
            key = now, data.draw(st.integers(0, 2)), (target - source) % size, number, source
            ports.wait(key, source, target, Pair(None, None, number))
            waiting.append((key, source, target))
        want = []
        for entry in sorted(waiting):
            _, source, target = entry
            if free[0][source] and free[1][target]:
                free[0][source] -= 1
                free[1][target] -= 1
                want.append(entry)
        waiting = [entry for entry in waiting if entry not in want]
        found = [(source, target, message.distance) for source, target, message in ports.begin()]
        assert found == [(source, target, key[3]) for key, source, target in want]
        under_way += want
        for entry in list(under_way):
            if data.draw(st.booleans()):
                under_way.remove(entry)
                free[0][entry[1]] += 1
                free[1][entry[2]] += 1
                ports.release(*entry[1:])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "guess"}, "method='guess' is none of auto, events"),
        ({"method": "representative"}, "none represent all"),
        ({"machine": Machine(nodes=(0, 1))}, "nodes of 2 ranks, and there are 4"),
        ({"machine": Machine(slow={4: Fraction(2)})}, "rank 4 is slow, but is not among"),
        ({"nbytes": -1}, "nbytes=-1 must not be negative"),
    ],
)
def test_what_is_wrong_is_named(wrong, message):
    call = {"algorithm": algorithms.find("bcast", "linear"), "size": 4, "nbytes": 8, **wrong}
    with pytest.raises(ValueError, match=message):
        simulate(**call)


def test_models_refuse_what_is_no_cost():
    with pytest.raises(ValueError, match="step=-1 must not be negative"):
        Machine(step=-1)
    with pytest.raises(ValueError, match=r"rank 2 is slowed by 0\.5: give at least 1"):
        Machine(slow={2: Fraction(1, 2)})


# --- many ranks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collective", "algorithm", "size"),
    [
        ("allreduce", "ring", 4096),
        ("alltoall", "linear", 4096),
        ("reduce", "parameter_server", 2048),
        ("allreduce", "recursive_doubling", 32768),
    ],
)
def test_many_ranks_find_the_textbooks_time(collective, algorithm, size):
    entry = algorithms.find(collective, algorithm)
    found = simulate(entry, size, 64 * size, Machine(alpha=1000, beta=7, gamma=3))
    assert found.makespan == pytest.approx(
        entry.textbook_time(size, 64 * size, 1000, 7, 3), rel=1e-12
    )
    assert found.messages == entry.count_of("messages", size)
    assert found.how != "every message"


@pytest.mark.skipif(not LONG, reason="set MPICOLL_TEST_LONG=1: takes some 10 minutes")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("per_node", [1, 8])
@pytest.mark.parametrize("segments", [1, 16])
@every_algorithm
def test_65536_ranks(algorithm, segments, per_node):
    """The limits are 60 s and 4 GiB; time is that of a core, doubled for slow machines."""
    if segments > 1 and "segments" not in algorithm.parameters:
        pytest.skip("it has no segments")
    size = 1 << 16
    nodes = tuple(rank // per_node for rank in range(size))
    model = replace(COSTS, nodes=nodes, links=LINKS)
    chosen = parameters_on(algorithm, nodes) if per_node > 1 else {}
    if segments > 1:
        chosen["segments"] = segments
    begun = time.process_time()
    found = simulate(algorithm, size, 1 << 28, model, 0, chosen)
    assert time.process_time() - begun < 120
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20
    assert found.exact
    assert found.messages == algorithm.count_of("messages", size, 0, chosen)
