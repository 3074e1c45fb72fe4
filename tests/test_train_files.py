"""What comes from the user's files: data, configurations; and how much memory is asked for."""

import gzip
import json
import struct

import numpy as np
import pytest

from mpicoll.cli import main
from mpicoll.train import MLP, Config, TrainingError, config_file, data, memory, run
from mpicoll.train.data import Dataset
from mpicoll.train.flat import Flat
from mpicoll.train.rows import Rows


def idx(array):
    head = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


@pytest.fixture
def fashion(tmp_path):
    """Four small idx files; two of them compressed."""
    generator = np.random.default_rng(0)
    for prefix, count in (("train", 40), ("t10k", 10)):
        images = generator.integers(0, 256, (count, 28, 28)).astype(np.uint8)
        images[0, 0, 0] = 255
        (tmp_path / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        labels = (np.arange(count) % 10).astype(np.uint8)
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(labels))
    return tmp_path


def test_idx_files_are_read_compressed_or_not(fashion):
    found = data.load("fashion-mnist", str(fashion))
    assert found.train_inputs.shape == (40, 784) and found.test_inputs.shape == (10, 784)
    assert (found.classes, found.image) == (10, (28, 28, 1))
    assert found.train_inputs[0, 0] == 1 and found.train_inputs.dtype == np.float32


def test_a_missing_idx_file_names_the_remedy(tmp_path):
    with pytest.raises(FileNotFoundError, match="install the Debian package dataset-fashion-mnist"):
        data.load("fashion-mnist", str(tmp_path))


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:-1], lambda b: b + b"x", lambda b: b"\0\0\x0d" + b[3:], lambda b: b[:3]],
    ids=["short", "long", "floats", "no head"],
)
def test_a_damaged_idx_file_is_refused(fashion, damage):
    path = fashion / "train-labels-idx1-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match="is damaged"):
        data.load("fashion-mnist", str(fashion))


def test_a_damaged_compressed_file_is_refused(fashion):
    path = fashion / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="is damaged"):
        data.load("fashion-mnist", str(fashion))


def test_digits_are_the_file_of_scikit_learn(monkeypatch, tmp_path):
    table = np.zeros((1797, 65))
    table[:, 5], table[:, -1] = 16, np.arange(1797) % 10
    path = tmp_path / "digits.csv.gz"
    np.savetxt(path, table, delimiter=",")
    monkeypatch.setattr(data, "_file_of", lambda *_: path)
    found = data.load("digits")
    assert len(found.train_labels) + len(found.test_labels) == 1797
    assert found.image == (8, 8, 1) and found.train_inputs.max() == 1
    np.savetxt(path, table[:5], delimiter=",")
    with pytest.raises(ValueError, match="holds 5 rows, not 1797"):
        data.load("digits")


def test_an_npz_file_with_parts(tmp_path):
    arrays = {
        "train_inputs": np.full((6, 2, 3), 255, np.uint8),
        "train_labels": np.arange(6) % 3,
        "test_inputs": np.zeros((2, 2, 3), np.uint8),
        "test_labels": np.array([0, 2]),
    }
    np.savez(tmp_path / "own.npz", **arrays)
    found = data.load(str(tmp_path / "own.npz"))
    assert (found.name, found.classes, found.image) == ("own", 3, (2, 3, 1))
    assert found.train_inputs.tolist() == [[1.0] * 6] * 6


def test_an_npz_file_without_a_split(tmp_path):
    np.savez(tmp_path / "own.npz", inputs=np.arange(20.0).reshape(10, 2), labels=np.arange(10) % 2)
    found = data.load(str(tmp_path / "own.npz"))
    assert (len(found.train_labels), len(found.test_labels), found.shape) == (8, 2, ())


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"inputs": np.ones((3, 2))}, "has no train_inputs, train_labels"),
        ({"inputs": np.ones((7, 2)), "labels": np.zeros(6, int)}, "7 inputs and 6 labels"),
        ({"inputs": np.ones((5, 2)), "labels": np.array([0, 0, 0, 0, -1])}, "label -1 is not in"),
    ],
)
def test_an_npz_file_that_does_not_fit_is_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        data.load(str(tmp_path / "own.npz"))


def test_no_code_is_run_from_a_file(tmp_path):
    np.savez(tmp_path / "own.npz", inputs=np.array([{}], object), labels=np.zeros(1, int))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        data.load(str(tmp_path / "own.npz"))


def test_a_missing_file_ends_the_run(tmp_path):
    with pytest.raises(TrainingError, match="FileNotFoundError"):
        run(Config(dataset=str(tmp_path / "none.npz")))


def shards(folder, dtype=np.float64):
    generator = np.random.default_rng(1)
    labels = np.arange(60) % 3
    inputs = (np.eye(3, 4)[labels] * 5 + generator.random((60, 4))).astype(dtype)
    for number, rows in enumerate((slice(0, 7), slice(7, 30), slice(30, 48))):
        np.save(folder / f"train_inputs-{number}.npy", inputs[rows])
        np.save(folder / f"train_labels-{number}.npy", labels[rows])
    np.save(folder / "test_inputs.npy", inputs[48:])
    np.save(folder / "test_labels.npy", labels[48:])
    return inputs, labels


def test_shards_are_mapped_and_train_as_arrays_do(tmp_path):
    inputs, labels = shards(tmp_path)
    found = data.load(str(tmp_path))
    assert isinstance(found.train_inputs, Rows)
    assert np.array_equal(found.train_inputs[np.array([47, 0, 7, 6])], inputs[[47, 0, 7, 6]])
    assert np.array_equal(found.train_inputs[5:33], inputs[5:33])
    assert found.train_inputs[np.zeros(0, int)].shape == (0, 4)
    arrays = Dataset("own", 3, inputs[:48], labels[:48], inputs[48:], labels[48:])
    config = Config(dataset=str(tmp_path), batch=8, epochs=2)
    ours, reference = run(config), run(config, dataset=arrays)
    for name, array in reference.parameters.items():
        assert np.array_equal(ours.parameters[name], array)
    assert ours.history[-1].test_accuracy == reference.history[-1].test_accuracy


def test_rows_are_converted_as_they_are_read():
    rows = Rows([np.full((2, 2, 2), 51, np.uint8)]).flattened().astype("float32")
    assert rows[:].dtype == np.float32 and rows.shape == (2, 4)
    np.testing.assert_allclose(rows[np.array([1])], 0.2, rtol=1e-6)


def test_shards_that_differ_are_refused(tmp_path):
    shards(tmp_path)
    np.save(tmp_path / "train_inputs-1.npy", np.zeros((23, 5)))
    with pytest.raises(
        ValueError, match=r"rows of float64 of shape \(4,\) and of float64 of shape"
    ):
        data.load(str(tmp_path))


# --- configuration --------------------------------------------------------------------------------

TOML = """
dataset = "mnist5k"
hidden = [128, 64]
lr = 1
clip = 0.5
bucket = 4096
"""
YAML = "dataset: mnist5k\nhidden: [128, 64]\nlr: 1\nclip: 0.5\nbucket: 4096\n"


@pytest.mark.parametrize(("name", "text"), [("run.toml", TOML), ("run.yaml", YAML)])
def test_a_file_says_what_arguments_would(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    found = Config(**config_file.read(tmp_path / name))
    assert found == Config(hidden=(128, 64), lr=1.0, clip=0.5, bucket=4096)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.toml", "epoch = 3", "unknown key 'epoch'; the nearest known key is epochs"),
        ("run.yaml", "momentun: 0.5", "unknown key 'momentun'; the nearest known key is momentum"),
        ("run.toml", 'epochs = "3"', "epochs is '3'"),
        ("run.toml", "epochs = true", "epochs is True"),
        ("run.yaml", "hidden: [a]", r"hidden\.0 is 'a'"),
        ("run.toml", "epochs =", "is no TOML"),
        ("run.yaml", "a: [", "is no YAML"),
        ("run.yaml", "just words", "holds no keys"),
        ("run.json", "{}", "ends with .toml"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        config_file.read(tmp_path / name)


def test_the_command_line_comes_before_the_file(capsys, tmp_path):
    np.savez(tmp_path / "own.npz", inputs=np.eye(30, 8), labels=np.arange(30) % 3)
    path = tmp_path / "run.toml"
    path.write_text(f'dataset = "{tmp_path / "own.npz"}"\nepochs = 3\nbatch = 6\n')
    assert main(["train", "--config", str(path), "--epochs", "2", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["config"]["epochs"], facts["config"]["batch"], facts["steps"]) == (2, 6, 8)


def test_every_field_is_an_option():
    from typer.main import get_command

    from mpicoll.cli.app import app

    known = {parameter.name for parameter in get_command(app).commands["train"].params}
    assert set(config_file.KEYS) <= known


# --- memory ---------------------------------------------------------------------------------------


def test_an_estimate_counts_what_is_allocated():
    model = MLP((100, 50, 10))
    weights = Flat(model.initial_parameters(0))
    size = 8 * (100 * 50 + 50 + 50 * 10 + 10)
    config = Config(optimizer="adam", batch=64)
    needed = memory.estimate(config, 1, model, weights)
    assert (needed["gradients"], needed["optimizer"]) == (size, 2 * size)
    assert needed["activations"] == 8 * 64 * (100 + 50 + 50 + 10)
    sharded = memory.estimate(
        Config(optimizer="adam", strategy="zero1", batch=64), 4, model, weights
    )
    assert sharded["optimizer"] == 2 * size // 4
    assert sharded["activations"] == needed["activations"] // 4


def test_what_cannot_fit_is_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 9_000_000)
    memory.require({"gradients": 3_000_000}, 3)
    message = r"4 rank\(s\) of this node need 12\.0 MB more \(gradients 3\.0 MB each\), 9\.0 MB are"
    with pytest.raises(MemoryError, match=message):
        memory.require({"gradients": 3_000_000}, 4)


def test_the_limit_of_a_control_group_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.available() is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:       5 kB\n")
    assert memory.available() == 5120
    (tmp_path / "memory.max").write_text("4000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert memory.available() == 3000
