"""Sampler: each epoch is a permutation, and the ranks' parts are a partition of each batch."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.train.data.sampler import Sampler, shared

counts = st.integers(1, 200)


@given(counts, counts, st.integers(0, 3), st.integers(1, 4))
def test_an_epoch_takes_every_sample_once(samples, batch, seed, epoch):
    sampler = Sampler(samples, batch, seed)
    batches = list(sampler.batches(epoch))
    assert sorted(np.concatenate(batches)) == list(range(samples))
    assert len(batches) == sampler.steps
    assert all(len(b) == min(batch, samples) for b in batches[:-1])
    assert 1 <= len(batches[-1]) <= batch


def test_order_depends_on_seed_and_epoch_alone():
    def order(seed, epoch):
        return np.concatenate(list(Sampler(50, 8, seed).batches(epoch))).tolist()

    assert order(0, 1) == order(0, 1)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (1, 2, 3)}) == 6


@given(st.integers(0, 100), st.integers(1, 33))
def test_parts_are_an_even_partition_in_rank_order(count, size):
    items = np.arange(count)
    parts = [shared(items, size, rank) for rank in range(size)]
    assert np.concatenate(parts).tolist() == items.tolist()
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


def test_more_ranks_than_samples_leaves_the_last_ranks_without():
    assert [shared(np.arange(3), 4, rank).tolist() for rank in range(4)] == [[0], [1], [2], []]
