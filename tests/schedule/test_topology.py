"""Shapes among ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.schedule.topology import ceil_log2, double_binary_tree, doubling, floor_log2

SIZES = st.integers(1, 600)


@given(SIZES)
def test_logarithms(n):
    assert 2 ** floor_log2(n) <= n < 2 ** (floor_log2(n) + 1)
    assert n <= 2 ** ceil_log2(n) and (n == 1 or 2 ** (ceil_log2(n) - 1) < n)
    assert list(doubling(n)) == [2**k for k in range(ceil_log2(n))]


@given(SIZES, st.sampled_from([0, 1]))
def test_each_tree_spans_all_ranks_within_the_depth(size, tree):
    nodes = [double_binary_tree(rank, size, tree) for rank in range(size)]
    assert sum(node.parent is None for node in nodes) == 1
    for rank, node in enumerate(nodes):
        assert all(nodes[child].parent == rank for child in node.children)
        assert len(node.children) <= 2
        assert len(set(node.children)) == len(node.children)
        if node.parent is not None:
            assert rank in nodes[node.parent].children
        depth = 0
        while nodes[rank].parent is not None:
            rank, depth = nodes[rank].parent, depth + 1
        assert depth <= ceil_log2(size)


@given(SIZES)
def test_no_rank_is_interior_in_both_trees_but_rank_0_of_odd_sizes(size):
    interior = [
        {rank for rank in range(size) if double_binary_tree(rank, size, tree).children}
        for tree in (0, 1)
    ]
    assert interior[0] & interior[1] <= ({0} if size % 2 else set())


def test_the_picture_in_the_documentation():
    parents = [double_binary_tree(rank, 8, 1).parent for rank in range(8)]
    assert parents == [1, 3, 1, 7, 5, 3, 5, None]


@pytest.mark.parametrize(("size", "parents"), [(1, [None]), (2, [None, 0]), (3, [None, 2, 0])])
def test_small_trees(size, parents):
    assert [double_binary_tree(rank, size, 0).parent for rank in range(size)] == parents
