"""Augmentation: what is drawn belongs to the sample, whoever draws it and in whatever batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.train import Config, Dataset
from mpicoll.train.data import augment
from mpicoll.train.data.augment import Augmentation, parse
from mpicoll.train.data.feeds import Reading

IMAGE = (4, 5, 2)
PIXELS = np.arange(7 * 40.0).reshape(7, 40) + 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("shift:2", Augmentation(2, False)),
        ("flip", Augmentation(0, True)),
        ("shift:13,flip", Augmentation(13, True)),
    ],
)
def test_augmentations_are_read(text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize("text", ["", "shift", "shift:0", "flip,shift:1", "shift:1,", ",flip", "x"])
def test_others_are_refused(text):
    with pytest.raises(ValueError, match="unknown augmentation"):
        Config(augment=text)


def test_an_image_is_moved_and_zeros_move_in():
    moved = Augmentation(shift=1).apply(PIXELS, IMAGE, 0, 1, np.arange(7))
    seen = set()
    for before, after in zip(PIXELS.reshape(7, *IMAGE), moved.reshape(7, *IMAGE), strict=True):
        framed = np.pad(before, ((1, 1), (1, 1), (0, 0)))
        places = [
            (y, x)
            for y in range(3)
            for x in range(3)
            if np.array_equal(framed[y : y + 4, x : x + 5], after)
        ]
        assert len(places) == 1
        seen.update(places)
    assert len(seen) > 2


def test_half_are_mirrored():
    mirrored = Augmentation(flip=True).apply(PIXELS, IMAGE, 0, 1, np.arange(7))
    for before, after in zip(PIXELS.reshape(7, *IMAGE), mirrored.reshape(7, *IMAGE), strict=True):
        assert np.array_equal(after, before) or np.array_equal(after, before[:, ::-1])
    assert 0 < sum(not np.array_equal(a, b) for a, b in zip(PIXELS, mirrored, strict=True)) < 7


@given(st.permutations(range(7)), st.integers(0, 7))
def test_what_is_drawn_belongs_to_the_sample(order, cut):
    how, order = Augmentation(1, True), np.array(order)
    whole = how.apply(PIXELS, IMAGE, 5, 2, np.arange(7))
    parts = [how.apply(PIXELS[own], IMAGE, 5, 2, own) for own in (order[:cut], order[cut:])]
    assert np.array_equal(np.concatenate(parts), whole[order])


def test_epochs_and_seeds_differ():
    drawn = [
        augment.Augmentation(2).apply(PIXELS, IMAGE, seed, epoch, np.arange(7)).tobytes()
        for seed in (0, 1)
        for epoch in (1, 2)
    ]
    assert len(set(drawn)) == 4


def test_what_is_no_image_is_refused():
    labels = np.array([0, 1])
    flat = Dataset("flat", 2, np.zeros((2, 3)), labels, np.zeros((2, 3)), labels)
    with pytest.raises(ValueError, match="samples are 3 values and no images"):
        Reading(flat, 0, "flip")
