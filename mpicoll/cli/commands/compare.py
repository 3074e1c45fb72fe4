"""``mpicoll compare``: do two sets of launches differ?"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpicoll.base.wording import plural
from mpicoll.cli import measured, output
from mpicoll.cli.errors import UsageError, usage
from mpicoll.cli.measured import Mix, Oversubscribed
from mpicoll.cli.options import Json

if TYPE_CHECKING:
    from mpicoll.model.compare import Comparison, Row


def command(
    first: Annotated[Path, typer.Argument(metavar="A", help="Launches before, by `bench -J`.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Launches after, by `bench -J`.")],
    effect: Annotated[
        float, typer.Option(metavar="SHARE", help="Smallest difference that gets a verdict.")
    ] = 0.02,
    everything: Annotated[
        bool, typer.Option("--all", help="Also print rows without a verdict.")
    ] = False,
    mix: Mix = False,
    oversubscribed: Oversubscribed = False,
    json: Json = False,
) -> int:
    """Compare two sets of launches: is B faster or slower than A?

    If nothing differs, the probability of any verdict in the whole comparison is 1 %. Alternate the
    launches of A and B, at least 7 each. The exit status is 1 if something is slower or some
    results are wrong, 2 if there are too few launches for any verdict.
    """
    if not 0 <= effect < 1:
        raise UsageError(f"--effect {effect:g} is out of range; give 0 up to 1, as 0.02")
    measured.need(["scipy"], "fit")
    from mpicoll.bench.runs import differences
    from mpicoll.model.compare import LEAST_LAUNCHES, compare

    sides = [measured.runs([path], mix) for path in (first, second)]
    differing = differences(sides[0][0].facts, sides[1][0].facts)
    if differing and not mix:
        raise UsageError(
            f"{first} and {second} are of different machines: {'; '.join(differing)}; --mix "
            "compares them nevertheless"
        )
    status = measured.wrong_runs([run for runs in sides for run in runs])
    gathered = [measured.cells(runs, oversubscribed) for runs in sides]
    for path, (_, left) in zip((first, second), gathered, strict=True):
        for line in left.words():
            output.remark(f"mpicoll: {path}: {line}")
    with usage():
        found = compare(*(cells for cells, _ in gathered), effect=effect)
    if json:
        rows = [vars(row) for row in found.rows]
        facts = {"launches": found.launches, "alone": found.alone, "slower": found.slower}
        output.facts({**facts, "rows": rows})
    else:
        _print(found, first, second, everything)
    if found.launches < LEAST_LAUNCHES:
        raise UsageError(
            f"no verdict: it takes {LEAST_LAUNCHES} launches a side, not {found.launches}; measure "
            "more, the sides in turns"
        )
    return 1 if found.slower else status


def _print(found: Comparison, first: Path, second: Path, everything: bool) -> None:
    from mpicoll.bench.table import microseconds
    from mpicoll.model.compare import NONE

    rows = [row for row in found.rows if everything or row.nbytes is None or row.verdict != NONE]
    output.text(f"A: {first}; B: {second}; {plural(found.launches, 'pair')} of launches")
    rows.sort(key=lambda row: (row.verdict == NONE, -abs(math.log(row.ratio))))
    numbers = ("ranks", "size [B]", "A [us]", "B [us]", "B / A", "low", "high", "p")
    output.table(
        ("collective", "algorithm", *numbers, "B is"),
        (
            (
                row.collective,
                row.choice,
                str(row.ranks),
                _size(row),
                microseconds(row.first),
                microseconds(row.second),
                *(f"{value:.3f}" for value in (row.ratio, row.low, row.high)),
                f"{row.p:.4f}",
                row.verdict,
            )
            for row in rows
        ),
        right=numbers,
        fold=("B is", "algorithm"),
        drop=("p", "low", "high", "A [us]", "B [us]"),
    )
    if found.alone:
        output.text(f"{plural(found.alone, 'point')} without a partner in every launch")
    hidden = len(found.rows) - len(rows)
    if hidden:
        output.text(f"{plural(hidden, 'point')} without a verdict not shown; --all shows them")


def _size(row: Row) -> str:
    from mpicoll.base.sizes import format_size

    return "all" if row.nbytes is None else format_size(row.nbytes)
