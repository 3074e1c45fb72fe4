"""Texts: their samples, what a table knows of them, what is refused, and a decoder that learns."""

import hashlib
import json
from collections import Counter

import numpy as np
import pytest

from mpicoll.cli import main
from mpicoll.train import Config, TrainingError, data, history, run
from mpicoll.train.data import from_arrays, text, trigram_loss

SMALL = {"model": "transformer", "layers": 1, "width": 16, "heads": 2, "dtype": "float32"}


@pytest.fixture
def poem(tmp_path):
    """A file of forty lines that are much alike."""
    path = tmp_path / "poem.txt"
    lines = [f"line {number}: the cat sat on mat {number % 7}\n" for number in range(400)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_targets_are_the_bytes_that_follow(poem):
    whole = poem.read_bytes()
    found = data.load("text", str(poem), 32)
    assert (found.classes, found.vocabulary, found.held_out) == (256, 256, "validation")
    assert found.train_inputs.dtype == np.uint8
    inputs = found.train_inputs.reshape(-1).tobytes()
    assert whole.startswith(inputs)
    assert found.train_targets.reshape(-1).tobytes() == whole[1 : len(inputs) + 1]
    for part, (rows, _) in found.parts.items():
        share = {"train": 0.9}.get(part, 0.05)
        assert rows.size == pytest.approx(share * len(whole), abs=34), part
        assert rows[0].tobytes() in whole
    assert not np.shares_memory(found.train_inputs, found.test_inputs)


def test_the_library_is_split_by_files():
    files = text.library_files()
    assert files == sorted(set(files)) and len(files) > 200
    counts = Counter(text.part_of(number) for number in range(len(files)))
    assert counts["validation"] == len(files[9::20]) and counts["test"] == len(files[19::20])
    found = text.load_library(64)
    sizes = {part: rows.size for part, (rows, _) in found.parts.items()}
    assert sizes["train"] > 3_000_000
    assert min(sizes.values()) > 0.02 * sizes["train"]
    assert "SHA-256" in found.about and "Python 3." in found.about


def test_another_library_is_said(tmp_path):
    """Files that are missing are named, and the text is what its hash says."""
    for number, name in enumerate(text.library_files()):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name not in ("abc.py", "wave.py"):
            path.write_bytes(b"x = %d\n" % number * 3)
    found = text.load_library(8, tmp_path)
    assert "without abc.py, wave.py" in found.about
    whole = b"".join((tmp_path / n).read_bytes() for n in _ordered() if (tmp_path / n).is_file())
    assert hashlib.sha256(whole).hexdigest()[:16] in found.about
    assert f"the documentation's figures are of Python {text.REFERENCE[0]}" in found.about


def _ordered():
    files = [*enumerate(text.library_files())]
    return [n for part in data.PARTS for number, n in files if text.part_of(number) == part]


@pytest.mark.parametrize(
    ("content", "context", "message"),
    [
        (b"", 8, r"poem\.txt is empty: give a text"),
        (b"short", 8, "the text for train has 5 bytes, and a sample with a context of 8 needs 9"),
        (
            b"x" * 1000,
            64,
            "the text for validation has 50 bytes, .* give a longer text, or a small",
        ),
    ],
)
def test_a_text_that_is_too_short_is_refused(tmp_path, content, context, message):
    path = tmp_path / "poem.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        data.load("text", str(path), context)
    with pytest.raises(TrainingError, match=message):
        run(Config(dataset="text", data=str(path), context=context, **SMALL))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "mlp"}, "inputs are tokens, and model mlp wants real numbers: give model trans"),
        ({"heads": 3}, "a width of 16 cannot be cut into 3 heads"),
        ({"augment": "flip"}, "and no images"),
        ({"data": "nowhere.txt"}, "nowhere.txt"),
    ],
)
def test_what_does_not_go_with_a_text_is_refused(poem, changes, message):
    with pytest.raises(TrainingError, match=message):
        run(Config(**{"dataset": "text", "data": str(poem), "context": 32, **SMALL, **changes}))


def test_tokens_out_of_the_vocabulary_are_named(tmp_path):
    tokens = np.arange(60).reshape(10, 6) % 7
    arrays = {"train_inputs": tokens, "train_labels": tokens, "vocabulary": np.array(7)}
    assert from_arrays("tokens", arrays).vocabulary == 7
    with pytest.raises(ValueError, match=r"token 6 of sample 1 is not in 0 \.\. 5: correct it or"):
        from_arrays("tokens", {**arrays, "vocabulary": 6})
    with pytest.raises(ValueError, match="vocabulary is 0: give a whole number of at least 1"):
        from_arrays("tokens", {**arrays, "vocabulary": 0})
    for name, array in {**arrays, "classes": np.array(7)}.items():
        np.save(tmp_path / f"{name}.npy", array)
    found = data.load(str(tmp_path))
    assert (found.vocabulary, found.classes) == (7, 7) and found.train_inputs.dtype == tokens.dtype
    np.save(tmp_path / "vocabulary.npy", np.array(5))
    with pytest.raises(ValueError, match=r"5 in row 3 is not in 0 \.\. 4: correct the file"):
        data.load(str(tmp_path)).train_inputs[np.array([3, 0])]


def test_a_table_of_three_bytes_is_written_out_plainly():
    """The definition, context by context, in floating point."""
    random = np.random.default_rng(2)
    known = random.choice(np.array([97, 98, 99, 100], np.uint8), 300, p=[0.4, 0.3, 0.2, 0.1])
    held_out = random.choice(np.array([97, 98, 99, 101], np.uint8), 80)

    def chance(context, byte):
        if context is None:
            return 1 / 256
        length = len(context)
        after = Counter(
            known[i + length]
            for i in range(300 - length)
            if bytes(known[i : i + length]) == context
        )
        shorter = chance(context[1:] if length else None, byte)
        total, distinct = sum(after.values()), len(after)
        return (after[byte] + distinct * shorter) / (total + distinct) if total else shorter

    losses = [-np.log(chance(bytes(held_out[i - 2 : i]), held_out[i])) for i in range(2, 80)]
    assert trigram_loss(known, held_out) == pytest.approx(np.mean(losses), rel=1e-12)


def test_a_table_knows_what_repeats_and_nothing_of_chance():
    again = np.frombuffer(b"abcdefgh" * 500, np.uint8)
    assert trigram_loss(again, again[:800]) < 0.05
    chance = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8)
    assert 1 < trigram_loss(chance[:90_000], chance[90_000:]) / np.log(256) < 1.2
    with pytest.raises(ValueError, match="2 and 5 bytes: give each at least three"):
        trigram_loss(chance[:2], chance[:5])


def test_a_decoder_learns_a_text(poem):
    config = Config(
        dataset="text",
        data=str(poem),
        context=32,
        optimizer="adam",
        lr=0.01,
        batch=16,
        epochs=4,
        **SMALL,
    )
    steps = []
    result = run(config, on_step=steps.append)
    assert steps[0].loss == pytest.approx(np.log(256), abs=1)
    assert list(result.test) == ["loss", "accuracy"]
    assert result.history[-1].validation["loss"] < 2.2 and result.test["accuracy"] > 0.4
    assert result.parameters["embedding.weight"].shape == (256, 16)


def test_the_command_shows_a_table_beside_the_loss(poem, capsys):
    words = "--model transformer --layers 1 --width 8 --heads 2 --context 32 --steps 3 --batch 8"
    command = ["train", "text", "--data", str(poem), *words.split()]
    assert main([*command, "--dtype", "float32", "--evaluate-train"]) == 0
    out = capsys.readouterr().out
    assert "transformer 1 layer of width 8, 2 heads" in out and "poem.txt, " in out
    upper, lower = next(
        pair
        for pair in zip(out.splitlines(), out.splitlines()[1:], strict=False)
        if pair[1].startswith("epoch")
    )
    assert upper.split()[:4] == ["train", "train", "validation", "validation"]
    assert lower.split()[1:6] == ["loss", "loss", "accuracy", "loss", "accuracy"]
    assert "interpolated trigram table: 0." in out or "interpolated trigram table: 1." in out
    folder = poem.parent / "metrics"
    assert main([*command, "--json", "--metrics", str(folder)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert history.read(folder).config["about"] == facts["about"] == "poem.txt, 12,290 bytes"
    whole = data.load("text", str(poem), 32)
    text_, held_out = (whole.parts[p][0].reshape(-1) for p in ("train", "validation"))
    assert facts["trigram"] == trigram_loss(text_, held_out)
    assert facts["test"].keys() == facts["validation"].keys() == {"loss", "accuracy"}


def test_a_checkpoint_of_another_text_is_refused(poem, tmp_path):
    config = {"dataset": "text", "data": str(poem), "context": 32, "steps": 2, **SMALL}
    config["checkpoint"] = str(tmp_path / "kept")
    run(Config(**config))
    with open(poem, "ab") as file:
        file.write(b"x" * 12)
    with pytest.raises(
        TrainingError, match=r"data is poem\.txt, .* there and poem\.txt, .* in this"
    ):
        run(Config(resume="auto", **config))
