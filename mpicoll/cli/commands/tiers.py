"""``mpicoll tiers``: a network with early exits on devices, edges and a cloud."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpicoll.cli import measured, output, session
from mpicoll.cli.errors import UsageError, one_of, usage
from mpicoll.cli.options import Best, Json, Run

if TYPE_CHECKING:
    from mpicoll.train.exits import Fault, Outcome

#: Seconds that a device may be late by.
_LATEST = 86400.0


def command(
    run: Run,
    tiers: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="Ranks of each tier, devices first: device=4,edge=2,cloud=1."
        ),
    ],
    threshold: Annotated[
        str,
        typer.Option(metavar="LIST", help="Largest entropy, 0 to 1, at which a sample leaves."),
    ] = "0,0.2,0.5,0.8,1",
    batch: Annotated[int, typer.Option(min=1, help="Samples in a batch of a device.")] = 64,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Use only the first N samples of the set.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATASET", help="Dataset, as of `mpicoll train`; that of the run if not given."
        ),
    ] = None,
    part: Annotated[
        str, typer.Option("--split", metavar="SPLIT", help="Split of the data: validation or test.")
    ] = "test",
    silent: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="Devices that send nothing: 2,3@10 (3 from batch 10 on)."
        ),
    ] = "",
    late: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="Slow devices, and their delay a batch in seconds: 1=0.5."
        ),
    ] = "",
    patience: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time to wait for a silent device, once.")
    ] = 1.0,
    page: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write a page with plots.")
    ] = None,
    best: Best = False,
    json: Json = False,
) -> int:
    """Run a network with early exits: accuracy, bytes and time for each threshold.

    Each rank is a device, an edge or the cloud, and has the layers of its tier. A sample leaves at
    the first exit whose scores are certain enough; otherwise its features are sent to the next
    tier. Devices that are silent or late are left out. The bytes sent are counted, and compared
    with sending all samples.
    """
    from mpicoll.train import threads

    # Before anything loads NumPy.
    threads.limit_blas_threads()
    from mpicoll.train import TrainingError
    from mpicoll.train.driver.evaluation import SETS
    from mpicoll.train.exits import layout, serve

    one_of("--split", part, SETS)
    if page is not None:
        measured.need(["plotly"], "plot")
    with usage():
        counts = layout.parse(tiers)
        thresholds = _numbers("--threshold", threshold)
        faults = _faults(silent, late)
    comm = session.communicator()
    try:
        found = serve(
            *(run, comm, counts, thresholds),
            batch=batch,
            samples=samples,
            data=data,
            part=part,
            best=best,
            patience=patience,
            faults=faults,
        )
    except TrainingError as error:
        raise UsageError(str(error)) from error
    if comm.Get_rank():
        return 0
    if json:
        output.facts([_facts(outcome) for outcome in found])
    else:
        _table(found)
    if page is not None:
        from mpicoll.report import tiers as pages

        pages.write(page, found, faults)
        output.remark(f"written to {page}")
    return 0


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} {text!r} is no list of numbers: write 0,0.5,1") from None


def _faults(silent: str, late: str) -> dict[int, Fault]:
    """What is wrong with devices, by number.

    Raises:
        ValueError: The texts say something else.
    """
    from mpicoll.train.exits import Fault

    found: dict[int, Fault] = {}
    try:
        for word in filter(None, silent.split(",")):
            device, _, start = word.partition("@")
            found[int(device)] = Fault(silent=int(start or 0))
        for word in filter(None, late.split(",")):
            device, _, seconds = word.partition("=")
            number = int(device)
            found[number] = found.get(number, Fault())._replace(late=float(seconds))
    except ValueError:
        raise ValueError(
            f"--silent {silent!r} and --late {late!r}: write devices by number, as 2,3@10 and 1=0.5"
        ) from None
    for number, fault in found.items():
        if (fault.silent or 0) < 0 or not 0 <= fault.late <= _LATEST:
            raise ValueError(
                f"device {number} is silent from batch {fault.silent} and late by {fault.late}: "
                f"give numbers of at least 0, and at most {_LATEST:g} seconds"
            )
    return found


def _facts(outcome: Outcome) -> dict[str, Any]:
    """An outcome without what each sample did."""
    found = asdict(outcome)
    del found["tiers"], found["scores"]
    return found


def _table(found: list[Outcome]) -> None:
    names = list(found[0].leaving)
    heads = ["threshold", "accuracy", "answered", *names]
    heads += ["bytes up [B]", "formula [B]", "raw / bytes", "median [ms]", "95 % [ms]"]
    rows = [
        (
            f"{outcome.threshold:g}",
            f"{outcome.accuracy:.4f}",
            f"{outcome.answered:.1%}",
            *(f"{outcome.leaving[name]:.1%}" for name in names),
            f"{outcome.payload:.1f}",
            "" if outcome.formula is None else f"{outcome.formula:.1f}",
            f"{outcome.raw / outcome.payload:.1f}" if outcome.payload else "",
            *(
                f"{1e3 * outcome.seconds[name]:.2f}" if outcome.seconds else ""
                for name in ("median", "p95")
            ),
        )
        for outcome in found
    ]
    output.table(heads, rows, right=heads, drop=("formula [B]", "answered", "95 % [ms]"))
    first = found[0]
    output.text(
        f"{first.samples} samples; bytes of scores and features a sample, beside "
        f"{first.sent['heads']:.1f} of heads at threshold {first.threshold:g}; raw: "
        f"{first.raw} bytes"
    )
