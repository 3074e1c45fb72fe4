"""Tables of several pages, from the lines in benchmarks/results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median
from typing import Any

from tables import list_table
from training_figures import RESULTS, lines

from mpicoll.base import json_lines

Line = dict[str, Any]

_SIZES = {8: "8 B", 65536: "64 KiB", 1 << 20: "1 MiB", 1 << 22: "4 MiB", 1 << 24: "16 MiB"}
_SIZES |= {1 << 28: "256 MiB", 1 << 30: "1 GiB"}
_MODELS = {
    "mlp": "MLP 256-128-100, ``allreduce``",
    "mlp, bf16": "the same, gradients in bf16",
    "mlp, local_sgd": "the same, ``local_sgd``, average every 8 steps",
    "conv": "convolutional net, ``allreduce``",
}
_SLOW = {
    "transient": "transient: each step takes three times as long with probability 1/4",
    "permanent": "permanent: each step of one worker takes three times as long",
}


def pages() -> dict[str, str]:
    """Text by name of the file that other pages include."""
    texts = {
        "training_accuracy.inc": _accuracy(lines("fashion_mnist")),
        "training_stragglers.inc": _stragglers(lines("stragglers")),
        "survival_delay.inc": _delay(lines("survival-delay")),
        "gpu_allreduce.inc": _gpus(),
        "synthesis_measured.inc": _synthesis(),
    }
    return {name: "\n".join(text) for name, text in texts.items()}


def _accuracy(found: Sequence[Line]) -> list[str]:
    """Accuracy after the last epoch, by model and strategy."""
    rows = []
    for case, words in _MODELS.items():
        own = [line for line in found if line["case"] == case]
        accuracies = ", ".join(f"{line['accuracy']:.4f}" for line in own)
        rows.append([words, str(own[0]["epochs"]), accuracies, _span(own, "seconds", 0)])
    return list_table(["model and strategy", "epochs", "accuracy", "time [s]"], rows)


def _stragglers(found: Sequence[Line]) -> list[str]:
    """Seconds to a target loss, and relative to bsp."""
    ways = list(dict.fromkeys(line["way"] for line in found))
    rows = []
    for kind, words in _SLOW.items():
        own = {line["way"]: line["median"] for line in found if line["stragglers"] == kind}
        cells = (
            f"{own[way]:.2f} ({own[way] / own['bsp']:.2f})" if way in own else "" for way in ways
        )
        rows.append([words, *cells])
    heads = (
        '``balance="speed"``, in lockstep [s]' if way == "balance" else f"``{way}`` [s]"
        for way in ways
    )
    return list_table(["slow steps", *heads], rows)


def _delay(found: Sequence[Line]) -> list[str]:
    """Milliseconds from a kill to the next step."""
    middle, restoring = (median(line[n] for line in found) for n in ("milliseconds", "recovery"))
    return [
        f"From a SIGKILL to the next finished step of the last survivor, {found[0]['ranks']} ranks "
        f"take {middle:.0f} ms, median of {len(found)} launches ({_span(found, 'milliseconds', 0)} "
        f"ms).  {restoring:.0f} ms of them restore the state.",
        "",
    ]


def gpu_points() -> list[Line]:
    """What was measured between two GPUs, beside NCCL."""
    found: list[Line] = []
    json_lines.read(RESULTS.parent / "gpu" / "h200-2.jsonl", found.append)
    return [line for line in found if "ratio_nccl_stream" in line]


def _gpus() -> list[str]:
    """All-reduce between two GPUs, beside NCCL."""
    rows = []
    for line in gpu_points():
        about = line["collective"], line["dtype"]
        if about == ("allreduce", "float32") and line["nbytes"] in _SIZES:
            cells = []
            for way in ("graph", "stream", "host"):
                own, other = line[f"mpicoll_{way}_us"], line[f"nccl_{way}_us"]
                ratio = line[f"ratio_nccl_{way}"][0]
                cells.append(f"{_micro(own)} / {_micro(other)} ({ratio:.2f})")
            rows.append([_SIZES[line["nbytes"]], *cells])
    return list_table(["all-reduce", "graph of 20 calls", "stream", "host"], rows)


def _synthesis() -> list[str]:
    """Generated schedules on an emulated cluster."""
    path = RESULTS.parent / "synthesis_on_cluster.json"
    rows = []
    for line in json.loads(path.read_text(encoding="utf-8")):
        nbytes, generated, known = (
            line[name] for name in ("bytes", "choice_seconds", "catalogue_seconds")
        )
        size = f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"
        times = (f"{1e3 * generated:.0f}", f"{1e3 * known:.0f}")
        above = f"{100 * line['over_the_bound']:.0f}"
        rows.append([line["case"], line["mpi"], size, *times, f"{line['gain']:.2f}", above])
    head = ["hosts", "MPI", "all-reduce of", "chosen [ms]", "``hierarchical`` [ms]", "speed-up"]
    return list_table([*head, "above the bound [%]"], rows)


def _span(found: Sequence[Line], name: str, digits: int) -> str:
    """The least and the largest of some values."""
    values = [line[name] for line in found]
    ends = dict.fromkeys(f"{value:.{digits}f}" for value in (min(values), max(values)))
    return " to ".join(ends)


def _micro(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"
