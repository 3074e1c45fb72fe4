"""``mpicoll profile``: what `python -m mpicoll.profile` has recorded, merged over ranks."""

from __future__ import annotations

import string
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpicoll.base.wording import plural
from mpicoll.cli import measured, output, session
from mpicoll.cli.errors import UsageError, reading
from mpicoll.cli.options import Json

if TYPE_CHECKING:
    from mpicoll.profile.merged import Line, Profile
    from mpicoll.profile.replay import Answer

#: Lines that are shown if not all are asked for.
_SHOWN = 20


def command(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder that the recorder wrote.")
    ],
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write a page.")
    ] = None,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay",
            help="Measure the costliest calls with each algorithm; under mpirun.",
        ),
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help=f"Show all lines, not only the {_SHOWN} with most time.")
    ] = False,
    json: Json = False,
) -> int:
    """Show where a program spends time in collectives.

    `mpirun -n 4 python -m mpicoll.profile app.py` records an unchanged program. The table has a row
    for each call site, size, communicator and algorithm: calls, time, the part of it in which ranks
    waited for others, and the share of the run. With --replay: what other algorithms would take.
    """
    if html is not None:
        measured.need(["plotly"], "plot")
    if replay:
        _replay(folder)
        if session.world().Get_rank():
            return 0
    from mpicoll.profile import replay as what_if

    profile, path = _read(folder), folder / "replay.jsonl"
    with reading():
        found = [*what_if.answers(profile, path)] if replay or path.is_file() else []
    lines = what_if.advice(found, folder / "tuning.json")
    if lines:
        what_if.write_rules(found, folder / "tuning.json")
    if json:
        output.facts(_facts(profile, found, lines))
    else:
        _print(profile, found, lines, everything)
    if html is not None:
        from mpicoll.report import profile as page

        page.write(html, profile, found, lines)
        output.remark(f"written to {html}")
    return 0


def _read(folder: Path) -> Profile:
    from mpicoll.profile import merged

    with measured.remarking():
        return merged.read(folder)


def _replay(folder: Path) -> None:
    """Measure what the profile asks for.  Collective."""
    from mpicoll.profile import replay

    comm: Any = session.communicator()

    def ask() -> list[replay.Question]:
        profile = _read(folder)
        if profile.ranks > comm.Get_size():
            raise UsageError(
                f"{folder} is of {plural(profile.ranks, 'rank')}, and here are {comm.Get_size()}; "
                f"start as many: mpirun -n {profile.ranks} mpicoll profile {folder} --replay"
            )
        asked = map(replay.question, replay.costliest(profile))
        return [each for each in asked if not isinstance(each, str)]

    asked = comm.bcast(session.on_rank_0(comm, ask))
    remark = output.remark if comm.Get_rank() == 0 else (lambda words: None)
    replay.measure(comm, asked, folder / "replay.jsonl", remark)


def _print(profile: Profile, found: list[Answer], lines: list[str], everything: bool) -> None:
    from mpicoll.profile import words

    for line in words.summary(profile):
        output.text(f"# {line}")
    for warning in words.warnings(profile):
        _paragraph(f"WARNING: {warning}", "# ")
    shown = profile.lines if everything else profile.lines[:_SHOWN]
    _table(profile, shown)
    if len(shown) < len(profile.lines):
        output.text(f"# {len(profile.lines) - len(shown)} more lines; --all shows them")
    if not found and profile.lines:
        again = f"mpirun -n {profile.ranks} mpicoll profile FOLDER --replay"
        output.text(f"# what other algorithms would take: {again}")
    if found:
        output.text("\nWhat it would take:")
        for number, answer in enumerate(found, start=1):
            output.text(f"{number}. {words.asked(answer)}")
            _paragraph(words.verdict(answer), "   ")
        for remedy in words.remedy(profile, found, lines):
            output.text(remedy)


def _paragraph(text: str, begin: str) -> None:
    """Print a text that may be longer than a line."""
    for line in textwrap.wrap(text, output.width() - len(begin), break_long_words=False):
        output.text(begin + line)


def _table(profile: Profile, shown: Sequence[Line]) -> None:
    """Print the table, and what its letters and headings mean."""
    from mpicoll.profile import words

    comms = words.letters((line.communicator for line in shown), string.ascii_uppercase)
    algorithms = words.letters((line.algorithm for line in shown), string.ascii_lowercase)
    numbers = ("size [B]", "calls", "time [s]", "waiting [%]", "of the run [%]")
    rows: list[tuple[str, ...]] = [
        (
            *(line.method, comms[line.communicator], algorithms[line.algorithm]),
            *(*_numbers(line), line.where),
        )
        for line in shown
    ]
    sent = words.messages(profile)
    if sent is not None:
        size, calls, spent, share = sent
        rows.append(("point-to-point", "", "", size, calls, spent, "-", share, "all together"))
    output.table(
        ("collective", "comm", "algorithm", *numbers, "where"),
        rows,
        right=numbers,
        fold=("where",),
        drop=("comm", "algorithm", "waiting [%]"),
    )
    for head, names in (("comm", comms), ("algorithm", algorithms)):
        for name, letter in names.items():
            output.text(f"# {head} {letter}: {name}")
    meaning = (
        "time: mean over the ranks; waiting: the share of it until the other ranks have called; "
        "size: bytes of the whole vector; ~: mean of what a rank contributes"
    )
    _paragraph(meaning, "# ")


def _numbers(line: Line) -> tuple[str, ...]:
    from mpicoll.profile import words

    wait = "-" if line.waiting is None else f"{100 * line.waiting / max(line.seconds, 1e-12):.0f}"
    seconds = line.seconds / max(1, len(line.parts))
    sizes = words.size(line), str(line.calls)
    return (*sizes, words.seconds(seconds), wait, f"{100 * line.share:.1f}")


def _facts(profile: Profile, found: list[Answer], lines: list[str]) -> dict[str, Any]:
    """The profile as plain values."""
    from mpicoll.profile import words

    return {
        "run": profile.name,
        "command": profile.facts["command"],
        "ranks": profile.ranks,
        "seconds": profile.seconds,
        "ended": sorted(profile.ended),
        "overhead": {"call": profile.cost, "calls": profile.recorded, "share": profile.overhead},
        "unseen": profile.unseen,
        "messages": {rank: part._asdict() for rank, part in profile.messages.items()},
        "lines": [words.plain(line) for line in profile.lines],
        "answers": [words.plain_answer(answer) for answer in found],
        "write": lines,
    }
