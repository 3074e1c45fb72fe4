"""``mpicoll tune``: the choices that measurements make, for mpicoll or for an MPI library."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated, Any

import typer

from mpicoll.cli import measured, output
from mpicoll.cli.errors import UsageError, one_of, reading, usage
from mpicoll.cli.measured import Mix, Oversubscribed, Runs
from mpicoll.cli.options import Json


def command(
    runs: Runs,
    file: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Where the rules go; tuning.json if nothing is exported.",
        ),
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            metavar="LIBRARY",
            help="Write what an MPI library reads instead: ompi or mpich.",
        ),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For mpich: its own JSON file, with all collectives."),
    ] = None,
    mix: Mix = False,
    oversubscribed: Oversubscribed = False,
    json: Json = False,
) -> int:
    """Choose the fastest algorithm for each size and number of ranks that was measured.

    A communicator uses the file by `MPICOLL_TUNING`. With several launches the cost of wrong
    choices is told, timed on other launches than those that chose. The exit status is 1 if some
    results were wrong; nothing is made of those.
    """
    if export is not None:
        one_of("--export", export, ("ompi", "mpich"))
    if base is not None and export != "mpich":
        raise UsageError("--base is for --export mpich; drop it")
    measured.need(["scipy"], "fit")
    from mpicoll.base.files import write_atomically
    from mpicoll.model import build

    found = measured.runs(runs, mix)
    status = measured.wrong_runs(found)
    cells, left = measured.cells(found, oversubscribed)
    for line in left.words():
        output.remark(f"mpicoll: {line}")
    rules = build.measured_rules(cells)
    if not rules:
        raise UsageError("every point has one rank; measure two or more to have a choice")
    target = file or Path(
        {"ompi": "ompi.rules", "mpich": "mpich.json"}.get(export or "", "tuning.json")
    )
    with usage():
        text = _text(export, cells, rules, found, base)
    write_atomically(target, text)
    regret = build.measured_regret(cells)
    if json:
        facts: dict[str, Any] = {"file": str(target), "rules": rules}
        output.facts({**facts, "regret": vars(regret) if regret else None})
        return status
    output.table(
        ("collective", "P from", "bytes from", "ranks share memory", "choice", "then"),
        (
            (
                collective,
                str(rule["ranks"]),
                str(rule["nbytes"]),
                "yes" if rule["near"] else "no",
                rule["algorithms"][0],
                ", ".join(rule["algorithms"][1:]),
            )
            for collective, written in rules.items()
            for rule in written
        ),
        right=("P from", "bytes from"),
        fold="then",
    )
    if regret is None:
        output.text("regret: unknown, a single launch; measure several to know it")
    else:
        output.text(
            f"regret on other launches than those that chose: {100 * regret.mean:.2f} % on "
            f"average, {100 * regret.worst:.1f} % at worst ({regret.where})"
        )
    output.text(f"written to {target}: {_use(export, target)}")
    return status


def _text(export: str | None, cells: Any, rules: Any, runs: Any, base: Path | None) -> str:
    from mpicoll.bench.runs import machine
    from mpicoll.model import build
    from mpicoll.model import export as exporters

    gain = build.gain(cells)
    if export == "ompi":
        return exporters.ompi(cells, gain)
    if export == "mpich":
        if base is None:
            output.remark(
                "mpicoll: warning: MPICH stops where its file lacks a collective that is called, "
                "so this one is not enough; give the file that it has otherwise "
                "(maint/tuning/coll/mpir/generic.json of its source) by --base"
            )
        return json_.dumps(exporters.mpich(cells, _base(base), gain), indent=2) + "\n"
    about = {"machine": machine(runs[0].facts), "runs": [run.name for run in runs]}
    return json_.dumps({"mpicoll": "tuning 1", "about": about, "rules": rules}, indent=2) + "\n"


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
