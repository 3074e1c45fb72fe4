"""A trained model out of its checkpoint: in a program, measured, generating, in others' files."""

import json
import sys

import numpy as np
import pytest
from clouds import clouds, write_samples
from kept import rewrite, save, write_first_format

from mpicoll.cli import main
from mpicoll.train import (
    Batch,
    Config,
    Sequential,
    TrainingError,
    evaluate,
    export_model,
    generate,
    load_model,
    models,
    optimizers,
    run,
)
from mpicoll.train.driver import checkpoints
from mpicoll.train.models import specification

CONFIG = {"batch": 10, "dtype": "float64", "epochs": 2}
TEXT = b"abcdefgh" * 30


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """A checkpoint of a decoder that has learnt to say the alphabet's first letters in turn."""
    model = models.transformer(256, 8, width=16, blocks=1, heads=2, dtype="float32")
    rows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(TEXT, np.uint8), 9)[::3]
    parameters = model.initial_parameters(0)
    optimizer = optimizers.make("adam")
    states = {n: optimizers.empty_state(optimizer, a) for n, a in parameters.items()}
    for step in range(1, 61):
        batch = Batch(rows[:, :-1], rows[:, 1:], len(rows))
        _, gradients = model.loss_and_gradients(parameters, batch)
        for name, gradient in gradients.items():
            optimizer.update(parameters[name], gradient, states[name], 0.01, step)
    folder = tmp_path_factory.mktemp("decoder")
    arrays = {f"parameter/{name}": array for name, array in parameters.items()}
    save(folder, 60, arrays, {"model": specification.of(model)})
    return folder


# --- in a program ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "softmax"},
        {"model": "mlp", "hidden": (6, 5), "dropout": 0.25},
        {"model": "conv", "channels": (3,), "hidden": (4,), "dtype": "float32"},
        {"model": "mlp", "hidden": (6,), "dtype": "float16", "lr": 0.01},
    ],
    ids=["softmax", "mlp", "conv", "float16"],
)
def test_a_model_by_name_is_the_one_that_was_trained(tmp_path, changes):
    data = clouds(shape=(3, 4)) if changes["model"] == "conv" else clouds()
    result = run(Config(**{**CONFIG, **changes}, checkpoint=str(tmp_path)), dataset=data)
    model, parameters, buffers = load_model(tmp_path)
    assert buffers == {}
    assert parameters.keys() == result.parameters.keys()
    for name, array in result.parameters.items():
        assert np.array_equal(parameters[name], array) and parameters[name].dtype == array.dtype
    inputs = data.test_inputs.astype(model.dtype)
    _, scores = model.losses_and_outputs(parameters, inputs, data.test_targets)
    accuracy = (scores.argmax(axis=1) == data.test_targets).mean()
    wanted = result.test["accuracy"]
    assert accuracy == wanted if model.dtype != "float16" else abs(accuracy - wanted) < 0.1


def test_the_best_is_taken_where_it_is_asked_for(tmp_path):
    result = run(
        Config(**{**CONFIG, "epochs": 4, "lr": 3.0}, checkpoint=str(tmp_path), keep=1),
        dataset=clouds(),
    )
    losses = [epoch.judged for epoch in result.history]
    best = min(range(4), key=lambda k: (losses[k], -k))
    assert checkpoints.find(tmp_path, best=True).name == f"step-{11 * (best + 1):08}"
    found = load_model(tmp_path, best=True).parameters
    last = load_model(tmp_path).parameters
    assert best != 3 and not np.array_equal(found["layer1.weight"], last["layer1.weight"])
    (tmp_path / "best").unlink()
    with pytest.raises(FileNotFoundError, match="names no best checkpoint"):
        load_model(tmp_path, best=True)


@pytest.mark.parametrize(
    "model",
    [
        models.MLP((12, 5, 4), "float32", 0.5),
        models.convnet((8, 8, 1), (3, 4), (5,), 4, "float64", 0.25),
        models.transformer(256, 16, 32, 2, 4, "float32", 0.1),
        Sequential(
            [
                models.Reshape((3, 4)),
                models.Residual((models.LayerNorm(1e-3), models.Attention(2, causal=False))),
                models.Dense(3, bias=False),
                models.Gelu(),
                models.Reshape(),
            ],
            (12,),
            "float64",
            models.SquaredError(),
        ),
    ],
    ids=["mlp", "convnet", "transformer", "list"],
)
def test_a_specification_makes_the_same_model(model):
    again = specification.build(json.loads(json.dumps(specification.of(model))))
    assert again.layers == model.layers and again.loss == model.loss
    assert again.shapes == model.shapes and again.dtype == model.dtype
    first, second = model.initial_parameters(3), again.initial_parameters(3)
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)


class Own(models.Dense):
    """A layer of somebody's own, which is not among mpicoll's."""


class Line:
    """A model that is no Sequential."""

    def initial_parameters(self, seed):
        return {"w": np.zeros((12, 4))}

    def loss_and_gradients(self, parameters, batch):
        return 0.0, {"w": np.zeros((12, 4))}

    def losses_and_outputs(self, parameters, inputs, labels):
        return np.zeros(len(labels)), inputs @ parameters["w"]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Line(), "Line is no Sequential of mpicoll's layers"),
        (
            Sequential([Own(4, gain=1.0)], (12,), "float64"),
            r"Own\(outputs=4.*is none of the layers",
        ),
    ],
)
def test_a_model_that_cannot_be_made_again_says_why_and_is_exported(tmp_path, model, reason):
    run(Config(**CONFIG, checkpoint=str(tmp_path)), dataset=clouds(), model=model)
    with pytest.raises(
        ValueError, match=f"its model was given in Python: {reason}.*mpicoll export"
    ):
        load_model(tmp_path)
    with pytest.raises(TrainingError, match="its model was given in Python"):
        evaluate(tmp_path)
    export_model(tmp_path, tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as file:
        assert file.files == list(model.initial_parameters(0))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda facts, _: facts["model"]["layers"][0].update(kind="exec"), "KeyError: 'exec'"),
        (lambda facts, _: facts["model"]["layers"][0].update(more=1), "unexpected keyword"),
        (lambda facts, _: facts["model"].update(inputs=[13]), "have other parameters or buffers"),
        (lambda facts, _: facts["model"].pop("loss"), "KeyError: 'loss'"),
        (lambda facts, _: facts.pop("model"), "is of format 1, which does not say"),
        (lambda _, arrays: arrays.pop("parameter/layer1.bias"), "have other parameters or buffers"),
    ],
)
def test_a_specification_that_is_not_understood_is_refused(tmp_path, change, words):
    run(Config(**CONFIG, checkpoint=str(tmp_path)), dataset=clouds())
    rewrite(checkpoints.find(tmp_path), change)
    with pytest.raises(ValueError, match=words):
        load_model(tmp_path)


def test_no_checkpoint_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no checkpoint: give a folder in which"):
        load_model(tmp_path)


def test_format_1_says_nothing_of_a_model_and_is_exported(tmp_path):
    run(Config(**CONFIG, checkpoint=str(tmp_path / "new")), dataset=clouds())
    path = checkpoints.find(tmp_path / "new")
    old = write_first_format(tmp_path / path.name, *checkpoints.load(path))
    with pytest.raises(ValueError, match="is of format 1, which does not say what the model is"):
        load_model(old)
    export_model(old, tmp_path / "old.npz")
    with np.load(tmp_path / "old.npz") as file:
        assert np.array_equal(file["layer1.weight"], load_model(path).parameters["layer1.weight"])


# --- measured -------------------------------------------------------------------------------------


def test_evaluate_measures_what_the_run_has_measured(tmp_path, capsys):
    write_samples(tmp_path / "data.npz")
    config = Config(dataset=str(tmp_path / "data.npz"), checkpoint=str(tmp_path / "runs"), **CONFIG)
    result = run(config, quiet=True)
    assert main(["evaluate", str(tmp_path / "runs")]) == 0
    path = tmp_path / "runs" / "step-00000048"
    found = evaluate(path)
    assert found.measures["accuracy"] == result.test["accuracy"]
    assert capsys.readouterr().out == (
        f"{path}: step 48, epoch 2\n"
        "test set of data, 60 samples: "
        "loss {loss:.4f}, accuracy {accuracy:.4f}\n".format(**found.measures)
    )
    assert main(["evaluate", str(path), "--json", "--data", str(tmp_path / "data.npz")]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["measures"]["loss"], facts["checkpoint"], facts["part"]) == (
        found.measures["loss"],
        str(path),
        "test",
    )
    with np.load(tmp_path / "data.npz") as file:
        inputs, labels = file["test_inputs"], file["test_labels"]
    model, parameters, _ = load_model(path)
    losses, scores = model.losses_and_outputs(parameters, inputs, labels)
    assert found.measures["loss"] == pytest.approx(losses.mean(), rel=1e-12)
    assert found.measures["accuracy"] == (scores.argmax(axis=1) == labels).mean()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the run was given its data, clouds, in Python: name data to measure on"),
        (["--split", "training"], "unknown --split 'training'; choose one of validation, test"),
        (["--data", "./none.npz"], "none.npz"),
    ],
)
def test_what_cannot_be_measured_is_said(tmp_path, capsys, words, message):
    run(Config(**CONFIG, checkpoint=str(tmp_path)), dataset=clouds())
    assert main(["evaluate", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err


def test_evaluate_on_several_ranks_speaks_once(tmp_path, mpirun):
    write_samples(tmp_path / "data.npz")
    runs = tmp_path / "runs"
    run(Config(dataset=str(tmp_path / "data.npz"), checkpoint=str(runs), **CONFIG))
    words = ["-m", "mpicoll", "evaluate", runs, "--json"]
    done = mpirun(3, *words)
    assert done.status == 0, done.err
    facts, alone = json.loads(done.out), evaluate(runs)
    assert facts["measures"]["loss"] == pytest.approx(alone.measures["loss"], rel=1e-12)
    assert facts["measures"]["accuracy"] == alone.measures["accuracy"]
    refused = mpirun(3, *words, "--split", "validation")
    assert refused.status == 2 and refused.err.count("mpicoll: error:") == 1
    assert "data set data has no validation set" in refused.err


@pytest.mark.parametrize("command", ["evaluate", "generate", "export"])
def test_a_run_without_a_checkpoint_is_said(tmp_path, capsys, command):
    more = {"generate": ["--prompt", "a"], "export": ["-o", "m.npz"]}.get(command, [])
    assert main([command, str(tmp_path), *more]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "holds no checkpoint: give a folder in which" in error


def test_a_model_of_text_is_measured_and_goes_on(tmp_path, capsys):
    (tmp_path / "text").write_bytes(TEXT * 20)
    runs = tmp_path / "runs"
    size = {"context": 9, "width": 16, "layers": 1, "heads": 2}
    config = {"model": "transformer", "optimizer": "adam", "lr": 0.01, "epochs": 3, **size}
    result = run(
        Config(dataset="text", data=str(tmp_path / "text"), checkpoint=str(runs), **config),
        quiet=True,
    )
    assert evaluate(runs).measures == pytest.approx(result.test)
    judged = result.history[-1].validation
    assert evaluate(runs, part="validation").measures == pytest.approx(judged)
    (tmp_path / "other").write_bytes(TEXT[::-1] * 20)
    other = evaluate(runs, data=str(tmp_path / "other"))
    assert other.measures["loss"] > 2 * result.test["loss"]
    assert (
        main(["generate", str(runs), "--prompt", "fgh", "--tokens", "9", "--temperature", "0"]) == 0
    )
    assert capsys.readouterr().out == "fghabcdefgha\n"
    (tmp_path / "text").write_bytes(TEXT * 21)
    with pytest.raises(TrainingError, match="the run's data were text, 4,800 bytes, and here they"):
        evaluate(runs)


# --- generating -----------------------------------------------------------------------------------


def test_a_text_goes_on(decoder, capsys):
    assert (
        main(["generate", str(decoder), "--prompt", "cde", "--tokens", "13", "--temperature", "0"])
        == 0
    )
    assert capsys.readouterr().out == "cdefghabcdefghab\n"


def test_what_is_drawn_is_of_the_seed_and_the_temperature(decoder, capsys):
    words = ["generate", str(decoder), "--prompt", "a", "--tokens", "40", "--json", "--temperature"]
    texts = []
    for more in (["4"], ["4"], ["4", "--seed", "1"], ["0.1"]):
        assert main([*words, *more]) == 0
        texts.append(json.loads(capsys.readouterr().out)["text"])
    assert texts[0] == texts[1] != texts[2]
    assert texts[3] == ("abcdefgh" * 6)[1:41] and texts[0] != texts[3]


def test_tokens_are_drawn_by_their_shares(decoder):
    model, parameters, _ = load_model(decoder)
    window = np.array([list(b"abc")])
    scores = model.losses_and_outputs(parameters, window, window)[1][0, -1].astype(float) / 3
    shares = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    drawn = [next(generate(model, parameters, b"abc", 1, 3.0, seed)) for seed in range(2000)]
    counts = np.bincount(drawn, minlength=256) / 2000
    assert np.abs(counts - shares).max() < 4 * np.sqrt(0.25 / 2000)


def test_a_letter_of_several_bytes_is_written_as_one(decoder, capsys, monkeypatch):
    letters = iter("é\n".encode())
    monkeypatch.setattr("mpicoll.train.models.generation._drawn", lambda *_: next(letters))
    assert main(["generate", str(decoder), "--prompt", "ä", "--tokens", "3"]) == 0
    assert capsys.readouterr().out == "äé\n\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", ""], "the prompt is empty: give at least one token"),
        (["--prompt", "a", "--temperature", "-1"], "temperature is -1.0: give 0 or a number above"),
        (["--prompt", "a", "--temperature", "nan"], "temperature is nan: give 0"),
    ],
)
def test_what_cannot_be_generated_is_said(decoder, capsys, words, message):
    assert main(["generate", str(decoder), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_model_of_no_text_generates_none(tmp_path, capsys, decoder):
    run(Config(**CONFIG, checkpoint=str(tmp_path)), dataset=clouds())
    assert main(["generate", str(tmp_path), "--prompt", "a"]) == 2
    assert "the model gives no score of each next token" in capsys.readouterr().err
    model = models.transformer(10, 4, width=8, blocks=1, heads=2)
    arrays = {f"parameter/{n}": a for n, a in model.initial_parameters(0).items()}
    save(tmp_path / "tens", 1, arrays, {"model": specification.of(model)})
    assert main(["generate", str(tmp_path / "tens"), "--prompt", "a"]) == 2
    assert "knows 10 tokens, and a text is 256 different bytes" in capsys.readouterr().err
    trained = load_model(tmp_path / "tens")
    with pytest.raises(
        ValueError, match=r"has token 10: give at least one token, each in 0 \.\. 9"
    ):
        generate(trained.model, trained.parameters, [10], 1)
    assert len(list(generate(trained.model, trained.parameters, [9], 7))) == 7
    trained.parameters["embedding.weight"][:] = np.nan
    with pytest.raises(ValueError, match="a score is not finite: the training has diverged"):
        next(generate(trained.model, trained.parameters, [9], 7))


# --- in files -------------------------------------------------------------------------------------


def test_a_model_in_numpys_format(decoder, tmp_path):
    folder = export_model(decoder, tmp_path / "model.npz")
    assert folder.name == "step-00000060"
    wanted = load_model(decoder).parameters
    with np.load(tmp_path / "model.npz", allow_pickle=False) as file:
        assert file.files == list(wanted)
        assert all(np.array_equal(file[name], array) for name, array in wanted.items())


@pytest.mark.parametrize("suffix", ["pt", "pth"])
def test_a_state_dict_of_pytorch(decoder, tmp_path, suffix, capsys):
    torch = pytest.importorskip("torch")
    path = tmp_path / f"model.{suffix}"
    assert main(["export", str(decoder), "-o", str(path)]) == 0
    assert f"step-00000060 written to {path}" in capsys.readouterr().err
    state = torch.load(path, weights_only=True)
    wanted = load_model(decoder).parameters
    assert list(state) == list(wanted)
    for name, array in wanted.items():
        assert state[name].dtype == torch.float32 and np.array_equal(state[name].numpy(), array)


def test_a_state_dict_is_loaded_by_a_module(tmp_path):
    torch = pytest.importorskip("torch")
    from mpicoll.train.pytorch import TorchModel

    module = torch.nn.Sequential(torch.nn.Linear(12, 4)).double()
    run(Config(**CONFIG, checkpoint=str(tmp_path)), dataset=clouds(), model=TorchModel(module))
    export_model(tmp_path, tmp_path / "model.pt")
    other = torch.nn.Sequential(torch.nn.Linear(12, 4)).double()
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert torch.equal(other[0].weight, module[0].weight)


def test_safetensors(decoder, tmp_path):
    files = pytest.importorskip("safetensors.numpy")
    export_model(decoder, tmp_path / "model.safetensors")
    found = files.load_file(tmp_path / "model.safetensors")
    wanted = load_model(decoder).parameters
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], array) for name, array in wanted.items())


def test_buffers_are_kept_beside_parameters(tmp_path):
    arrays = {"parameter/w": np.ones(3), "buffer/mean": np.arange(2, dtype=np.int64)}
    save(tmp_path / "runs", 1, arrays, {"model": {}})
    export_model(tmp_path / "runs", tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as file:
        assert file.files == ["w", "mean"] and file["mean"].dtype == np.int64
    save(tmp_path / "same", 1, {"parameter/w": np.ones(3), "buffer/w": np.ones(3)}, {"model": {}})
    with pytest.raises(ValueError, match="has a parameter and a buffer of the name w"):
        export_model(tmp_path / "same", tmp_path / "other.npz")


@pytest.mark.parametrize(("suffix", "package"), [("safetensors", "safetensors"), ("pt", "torch")])
def test_a_missing_package_is_named_and_the_old_file_stays(
    decoder, tmp_path, monkeypatch, capsys, suffix, package
):
    path = tmp_path / f"model.{suffix}"
    path.write_bytes(b"old")
    for name in (package, f"{package}.numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["export", str(decoder), "-o", str(path)]) == 2
    error = capsys.readouterr().err
    assert f"need the package {package}: pip install {package}" in error and "with .npz" in error
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_name_without_a_format_is_refused(decoder, tmp_path, capsys):
    assert main(["export", str(decoder), "-o", str(tmp_path / "model.onnx")]) == 2
    assert "give one that ends with .npz, .safetensors, .pt, .pth" in capsys.readouterr().err


def test_running_statistics_are_kept_and_go_on(tmp_path):
    config = {**CONFIG, "model": "resnet", "channels": (2,), "checkpoint": str(tmp_path)}
    data = clouds(shape=(4, 3, 1))
    half = run(Config(**{**config, "epochs": 1}), dataset=data)
    model, parameters, buffers = load_model(tmp_path)
    assert buffers.keys() == half.buffers.keys() == model.initial_buffers().keys() != set()
    for name, array in buffers.items():
        np.testing.assert_array_equal(array, half.buffers[name])
    known = {**parameters, **buffers}
    losses, _ = model.losses_and_outputs(known, data.test_inputs[:], data.test_targets)
    assert losses.mean() == pytest.approx(half.history[0].test["loss"], rel=1e-12)
    resumed = run(Config(**config, resume="auto"), dataset=data)
    whole = run(Config(**{**config, "checkpoint": None}), dataset=data)
    for name, array in whole.buffers.items():
        np.testing.assert_array_equal(array, resumed.buffers[name])
    rewrite(checkpoints.find(tmp_path), lambda _, arrays: arrays.pop(f"buffer/{min(buffers)}"))
    with pytest.raises(TrainingError, match=r"has no array buffer/.*, and the run needs it"):
        run(Config(**{**config, "epochs": 3}, resume="auto"), dataset=data)


def test_a_checkpoint_without_the_buffers_of_its_model_is_refused(tmp_path):
    config = {**CONFIG, "model": "resnet", "channels": (2,), "checkpoint": str(tmp_path)}
    run(Config(**{**config, "epochs": 1}), dataset=clouds(shape=(4, 3, 1)))
    rewrite(
        checkpoints.find(tmp_path), lambda _, arrays: arrays.pop(max(filter(is_buffer, arrays)))
    )
    with pytest.raises(ValueError, match="have other parameters or buffers than the model"):
        load_model(tmp_path)


def is_buffer(name):
    return name.startswith("buffer/")
