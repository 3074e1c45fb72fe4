"""Folders of checkpoints: whole or not there, of any number of ranks, refused where damaged."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kept import save

from mpicoll.train.driver import array_files, checkpoints
from mpicoll.train.strategies.kept import Part

ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.ones(4, np.float32)}


def test_what_is_saved_is_loaded(tmp_path):
    path = save(tmp_path / "new" / "runs", 7, ARRAYS, {"epoch": 2})
    assert path.name == "step-00000007"
    arrays, facts = checkpoints.load(checkpoints.find(tmp_path / "new" / "runs"))
    assert facts["epoch"] == 2
    for name, array in ARRAYS.items():
        assert np.array_equal(arrays[name], array) and arrays[name].dtype == array.dtype


def test_the_last_k_and_the_best_are_kept(tmp_path):
    for step in range(1, 7):
        save(tmp_path, step, ARRAYS, {}, best=step == 2)
        checkpoints.prune(tmp_path, 2, step)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["best", "step-00000002", "step-00000005", "step-00000006"]
    assert (tmp_path / "best").read_text() == "step-00000002\n"


def test_a_step_is_saved_again_in_place_of_the_old(tmp_path):
    save(tmp_path, 1, ARRAYS, {"run": 1})
    save(tmp_path, 1, ARRAYS, {"run": 2})
    assert checkpoints.load(checkpoints.find(tmp_path))[1]["run"] == 2
    assert len(list(tmp_path.iterdir())) == 1


def test_checkpoints_of_later_steps_are_of_another_run_and_stay(tmp_path):
    for step in (500, 600, 450, 460, 470):
        save(tmp_path, step, ARRAYS, {})
    checkpoints.prune(tmp_path, 2, 470)
    names = [f"step-{step:08}" for step in (460, 470, 500, 600)]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert [path.name for path in checkpoints.later(tmp_path, 470)] == names[2:]


def test_a_kill_while_a_step_is_saved_again_leaves_what_was_saved_before(tmp_path):
    save(tmp_path, 1, ARRAYS, {"run": 1}, best=True)
    (tmp_path / "step-00000001").rename(tmp_path / ".old-step-00000001")  # killed here
    assert checkpoints.load(checkpoints.find(tmp_path))[1]["run"] == 1
    checkpoints.prune(tmp_path, 1, 1)
    assert checkpoints.load(checkpoints.find(tmp_path))[1]["run"] == 1
    save(tmp_path, 2, ARRAYS, {"run": 2})
    checkpoints.prune(tmp_path, 1, 2)
    assert checkpoints.load(checkpoints.find(tmp_path))[1]["run"] == 2
    save(tmp_path, 1, ARRAYS, {"run": 3})
    assert not list(tmp_path.glob(".old*"))


def test_a_step_that_cannot_be_saved_again_stays(tmp_path, monkeypatch):
    save(tmp_path, 1, ARRAYS, {"run": 1})
    rename = Path.rename

    def refuse(path, target):
        if path.name.startswith(".step-"):
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 1, ARRAYS, {"run": 2})
    assert checkpoints.load(checkpoints.find(tmp_path))[1]["run"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


KILLED = """
import os, signal, sys
from importlib import import_module
from pathlib import Path
sys.path.insert(0, sys.argv[4])
import numpy as np
from kept import save

module, _, name = sys.argv[2].rpartition(".")
owner = import_module("mpicoll.train.driver." + module)
real, left = getattr(owner, name), int(sys.argv[3])

def dies(*arguments, **more):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **more)

setattr(owner, name, dies)
save(Path(sys.argv[1]), 2, {"a": np.ones(3), "b": np.ones(2)}, {})
"""
TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("moment", "call"),
    [
        ("array_files.host", 1),
        ("array_files.host", 2),
        ("array_files.synchronise", 1),
        ("checkpoints.sealed", 1),
        ("checkpoints.synchronise", 1),
        ("checkpoints.synchronise", 2),
    ],
)
def test_a_kill_while_saving_leaves_the_checkpoint_before(tmp_path, moment, call):
    save(tmp_path, 1, ARRAYS, {})
    words = [sys.executable, "-c", KILLED, tmp_path, moment, str(call), TESTS]
    done = subprocess.run(words, check=False)
    assert done.returncode == -signal.SIGKILL
    found = checkpoints.find(tmp_path)
    assert found.name == "step-00000001"
    assert checkpoints.load(found)[0].keys() == ARRAYS.keys()
    checkpoints.prune(tmp_path, 5, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


@pytest.mark.parametrize("call", ["host", "synchronise"])
def test_a_failure_while_saving_leaves_nothing(tmp_path, monkeypatch, call):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(array_files, call, full)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 1, ARRAYS, {})
    assert list(tmp_path.iterdir()) == []


def swap(path):
    (path / "rank-0.arrays").rename(path / "rank-2.arrays")
    (path / "rank-1.arrays").rename(path / "rank-0.arrays")
    (path / "rank-2.arrays").rename(path / "rank-1.arrays")


def edit(name, change):
    """What changes the bytes of a file."""
    return lambda path: (path / name).write_bytes(change((path / name).read_bytes()))


def say(change):
    """What changes a manifest, and lets its hash be that of the new one."""

    def damage(path):
        facts = json.loads((path / "manifest.json").read_text())
        change(facts)
        (path / "manifest.json").write_text(checkpoints.sealed(facts))

    return damage


DAMAGE = {
    "truncated": (
        edit("rank-1.arrays", lambda b: b[:-10]),
        r"rank-1\.arrays is damaged: it has 22 b",
    ),
    "changed": (
        edit("rank-0.arrays", lambda b: b[:9] + b"x" + b[10:]),
        r"rank-0\.arrays is damaged",
    ),
    "missing": (lambda path: (path / "rank-1.arrays").unlink(), r"rank-1\.arrays is missing: take"),
    "swapped": (swap, r"rank-0\.arrays is damaged: it has 32 bytes of 32, or others than were"),
    "half a manifest": (
        edit("manifest.json", lambda b: b[: len(b) // 2]),
        r"manifest\.json is damag",
    ),
    "another fact": (edit("manifest.json", lambda b: b.replace(b"17", b"18")), "says other things"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "No such file"),
    "version": (
        say(lambda f: f.update(version=9)),
        r"of version 9, this mpicoll reads version 2 and",
    ),
    "a part left out": (say(lambda f: f["files"].popitem()), r"lacks|has 3 of 6 elements"),
    "a hole": (
        say(lambda f: f["files"]["rank-1.arrays"]["parts"][0].__setitem__(1, 4)),
        "lacks ele",
    ),
    "beyond the end": (
        say(lambda f: f["files"]["rank-0.arrays"].update(bytes=8)),
        "behind the end",
    ),
    "another folder": (
        say(lambda f: f["files"].update({"../secret": f["files"].pop("rank-0.arrays")})),
        "is no file of arrays",
    ),
    "objects": (say(lambda f: f["arrays"]["a"].update(type="|O")), "is no type of numbers"),
    "negative": (
        say(lambda f: f["arrays"]["a"].update(shape=[-2, -3])),
        "is no whole number of at",
    ),
    "no list": (say(lambda f: f.update(files=[])), "does not say where its arrays are"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_refused(tmp_path, damage):
    path = save(tmp_path, 1, ARRAYS, {"epoch": 17}, ranks=2)
    assert sorted(os.listdir(path)) == ["manifest.json", "rank-0.arrays", "rank-1.arrays"]
    change, words = DAMAGE[damage]
    change(path)
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        checkpoints.load(path)


def test_what_a_manifest_cannot_say_is_not_written(tmp_path):
    """Objects would need pickle; a part that no rank keeps would be found when it is too late."""
    with pytest.raises(TypeError, match="array a is object, which a checkpoint does not keep"):
        save(tmp_path, 1, {"a": np.array([None])}, {})
    draft = checkpoints.begin(tmp_path, 1)
    half = Part("a", (4,), 0, np.ones(2))
    facts, failure = array_files.write(draft / "rank-0.arrays", [half])
    assert failure is None
    with pytest.raises(ValueError, match="a has 2 of 4 elements"):
        checkpoints.complete(draft, facts, best=False)
    draft = checkpoints.begin(tmp_path, 1)
    facts, _ = array_files.write(draft / "rank-0.arrays", [Part("a", (2,), 0, np.ones(2))])
    (draft / "rank-0.arrays").write_bytes(b"")  # as a node sees it that another wrote for
    with pytest.raises(ValueError, match="keep checkpoints in a folder that all ranks share"):
        checkpoints.complete(draft, facts, best=False)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_a_rank_does_not_see_is_said(tmp_path):
    part = Part("a", (2,), 0, np.ones(2))
    _, failure = array_files.write(tmp_path / "draft" / "rank-1.arrays", [part])
    assert "keep checkpoints in a folder that all ranks share" in str(failure)


def test_all_parts_are_taken_after_a_failure(tmp_path):
    """Making them may be collective."""
    taken = []

    def parts():
        for number in range(3):
            taken.append(number)
            yield Part("a", (3,), number, np.array([None]))

    _, failure = array_files.write(tmp_path / "rank-0.arrays", parts())
    assert taken == [0, 1, 2] and isinstance(failure, TypeError)


@pytest.mark.parametrize("dtype", ["float16", ">f8", "int64", "uint8", "bool"])
@pytest.mark.parametrize("ranks", [1, 3, 7])
def test_any_number_is_kept_to_the_bit_in_any_parts(tmp_path, dtype, ranks):
    array = (np.arange(-5, 7) / 3).astype(dtype).reshape(3, 4)
    path = save(tmp_path, 1, {"buffer/a": array, "buffer/none": np.zeros((0, 2))}, {}, ranks=ranks)
    saved, _ = checkpoints.read(path)
    for start in range(13):
        for end in range(start, 13):
            target = np.zeros(end - start, array.dtype)
            saved.read("buffer/a", start, target)
            assert (target == array.reshape(-1)[start:end]).all()
    assert checkpoints.load(path)[0]["buffer/none"].shape == (0, 2)
