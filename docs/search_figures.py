"""Tables of docs/hyperparameters.rst and docs/exits.rst, from benchmarks/results/training."""

from __future__ import annotations

from statistics import fmean

from tables import list_table
from training_figures import lines


def pages() -> dict[str, str]:
    """Text by name of the file."""
    parts = {
        "search_quality.inc": quality(),
        "search_speed.inc": speed(),
        "exits_thresholds.inc": thresholds(),
        "exits_missing.inc": missing(),
    }
    return {name: "\n".join(part) for name, part in parts.items()}


def quality() -> list[str]:
    """ASHA and random search: accuracies and epochs, by seed and their means."""
    found = [line for line in lines("search") if line["what"] == "quality"]
    columns = ("learnt_nothing", "asha", "random", "random_stopped", "epochs", "random_epochs")
    rows = [[str(line["seed"]), *(_number(line[name]) for name in columns)] for line in found]
    rows.append(["mean", *(_number(fmean(line[name] for line in found)) for name in columns)])
    head = ["seed", "learn nothing", "ASHA", "random", "random, stopped"]
    return list_table([*head, "epochs of ASHA", "of random"], rows)


def speed() -> list[str]:
    """One group and several: seconds."""
    found = [line for line in lines("search") if line["what"] == "speed"]
    one = next(line["seconds"] for line in found if line["groups"] == 1)
    rows = [
        [str(x["groups"]), str(x["epochs"]), f"{x['seconds']:.1f}", f"{one / x['seconds']:.2f}"]
        for x in found
    ]
    return list_table(["groups", "epochs", "seconds", "times as fast"], rows)


def thresholds() -> list[str]:
    """All devices there: accuracy, what leaves on devices, and bytes, by threshold."""
    rows = [
        [
            line["case"],
            f"{line['threshold']:g}",
            f"{100 * line['accuracy']:.2f}",
            f"{100 * line['leaving']['device']:.1f}",
            f"{line['bytes']:.1f}",
            "—" if line["ratio"] is None else f"{line['ratio']:.1f}",
        ]
        for line in lines("tiers")
        if line["missing"] is None
    ]
    head = ["network", "threshold", "accuracy [%]", "leave on devices [%]", "bytes up a sample"]
    return list_table([*head, "raw / bytes"], rows)


def missing() -> list[str]:
    """Accuracy with one of the devices missing, and what that costs; all go to the cloud."""
    found = [line for line in lines("tiers") if line["threshold"] < 0 and line["case"] != "alone"]
    rows = []
    for case in dict.fromkeys(line["case"] for line in found):
        own = {line["missing"]: 100 * line["accuracy"] for line in found if line["case"] == case}
        costs = [f"{own[None] - own[device]:.2f}" for device in range(4)]
        rows.append([case, f"{own[None]:.2f}", *costs])
    head = ["network", "accuracy [%]", *(f"without {device}" for device in range(4))]
    return list_table(head, rows)


def _number(value: float) -> str:
    return f"{value:.4f}" if value < 1 else f"{value:g}" if value == int(value) else f"{value:.1f}"
