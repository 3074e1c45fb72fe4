"""``mpicoll list``: the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpicoll.cli import output
from mpicoll.cli.errors import usage
from mpicoll.cli.options import Json, any_spelling

if TYPE_CHECKING:
    from mpicoll.registry import Algorithm


def command(
    collective: Annotated[
        str | None,
        typer.Argument(
            metavar="COLLECTIVE",
            help="List the algorithms of this collective only.",
            callback=any_spelling,
        ),
    ] = None,
    json: Json = False,
) -> int:
    """List the collectives and their algorithms."""
    from mpicoll import algorithms

    with usage():
        wanted = algorithms.catalogue()
    if collective is not None:
        with usage():
            known = algorithms.names(collective)
        wanted = tuple(algorithms.find(collective, name) for name in known)
    if json:
        output.facts([entry(algorithm) for algorithm in wanted])
        return 0
    # Most users have none of their own, and need no column for where algorithms come from.
    outside = any(algorithms.of_a_user(a.collective, a.name) for a in wanted)
    several = collective is None
    names = ("collective", "algorithm") if several else ("algorithm",)
    output.table(
        (*names, *["module"] * outside, "parameters", "needs", "what it does"),
        (
            (
                *[a.collective] * several,
                a.name,
                *[a.origin] * outside,
                _parameters(a),
                ", ".join(map(str, a.needs)),
                a.summary,
            )
            for a in wanted
        ),
        fold=("what it does", "parameters", "needs"),
        drop=("needs", "module", "parameters"),
    )
    return 0


def _parameters(algorithm: Algorithm) -> str:
    """Parameters with their defaults."""
    return " ".join(
        f"{name}={algorithm.kinds[name].natural if value == () else value}"
        for name, value in algorithm.parameters.items()
    )


def entry(algorithm: Algorithm) -> dict[str, Any]:
    """What the catalogue says about an algorithm, as plain values."""
    return {
        "collective": algorithm.collective,
        "algorithm": algorithm.name,
        "module": algorithm.origin,
        "summary": algorithm.summary,
        "parameters": dict(algorithm.parameters),
        "needs": list(map(str, algorithm.needs)),
        "order": list(algorithm.order),
        "symmetric": algorithm.symmetric,
        "reference": algorithm.reference,
    }
