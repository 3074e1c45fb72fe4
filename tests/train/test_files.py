"""What comes from the user's files: data, configurations; and how much memory is asked for."""

import gzip
import json
import re
import struct
import sys

import fake_cupy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicoll.cli import main
from mpicoll.train import MLP, Config, TrainingError, data, run
from mpicoll.train.data import Dataset, catalogue, pictures
from mpicoll.train.data.rows import Rows
from mpicoll.train.driver import config_file, memory
from mpicoll.train.models.flat import Flat
from mpicoll.train.ranks.workers import Workers
from mpicoll.train.strategies.holding import Holding


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
    assert found.train_inputs.shape == (40, 28, 28) and len(found.test_inputs) == 10
    assert (found.classes, found.image) == (10, (28, 28, 1))
    assert found.train_inputs[0, 0, 0] == 1 and found.train_inputs.dtype == np.float32


def test_a_folder_of_idx_files_is_a_data_set(fashion):
    found, named = data.load(str(fashion)), data.load("fashion-mnist", str(fashion))
    assert (found.name, found.classes) == (fashion.name, 10)
    assert np.array_equal(found.train_inputs, named.train_inputs)
    assert np.array_equal(found.test_targets, named.test_targets)
    assert catalogue.read_inputs(str(fashion)) == [(40 * 784, np.uint8), (10 * 784, np.uint8)]
    result = run(Config(dataset=str(fashion), epochs=1, batch=8))
    assert set(result.test) == {"loss", "accuracy"}
    # Some hand the files on with a dot in their names.
    (fashion / "train-images-idx3-ubyte.gz").rename(fashion / "train-images.idx3-ubyte.gz")
    assert np.array_equal(data.load(str(fashion)).train_inputs, named.train_inputs)
    (fashion / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="missing: give a folder of all four"):
        data.load(str(fashion))


def test_a_missing_idx_file_names_the_remedy(tmp_path):
    with pytest.raises(FileNotFoundError, match="install the Debian package dataset-fashion-mnist"):
        data.load("fashion-mnist", str(tmp_path))


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:-1],
        lambda b: b + b"x",
        lambda b: b"\0\0\x0d" + b[3:],
        lambda b: b[:3],
        lambda b: b"\0\0\x08\x02" + b[4:],
        lambda b: b[:4] + b"\xff" * 4 + b[8:],
        lambda b: b"",
        lambda b: b[:4] + bytes(4),
    ],
    ids=["short", "long", "floats", "no head", "two axes", "too large a shape", "empty", "none"],
)
def test_a_damaged_idx_file_is_refused(fashion, damage):
    path = fashion / "train-labels-idx1-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match="is damaged"):
        data.load("fashion-mnist", str(fashion))


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:100],
        lambda b: b"no gzip" + b,
        lambda b: gzip.compress(gzip.decompress(b) + b"x"),
        # Four billion images in 31 kB: refused before as much memory is asked for.
        lambda b: gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12 + gzip.decompress(b)[16:]),
    ],
    ids=["short", "no gzip", "long", "too large a shape"],
)
def test_a_damaged_compressed_file_is_refused(fashion, damage):
    path = fashion / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match="is damaged"):
        data.load(str(fashion))
    sizes = [size for size, _ in catalogue.read_inputs(str(fashion))]
    assert sizes in ([], [40 * 784, 10 * 784])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 5), st.booleans(), st.randoms())
def test_idx_files_of_any_shape(tmp_path_factory, count, height, width, compressed, chance):
    """What was written is read; with one byte of a head changed nothing is."""
    folder = tmp_path_factory.mktemp("idx")
    write = gzip.compress if compressed else bytes
    arrays = {}
    for prefix in ("train", "t10k"):
        images = np.frombuffer(chance.randbytes(count * height * width), np.uint8)
        arrays[f"{prefix}-images-idx3"] = images.reshape(count, height, width)
        arrays[f"{prefix}-labels-idx1"] = np.zeros(count, np.uint8)
    for name, array in arrays.items():
        (folder / f"{name}-ubyte{'.gz' * compressed}").write_bytes(write(idx(array)))
    found = data.load(str(folder))
    assert np.array_equal(found.test_inputs * 255, arrays["t10k-images-idx3"])
    name = chance.choice([*arrays])
    wrong, place = bytearray(idx(arrays[name])), chance.randrange(8)
    wrong[place] ^= 1 << chance.randrange(8)
    (folder / f"{name}-ubyte{'.gz' * compressed}").write_bytes(write(wrong))
    with pytest.raises(ValueError, match="is damaged"):
        data.load(str(folder))


def test_digits_are_the_file_of_scikit_learn(monkeypatch, tmp_path):
    table = np.zeros((1797, 65))
    table[:, 5], table[:, -1] = 16, np.arange(1797) % 10
    path = tmp_path / "digits.csv.gz"
    np.savetxt(path, table, delimiter=",")
    monkeypatch.setattr(pictures, "_file_of", lambda *_: path)
    found = data.load("digits")
    assert len(found.train_targets) + len(found.test_targets) == 1797
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
    assert np.array_equal(found.train_inputs, np.ones((6, 2, 3)))


def test_an_npz_file_without_a_split(tmp_path):
    np.savez(tmp_path / "own.npz", inputs=np.arange(20.0).reshape(10, 2), labels=np.arange(10) % 2)
    found = data.load(str(tmp_path / "own.npz"))
    assert (len(found.train_targets), len(found.test_targets), found.shape) == (8, 2, (2,))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"inputs": np.ones((3, 2))}, "own has no labels: give train_inputs and train_labels"),
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
    with pytest.raises(ValueError, match=r"own\.npz holds no arrays of numbers, or is damaged"):
        data.load(str(tmp_path / "own.npz"))


@pytest.mark.parametrize("damage", ["text", "cut", "changed", "npy"])
def test_a_file_that_is_damaged_or_something_else_is_named(tmp_path, damage):
    path = tmp_path / "own.npz"
    np.savez_compressed(path, inputs=np.arange(900.0).reshape(90, 10), labels=np.zeros(90, int))
    whole = path.read_bytes()
    if damage == "npy":
        with open(path, "wb") as file:
            np.save(file, np.zeros(3))
    else:
        changed = whole[:200] + bytes(byte ^ 255 for byte in whole[200:400]) + whole[400:]
        path.write_bytes({"text": b"x,y", "cut": whole[:300], "changed": changed}[damage])
    with pytest.raises(
        ValueError, match=r"own\.npz holds .* is damaged: write it again by numpy\."
    ):
        data.load(str(path))


def test_a_damaged_shard_is_named(tmp_path):
    shards(tmp_path)
    (tmp_path / "train_labels-1.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=r"train_labels-1\.npy holds no arrays of numbers, or is"):
        data.load(str(tmp_path))


def test_inputs_that_are_no_numbers_are_refused(tmp_path):
    np.savez(tmp_path / "own.npz", inputs=np.array([["a", "b"]] * 9), labels=np.arange(9) % 3)
    with pytest.raises(ValueError, match=r"inputs are of type <U1: give numbers"):
        data.load(str(tmp_path / "own.npz"))


def test_a_missing_file_ends_the_run(tmp_path):
    with pytest.raises(TrainingError, match=r"none\.npz does not exist: give the path of an \.npz"):
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
    assert ours.history[-1].test["accuracy"] == reference.history[-1].test["accuracy"]


def test_many_parts_are_in_the_order_of_their_numbers(tmp_path):
    labels = np.arange(60) % 3
    inputs = np.eye(3, 4)[labels] * 5 + np.random.default_rng(1).random((60, 4))
    for number in range(12):
        np.save(tmp_path / f"inputs-{number}.npy", inputs[5 * number : 5 * number + 5])
    np.save(tmp_path / "labels.npy", labels)
    found = data.load(str(tmp_path))
    np.savez(tmp_path / "one.npz", inputs=inputs, labels=labels)
    whole = data.load(str(tmp_path / "one.npz"))
    assert np.array_equal(found.train_inputs[:], whole.train_inputs)
    assert np.array_equal(found.test_targets, whole.test_targets)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            ["-1", "-01"],
            r"inputs-01\.npy and inputs-1\.npy, which are the same part of inputs",
        ),
        (["", "-0"], r"holds inputs\.npy and inputs-0\.npy: give the array as one file, or as"),
        (["-a", "-b"], r"inputs-a\.npy: 'a' is no number, so it is not clear which part"),
        (["-1", "-1b"], r"inputs-1b\.npy: '1b' is no number"),
        (["-0", "-1", "-3"], "holds parts 1 and 3 of inputs, and nothing between them: number"),
    ],
)
def test_parts_without_a_clear_order_are_refused(tmp_path, parts, message):
    for part in parts:
        np.save(tmp_path / f"inputs{part}.npy", np.ones((5, 2)))
    np.save(tmp_path / "labels.npy", np.zeros(5 * len(parts), int))
    with pytest.raises(ValueError, match=message):
        data.load(str(tmp_path))


def test_lengths_of_parts_are_compared(tmp_path):
    for number, (rows, labels) in enumerate([(5, 4), (5, 6)]):  # as many in all
        np.save(tmp_path / f"inputs-{number}.npy", np.ones((rows, 2)))
        np.save(tmp_path / f"labels-{number}.npy", np.zeros(labels, int))
    with pytest.raises(ValueError, match=r"part 0 of inputs has shape \(5, 2\) and that of labels"):
        data.load(str(tmp_path))
    np.save(tmp_path / "labels-0.npy", np.zeros(5, int))
    np.save(tmp_path / "labels-1.npy", np.zeros((5, 2)))
    with pytest.raises(ValueError, match=r"parts of labels are of int64 and of float64, with rows"):
        data.load(str(tmp_path))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.eye(3, dtype=int)[np.arange(30) % 3], r"own: labels have shape \(30, 3\), as one-hot"),
        (
            np.array(["cat", "dog", "eel"] * 10),
            "own: labels .* dtype <U3: give whole numbers, those",
        ),
        (
            np.arange(30) % 3 + 10**12,
            "own: label 1000000000002 is larger than the limit of 1",
        ),
    ],
    ids=["one-hot", "text", "large"],
)
@pytest.mark.parametrize("split", [False, True])
def test_labels_that_are_no_classes_are_refused(tmp_path, labels, message, split):
    arrays = {"inputs": np.ones((30, 4)), "labels": labels}
    if split:
        arrays = {f"{part}_{n}": array for part in ("train", "test") for n, array in arrays.items()}
        message = message.replace("own:", "own, train_labels:")
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        data.load(str(tmp_path / "own.npz"))


def test_rows_are_converted_as_they_are_read():
    rows = Rows([np.full((2, 2, 2), 51, np.uint8)]).numbers().astype("float32")
    assert rows[:].dtype == np.float32 and rows.shape == (2, 2, 2)
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
groups = ["*.bias:decay=0"]
"""
YAML = """
dataset: mnist5k
hidden: [128, 64]
lr: 1
clip: 0.5
bucket: 4096
groups: ["*.bias:decay=0"]
"""


@pytest.mark.parametrize(("name", "text"), [("run.toml", TOML), ("run.yaml", YAML)])
def test_a_file_says_what_arguments_would(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    found = Config(**config_file.read(tmp_path / name))
    assert found == Config(
        hidden=(128, 64), lr=1.0, clip=0.5, bucket=4096, groups=("*.bias:decay=0",)
    )


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "1.0e-4", "+100e-6", ".1e-3", "0.0001"])
def test_yaml_has_the_numbers_of_python(tmp_path, text):
    (tmp_path / "run.yaml").write_text(f"lr: {text}")
    assert config_file.read(tmp_path / "run.yaml") == {"lr": 1e-4}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.yaml", "lr: 1e-4a", "lr is '1e-4a'"),
        ("run.toml", "epoch = 3", "unknown key 'epoch'; the nearest known key is epochs"),
        ("run.yaml", "momentun: 0.5", "unknown key 'momentun'; the nearest known key is momentum"),
        ("run.toml", 'epochs = "3"', "epochs is '3'"),
        ("run.toml", "epochs = true", "epochs is True"),
        ("run.yaml", "hidden: [a]", r"hidden\.0 is 'a'"),
        ("run.toml", "epochs =", "is no TOML"),
        ("run.yaml", "a: [", "is no YAML"),
        ("run.yaml", "lr: 1\nseed: 2\nlr: 3", "key lr is in line 1 and again in line 3: leave"),
        ("run.toml", "lr = 1\nlr = 3", "is no TOML"),
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
    from mpicoll.cli.app import load

    known = {parameter.name for parameter in load("train").params}
    assert set(config_file.KEYS) <= known


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.npz"], "reading none.npz failed on rank 0: FileNotFoundError: none.npz does not"),
        (["hot.npz"], "labels have shape .30, 3., as one-hot vectors have"),
        (["good.npz", "--model", "conv"], "samples are 4 values and no images: give a model other"),
        (
            ["good.npz", "--config", "run.toml"],
            "unknown key 'epoch'; the nearest known key is epochs",
        ),
    ],
    ids=["missing", "one-hot", "no images", "unknown key"],
)
def test_three_ranks_say_once_what_is_wrong(mpirun, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    np.savez("good.npz", inputs=np.eye(30, 4), labels=np.arange(30) % 3)
    np.savez("hot.npz", inputs=np.eye(30, 4), labels=np.eye(3, dtype=int)[np.arange(30) % 3])
    (tmp_path / "run.toml").write_text("epoch = 3")
    done = mpirun(3, "-m", "mpicoll", "train", *words)
    assert done.status != 0
    assert len(re.findall(message, done.err)) == done.err.count("error: ") == 1, done.err
    assert "Traceback" not in done.err


# --- memory ---------------------------------------------------------------------------------------


def test_an_estimate_counts_what_is_allocated():
    model = MLP((100, 50, 10))
    whole = Holding.whole(Flat(model.initial_parameters(0)))
    size = 4 * (100 * 50 + 50 + 50 * 10 + 10)
    config = Config(optimizer="adam", batch=64)
    needed = memory.estimate(config, 0, 1, model, whole)
    assert (needed["gradients"], needed["optimizer"]) == (size + 4 * (100 * 50 + 50), 2 * size)
    # What is kept; at the ReLU also the slopes by its outputs, by its inputs, and one array more.
    assert needed["activations"] == 4 * 64 * (100 + 50 + 3 * 50)
    sharded = memory.estimate(
        Config(optimizer="adam", strategy="zero1", batch=64), 0, 4, model, whole
    )
    assert sharded["optimizer"] == 2 * size // 4
    assert sharded["activations"] == needed["activations"] // 4
    narrow = memory.estimate(Config(dtype="bfloat16", batch=64), 0, 1, model, whole)
    assert narrow["activations"] == needed["activations"]
    assert narrow["parameters in bfloat16"] == narrow["parameters to compute with"] / 2 == size / 2


def test_an_estimate_counts_what_replicas_hold():
    model = MLP((74, 3))
    weights = Flat(model.initial_parameters(0))
    part = weights.vector.nbytes // 3

    def needed(rank, replicas):
        servers = {"strategy": "parameter_server", "servers": "3", "replicas": replicas}
        config = Config(**servers, consistency="ssp:2", optimizer="adam")
        return memory.estimate(config, rank, 5, model, Holding.whole(weights))

    for replicas in (0, 1, 2):
        server, held = needed(3, replicas), (1 + replicas) * part
        assert (server["parts of the parameters"], server["optimizer"]) == (held, 2 * held)
        assert "activations" not in server
        assert "optimizer" not in needed(0, replicas)
    # Of each of two workers what comes and what goes; with replicas what is kept for the next, and
    # what comes from the one before.
    assert needed(3, 0)["messages"] == 2 * 2 * part
    assert needed(3, 1)["messages"] == (3 * 2 + 1) * 2 * part


def test_what_cannot_fit_is_refused_with_the_numbers():
    said = {"where": "this node", "remedy": "give less"}
    memory.require([{"gradients": 3_000_000}] * 3, 9_000_000, **said)
    memory.require([{"gradients": 3_000_000}] * 4, None, **said)
    needed = [*([{"gradients": 3_000_000}] * 4), {"gradients": 3_000_000, "messages": 500_000}]
    message = (
        r"the 5 rank\(s\) of this node need 15\.5 MB more \(gradients 15\.0 MB, messages 0\.5 MB, "
        r"beside data 20\.0 MB\), 9\.0 MB are available: give less"
    )
    with pytest.raises(MemoryError, match=message):
        memory.require(needed, 9_000_000, [{"data": 4_000_000}] * 5, **said)


def test_what_cannot_fit_on_a_gpu_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.module())
    memory.make_room(Workers(), {"gradients": 1 << 30}, device="gpu")
    message = r"1 rank\(s\) of this GPU 0000:01:00\.0 need 1,073\.7 MB more .*1,073\.7 MB are avail"
    with pytest.raises(TrainingError, match=message):
        memory.make_room(Workers(), {"gradients": (1 << 30) + 1}, device="gpu")


def test_data_that_cannot_fit_are_not_read(monkeypatch, tmp_path):
    np.savez(
        tmp_path / "own.npz", inputs=np.zeros((300, 4, 5), np.uint8), labels=np.zeros(300, int)
    )
    config = Config(dataset=str(tmp_path / "own.npz"), dtype="float32", epochs=1)
    assert memory.reading(config) == {"data": 6000 * (1 + 8 + 4)}
    monkeypatch.setattr(memory, "available", lambda: 50_000)
    monkeypatch.setattr("mpicoll.train.driver.loop.load", None)
    with pytest.raises(TrainingError, match=r"1 rank\(s\) of this node need 0\.1 MB more \(data 0"):
        run(config)


def test_what_reading_takes_is_known_from_the_heads_of_files(tmp_path):
    assert catalogue.read_inputs("fashion-mnist") == [(70_000 * 784, np.uint8)]
    shards(tmp_path)
    assert catalogue.read_inputs(str(tmp_path)) == []  # mapped
    np.savez(tmp_path / "own.npz", inputs=np.zeros((3, 5), np.float32))
    assert catalogue.read_inputs(str(tmp_path / "own.npz")) == [(15, np.float32)]
    (tmp_path / "damaged.npz").write_bytes(b"PK")
    assert catalogue.read_inputs(str(tmp_path / "damaged.npz")) == []
    assert catalogue.read_inputs(str(tmp_path / "none.npz")) == []
