"""``mpicoll tune``: the choices that measurements make, for mpicoll or for an MPI library."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpicoll.cli import measured, output, session
from mpicoll.cli.errors import UsageError, one_of, reading, usage
from mpicoll.cli.measured import Mix, Oversubscribed
from mpicoll.cli.options import Json

if TYPE_CHECKING:
    from mpicoll.bench.records import Run
    from mpicoll.model.choose import Decision
    from mpicoll.model.told import Gain
    from mpicoll.model.verdicts import Verdict


def command(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUNS...]", help="Files that `mpicoll bench -J` wrote."),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Search for the best algorithms and parameters of collectives; under mpirun.",
        ),
    ] = None,
    size: Annotated[
        str,
        typer.Option(
            "-s",
            "--size",
            metavar="LIST",
            help="Sizes to search for: 64K,1M, or 64K-64M (each 4 times the last).",
        ),
    ] = "1K,64K,1M",
    model: Annotated[
        Path | None,
        typer.Option(
            "-m",
            "--model",
            metavar="FILE",
            help="Costs for the predictions of the search; mpicoll's own if not given.",
        ),
    ] = None,
    points: Annotated[
        Path | None,
        typer.Option(
            "-J",
            "--output-file",
            metavar="FILE",
            help="Append what the search measures as JSON lines.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the rules to this file; tuning.json if nothing is exported.",
        ),
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            metavar="LIBRARY",
            help="Write the rules for an MPI library instead: ompi or mpich.",
        ),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --export mpich: MPICH's own JSON file, to be completed."
        ),
    ] = None,
    mix: Mix = False,
    oversubscribed: Oversubscribed = False,
    json: Json = False,
) -> int:
    """Choose the fastest algorithm for each size and number of ranks that was measured.

    The choice changes with the size only where the difference is larger than the noise between
    launches. A communicator uses the file if `MPICOLL_TUNING` names it; an exported file holds only
    gains over the library that are larger than the noise. With several launches the command also
    prints the regret of the choices, timed on other launches. The exit status is 1 if some results
    were wrong (they are not used).

    With --search the launched ranks search the segments, windows, orders and other parameters of
    all algorithms: a model predicts all, and the best are measured; again and again the slower half
    is dropped and the rest gets twice as many calls, until three are left. This is one launch;
    collect several with -J, and tune them together.
    """
    if export is not None:
        one_of("--export", export, ("ompi", "mpich"))
    if base is not None and export != "mpich":
        raise UsageError("--base is for --export mpich; drop it")
    measured.need(["scipy"], "fit")
    if not search:
        if not runs:
            raise UsageError("nothing to tune; give files of `mpicoll bench -J`, or --search")
        return _tune(measured.runs(runs, mix), file, export, base, oversubscribed, json)
    from mpicoll.cli.searching import searched

    comm = session.communicator()
    new = searched(comm, search.split(","), size, model, points, oversubscribed)

    def tune() -> int:
        earlier = measured.runs(runs, mix) if runs else []
        return _tune([*earlier, new], file, export, base, oversubscribed, json)

    return int(comm.bcast(session.on_rank_0(comm, tune)))


def _tune(
    found: list[Run],
    file: Path | None,
    export: str | None,
    base: Path | None,
    oversubscribed: bool,
    json: bool,
) -> int:
    """Make rules of runs, write and print them; the exit status."""
    from mpicoll.base.files import write_atomically
    from mpicoll.model import build, choose
    from mpicoll.model.verdicts import verdict

    status = measured.wrong_runs(found)
    cells, left = measured.cells(found, oversubscribed)
    for line in left.words():
        output.remark(f"mpicoll: {line}")
    made = choose.decisions(choose.tables(cells))
    verdicts = [verdict(decision) for decision in made]
    rules = choose.by_collective(made)
    if not rules:
        raise UsageError("every point has one rank; measure two or more to have a choice")
    target = file or Path(
        {"ompi": "ompi.rules", "mpich": "mpich.json"}.get(export or "", "tuning.json")
    )
    with usage():
        text = _text(export, cells, made, verdicts, found, base)
    write_atomically(target, text)
    regret = build.measured_regret(cells)
    if json:
        facts: dict[str, Any] = {"file": str(target), "rules": rules}
        facts["evidence"] = _evidence(made, verdicts)
        output.facts({**facts, "regret": vars(regret) if regret else None})
        return status
    _table(made, verdicts)
    _doubts(verdicts)
    if regret is None:
        output.text("regret: unknown, a single launch; measure several to know it")
    else:
        output.text(
            f"regret on other launches than those that chose: {100 * regret.mean:.2f} % on "
            f"average, {100 * regret.worst:.1f} % at worst ({regret.where})"
        )
    output.text(f"written to {target}: {_use(export, target)}")
    return status


def _table(made: list[Decision], verdicts: list[Verdict]) -> None:
    from mpicoll.base.sizes import format_size

    numbers = ("ranks from", "size from [B]", "time [us]", "native [us]", "gain [%]")
    output.table(
        (
            *("collective", "ranks from", "size from [B]", "one node", "algorithm"),
            *("time [us]", "native [us]", "gain [%]", "significant", "fallbacks"),
        ),
        (
            (
                decision.table.place.collective,
                str(decision.rule["ranks"]),
                format_size(decision.rule["nbytes"]),
                "yes" if decision.rule["near"] else "no",
                decision.rule["algorithms"][0],
                _span(found.seconds),
                _span(found.native),
                _percent(found.gain),
                found.sure,
                ", ".join(decision.rule["algorithms"][1:]),
            )
            for decision, found in zip(made, verdicts, strict=True)
        ),
        right=numbers,
        fold=("fallbacks", "significant", "algorithm"),
        drop=("fallbacks", "one node", "native [us]", "time [us]", "significant"),
    )


def _span(times: tuple[float, float] | None) -> str:
    """The times of a rule's sizes, from the least to the largest."""
    from mpicoll.bench.table import microseconds

    if times is None:
        return "-"
    low, high = map(microseconds, times)
    return low if low == high else f"{low} .. {high}"


def _percent(gain: Gain | None) -> str:
    if gain is None:
        return "-"
    return f"{100 * gain.share:.0f} ({100 * gain.low:.0f} .. {100 * gain.high:.0f})"


def _doubts(verdicts: list[Verdict]) -> None:
    """Say once what speaks against all rules that are not sure for the same reason."""
    from mpicoll.model.verdicts import CROWDED, ONE_LAUNCH

    said = {found.sure for found in verdicts}
    if ONE_LAUNCH in said:
        output.text(
            "one launch: the variation between launches is unknown, so a choice changes only for a "
            "large gain, and no gain is significant; measure several (mpicoll bench --launch-id N)"
        )
    if CROWDED in said:
        output.text(
            "more ranks than cores: such times show how ranks share cores, so no gain is "
            "significant; measure as many ranks as there are cores"
        )


def _evidence(made: list[Decision], verdicts: list[Verdict]) -> list[dict[str, Any]]:
    """What each rule rests on, for a file."""
    return [
        {
            "collective": decision.table.place.collective,
            **{name: decision.rule[name] for name in ("ranks", "nbytes", "near")},
            **found.plain,
        }
        for decision, found in zip(made, verdicts, strict=True)
    ]


def _text(
    export: str | None,
    cells: Any,
    made: list[Decision],
    verdicts: list[Verdict],
    runs: Any,
    base: Path | None,
) -> str:
    from mpicoll.bench.runs import machine
    from mpicoll.model import choose
    from mpicoll.model import export as exporters
    from mpicoll.tuning import rule_files

    if export == "ompi":
        return exporters.ompi(cells)
    if export == "mpich":
        if base is None:
            output.remark(
                "mpicoll: warning: MPICH stops where its file lacks a collective that is called, "
                "so this one is not enough; give the file that it has otherwise "
                "(maint/tuning/coll/mpir/generic.json of its source) by --base"
            )
        return json_.dumps(exporters.mpich(cells, _base(base)), indent=2) + "\n"
    about = {
        "machine": machine(runs[0].facts),
        "runs": [run.name for run in runs],
        "evidence": _evidence(made, verdicts),
    }
    return rule_files.written(about, choose.by_collective(made))


def _base(path: Path | None) -> dict[str, Any] | None:
    """MPICH's own file.

    Raises:
        UsageError: it cannot be read, or is none.
    """
    if path is None:
        return None
    with reading("--base "):
        written = path.read_bytes()
    try:
        content = json_.loads(written)
    except ValueError as error:
        raise UsageError(f"--base {path} is no JSON: {error}") from None
    if not isinstance(content, dict) or not all(key.startswith("collective=") for key in content):
        raise UsageError(f"--base {path} is no file of MPICH's: its keys must be collective=...")
    return content


def _use(export: str | None, path: Path) -> str:
    if export == "ompi":
        return (
            "set OMPI_MCA_coll_tuned_use_dynamic_rules=1 and "
            f"OMPI_MCA_coll_tuned_dynamic_rules_filename={path}"
        )
    if export == "mpich":
        return f"set MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE={path}"
    return f"set MPICOLL_TUNING={path}"
