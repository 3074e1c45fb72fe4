"""Data in files larger than what a rank may hold: rows are read where they are needed."""

import re

import numpy as np
import pytest

from mpicoll.train import Config, data, run
from mpicoll.train.data import numpy_files
from mpicoll.train.data.rows import Rows

#: A training under a limit on what a process may hold; says what it holds of its own in the end.
LIMITED = """
import resource
import sys

from mpi4py import MPI

import mpicoll
from mpicoll.train import Config, run

resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
config = Config(dataset=sys.argv[1], batch=64, steps=20, dtype="float32")
result = run(config, mpicoll.Intracomm(MPI.COMM_WORLD))
assert result.steps == 20
with open("/proc/self/status") as file:
    status = dict(line.split(":") for line in file)
held = sum(int(status[name].split()[0]) for name in ("RssAnon", "RssShmem"))
print(f"holds {held} KiB", flush=True)
"""


def arrays(samples=60):
    generator = np.random.default_rng(1)
    labels = np.arange(samples) % 3
    inputs = (np.eye(3, 8)[labels] * 100 + generator.integers(0, 99, (samples, 8))).astype(np.uint8)
    return inputs.reshape(samples, 2, 4), labels


@pytest.fixture
def nothing_small(monkeypatch):
    """Every array is large enough to stay in its file."""
    monkeypatch.setattr(numpy_files, "_MAPPED", 1)


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_npz_file_is_mapped_and_trains_as_one_that_is_read(tmp_path, monkeypatch, order):
    inputs, labels = arrays()
    np.savez(tmp_path / "own.npz", inputs=np.asarray(inputs, order=order), labels=labels)
    config = Config(dataset=str(tmp_path / "own.npz"), batch=8, epochs=2, dtype="float32")
    reference = run(config)
    monkeypatch.setattr(numpy_files, "_MAPPED", 1)
    found = data.load(config.dataset)
    assert isinstance(found.train_inputs, Rows) and isinstance(found.test_targets, Rows)
    ours = run(config)
    for name, array in reference.parameters.items():
        assert np.array_equal(ours.parameters[name], array)
    assert [e.test for e in ours.history] == [e.test for e in reference.history]


def test_a_compressed_file_is_read(tmp_path, nothing_small):
    inputs, labels = arrays()
    np.savez_compressed(tmp_path / "own.npz", inputs=inputs, labels=labels)
    assert isinstance(data.load(str(tmp_path / "own.npz")).train_inputs, np.ndarray)


def test_objects_in_a_mapped_file_are_refused(tmp_path, nothing_small):
    np.savez(tmp_path / "own.npz", inputs=np.array([{}], object), labels=np.zeros(1, int))
    with pytest.raises(ValueError, match=r"own\.npz holds no arrays of numbers, or is damaged"):
        data.load(str(tmp_path / "own.npz"))


@pytest.mark.parametrize("kind", ["labels", "targets"])
def test_targets_stay_in_their_files_too(tmp_path, nothing_small, kind):
    inputs, labels = arrays()
    for part, rows in (
        ("train", slice(0, 30)),
        ("validation", slice(30, 45)),
        ("test", slice(45, 60)),
    ):
        np.save(tmp_path / f"{part}_inputs.npy", inputs[rows])
        np.save(tmp_path / f"{part}_{kind}.npy", labels[rows])
    found = data.load(str(tmp_path))
    assert all(isinstance(rows, Rows) for both in found.parts.values() for rows in both)
    assert found.held_out == "validation"
    assert found.train_inputs[:].max() <= 1
    result = run(Config(dataset=str(tmp_path), batch=8, epochs=3))
    names = ["loss", "accuracy"] if kind == "labels" else ["loss", "r2"]
    assert list(result.test) == names


def test_targets_in_files_are_checked_when_they_are_opened(tmp_path, nothing_small):
    inputs, labels = arrays()
    np.save(tmp_path / "inputs.npy", inputs)
    targets = labels.astype(float)
    targets[41] = np.inf
    np.save(tmp_path / "targets.npy", targets)
    with pytest.raises(ValueError, match="the target of sample 41 is not finite: leave the sample"):
        data.load(str(tmp_path))
    (tmp_path / "targets.npy").unlink()
    np.save(tmp_path / "labels.npy", labels - 1)
    with pytest.raises(ValueError, match=r"label -1 is not in 0 \.\. 1"):
        data.load(str(tmp_path))


@pytest.mark.long
@pytest.mark.timeout(180)
def test_four_gigabytes_train_where_one_may_be_held(mpirun, tmp_path):
    """On each of two ranks. A file of holes, which takes no space; what it holds is zeros."""
    samples = 1 << 20
    shape = np.lib.format.open_memmap(
        tmp_path / "train_inputs.npy", "w+", np.float32, (samples, 1024)
    ).shape
    assert np.prod(shape) * 4 == 1 << 32
    labels = np.arange(samples, dtype=np.uint8) % 3
    np.save(tmp_path / "train_labels.npy", labels)
    np.save(tmp_path / "test_inputs.npy", np.zeros((30, 1024), np.float32))
    np.save(tmp_path / "test_labels.npy", labels[:30])
    program = tmp_path / "program.py"
    program.write_text(LIMITED)
    done = mpirun(2, "-m", "mpi4py", program, tmp_path)
    assert done.status == 0, done.err
    held = [int(text) for text in re.findall(r"holds (\d+) KiB", done.out)]
    assert len(held) == 2 and max(held) < 100_000, held
