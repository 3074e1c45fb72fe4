"""Checkpoints that tests write by themselves: of this format, in one process, and of format 1."""

import hashlib
import json

import numpy as np

from mpicoll.schedule import layout
from mpicoll.train.driver import array_files, checkpoints
from mpicoll.train.strategies.kept import Part


def save(folder, step, arrays, facts, best=False, ranks=1):
    """Write a checkpoint of arrays, of which each of so many ranks keeps a part; its folder."""
    draft = checkpoints.begin(folder, step)
    facts = {**facts, "files": {}, "arrays": {}}
    try:
        for rank in range(ranks):
            file = draft / f"rank-{rank}.arrays"
            written, failure = array_files.write(file, parts(arrays, ranks, rank))
            if failure is not None:
                raise failure
            for kind, found in written.items():
                facts[kind].update(found)
        return checkpoints.complete(draft, facts, best)
    except BaseException:
        checkpoints.discard(draft)
        raise


def parts(arrays, ranks, rank):
    for name, array in arrays.items():
        start, count = layout.part(array.size, ranks, rank)
        yield Part(name, array.shape, start, array.reshape(-1)[start : start + count])


def rewrite(path, change):
    """Change facts and arrays of a checkpoint, and let all hashes be those of the new ones."""
    arrays, facts = checkpoints.load(path)
    change(facts, arrays)
    best = (path.parent / "best").exists()
    save(path.parent, int(path.name.removeprefix("step-")), arrays, facts, best)


def write_first_format(path, arrays, facts):
    """Lay a checkpoint out as format 1 did: one .npz file, whole vectors of the optimizer."""
    models = [name.removeprefix("parameter/") for name in arrays if name.startswith("parameter/")]
    whole = {f"parameter/{name}": arrays[f"parameter/{name}"] for name in models}
    last = f"/{models[-1]}"
    for kind in [name.removesuffix(last) for name in arrays if name.endswith(last)]:
        if kind != "parameter":
            vectors = [arrays[f"{kind}/{name}"].reshape(-1) for name in models]
            whole[kind] = np.concatenate(vectors)
    path.mkdir(parents=True)
    np.savez(path / "arrays.npz", **whole)
    data = (path / "arrays.npz").read_bytes()
    later = ("version", "files", "arrays", "manifest_sha256", "data set", "model")
    head = {"version": 1, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    own = {name: value for name, value in facts.items() if name not in later}
    (path / "manifest.json").write_text(json.dumps({**head, **own}, indent=1), encoding="utf-8")
    return path
