"""What the subcommands that read measurements or parameters share."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpicoll.base.times import ATTOSECONDS
from mpicoll.base.wording import plural
from mpicoll.cli import output, parse
from mpicoll.cli.errors import UsageError, needing, reading, usage
from mpicoll.simulate.known_networks import NETWORKS
from mpicoll.simulate.known_networks import find as find_network

if TYPE_CHECKING:
    from mpicoll.bench.records import Point, Run
    from mpicoll.model.build import Found
    from mpicoll.model.cells import Cell, Left
    from mpicoll.simulate.costs import CostModel

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUNS", help="Files written by `mpicoll bench -J`.")
]
Mix = Annotated[
    bool, typer.Option("--mix", help="Accept runs of different machines or MPI libraries.")
]
Oversubscribed = Annotated[
    bool, typer.Option("--oversubscribed", help="Also use points with more ranks than cores.")
]
ModelFile = Annotated[
    Path, typer.Option("-m", "--model", metavar="FILE", help="Costs written by `mpicoll fit`.")
]
PerNode = Annotated[
    int | None,
    typer.Option(
        "--per-node", min=1, metavar="N", help="Ranks on each node, if there are several nodes."
    ),
]


InterAlpha = Annotated[
    str | None,
    typer.Option("--inter-alpha", metavar="TIME", help="Time per message between nodes: 2us."),
]
InterBeta = Annotated[
    str | None,
    typer.Option("--inter-beta", metavar="TIME", help="Time per byte between nodes: 80ps."),
]
Network = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="NAME",
        help=f"Network between nodes: {', '.join(NETWORKS)}.",
    ),
]


#: Where parameters are looked for that no option names.
MODEL = Path("model.json")
#: What says where ranks are.
NEEDED = "--per-node, the ranks of a node"
#: What helps where no link between nodes was measured.
LINK_REMEDY = (
    f"; give --inter-alpha and --inter-beta, or a network by --network: {', '.join(NETWORKS)}"
)
#: Costs where options say nothing.
_TIMES = {"alpha": "1us", "beta": "100ps", "gamma": "50ps", "step": "0", "call": "0"}


def between_nodes(
    network: str | None,
    alpha: str | None,
    beta: str | None,
    per_node: int | None,
    needed: str = NEEDED,
) -> tuple[float | None, float | None]:
    """Seconds of a message and of a byte between nodes, as far as options say.

    Raises:
        UsageError: they make no sense, or nothing says where the ranks are.
    """
    given = {"--network": network, "--inter-alpha": alpha, "--inter-beta": beta}
    named = [option for option, value in given.items() if value is not None]
    if named and not per_node:
        verb = "needs" if len(named) == 1 else "need"
        raise UsageError(f"{' and '.join(named)} {verb} {needed}")

    def seconds(option: str, text: str | None) -> float | None:
        return None if text is None else parse.attoseconds(option, text) / ATTOSECONDS

    a, b = seconds("--inter-alpha", alpha), seconds("--inter-beta", beta)
    if network is None:
        return a, b
    with usage():
        known = find_network(network)
    return known.alpha if a is None else a, known.beta if b is None else b


def need(modules: Sequence[str], extra: str) -> None:
    """Check that some modules are installed, before anything is done.

    Raises:
        UsageError: one is missing; the message names the extra that brings it.
    """
    for name in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            raise UsageError(f"this needs {name}: pip install mpicoll[{extra}]") from None


@contextmanager
def remarking() -> Iterator[None]:
    """Take files that cannot be read for a usage error, and remark warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with reading():
                yield
        finally:
            for warning in caught:
                output.remark(f"mpicoll: warning: {warning.message}")


def runs(paths: Sequence[Path], mix: bool) -> list[Run]:
    """The runs of some files; lines that cannot be read are remarked and dropped.

    Raises:
        UsageError: a file cannot be read or has no point, or they are of different machines.
    """
    from mpicoll.bench.runs import load

    with remarking():
        return load(paths, mix=mix)


def cells(found: Sequence[Run], oversubscribed: bool) -> tuple[list[Cell], Left]:
    """The measurements of some runs put together.

    Raises:
        UsageError: none of them can be used.
    """
    from mpicoll.model.cells import gather

    with usage():
        return gather(found, oversubscribed=oversubscribed)


def wrong(points: Iterable[Point]) -> int:
    """Name the points whose results are wrong; the exit status: 1 where there are any, else 0."""
    status = 0
    for point in points:
        if point.wrong:
            status = 1
            output.remark(
                f"mpicoll: error: {point.collective} {point.algorithm}, "
                f"{plural(point.size, 'byte')}: {plural(point.wrong, 'wrong element')}, "
                f"the first at {point.problem}"
            )
    return status


def wrong_runs(runs: Sequence[Run]) -> int:
    """The same of all points of some runs."""
    return wrong(point for run in runs for point in run.points)


def fitted(runs: Sequence[Run], cells: Sequence[Cell], left: Left) -> Found:
    """A model of some measurements, fitted to them under a progress bar.

    Raises:
        ValueError: they do not suffice.
    """
    from mpicoll.model.build import build, steps

    with output.progress() as progress:
        task = progress.add_task("fitting", total=steps(cells))
        return build(runs, cells, left, done=lambda: progress.update(task, advance=1))


def model(path: Path) -> CostModel:
    """The parameters of a file.

    Raises:
        UsageError: it cannot be read, or is none; or pydantic is missing.
    """
    from mpicoll.tuning import cost_files

    need(["pydantic"], "config")
    with usage():
        return cost_files.read(path)


def built_in() -> CostModel:
    """The parameters that come with mpicoll.

    Raises:
        UsageError: pydantic is missing.
    """
    from mpicoll.tuning import cost_files

    need(["pydantic"], "config")
    return cost_files.built_in()


def model_or_built_in(path: Path | None) -> tuple[CostModel, bool]:
    """The parameters of a file, or those that come with mpicoll; and whether it is these."""
    if path is not None or MODEL.exists():
        return model(path or MODEL), False
    return built_in(), True


def with_links(
    parameters: CostModel,
    network: str | None,
    alpha: str | None,
    beta: str | None,
    per_node: int | None,
    described: bool = False,
    needed: str = NEEDED,
) -> CostModel:
    """Parameters with the links between nodes that options describe.

    Args:
        parameters: costs.
        network, alpha, beta, per_node: the options.
        described: whether these are from options too, so that what is not said of a link is as
            within a node.
        needed: the option that says where ranks are, for messages.

    Raises:
        UsageError: see :func:`between_nodes`; or one of two numbers is missing.
    """
    from mpicoll.simulate.costs import INTER, INTRA

    a, b = between_nodes(network, alpha, beta, per_node, needed)
    if a is None and b is None:
        return parameters
    links = parameters.general.links
    known = links.get(INTER) or (links[INTRA] if described else ())
    if known:
        a, b = known[-1].alpha if a is None else a, known[-1].beta if b is None else b
    if a is None or b is None:
        missing, given = ("beta", "alpha") if b is None else ("alpha", "beta")
        raise UsageError(
            f"--inter-{given} alone does not describe a link; give --inter-{missing} too, or a "
            "--network"
        )
    return parameters.between_nodes(a, b)


def has_link(parameters: CostModel) -> bool:
    """Whether parameters know of links between nodes."""
    from mpicoll.simulate.costs import INTER

    return INTER in parameters.general.links


def nodes(parameters: CostModel, ranks: int, per_node: int | None) -> tuple[int, ...]:
    """The node of each rank; none where the parameters know one kind of link alone.

    Raises:
        UsageError: they know two, and nothing says where the ranks are.
    """
    if per_node is not None:
        return tuple(rank // per_node for rank in range(ranks))
    if len(parameters.general.links) > 1:
        raise UsageError(
            "the parameters tell links within a node from links between nodes; say how many ranks "
            "a node has, as --per-node 4"
        )
    return ()


def given_costs(times: Mapping[str, str | None]) -> CostModel:
    """Costs from the options."""
    from mpicoll.simulate.costs import INTRA, CostModel, Costs, Piece

    texts = _TIMES | {name: text for name, text in times.items() if text is not None}
    values = {
        name: parse.attoseconds(f"--{name}", text) / ATTOSECONDS for name, text in texts.items()
    }
    links = {INTRA: (Piece(None, values.pop("alpha"), values.pop("beta")),)}
    return CostModel(Costs(links, values["gamma"], values["call"], values["step"]))


def read_costs(path: Path, times: Mapping[str, str | None]) -> CostModel:
    """Costs from a file."""
    from mpicoll.tuning import cost_files

    both = [name for name, text in times.items() if text is not None]
    if both:
        raise UsageError(f"--model and --{both[0]} exclude each other; drop one of them")
    with needing("pydantic", "--model"), usage():
        return cost_files.read(path)
