"""Choices for the MPI libraries' own collectives, in the files that they read.

Measured are mpicoll's schedules; the library is told to use its own algorithm of the same kind,
where it has one.  ``native`` stands for what the library would choose by itself.  Formats: Open
MPI, "Tuning Collectives", dynamic rules of the tuned component, as versions 2 to 5 read them
(numbers of ranks and bytes from which a rule holds); MPICH,
``MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE``, as in its maint/tuning/coll.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from mpicoll.model import choose
from mpicoll.model.cells import Cell
from mpicoll.model.told import without_doubtful
from mpicoll.tuning import NATIVE

#: Open MPI: number of the collective, and of its algorithms by the words of a choice.
OMPI: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "allgather": (
        0,
        {"linear": 1, "bruck": 2, "recursive_doubling": 3, "ring": 4, "neighbor_exchange": 5},
    ),
    "allreduce": (
        2,
        {"linear": 1, "recursive_doubling": 3, "ring": 4, "recursive_halving_doubling": 6},
    ),
    "alltoall": (3, {"linear": 1, "pairwise": 2, "bruck": 3}),
    "barrier": (6, {"dissemination": 4, "tree": 6}),
    "bcast": (
        7,
        {"linear": 1, "chain segments=1 window=8": 3, "binomial": 6, "scatter_allgather": 9},
    ),
    "exscan": (8, {"linear": 1, "recursive_doubling": 2}),
    "gather": (9, {"linear": 1, "binomial": 2}),
    "reduce": (
        11,
        {
            "linear": 1,
            "chain segments=1 window=8": 3,
            "binomial": 5,
            "in_order_tree segments=1 window=8": 6,
            "reduce_scatter_gather": 7,
        },
    ),
    "reduce_scatter": (13, {"linear": 1, "recursive_halving": 3}),
    "scan": (14, {"linear": 1, "recursive_doubling": 2}),
    "scatter": (15, {"linear": 1, "binomial": 2}),
}


class Mpich(NamedTuple):
    """A collective of MPICH's.

    Attributes:
        name: as its file has it.
        size: the condition that sizes are told by; bytes of one block where it is ``avg_msg_size``
            of an all-to-all.
        algorithms: by the words of a choice.
        otherwise: for operators that do not commute.
    """

    name: str
    size: str
    algorithms: Mapping[str, str]
    otherwise: str = ""


_ALLREDUCE, _REDUCE = "MPIR_Allreduce_intra_", "MPIR_Reduce_intra_"
_REDUCE_SCATTER = "MPIR_Reduce_scatter_block_intra_"
MPICH: Mapping[str, Mpich] = {
    "allgather": Mpich(
        "allgather",
        "total_msg_size",
        {
            "bruck": "MPIR_Allgather_intra_brucks",
            "recursive_doubling": "MPIR_Allgather_intra_recursive_doubling",
            "ring": "MPIR_Allgather_intra_ring",
        },
    ),
    "allreduce": Mpich(
        "allreduce",
        "avg_msg_size",
        {
            "recursive_doubling": f"{_ALLREDUCE}recursive_doubling",
            "recursive_halving_doubling": f"{_ALLREDUCE}reduce_scatter_allgather",
            "ring": f"{_ALLREDUCE}ring",
        },
        f"{_ALLREDUCE}recursive_doubling",
    ),
    "alltoall": Mpich(
        "alltoall",
        "avg_msg_size",
        {
            "bruck": "MPIR_Alltoall_intra_brucks",
            "linear": "MPIR_Alltoall_intra_scattered",
            "pairwise": "MPIR_Alltoall_intra_pairwise",
        },
    ),
    "bcast": Mpich(
        "bcast",
        "avg_msg_size",
        {
            "binomial": "MPIR_Bcast_intra_binomial",
            "scatter_allgather": "MPIR_Bcast_intra_scatter_ring_allgather",
        },
    ),
    "reduce": Mpich(
        "reduce",
        "avg_msg_size",
        {
            "binomial": f"{_REDUCE}binomial",
            "reduce_scatter_gather": f"{_REDUCE}reduce_scatter_gather",
        },
        f"{_REDUCE}binomial",
    ),
    "reduce_scatter": Mpich(
        "reduce_scatter_block",
        "total_msg_size",
        {
            "pairwise": f"{_REDUCE_SCATTER}pairwise",
            "recursive_halving": f"{_REDUCE_SCATTER}recursive_halving",
        },
        f"{_REDUCE_SCATTER}recursive_doubling",
    ),
}
#: Algorithms of MPICH's that need an element for each of the largest power of two ranks.
_NEED_ELEMENTS = {
    f"{_ALLREDUCE}reduce_scatter_allgather": f"{_ALLREDUCE}recursive_doubling",
    f"{_REDUCE}reduce_scatter_gather": f"{_REDUCE}binomial",
}
#: Algorithms of MPICH's that need a power of two ranks.
_NEED_POWER_OF_TWO = {
    "MPIR_Allgather_intra_recursive_doubling": "MPIR_Allgather_intra_brucks",
}


class _Range(NamedTuple):
    """From so many bytes on this choice."""

    nbytes: int
    choice: str


def _ranges(
    library: str, cells: Sequence[Cell], known: Mapping[str, Any]
) -> dict[str, dict[int, list[_Range]]]:
    """By collective and number of ranks, the best of the choices that a library knows.

    Where the library's own was measured, it stands wherever no gain over it is told from noise.

    Raises:
        ValueError: nothing measured has a counterpart there.
    """
    found: dict[str, dict[int, list[_Range]]] = {}
    for table in choose.tables(cells):
        collective, ranks, _ = table.place
        algorithms = known.get(collective, {})
        rows = {c: row for c, row in table.cells.items() if c in algorithms or c == NATIVE}
        if ranks > 1 and set(rows) - {NATIVE}:
            known_alone = replace(table, cells=rows)
            comparisons = known_alone.comparisons
            segments = without_doubtful(comparisons, comparisons.segments())
            times = known_alone.times(lambda cell: cell.seconds)
            rules = choose.rules(known_alone, times, segments)
            ranges = [_Range(rule["nbytes"], rule["algorithms"][0]) for rule in rules]
            found.setdefault(collective, {})[ranks] = ranges
    if not found:
        names = "; ".join(f"{name}: {', '.join(choices)}" for name, choices in known.items())
        raise ValueError(f"nothing measured has a counterpart in {library}, which has {names}")
    return found


def ompi(cells: Sequence[Cell]) -> str:
    """A rules file of Open MPI's tuned component, to be named by
    ``coll_tuned_dynamic_rules_filename``.

    Raises:
        ValueError: nothing measured has a counterpart there.
    """
    ranges = _ranges("Open MPI", cells, {name: known for name, (_, known) in OMPI.items()})
    lines = [f"{len(ranges)}  # collectives"]
    for collective in sorted(ranges, key=lambda name: OMPI[name][0]):
        number, known = OMPI[collective]
        by_ranks = sorted(ranges[collective].items())
        lines += [f"{number}  # {collective}", f"{len(by_ranks)}  # numbers of ranks"]
        for ranks, rules in by_ranks:
            lines += [f"{ranks}  # ranks", f"{len(rules)}  # sizes"]
            for nbytes, choice in rules:
                lines.append(f"{nbytes} {known.get(choice, 0)} 0 0  # {choice}")
    return "\n".join(lines) + "\n"


def mpich(
    cells: Sequence[Cell],
    base: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A file of MPICH's, to be named by ``MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE``.

    Args:
        cells: what was measured.
        base: the file that MPICH uses otherwise, which has all collectives; those that were
            measured are replaced, others, and intercommunicators, stay.

    Raises:
        ValueError: nothing measured has a counterpart there.
    """
    known = {name: entry.algorithms for name, entry in MPICH.items()}
    if base is None:
        cells = [cell for cell in cells if cell.choice != NATIVE]
    ranges = _ranges("MPICH", cells, known)
    found = dict(base or {})
    for collective, by_ranks in ranges.items():
        entry = MPICH[collective]
        key = f"collective={entry.name}"
        before = dict(found.get(key, {}))
        usual = before.get("comm_type=intra", {})
        intra = _by_ranks(entry, by_ranks, partial(_use, entry, usual))
        found[key] = {**before, "comm_type=intra": intra}
    return found


def _by_ranks(
    entry: Mpich, by_ranks: Mapping[int, Sequence[_Range]], use: Callable[[str], Any]
) -> dict[str, Any]:
    """The conditions on the number of ranks, and under each those on sizes."""
    ranks = sorted(by_ranks)
    found = {}
    for here, after in zip(ranks, [*ranks[1:], None], strict=True):
        block = here if entry.name == "alltoall" else 1
        rules = by_ranks[here]
        sizes: dict[str, Any] = {}
        for rule, following in zip(rules, [*rules[1:], None], strict=True):
            limit = "=any" if following is None else f"<{-(-following.nbytes // block)}"
            sizes[f"{entry.size}{limit}"] = use(rule.choice)
        found["comm_size=any" if after is None else f"comm_size<{after}"] = sizes
    return found


def _use(entry: Mpich, usual: Mapping[str, Any], choice: str) -> Any:
    """What MPICH is to do: one algorithm with its conditions, or what it does otherwise."""
    if choice == NATIVE:
        return usual
    name = entry.algorithms[choice]
    found = _only(name)
    if name in _NEED_ELEMENTS:
        few = _only(_NEED_ELEMENTS[name])
        found = {
            "is_op_built_in=no": few,
            "is_op_built_in=yes": {"count<pow2": few, "count=any": found},
        }
    if name in _NEED_POWER_OF_TWO:
        found = {"comm_size=pow2": found, "comm_size=any": _only(_NEED_POWER_OF_TWO[name])}
    if entry.otherwise:
        found = {"is_commutative=yes": found, "is_commutative=no": _only(entry.otherwise)}
    if entry.name == "alltoall":
        in_place = _only("MPIR_Alltoall_intra_pairwise_sendrecv_replace")
        found = {"is_sendbuf_inplace=yes": in_place, "is_sendbuf_inplace=no": found}
    return found


def _only(name: str) -> dict[str, Any]:
    return {f"algorithm={name}": {}}
