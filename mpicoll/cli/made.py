"""What ``mpicoll synthesize`` tells and writes of the schedules that were made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mpicoll.base.times import ATTOSECONDS
from mpicoll.base.wording import ranges
from mpicoll.cli import output
from mpicoll.cli.errors import needing, usage

if TYPE_CHECKING:
    from mpicoll.synthesis.search import Found, Timed

_PREDICTED = (
    "predicted, not measured: run it under mpirun with --measure to choose by measurements;\n"
    "without them no tuning rules are written"
)


class Finalist(NamedTuple):
    """What is measured: its words as a tuning file has them; the schedule, if it is one made."""

    words: str
    timed: Timed | None


#: By size the seconds of each finalist.
Measured = Mapping[int, list[tuple[Finalist, float]]]


def finalists(found: Found, count: int, folder: Path) -> dict[int, list[Finalist]]:
    """By size the best schedules, which are written into a folder, and the catalogue's best."""
    from mpicoll.files import schedule_files
    from mpicoll.tuning import NATIVE

    paths: dict[int, Path] = {}
    chosen: dict[int, list[Finalist]] = {}
    for nbytes in found.sizes:
        known = found.known[nbytes][:count]
        chosen[nbytes] = [Finalist(words, None) for words in (NATIVE, *(k.words for k in known))]
        for timed in _unlike(found.made[nbytes], count):
            if id(timed.made) not in paths:
                path = paths[id(timed.made)] = folder / f"{len(paths)}.json"
                schedule_files.write(path, content(found, timed))
            words = f"file:{paths[id(timed.made)]} {timed.words}"
            chosen[nbytes].append(Finalist(words, timed))
    return chosen


def _unlike(rows: list[Timed], count: int) -> list[Timed]:
    """The best schedules, of each number of messages one.

    The clock hardly tells those of equally many apart, and what a message costs besides its time on
    the links is what it knows least.
    """
    best: dict[int, Timed] = {}
    for row in rows:
        best.setdefault(row.made.strands * row.segments, row)
    return [*best.values()][:count]


def content(found: Found, timed: Timed) -> bytes:
    """The schedule file of a schedule that was made."""
    network = found.machine.network
    assert network is not None
    about = {
        "bound": found.bound.per_byte / ATTOSECONDS,
        "clock": timed.time / ATTOSECONDS,
    }
    root = found.root if found.collective in ("bcast", "reduce") else None
    cut = timed.segments, timed.window
    return timed.made.file(found.collective, root, network.hosts, *cut, about)


def report(
    found: Found, file: Path | None, plot: Path | None, json: bool, measured: Measured | None
) -> list[dict[str, Any]]:
    """Write the files and print what was found; the facts of each size."""
    made = _winner(found, measured)
    rows = [_row(found, nbytes, made, file, measured) for nbytes in found.sizes]
    wins = made is not None and any(row["choice"].startswith("file:") for row in rows)
    if wins and made is not None and file is not None:
        from mpicoll.files import schedule_files

        schedule_files.write(file, content(found, made))
    if plot is not None and made is not None and made.made.loads:
        from mpicoll.synthesis import pictures

        with needing("matplotlib", "--plot"), usage():
            pictures.loads(plot, found.bound, found.machine, made.made.loads)
    if json:
        output.facts(_facts(found, made, rows, measured))
        return rows
    _print(found, rows, measured)
    if wins and made is not None:
        where = f"written to {file}" if file else "not written; name a file by -o"
        output.text(f"schedule: {made.made.origin}, {made.words}; {where}")
    else:
        output.text("no file: an algorithm of the catalogue is as fast at every size")
    if measured is None:
        output.text(_PREDICTED)
    return rows


def _winner(found: Found, measured: Measured | None) -> Timed | None:
    """The schedule for the file, as it is best cut: by the clock, or of those measured."""
    if measured is None:
        best = found.best()
        return found.of(best, max(found.sizes))
    gains: dict[int, tuple[float, float, Timed]] = {}
    for times in measured.values():
        others = min(seconds for each, seconds in times if each.timed is None)
        for each, seconds in times:
            if each.timed is not None:
                # Where it is slower, the other one is taken.
                gain = min(0.0, math.log(seconds / others))
                total, least, timed = gains.get(id(each.timed.made), (0.0, 0.0, each.timed))
                timed = each.timed if gain < least else timed
                gains[id(each.timed.made)] = total + gain, min(gain, least), timed
    return min(gains.values(), key=lambda each: each[0])[2] if gains else None


def _row(
    found: Found, nbytes: int, made: Timed | None, file: Path | None, measured: Measured | None
) -> dict[str, Any]:
    """What there is to say of a size, times in seconds."""
    known = found.known[nbytes][0]
    row: dict[str, Any] = {
        "size": nbytes,
        "bound": found.bound.time(nbytes) / ATTOSECONDS,
        "catalogue": known.words,
        "catalogue_time": known.time / ATTOSECONDS,
        "catalogue_gap": found.gap(known.time, nbytes),
        "choice": known.words,
    }
    if made is None:
        return row
    own = found.of(made.made, nbytes)
    if own is None:  # another one is better here
        return row
    row |= {
        "made_time": own.time / ATTOSECONDS,
        "made_gap": found.gap(own.time, nbytes),
        "segments": own.segments,
        "window": own.window,
    }
    name = f"file:{file}" if file else "file:"
    if measured is None:
        if own.time < known.time:
            row["choice"] = f"{name} {own.words}"
        return row
    others = [(s, each.words) for each, s in measured[nbytes] if each.timed is None]
    mine = [
        (s, f"{name} {each.timed.words}")
        for each, s in measured[nbytes]
        if each.timed is not None and each.timed.made is made.made
    ]
    row["choice"] = min(others + mine)[1]
    row["catalogue_measured"], row["catalogue"] = min(others)
    row["made_measured"] = min(mine)[0] if mine else None
    return row


def _facts(
    found: Found, made: Timed | None, rows: list[dict[str, Any]], measured: Measured | None
) -> dict[str, Any]:
    bound = found.bound
    facts: dict[str, Any] = {
        "collective": found.collective,
        "ranks": len(bound.shares),
        "bound": {
            "seconds_per_byte": bound.per_byte / ATTOSECONDS,
            "exact": bound.exact,
            "busiest": list(bound.busiest),
            "cut": list(bound.cut),
        },
        "measured": measured is not None,
        "made": made.made.origin if made else None,
        "evaluations": found.evaluations,
        "sizes": rows,
    }
    if measured is not None:
        facts["finalists"] = {
            str(n): [
                {
                    "words": "made" if each.timed else each.words,
                    "predicted": each.timed.time / ATTOSECONDS if each.timed else None,
                    "seconds": seconds,
                }
                for each, seconds in times
            ]
            for n, times in measured.items()
        }
    return facts


def _print(found: Found, rows: list[dict[str, Any]], measured: Measured | None) -> None:
    from mpicoll.base.sizes import format_size
    from mpicoll.bench.table import microseconds

    bound = found.bound
    kind = "" if bound.exact else ", or more"
    busiest = ", ".join(bound.busiest[:3]) + (", ..." if len(bound.busiest) > 3 else "")
    output.text(
        f"{found.collective}: trees take at least {bound.per_byte / 10**6:g} ps a byte{kind}\n"
        f"limited by the traffic between {ranges(list(bound.cut))} and the others; busiest: "
        f"{busiest or 'nothing'}"
        if bound.cut
        else f"{found.collective} on one rank"
    )

    def gap(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f}"

    def time(value: float | None) -> str:
        return "-" if value is None else microseconds(value)

    known = ["catalogue: predicted [us]", "catalogue: over bound [%]"]
    made = ["generated: predicted [us]", "generated: over bound [%]"]
    if measured:
        known.append("catalogue: measured [us]")
        made.append("generated: measured [us]")
    output.table(
        ("size [B]", "bound [us]", "best of catalogue", *known, *made, "faster"),
        (
            (
                *(format_size(row["size"]), time(row["bound"])),
                row["catalogue"].split(" nodes=")[0],
                *(time(row["catalogue_time"]), gap(row["catalogue_gap"])),
                *((time(row.get("catalogue_measured")),) if measured else ()),
                *(time(row.get("made_time")), gap(row.get("made_gap"))),
                *((time(row.get("made_measured")),) if measured else ()),
                "generated" if row["choice"].startswith("file:") else "catalogue",
            )
            for row in rows
        ),
        right=("size [B]", "bound [us]", *known, *made),
        fold=("best of catalogue",),
        drop=("bound [us]", known[1], made[1]),
    )


def write_rules(path: Path, found: Found, rows: list[dict[str, Any]]) -> None:
    """Write a tuning file of the choices that were measured."""
    from mpicoll.base.files import write_atomically
    from mpicoll.tuning import rule_files

    ranks = len(found.bound.shares)
    choices = [
        {"nbytes": row["size"], "ranks": ranks, "algorithms": [row["choice"]]} for row in rows
    ]
    about = {"by": "mpicoll synthesize --measure"}
    write_atomically(path, rule_files.written(about, {found.collective: choices}))
    output.remark(f"rules written to {path}: set MPICOLL_TUNING={path}")
