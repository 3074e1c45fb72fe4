"""``mpicoll search``: hyperparameters, tried by groups of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mpicoll.cli import output, session
from mpicoll.cli.errors import reading, usage
from mpicoll.cli.options import Json, from_fields
from mpicoll.train.search.options import SearchOptions


@from_fields(SearchOptions)
def command(
    space: Annotated[
        Path, typer.Argument(metavar="SPACE", help="TOML or YAML: [run] and [space].")
    ],
    *,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the search in the folder.")
    ] = False,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="Train nothing; repeat the decisions in the folder."),
    ] = False,
    progress: Annotated[
        bool | None,
        typer.Option("--progress/--no-progress", help="Live table; default: on a terminal."),
    ] = None,
    json: Json = False,
    **given: Any,
) -> int:
    """Search a space of hyperparameters for the best ones.

    Rank 0 distributes trials to groups of the other ranks; a single process does everything. Trials
    are recorded in FOLDER/trials.jsonl, from which --resume continues. They are compared on the
    validation set; only the best is measured on the test set, once. On SIGTERM or SIGUSR1 trials
    write checkpoints and the command exits with status 75.
    """
    from mpicoll.train import threads

    # Before anything loads NumPy.
    threads.limit_blas_threads()
    from mpicoll.train.search import console
    from mpicoll.train.search.loop import groups_of
    from mpicoll.train.search.space import Space

    with reading():
        found = Space.read(space)
    with usage():
        options = SearchOptions(**given)
    if replay:
        return _replayed(options)
    if found.config({}).device == "gpu":
        session.use_gpu()
    comm = session.communicator()
    with usage():
        groups_of(found, options, comm.Get_size())
    return console.main(found, options, comm, resume=resume, as_json=json, progress=progress)


def _replayed(options: SearchOptions) -> int:
    """Whether the method decides again what the file says."""
    from mpicoll.train.search import methods, trials

    path = Path(options.out) / trials.FILE
    with reading():
        records = trials.read(path)
        try:
            method = methods.make_method(*trials.machine(records))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    try:
        count = trials.replay(path, records, method)
    except ValueError as error:
        output.remark(f"mpicoll: error: {error}")
        return 1
    output.text(f"{path}: {count} jobs, the same as were decided")
    return 0
