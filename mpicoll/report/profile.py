"""A profile as a page: where a program's collectives are, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape as escaped
from pathlib import Path

from mpicoll.base.files import write_atomically
from mpicoll.bench.environment import without_folders
from mpicoll.profile import words
from mpicoll.profile.merged import Line, Profile
from mpicoll.profile.replay import Answer
from mpicoll.report import figures, page, tables
from mpicoll.report.figures import Figure
from mpicoll.report.tables import Head

#: Lines with bars of their own.
_DRAWN = 12


def write(path: Path, profile: Profile, found: Sequence[Answer], lines: Sequence[str]) -> None:
    """Write the page; an older file is replaced only when the new one is complete.

    Args:
        path: Of the file.
        profile: What is shown.
        found: What was measured for its costliest lines.
        lines: What to write for what gains.

    Raises:
        OSError: The file cannot be written.
        ImportError: plotly is missing.
    """
    write_atomically(path, render(profile, found, lines))


def render(profile: Profile, found: Sequence[Answer], lines: Sequence[str]) -> str:
    """The page as one string."""
    title = f"Collectives of {words.command(profile)}"
    plots = [("ranks", _ranks(profile)), ("places", _places(profile))]
    body = [
        f"<h1>{escaped(title)}</h1>",
        *(f'<p class="faint">{escaped(line)}</p>' for line in words.summary(profile)),
        *(f'<p class="warning">{escaped(line)}</p>' for line in words.warnings(profile)),
        '<section><div class="plots">',
        *(page.plot(name, figure) for name, figure in plots),
        "</div>",
        '<p class="faint">Waiting: from the call of a rank until the last rank that it needs has '
        "called. It is computed from calls that were matched on all ranks; the table has their "
        "number.</p></section><h2>Calls</h2>",
        _calls(profile),
        *(_answers(profile, found, lines) if found else ()),
        "<h2>The run</h2>",
        _facts(profile),
    ]
    return page.document(title, "".join(body))


def _ranks(profile: Profile) -> Figure:
    """Where the time of each rank went."""
    ranks = sorted(profile.seconds)
    names = ("transfer", "waiting for ranks")
    sums: dict[str, list[float]] = {f"collectives: {name}": [] for name in names}
    sums |= {"point-to-point": [], "everything else": []}
    for rank in ranks:
        parts = [line.parts[rank] for line in profile.lines if rank in line.parts]
        waiting = sum(part.waiting or 0.0 for part in parts)
        inside, messages = sum(part.seconds for part in parts), profile.messages[rank].seconds
        other = max(0.0, profile.seconds[rank] - inside - messages)
        values = (inside - waiting, waiting, messages, other)
        for found, value in zip(sums.values(), values, strict=True):
            found.append(value)
    return figures.stacked("time of a rank", "s", [f"rank {rank}" for rank in ranks], sums)


def _places(profile: Profile) -> Figure:
    """The costliest lines."""
    drawn = profile.lines[:_DRAWN]
    labels = [
        f"{number}. {words.called(line)} {words.size(line)} {line.where}"
        for number, line in enumerate(drawn, start=1)
    ]
    parts = {
        "transfer": [line.transfer for line in drawn],
        "waiting for ranks": [line.waiting or 0.0 for line in drawn],
    }
    return figures.stacked("time of all ranks", "s", labels, parts)


def _calls(profile: Profile) -> str:
    heads = [
        Head("method", number=False),
        Head("algorithm", number=False),
        Head("communicator", number=False),
        Head("size", "B"),
        Head("calls", "a rank"),
        Head("time", "s a rank"),
        Head("waiting", "%"),
        Head("of the run", "%"),
        Head("matched", "calls"),
        Head("where", number=False),
    ]
    rows = [*map(_row, profile.lines)]
    sent = words.messages(profile)
    if sent is not None:
        size, calls, spent, share = sent
        where = "all together"
        rows.append(("point-to-point", "", "", size, calls, spent, "–", share, "", where))
    return tables.grid(heads, rows)


def _row(line: Line) -> tuple[str, ...]:
    wait = "–" if line.waiting is None else f"{100 * line.waiting / max(line.seconds, 1e-12):.1f}"
    return (
        line.method,
        line.algorithm,
        line.communicator,
        words.size(line),
        str(line.calls),
        words.seconds(line.seconds / max(1, len(line.parts))),
        wait,
        f"{100 * line.share:.2f}",
        str(line.matched),
        f"{without_folders(line.file)}:{line.line} {line.function}",
    )


def _answers(profile: Profile, found: Sequence[Answer], lines: Sequence[str]) -> list[str]:
    heads = [
        Head("method", number=False),
        Head("size", "B"),
        Head("ranks"),
        Head("where", number=False),
        Head("what was measured", number=False),
    ]
    rows = (
        (
            answer.line.method,
            words.size(answer.line),
            str(answer.line.ranks),
            answer.line.where,
            words.verdict(answer),
        )
        for answer in found
    )
    said = "\n".join(words.remedy(profile, found, lines))
    return [
        "<h2>What it would take</h2>",
        tables.grid(heads, rows),
        *([f"<pre>{escaped(said)}</pre>"] if said else []),
    ]


def _facts(profile: Profile) -> str:
    facts = profile.facts
    command = without_folders(" ".join(map(str, facts["command"])))
    rows = [("run", profile.name), ("program", command), ("ranks", str(profile.ranks))]
    rows += [(name, str(facts[name])) for name in ("started", "mpi") if name in facts]
    heads = [Head("key", number=False), Head("value", number=False)]
    return tables.grid(heads, rows)
