"""What pages show is what there is: numbers are those of records, commands have the options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from statistics import median

import pytest
from test_docs import DOCS, ROOT, blocks, module, page

# --- records --------------------------------------------------------------------------------------


def test_tables_of_records():
    """Each is on a page; ``docs/record_tables.py`` makes them of what benchmarks have written."""
    parts = module("record_tables").pages()
    pages = "".join(path.read_text() for path in DOCS.glob("*.rst"))
    assert {*parts} <= {*re.findall(r"include:: generated/(\S+)", pages)}
    assert "0.8931, 0.8943, 0.8956" in parts["training_accuracy.inc"]
    assert parts["training_stragglers.inc"].count("(1.00)") == 2  # bsp beside itself
    assert parts["gpu_allreduce.inc"].count("* - ") == 1 + 7
    assert parts["synthesis_measured.inc"].count("* - ") == 1 + 4


def ends(values, digits):
    """The least and the largest, as pages write them."""
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def test_numbers_in_sentences_are_those_of_records():
    lines = module("training_figures").lines
    training = " ".join(page("training").split())
    hidden = [line["hidden"] for line in lines("overlap") if not line["thread"]]
    assert f"{100 * median(hidden):.0f} % of the communication" in training
    assert f"{100 * min(hidden):.0f} % to {100 * max(hidden):.0f} %)" in training
    for model in ("mlp", "conv"):
        own = [line for line in lines("vs_ddp") if line["model"] == model]
        assert ends([line["ratio"] for line in own], 2) in training
        for side in ("mpicoll", "ddp"):
            assert ends([line[f"exposed_{side}_us"] / 1e3 for line in own], 1) in training
    servers = " ".join(page("parameter_servers").split())
    for way in ("allreduce", "ssp:3", "adaptive:1,4"):
        last = [line["accuracy"][-1] for line in lines("consistency") if line["way"] == way]
        assert f"``{way}`` {sum(last) / len(last):.4f}" in servers
    (decoder,) = lines("decoder")
    data = page("train_data")
    assert f"loss of {decoder['validation_loss']:.3f}; the table has {decoder['table']:.3f}" in (
        " ".join(data.split())
    )
    assert ends([line["ratio"] for line in lines("decoder_step")], 2) in data
    (price,) = lines("survival-price")
    assert f"takes {price['ratio']:.2f} of the processor time" in page("train_survival")


def test_numbers_of_the_readme_are_those_of_records():
    readme = " ".join((ROOT / "README.md").read_text().split())
    measured = module("measured").pages()["measured.inc"]
    # Of MPICH 5 and Open MPI 5, on two ranks: the means of all launches of the all-reduce.
    sections = re.split(r"\n(?=(?:MPICH|Open MPI|gloo)[^\n]*\n-{5})", measured)
    own = [part for part in sections if re.match(r"(MPICH 5|Open MPI v5)[^\n]*, 2 ranks\n", part)]
    rows = [re.search(r"\* - allreduce\n +- ([\d. ]+)\n", part)[1].split() for part in own]
    means = sorted(float(mean) for row in rows for mean in row)
    assert len(own) == 2 and f"takes {means[0]:.2f} to {means[-1]:.2f} of its time" in readme
    points = module("record_tables").gpu_points()
    ratios = [
        p["ratio_nccl_stream"][0]
        for p in points
        if (p["collective"], p["dtype"]) == ("allreduce", "float32") and p["nbytes"] <= 1 << 30
    ]
    assert f"takes {ends(ratios, 2)} of NCCL's time on the stream" in readme


# --- commands -------------------------------------------------------------------------------------


def shown_commands():
    """Each command of mpicoll that a page or the README shows, with the page's name."""
    texts = {path.name: path.read_text() for path in DOCS.glob("*.rst")}
    found = [(name, block) for name, text in texts.items() for _, block in blocks(text, "console")]
    readme = (ROOT / "README.md").read_text()
    found += [("README.md", block) for block in re.findall(r"```console\n(.*?)```", readme, re.S)]
    for name, block in found:
        joined = re.sub(r"\\\n\s*>?\s*", " ", block)
        for line in joined.splitlines():
            words = re.sub(r"^[$#>] *", "", line.strip()).split("  #")[0].replace("$k", "1")
            if re.match(r"[$#>]", line.strip()) and re.search(r"(^|[ /])mpicoll [\w-]", words):
                yield name, re.split(r"(?:^|[ /])mpicoll (?=\S)", words, maxsplit=1)[1].strip()


SHOWN = sorted(set(shown_commands()))


def test_pages_show_commands():
    assert len(SHOWN) > 80
    assert {line.split()[0] for _, line in SHOWN} >= {"train", "bench", "plan", "search", "report"}


@pytest.mark.usefixtures("nothing_from_outside")
@pytest.mark.parametrize(("name", "line"), SHOWN)
def test_a_command_that_is_shown_has_these_options(name, line, tmp_path, monkeypatch):
    """It is parsed, not run: no page shows an option that is gone."""
    pytest.importorskip("typer")
    from mpicoll.cli import app
    from mpicoll.cli.main import SHORT_FOR

    monkeypatch.chdir(tmp_path)
    Path("mycoll.py").touch()
    Path("benchmarks").symlink_to(ROOT / "benchmarks")
    command, *words = (SHORT_FOR.get(word, word) for word in shlex.split(line))
    if command in app.COMMANDS:
        loaded = app.load(command)
        while hasattr(loaded, "commands"):
            command = words.pop(0)
            loaded = loaded.commands[command]
        if words and f"{command} {words[0]}" in app.COMMANDS:
            loaded = app.load(f"{command} {words.pop(0)}")
        if "--help" not in words:
            loaded.make_context(command, words)
    else:
        assert command.startswith("--"), name
