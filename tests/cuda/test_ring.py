"""Rings through the links of GPUs that are not all linked."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

reach = pytest.importorskip("mpicoll.cuda.links")


def graph(size, pairs):
    linked = [{rank} for rank in range(size)]
    for one, other in pairs:
        linked[one].add(other)
        linked[other].add(one)
    return linked


def is_ring(linked, order):
    pairs = zip(order, [*order[1:], order[0]], strict=True)
    return sorted(order) == [*range(len(linked))] and all(b in linked[a] for a, b in pairs)


@given(st.data(), st.integers(3, 9))
def test_a_ring_is_found_where_there_is_one(data, size):
    hidden = data.draw(st.permutations(range(size)))
    pairs = [*zip(hidden, [*hidden[1:], hidden[0]], strict=True)]
    pairs += data.draw(st.lists(st.sampled_from([*itertools.combinations(range(size), 2)])))
    linked = graph(size, pairs)
    order = reach.ring_of(linked)
    assert order[0] == 0 and is_ring(linked, order)


@given(st.data(), st.integers(3, 6))
def test_no_ring_is_found_where_there_is_none(data, size):
    pairs = data.draw(st.lists(st.sampled_from([*itertools.combinations(range(size), 2)])))
    linked = graph(size, pairs)
    there_is = any(is_ring(linked, (0, *rest)) for rest in itertools.permutations(range(1, size)))
    assert bool(reach.ring_of(linked)) == there_is


#: Eight GPUs with four links each: two squares with their diagonals, joined corner by corner.
CUBE = [
    *itertools.combinations(range(4), 2),
    *itertools.combinations(range(4, 8), 2),
    *((corner, corner + 4) for corner in range(4)),
]


def test_two_ranks_are_no_ring():
    assert reach.ring_of(graph(2, [])) == reach.ring_of(graph(2, [(0, 1)])) == ()


@pytest.fixture
def links(monkeypatch):
    def links(linked, access=lambda one, other: True, hidden=()):
        """GPUs of these links; `access` says which can map each other's memory at all."""
        shown = [number for number in range(len(linked)) if number not in hidden]
        cuda = SimpleNamespace(
            count=lambda: len(shown),
            uuid=lambda ordinal: f"GPU-{shown[ordinal]}",
            linked=lambda a, b: (access(a, b), shown[b] in linked[shown[a]]),
        )
        monkeypatch.setattr(reach, "_driver", cuda)
        return [
            reach.Facts("", "host", 100 + number, f"GPU-{number}", 8)
            for number in range(len(linked))
        ]

    return links


def test_all_are_linked(links):
    facts = links(graph(4, itertools.combinations(range(4), 2)))
    assert (reach.unlinked(facts), reach.ring(facts)) == ("", ())


def test_a_ring_serves_where_not_all_are_linked(links):
    linked = graph(8, CUBE)
    facts = links(linked, lambda a, b: b in linked[a])
    assert reach.unlinked(facts) == ""
    assert is_ring(linked, reach.ring(facts))
    mixed = [facts[rank] for rank in (6, 1, 4, 3, 0, 2, 7, 5)]
    order = reach.ring(mixed)
    assert is_ring([{mixed.index(facts[n]) for n in linked[int(f.uuid[4:])]} for f in mixed], order)


def test_neither_links_nor_a_ring(links):
    facts = links(graph(4, [(0, 1), (2, 3)]))
    assert reach.unlinked(facts) == "GPUs 0 and 2 are not linked by NVLink"
    facts = links(graph(2, []), lambda a, b: False)
    assert reach.unlinked(facts) == "GPUs 0 and 1 cannot map each other's memory"


def test_a_gpu_that_is_hidden(links):
    facts = links(graph(3, itertools.combinations(range(3), 2)), hidden=(1,))
    assert "hidden" in reach.unlinked(facts)


def test_ranks_on_one_gpu(links):
    facts = [*links(graph(3, itertools.combinations(range(3), 2)))]
    facts.append(facts[0]._replace(pid=7))
    assert reach.problem(facts, False) == "several ranks have the same GPU"
    assert (reach.unlinked(facts), reach.ring(facts)) == ("", ())
