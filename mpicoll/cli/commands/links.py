"""``mpicoll links``: measure the links of a machine, and describe it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mpicoll.cli import output, session
from mpicoll.cli.errors import UsageError


def command(
    file: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help="Write the machine file to this path."),
    ] = Path("machine.toml"),
) -> int:
    """Measure the links between all ranks, alone and together, and write a machine file.

    Run it under mpirun on an idle machine, with ranks placed as in your program. It measures pairs
    of ranks one after the other, then all ranks of a host at once, which shows what they share.
    """
    comm = session.world()
    if comm.Get_size() < 2:
        raise UsageError("links are between ranks: run it under mpirun with two or more")
    from mpicoll.base.files import write_atomically
    from mpicoll.bench import links
    from mpicoll.files import measured_machines

    with output.progress() as progress:
        total = comm.Get_size() * (comm.Get_size() - 1)
        task = progress.add_task("measuring pairs", total=total)
        found = links.measure(comm, lambda: progress.advance(task))

    def report() -> None:
        text = measured_machines.described(found)
        write_atomically(file, text)
        output.text(text.rstrip())
        output.remark(f"written to {file}: mpicoll synthesize allreduce --machine {file}")

    session.on_rank_0(comm, report)
    return 0
