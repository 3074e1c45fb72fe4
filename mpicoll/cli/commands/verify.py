"""``mpicoll verify``: prove schedules right, one number of ranks at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from mpicoll.base.wording import intervals, plural
from mpicoll.cli import output, parse
from mpicoll.cli.errors import UsageError, needing, usage
from mpicoll.cli.options import Json, Ranks, Set, any_spelling

if TYPE_CHECKING:
    from mpicoll.registry import Algorithm
    from mpicoll.schedule.parameters import Value
    from mpicoll.verify import Case


_COUNTS = ("rounds", "depth", "messages", "blocks_sent", "blocks_sent_max", "fan_in")


class _Arguments(NamedTuple):
    algorithm: Algorithm
    size: int
    root: int
    parameters: dict[str, Value]


def command(
    collective: Annotated[
        str | None,
        typer.Argument(
            metavar="COLLECTIVE",
            help="Collective; all if not given.",
            callback=any_spelling,
        ),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Argument(metavar="ALGORITHM", help="Algorithm, or file:NAME.json; all if not given."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Verify every algorithm of every collective.")
    ] = False,
    ranks: Ranks = "1-33",
    roots: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Roots: 0,last or all; auto: all up to 16 ranks, else 0,1,last.",
        ),
    ] = "auto",
    segments: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Numbers of segments; auto: 1,2,5, or 1,2 with more than 16 blocks.",
        ),
    ] = "auto",
    set_: Set = None,
    json: Json = False,
) -> int:
    """Verify schedules: every contribution exactly once, no deadlock, and the promised counts.

    The exit status is 1 if any is wrong.
    """
    sizes, written = parse.ranks(ranks), parse.roots(roots)
    parameters = parse.parameters(set_ or [])
    if everything and collective is not None:
        raise UsageError(f"--all and the collective {collective!r} exclude each other; drop one")
    if parameters and algorithm is None:
        raise UsageError("--set needs one algorithm; name a collective and an algorithm")
    with usage():
        chosen = _chosen(collective, algorithm)
        for entry in chosen:
            entry.complete(parameters)
    calls = list(_calls(chosen, sizes, written, parameters, parse.segments(segments)))
    if not calls:
        misfits = [entry.misfit(size, parameters) for entry in chosen for size in sizes]
        if all(misfits):  # one algorithm, as each collective has some for any number of ranks
            raise UsageError(f"{chosen[0].collective} {chosen[0].name}: {misfits[0]}")
        raise UsageError(
            f"--roots {roots!r} names no rank of -P {ranks!r}; give 0 to {max(sizes) - 1}, last or "
            "all"
        )
    cases = _verify(calls)
    ok = all(case.ok for case in cases)
    if json:
        output.facts({"ok": ok, "cases": [case.as_dict() for case in cases]})
    else:
        _print(cases)
        _counts([entry for entry in chosen if not all(map(entry.declares, _COUNTS))], cases)
    return 0 if ok else 1


def _chosen(collective: str | None, algorithm: str | None) -> tuple[Algorithm, ...]:
    from mpicoll import algorithms
    from mpicoll.files import schedule_files
    from mpicoll.registry import is_path, path_of

    if collective is None:
        return algorithms.catalogue()
    if algorithm is None:
        return tuple(algorithms.find(collective, name) for name in algorithms.names(collective))
    if not is_path(algorithm):
        return (algorithms.find(collective, algorithm),)
    with needing("pydantic", algorithm):
        found = schedule_files.read(path_of(algorithm))
    if found.collective != collective:
        raise ValueError(f"{algorithm} is of {found.collective}, not of {collective}")
    return (found,)


def _calls(
    chosen: tuple[Algorithm, ...],
    sizes: tuple[int, ...],
    written: tuple[int | str, ...],
    parameters: dict[str, Value],
    segments: tuple[int, ...],
) -> Iterator[_Arguments]:
    from mpicoll.verify import tried

    for algorithm in chosen:
        for size in sizes:
            if algorithm.misfit(size, parameters):
                continue
            pieces = parse.segments_of(segments, algorithm.blocks(size))
            settings = [parameters] if parameters else tried(algorithm, size, pieces)
            roots = parse.roots_of(written, size) if algorithm.definition.rooted else (0,)
            roots = roots if algorithm.root is None else (algorithm.root,)
            for root in roots:
                yield from (_Arguments(algorithm, size, root, setting) for setting in settings)


def _verify(calls: list[_Arguments]) -> list[Case]:
    from mpicoll.verify import verify

    with output.progress() as progress:
        return [
            verify(call.algorithm, call.size, call.root, call.parameters)
            for call in progress.track(calls, description="verifying")
        ]


def _print(cases: list[Case]) -> None:
    from mpicoll.schedule.parameters import in_words

    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.collective, case.algorithm), []).append(case)
    output.table(
        ("collective", "algorithm", "ranks", "cases", "verdict"),
        (
            (
                *names,
                intervals(sorted({c.size for c in group}), ", "),
                str(len(group)),
                _verdict(group),
            )
            for names, group in sorted(
                groups.items(), key=lambda of: all(case.ok for case in of[1])
            )  # what is wrong first
        ),
        right=("cases",),
        fold=("ranks",),
    )
    wrong = [case for case in cases if not case.ok]
    for case in wrong:
        root = f", root {case.root}" if case.root else ""
        settings = "".join(f", {word}" for word in in_words(case.parameters).split())
        output.text(f"{case.collective} {case.algorithm}, P = {case.size}{root}{settings}:")
        for problem in case.problems:
            output.text(f"  {problem}")
    output.text(f"{len(cases) - len(wrong)} of {plural(len(cases), 'case')} right")


def _counts(undeclared: list[Algorithm], cases: list[Case]) -> None:
    """What schedules do of which not all is declared: a case of each number of ranks."""
    from mpicoll.schedule.parameters import in_words

    for entry in undeclared:
        mine = [c for c in cases if (c.collective, c.algorithm) == (entry.collective, entry.name)]
        first = {case.size: case for case in reversed(mine) if case.ok}
        if not first:
            continue
        settings = next(iter(first.values())).parameters
        words = " ".join(filter(None, (entry.collective, entry.name, in_words(settings))))
        output.text(f"\ncounted in the schedules of {words}:")
        heads = (
            "ranks",
            "rounds",
            "depth",
            "messages",
            "blocks sent",
            "of one rank at most",
            "fan-in",
        )
        rows = (
            (str(size), *(str({**case.counts._asdict(), "depth": case.depth}[n]) for n in _COUNTS))
            for size, case in sorted(first.items())
        )
        output.table(heads, rows, right=heads)


def _verdict(group: list[Case]) -> str:
    wrong = sum(not case.ok for case in group)
    return f"{wrong} wrong" if wrong else "right"
