"""Parts of docs/inter_intra.rst: tables and pictures from lines of benchmarks/inter_intra.py."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tables import list_table
from training_figures import lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Ways that are compared over rates, and what idle time is made of.
CROSSING = "1F1B ahead", "tensor"
PARTS = {"bubble": "tab:blue", "exposed": "tab:orange", "straggling": "tab:red"}
NODE, NETWORK = "one node", "200 Mbit/s"

Line = dict[str, Any]


def pages() -> dict[str, str]:
    """Text by name of the file."""
    found = lines("inter_intra")
    texts = {
        "inter_intra_sent.inc": _sent([line for line in found if line["case"] == "count"]),
        "inter_intra_node.inc": _steps(_medians(found, NODE)),
        "inter_intra_network.inc": _steps(_medians(found, NETWORK)),
        "inter_intra_planned.inc": _planned(_at(found, NETWORK)),
        "inter_intra_crossing.inc": _crossing(found),
    }
    return {name: "\n".join(text) for name, text in texts.items()}


def draw(folder: Path) -> list[str]:
    """Draw both pictures; their names."""
    import matplotlib
    from matplotlib.figure import Figure

    names = []
    with matplotlib.rc_context({"svg.hashsalt": "mpicoll"}):
        for name, drawing in (("idle", _draw_idle), ("crossing", _draw_crossing)):
            figure = Figure(figsize=(8, 3.6), layout="constrained")
            drawing(figure, lines("inter_intra"))
            names.append(f"inter-intra-{name}.svg")
            figure.savefig(folder / names[-1], metadata={"Date": None})
    return names


# --- what lines say -------------------------------------------------------------------------------


def _at(found: Sequence[Line], place: str) -> list[Line]:
    """The steps that were measured somewhere."""
    return [line for line in found if line["case"] == "steps" and line["place"] == place]


def _medians(found: Sequence[Line], place: str) -> list[Line]:
    """For each way a line of medians over launches."""
    own = _at(found, place)
    medians = []
    for way in dict.fromkeys(line["way"] for line in own):
        launches = [line for line in own if line["way"] == way]
        numbers = ("seconds", "idle", *PARTS)
        middle = {name: median(line[name] for line in launches) for name in numbers}
        medians.append({**launches[-1], **middle})
    return medians


def _crossed(found: Sequence[Line]) -> list[tuple[float, float, float]]:
    """Mbit/s, and seconds of both ways, ascending."""
    places = dict.fromkeys(line["place"] for line in found if line["case"] == "steps")
    rates = sorted(float(place.split()[0]) for place in places if place != NODE)
    rows = []
    for rate in rates:
        own = {line["way"]: line["seconds"] for line in _medians(found, f"{rate:g} Mbit/s")}
        rows.append((rate, own[CROSSING[0]], own[CROSSING[1]]))
    return rows


# --- tables ---------------------------------------------------------------------------------------


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:.2f}"


def _sent(found: Sequence[Line]) -> list[str]:
    head = ["plan", "messages", "point-to-point [MB]", "collectives [MB]", "formula"]
    head += ["memory [MB]", "planned [MB]"]
    rows = []
    for line in found:
        same = all(line[name] == value for name, value in line["formula"].items())
        memory = (line["memory"], line["planned_memory"])
        sent = (line["message_bytes"], line["collective_bytes"])
        rows.append(
            [
                line["way"],
                str(line["messages"]),
                *map(_megabytes, sent),
                "equal" if same else "differs",
                *map(_megabytes, memory),
            ]
        )
    return list_table(head, rows)


def _steps(found: Sequence[Line]) -> list[str]:
    head = ["plan", "measured [s]", "simulated [s]", "formula [s]", "idle [%]", "bubble [%]"]
    head += ["exposed [%]", "straggling [%]", "simulated idle [%]"]
    rows = []
    for line in found:
        formula = "—" if line["formula"] is None else f"{line['formula']:.3f}"
        parts = (line[name] for name in ("idle", *PARTS))
        rows.append(
            [
                line["way"],
                f"{line['seconds']:.3f}",
                f"{line['planned']:.3f}",
                formula,
                *(f"{100 * part:.1f}" for part in parts),
                f"{100 * line['planned_idle']:.1f}",
            ]
        )
    loads = sorted(line["load"] for line in found)
    words = f"The machine has two cores; its load was {loads[0]:.0f} to {loads[-1]:.0f}."
    return [*list_table(head, rows), words, ""]


def _planned(found: Sequence[Line]) -> list[str]:
    """How far plans are off, and what the pick loses."""
    errors = sorted(abs(line["planned"] / line["seconds"] - 1) for line in found)
    launches = len({line["launch"] for line in found})
    by_way: dict[str, list[Line]] = {}
    for line in found:
        by_way.setdefault(line["way"], []).append(line)
    measured = {way: median(line["seconds"] for line in own) for way, own in by_way.items()}
    best = min(measured, key=lambda way: measured[way])
    pick = min(by_way, key=lambda way: by_way[way][0]["planned"])
    losing = sum(seconds >= 1.3 * measured[best] for seconds in measured.values())
    return [
        f"Over the network, in {launches} launches other than that of the profile, the error of "
        f"the {len(measured)} predictions is {100 * median(errors):.1f} % in the median, at most "
        f"{_ninth(errors):.1f} % for nine of ten, and at most {100 * errors[-1]:.1f} % for all.  "
        f"{losing} of the plans take at least 30 % longer than the fastest.  "
        f"{_picked(measured, pick, best)}",
        "",
    ]


def _picked(measured: Mapping[str, float], pick: str, best: str) -> str:
    """What the plan with the shortest predicted step costs."""
    if pick == best:
        return f"The plan with the shortest predicted step, *{pick}*, is also the fastest measured."
    loss = 100 * (measured[pick] / measured[best] - 1)
    return (
        f"The plan with the shortest predicted step, *{pick}*, takes {loss:.1f} % longer than the "
        f"fastest measured, *{best}*."
    )


def _ninth(errors: Sequence[float]) -> float:
    """The 90th percentile, in per cent."""
    return 100 * errors[math.ceil(0.9 * len(errors)) - 1]


def _crossing(found: Sequence[Line]) -> list[str]:
    crossed = _crossed(found)
    rows = [[f"{rate:g}", f"{pipe:.3f}", f"{tensor:.3f}"] for rate, pipe, tensor in crossed]
    low = max(rate for rate, pipe, tensor in crossed if pipe < tensor)
    high = min(rate for rate, pipe, tensor in crossed if pipe >= tensor)
    head = ["rate [Mbit/s]", f"{CROSSING[0]} [s]", f"{CROSSING[1]} [s]"]
    words = (
        f"The pipeline is faster up to {low:g} Mbit/s, tensor parallelism from {high:g} Mbit/s on."
    )
    return [*list_table(head, rows), words, ""]


# --- pictures -------------------------------------------------------------------------------------


def _draw_idle(figure: Figure, found: Sequence[Line]) -> None:
    """What idle time is made of, on one node and over the network."""
    panels = figure.subplots(1, 2, sharey=True)
    for panel, place in zip(panels, (NODE, NETWORK), strict=True):
        own = _medians(found, place)
        ways, left = [line["way"] for line in own], [0.0] * len(own)
        for name, colour in PARTS.items():
            shares = [100 * line[name] for line in own]
            panel.barh(ways, shares, left=left, color=colour, label=name)
            left = [a + b for a, b in zip(left, shares, strict=True)]
        planned = [100 * line["planned_idle"] for line in own]
        panel.plot(planned, ways, "k|", markersize=9, label="simulated")
        panel.set(title=place, xlabel="idle [% of the step]")
        panel.grid(alpha=0.3, axis="x")
    panels[0].invert_yaxis()
    panels[1].legend()


def _draw_crossing(figure: Figure, found: Sequence[Line]) -> None:
    """Steps over the rate of the links."""
    panel, crossed = figure.subplots(), _crossed(found)
    rates = [rate for rate, _, _ in crossed]
    for number, way in enumerate(CROSSING, 1):
        panel.semilogx(rates, [row[number] for row in crossed], "o-", label=way)
    panel.set(xlabel="rate of each link [Mbit/s]", ylabel="step [s]", ylim=(0, None))
    panel.grid(alpha=0.3, which="both")
    panel.legend()
