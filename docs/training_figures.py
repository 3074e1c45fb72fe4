"""Pictures of two pages on training, from the lines in benchmarks/results/training."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from mpicoll.base import json_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "training"


def lines(name: str) -> list[dict[str, Any]]:
    """The lines of a file of results."""
    found: list[dict[str, Any]] = []
    json_lines.read(RESULTS / f"{name}.jsonl", found.append)
    return found


def draw(folder: Path) -> list[str]:
    """Draw all of them; their names."""
    import matplotlib
    from matplotlib.figure import Figure

    drawings = {
        "async": asynchronous,
        "stragglers": stragglers,
        "ssp-bound": bound,
        "survival": survival,
    }
    names = []
    with matplotlib.rc_context({"svg.hashsalt": "mpicoll"}):
        for name, drawing in drawings.items():
            figure = Figure(figsize=(8, 3), layout="constrained")
            drawing(figure)
            names.append(f"training-{name}.svg")
            figure.savefig(folder / names[-1], metadata={"Date": None})
    return names


def asynchronous(figure: Figure) -> None:
    """Accuracy at the end by learning rate, a panel for each way to scale it; seeds, medians."""
    found = lines("async")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, push_rate in zip(panels, ("full", "staleness"), strict=True):
        for workers in sorted({line["workers"] for line in found}):
            own = [x for x in found if (x["workers"], x["push_rate"]) == (workers, push_rate)]
            label = f"{workers} worker{'s' * (workers > 1)}"
            rates = sorted({line["lr"] for line in own})
            ends = [[x["accuracy"][-1] for x in own if x["lr"] == lr] for lr in rates]
            (drawn,) = panel.plot(rates, [median(seeds) for seeds in ends], "-", label=label)
            for lr, seeds in zip(rates, ends, strict=True):
                panel.plot([lr] * len(seeds), seeds, ".", color=drawn.get_color())
        panel.set(xscale="log", xlabel="learning rate", ylim=(0, 1), title=f"push_rate={push_rate}")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("test accuracy at the end")
    panels[0].legend()


def stragglers(figure: Figure) -> None:
    """Time to the target by consistency model, relative to bsp; medians and all launches."""
    found = lines("stragglers")
    kinds = ("transient", "permanent")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, kind in zip(panels, kinds, strict=True):
        own = {line["way"]: line for line in found if line["stragglers"] == kind}
        base = own["bsp"]["median"]
        names = list(own)
        panel.bar(
            names, [own[name]["median"] / base for name in names], color="tab:blue", alpha=0.6
        )
        for place, name in enumerate(names):
            times = own[name]["seconds"]
            panel.plot([place] * len(times), [time / base for time in times], "k.", markersize=4)
        panel.set(title=f"{kind} stragglers")
        panel.grid(alpha=0.3, axis="y")
    panels[0].set_ylabel("time to target, bsp = 1")


def bound(figure: Figure) -> None:
    """Mean regret of stale synchronous SGD and its bound."""
    figure.set_size_inches(6, 3.5)
    panel = figure.subplots()
    pairs = ((1, 0), (4, 3), (8, 7))
    colours = ("tab:blue", "tab:orange", "tab:green")
    for line in lines("ssp_bound"):
        pair = line["workers"], line["bound"]
        if pair in pairs:
            colour = colours[pairs.index(pair)]
            label = f"P = {pair[0]}, s = {pair[1]}"
            panel.loglog(line["steps"], line["regret"], "o-", color=colour, label=label)
            panel.loglog(line["steps"], line["limit"], "--", color=colour)
    panel.set(xlabel="steps T", ylabel="mean regret; dashed: its bound")
    panel.grid(alpha=0.3, which="both")
    panel.legend()


def survival(figure: Figure) -> None:
    """The losses of a run through two deaths, over those of the same run undisturbed."""
    panel = figure.subplots()
    found = lines("survival-curve")
    whole, disturbed = ([x for x in found if bool(x["lost"]) == died][-1] for died in (False, True))
    for line, label, colour, width in (
        (whole, "undisturbed", "lightgray", 5),
        (disturbed, "two ranks of four die", "tab:blue", 1),
    ):
        steps = range(1, len(line["losses"]) + 1)
        panel.plot(steps, line["losses"], label=label, color=colour, linewidth=width)
    for step in disturbed["lost"]:
        panel.axvline(step + 0.5, color="tab:red", linestyle="--")
    panel.set(xlabel="step", ylabel="loss of the batch", yscale="log")
    panel.grid(alpha=0.3)
    panel.legend()
