"""``mpicoll evaluate``: how good a trained model is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from mpicoll.base.wording import measures
from mpicoll.cli import output, session
from mpicoll.cli.errors import UsageError, one_of
from mpicoll.cli.options import Best, Json, Run


def command(
    run: Run,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATASET", help="Dataset, as of `mpicoll train`; that of the run if not given."
        ),
    ] = None,
    part: Annotated[
        str, typer.Option("--split", metavar="SPLIT", help="Split of the data: validation or test.")
    ] = "test",
    best: Best = False,
    json: Json = False,
) -> int:
    """Measure the model of a checkpoint on the validation or test set.

    Under mpirun the ranks share the samples.
    """
    from mpicoll.train import threads

    # Before anything loads NumPy.
    threads.limit_blas_threads()
    from mpicoll.train import TrainingError, evaluate
    from mpicoll.train.driver.evaluation import SETS

    one_of("--split", part, SETS)
    comm = session.communicator()
    try:
        found = evaluate(run, comm, data=data, part=part, best=best)
    except TrainingError as error:
        raise UsageError(str(error)) from error
    if comm.Get_rank():
        return 0
    if json:
        output.facts(asdict(found))
        return 0
    output.text(
        f"{found.checkpoint}: step {found.step}, epoch {found.epoch}\n"
        f"{part} set of {found.data}, {found.samples:,} samples: {measures(found.measures)}"
    )
    return 0
