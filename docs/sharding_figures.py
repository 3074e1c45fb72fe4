"""Parts of docs/sharded.rst and docs/tensor.rst, from the lines of benchmarks/sharding.py."""

from __future__ import annotations

from statistics import median
from typing import Any

from tables import list_table
from training_figures import lines


def pages() -> dict[str, str]:
    """Text by name of the file."""
    found = lines("sharding")
    return {
        "fsdp_steps.inc": "\n".join(_fsdp([x for x in found if x["case"] == "fsdp"])),
        "tensor_steps.inc": "\n".join(_tensor([x for x in found if x["case"] == "tensor"])),
    }


def _fsdp(found: list[dict[str, Any]]) -> list[str]:
    rows = []
    for compute in dict.fromkeys(line["compute"] for line in found):
        own = [line for line in found if line["compute"] == compute]
        times = [_milliseconds(own, what) for what in ("pad", "gather", "zero1", "fsdp")]
        rows.append([*times, _ratio(own)])
    head = ["compute of a layer [ms]", "its gather alone [ms]", "zero1 [ms]", "fsdp [ms]"]
    return [*list_table([*head, "fsdp / zero1"], rows), _load(found), ""]


def _tensor(found: list[dict[str, Any]]) -> list[str]:
    rows = []
    for size in sorted({line["size"] for line in found}):
        own = [line for line in found if line["size"] == size]
        whole, shared = (median(line[what] for line in own) for what in ("whole", "tensor"))
        times = [_milliseconds(own, what) for what in ("whole", "halves", "predicted", "tensor")]
        rows.append([f"{size}", *times, _ratio(own), f"{whole / shared:.2f}"])
    head = ["width", "whole [ms]", "halves [ms]", "predicted collectives [ms]", "step [ms]"]
    head += ["step / (halves + predicted)", "whole / step"]
    return [*list_table(head, rows), _load(found), ""]


def _milliseconds(own: list[dict[str, Any]], what: str) -> str:
    return f"{1000 * median(line[what] for line in own):.3g}"


def _ratio(own: list[dict[str, Any]]) -> str:
    """The median of launches, and the widest of their intervals' ends."""
    low, high = min(line["low"] for line in own), max(line["high"] for line in own)
    return f"{median(line['ratio'] for line in own):.3f} ({low:.3f} to {high:.3f})"


def _load(found: list[dict[str, Any]]) -> str:
    launches = {line["run"] for line in found}
    loads = [line["load"] for line in found]
    return (
        f"Medians of {len(launches)} launch{'es' * (len(launches) > 1)}, with 95 % intervals of "
        f"the ratio; the load of the machine was {min(loads):.0f} to {max(loads):.0f}."
    )
