"""Pages of the documentation that are written from the catalogue of algorithms.

Needs mpicoll's schedules alone: no MPI, no Sphinx.  What is registered appears, in the order of the
registry; no page has to be touched for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from tables import list_table

from mpicoll import algorithms, tuning
from mpicoll.registry import Algorithm
from mpicoll.schedule.collectives import COLLECTIVES, Collective
from mpicoll.schedule.parameters import LABELS, Value, in_words, read_value
from mpicoll.verify import verify

#: Numbers of ranks for which the counts are tabulated, and the one of the drawings.
SIZES = (2, 4, 5, 8, 64)
DRAWN = 4

#: The counts of a table, by their heads.
_COUNTS = {
    "rounds": "rounds",
    "depth": "depth",
    "messages": "messages",
    "blocks sent": "blocks_sent",
    "most of a rank": "blocks_sent_max",
    "fan-in": "fan_in",
}


def pages() -> dict[str, str]:
    """Text by name of the file: a page a collective, and what other pages include."""
    found = {f"{name}.rst": _page(definition) for name, definition in COLLECTIVES.items()}
    found["contents.inc"] = _contents()
    found["tables.inc"] = "\n".join(
        [
            *_rules("Where all ranks share memory", tuning.for_layout(tuning.BUILTIN, near=True)),
            *_rules(
                "On several nodes, several ranks on one of them",
                tuning.for_layout(tuning.BUILTIN, near=False, grouped=True),
            ),
            *_rules("Elsewhere", tuning.for_layout(tuning.BUILTIN, near=False)),
        ]
    )
    return found


def drawing(entry: Algorithm) -> str:
    """Name of the file of an algorithm's drawing."""
    return f"{_label(entry)}.svg"


def shown(entry: Algorithm) -> dict[str, Value]:
    """Parameters of an algorithm's drawing: the nodes without which there are none to be seen."""
    return {name: read_value(kind.example) for name, kind in entry.kinds.items() if kind is LABELS}


def _of(collective: str) -> list[Algorithm]:
    return [algorithms.find(collective, name) for name in algorithms.names(collective)]


def _contents() -> str:
    """The collectives with their algorithms, and the pages' order."""
    rows = [
        [f":doc:`{name} <generated/{name}>`", ", ".join(_link(a) for a in _of(name))]
        for name in COLLECTIVES
    ]
    names = [f"   generated/{name}" for name in COLLECTIVES]
    return "\n".join(
        [
            *list_table(["collective", "algorithms"], rows),
            ".. toctree::",
            "   :hidden:",
            "",
            *names,
            "",
        ]
    )


def _link(entry: Algorithm) -> str:
    return f":ref:`{entry.name} <{_label(entry)}>`"


def _label(entry: Algorithm) -> str:
    return f"{entry.collective}-{entry.name}"


def _page(definition: Collective) -> str:
    """One collective: what it is, then its algorithms."""
    entries = _of(definition.name)
    summaries = [[_link(entry), entry.summary] for entry in entries]
    arguments = "``root``" if definition.rooted else ""
    if definition.reduces:
        arguments = " and ".join(filter(None, ["``op``", arguments]))
    return "\n".join(
        [
            *_title(definition.name, "="),
            definition.summary,
            "",
            f"Methods: ``{definition.method}``, ``I{definition.method.lower()}``, "
            f"``{definition.method}_init``" + (f", with {arguments}." if arguments else "."),
            f"Lower bound of each term with one port, on 8 ranks: "
            f"{_bound(definition)} (:ref:`notation <notation>`).",
            f"Bus bandwidth is {_number(definition.bus_factor(8))} times algorithm bandwidth "
            "on 8 ranks."
            if definition.bus_factor(8)
            else "It moves no data, so it has no bandwidth.",
            "",
            *list_table(["algorithm", "what it does"], summaries),
            *(line for entry in entries for line in _section(entry)),
        ]
    )


def _section(entry: Algorithm) -> list[str]:
    facts = {
        "Parameters": ", ".join(_parameter(entry, name) for name in entry.parameters) or "none",
        "Needs": ", ".join(map(str, entry.needs)) or "nothing",
        "Order": ", ".join(entry.order) or "no promise",
        "Module": f"``{entry.origin}``",
        "Reference": entry.reference or "none",
    }
    settings = "".join(f" --set {word}" for word in in_words(shown(entry)).split())
    return [
        f".. _{_label(entry)}:",
        "",
        *_title(entry.name, "-"),
        entry.summary,
        "",
        entry.picture,
        "",
        f".. figure:: {drawing(entry)}",
        f"   :alt: space-time diagram of {entry.collective} {entry.name} on {DRAWN} ranks",
        "",
        f"   ``mpicoll show {entry.collective} {entry.name} -P {DRAWN}{settings} --svg FILE``",
        "",
        *(f"| **{name}**: {text}" for name, text in facts.items()),
        "",
        *list_table(["P", *_COUNTS, "textbook"], [_counts(entry, size) for size in SIZES]),
    ]


def _parameter(entry: Algorithm, name: str) -> str:
    default, kind = entry.parameters[name], entry.kinds[name]
    shown = kind.natural if default == () else default
    return f"``{name}={shown}`` ({kind.words})"


def _counts(entry: Algorithm, size: int) -> list[str]:
    """A row: the counts, and the formula of the textbooks where it holds."""
    if not entry.runs_on(size):
        return [str(size), *["not served"] * (len(_COUNTS) + 1)]
    # The depth is the one count that is not to be had by counting.
    depth = None if entry.declares("depth") else verify(entry, size).depth
    counts = [
        str(depth if name == "depth" and depth is not None else entry.count_of(name, size))
        for name in _COUNTS.values()
    ]
    known = entry.textbook is not None and size & (size - 1) == 0
    return [str(size), *counts, textbook(entry, size) if known else "—"]


def textbook(entry: Algorithm, size: int) -> str:
    """The formula of the textbooks for a number of ranks, as factors of α, nβ and nγ."""
    units = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    return _time(entry.textbook_time(size, 1.0, *unit) or 0.0 for unit in units)


def _bound(definition: Collective) -> str:
    units = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    return _time(definition.bound(8, 1.0, *unit) for unit in units)


def _time(factors: Iterable[float]) -> str:
    """``14α + 7/4 nβ``."""
    named = zip(map(_number, factors), ("α", "nβ", "nγ"), strict=True)
    terms = [
        ("" if factor == "1" else factor + " " * ("/" in factor)) + name
        for factor, name in named
        if factor != "0"
    ]
    return " + ".join(terms) or "0"


def _number(value: float) -> str:
    return str(Fraction(value).limit_denominator(1 << 12))


def _rules(title: str, table: tuning.Table) -> list[str]:
    """One of the built-in tables."""
    rows = [
        [collective, str(rule.ranks), f"{rule.nbytes:,}", ", ".join(_names(rule))]
        for collective, rules in table.items()
        for rule in rules
    ]
    return [
        f"{title}:",
        "",
        *list_table(["collective", "ranks from", "bytes from", "algorithms, in order"], rows),
    ]


def _names(rule: tuning.Rule) -> Sequence[str]:
    return [candidate.words for candidate in rule.candidates]


def _title(text: str, line: str) -> list[str]:
    return [text, line * len(text), ""]
