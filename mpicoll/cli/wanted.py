"""What the options of ``mpicoll bench`` ask to be measured."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, product
from typing import TYPE_CHECKING

from mpicoll.base.launcher import launch
from mpicoll.cli import output
from mpicoll.cli.errors import UsageError, needing, usage

if TYPE_CHECKING:
    from mpicoll.bench.options import Options
    from mpicoll.registry import Algorithm
    from mpicoll.schedule.parameters import Value


def algorithms(
    collectives: list[str], written: str, numbers: tuple[int | None, ...], device: str = "cpu"
) -> dict[str, tuple[str, ...]]:
    """The algorithms to measure for each collective: of all, those that serve some of the numbers
    of ranks; on GPUs, of all, the call that names none, by what the ranks agree on.  Schedule files
    are read by the ranks.

    Raises:
        UsageError: for an unknown collective or algorithm, naming the known ones.
    """
    from mpicoll import registry
    from mpicoll.bench.blocks import base
    from mpicoll.bench.workload import AUTO, serving
    from mpicoll.schedule.methods import VARIANTS, spelled
    from mpicoll.tuning import NATIVE

    meant = [method.variant if (method := spelled(name)) else name for name in collectives]
    chosen = {}
    for collective in VARIANTS if collectives == ["all"] else dict.fromkeys(meant):
        if collective not in VARIANTS:
            raise UsageError(
                f"unknown collective {collective!r}: bench measures {', '.join(VARIANTS)}"
            )
        known = (*registry.names(base(collective)), NATIVE, AUTO)
        names = tuple(dict.fromkeys(written.split(",")))
        if written == "all":
            served = {name for number in numbers for name in serving(collective, number)}
            names = (*(name for name in known if name in served), NATIVE)
            names = (AUTO,) if device == "gpu" else names
        for name in names:
            if name not in known and not registry.is_path(name):
                raise UsageError(
                    f"unknown algorithm {name!r} for {collective}: known are {', '.join(known)}"
                )
        chosen[collective] = names
    return chosen


def algorithm(collective: str, name: str) -> Algorithm:
    """An algorithm of the catalogue, or one from a file, ``file:PATH``.

    Raises:
        UsageError: there is none, or the file is refused.
    """
    from mpicoll.files import schedule_files

    with needing("pydantic", name), usage():
        return schedule_files.find(collective, name)


def with_parameters(
    chosen: dict[str, tuple[str, ...]], parameters: dict[str, Value], everything: bool
) -> dict[str, tuple[str, ...]]:
    """The algorithms with parameters, in words; of several values of a parameter one of each.

    Args:
        chosen: by collective.
        parameters: what is set; several values of what takes one are a list of them.
        everything: whether all algorithms are asked for; those without a parameter are then
            measured as they are.

    Raises:
        UsageError: a value is none of its kind, or no algorithm has such a parameter.
    """
    from mpicoll.bench.blocks import base

    found = {}
    for collective, names in chosen.items():
        if everything:
            _check_known(base(collective), names, parameters)
        variants = (_variants(base(collective), n, parameters, everything) for n in names)
        found[collective] = tuple(chain.from_iterable(variants))
    return found


def _check_known(collective: str, names: tuple[str, ...], parameters: dict[str, Value]) -> None:
    """Raise unless some algorithm has each of the parameters."""
    from mpicoll import algorithms

    known = {
        p
        for name in algorithms.names(collective)
        if name in names
        for p in algorithms.find(collective, name).parameters
    }
    for name in parameters:
        if name not in known:
            raise UsageError(
                f"--set {name}: no algorithm of {collective} has a parameter {name!r}: known are "
                f"{', '.join(sorted(known)) or 'none'}"
            )


def _variants(
    collective: str, name: str, parameters: dict[str, Value], everything: bool
) -> Iterator[str]:
    from mpicoll import algorithms
    from mpicoll.registry import is_path
    from mpicoll.schedule.parameters import in_words
    from mpicoll.tuning import check

    if name in ("native", "auto"):
        yield name
        return
    mine, of_file = parameters, is_path(name)
    per_rank: set[str] = set()
    if not of_file:
        entry = algorithms.find(collective, name)
        per_rank = {key for key, kind in entry.kinds.items() if kind.per_rank}
        if everything:
            mine = {key: value for key, value in parameters.items() if key in entry.parameters}
    several = {
        key: value if isinstance(value, tuple) and key not in per_rank else (value,)
        for key, value in mine.items()
    }
    for values in product(*several.values()):
        one: dict[str, Value] = dict(zip(several, values, strict=True))
        if not of_file:
            with usage():
                check(collective, name, one)
        yield f"{name} {in_words(one)}".rstrip()


def sizes(options: Options) -> tuple[int, ...]:
    """The sizes that the options ask for.

    Raises:
        UsageError: if they contradict each other, or one is no size.
    """
    from mpicoll.base.sizes import format_size, parse_size, parse_sizes, sweep

    first, last = options.minbytes, options.maxbytes
    factor, step = options.stepfactor, options.stepbytes
    if factor is not None and step is not None:
        raise UsageError("--stepfactor and --stepbytes exclude each other; drop one")
    with usage():
        if options.size is not None:
            if (first, last, factor, step) != (None, None, None, None):
                raise UsageError(f"--size {options.size!r} lists all sizes; drop -b, -e, -f and -i")
            return parse_sizes(options.size)
        end = parse_size("4M" if last is None else last)
        found = sweep(
            parse_size("8" if first is None else first),
            end,
            2 if factor is None else factor,
            None if step is None else parse_size(step),
        )
    if last is not None and found[-1] < end and launch().rank == 0:
        by = f"a factor of {factor or 2}" if step is None else f"a step of {step}"
        begin = format_size(found[0])
        output.remark(
            f"mpicoll: warning: {by} from {begin} does not reach {format_size(end)}: "
            f"the last size is {format_size(found[-1])}; give another -e, -f or -i, or list the "
            "sizes by --size"
        )
    return found
