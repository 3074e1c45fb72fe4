"""The tables of a page, as HTML. Whatever comes from files goes through :func:`escaped`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as escaped
from typing import TYPE_CHECKING, NamedTuple

from mpicoll.base.wording import plural
from mpicoll.bench import table
from mpicoll.bench.environment import without_folders
from mpicoll.bench.records import Run
from mpicoll.model.crossovers import Crossover
from mpicoll.report.content import Map, Section, Square
from mpicoll.report.names import about
from mpicoll.report.style import Line
from mpicoll.simulate.costs import Errors

if TYPE_CHECKING:
    from mpicoll.model.build import Found
    from mpicoll.report.advice import Advice

# What the head of a section says already, or the size implies; on a phone it gives way.
_MINOR = ("count", "type", "redop", "root", "P")
#: A regret from which a square of a map is set in bold.
MUCH = 0.1
#: Columns of a map from which names are in its key alone.
_MANY = 8
#: Behind a regret that is timed in the launch that says what is fastest.
UNTESTED = "°"


class Head(NamedTuple):
    """The head of a column."""

    name: str
    unit: str = ""
    number: bool = True
    minor: bool = False
    fold: bool = False


def grid(heads: Sequence[Head], rows: Iterable[Sequence[str]], firsts: Iterable[int] = ()) -> str:
    """A table of texts; rows with the numbers in ``firsts`` begin a group."""
    begins = {*firsts}
    units = any(head.unit for head in heads)

    def unit(head: Head) -> str:
        return f'<span class="unit">{escaped(head.unit) or "&nbsp;"}</span>' if units else ""

    cells = "".join(f"<th{_classes(head)}>{escaped(head.name)}{unit(head)}</th>" for head in heads)
    body = []
    for number, row in enumerate(rows):
        first = ' class="first"' if number in begins else ""
        texts = (
            f"<td{_classes(head)}>{escaped(text)}</td>"
            for head, text in zip(heads, row, strict=True)
        )
        body.append(f"<tr{first}>{''.join(texts)}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr>{cells}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _classes(head: Head) -> str:
    classes = ["number"] * head.number + ["minor"] * head.minor + ["fold"] * head.fold
    return f' class="{" ".join(classes)}"' if classes else ""


def numbers(section: Section) -> str:
    """Every point of a section."""
    heads = [Head(c.name, c.unit, c.number, c.name in _MINOR) for c in table.COLUMNS]
    rows = [table.row(point) for _, point in section.points]
    names = dict.fromkeys(launch for launch, _ in section.points)
    if len(names) > 1:
        number = {name: str(i) for i, name in enumerate(names, start=1)}
        heads.append(Head("launch"))
        rows = [
            (*row, number[launch]) for row, (launch, _) in zip(rows, section.points, strict=True)
        ]
    sizes = [(point.size, point.ranks) for _, point in section.points]
    return grid(heads, rows, (i for i in range(1, len(sizes)) if sizes[i] != sizes[i - 1]))


def crossovers(found: Sequence[Crossover]) -> str:
    """Where the fastest choice changes, measured and predicted."""
    heads = (
        Head("fastest below", number=False),
        Head("fastest above", number=False),
        Head("measured", "B (95 % interval)"),
        Head("predicted", "B (95 % interval)"),
        Head("equally good", "B"),
    )
    rows = (
        (c.before, c.after, _size(c.measured), _size(c.predicted), _sizes(c.alike)) for c in found
    )
    return grid(heads, rows)


def _sizes(value: tuple[float, float] | None) -> str:
    return "–" if value is None else f"{about(value[0])} – {about(value[1])}"


def _size(value: tuple[float, float, float] | None) -> str:
    if value is None:
        return "no crossing"
    middle, low, high = (about(size) for size in value)
    return f"{middle} ({low} – {high})"


def choices(found: Map, lines: dict[str, Line]) -> str:
    """The map of a collective: in the colour of the fastest, with what the default costs."""
    heads = "".join(f"<th>{column(*sizes)}</th>" for sizes in found.sizes)
    rows = "".join(
        f"<tr><th>{ranks}</th>{''.join(_square(square, lines) for square in row)}</tr>"
        for ranks, row in found.rows.items()
    )
    names = dict.fromkeys(square.best for row in found.rows.values() for square in row if square)
    many = " many" * (len(found.sizes) > _MANY)
    key = "".join(f"<span>{_sign(lines[name])} {escaped(name)}</span>" for name in names)
    return (
        f'<div class="scroll"><table class="map{many}"><thead><tr><th>P \\ size [B]</th>'
        f"{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
        f'<div class="legend mapkey{many}">{key}</div>'
    )


def column(least: int, most: int) -> str:
    """The head of a column of a map."""
    ends = dict.fromkeys((about(least), about(most)))
    return " – ".join(ends)


def _square(square: Square | None, lines: dict[str, Line]) -> str:
    if square is None:
        return "<td></td>"
    line = lines[square.best]
    much = ' class="much"' if square.regret >= MUCH else ""
    return (
        f'<td style="background: {tint(line.color)}" title="default: {escaped(square.default)}">'
        f'{_sign(line)} <span class="name">{escaped(square.best)}</span>'
        f"<small{much}>{percent(square)}</small></td>"
    )


def percent(square: Square) -> str:
    """The regret of a square."""
    rounded = round(100 * square.regret)
    number = f"{rounded:+d}" if rounded else "0"
    return f"{number} %{'' if square.tested else UNTESTED}"


def _sign(line: Line) -> str:
    return f'<span style="color: {line.color}">{line.sign}</span>'


def tint(color: str) -> str:
    """A colour so light that dark text can be read on it."""
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - 0.28 * (255 - part)):02x}" for part in parts)


def worth(found: Found) -> str:
    """What the model is worth: errors for what was left out of the fit, in %."""
    what = ("sizes left out", "P left out")
    heads = [Head("collective", number=False), Head("choice", number=False)]
    heads += [Head(name, w) for w in what for name in ("median", "p90", "largest", "bias")]
    rows = [
        (collective, choice, *_percents(e.sizes_left_out), *_percents(e.ranks_left_out))
        for collective, sets in found.model.evidence.items()
        for choice, e in sets.items()
    ]
    general = found.model.general_evidence
    if general is not None:
        errors = _percents(general.sizes_left_out), _percents(general.ranks_left_out)
        rows.insert(0, ("all", "by one set of parameters", *errors[0], *errors[1]))
    return grid(heads, rows)


def _percents(errors: Errors | None) -> tuple[str, ...]:
    if errors is None:
        return ("–",) * 4
    values = (errors.median, errors.p90, errors.largest)
    return (*(f"{100 * value:.1f}" for value in values), f"{100 * errors.bias:+.1f}")


def parameters(found: Found) -> str:
    """The general parameters."""
    evidence = found.model.general_evidence
    intervals = evidence.intervals(found.model.general) if evidence else {}
    refused = evidence.refused if evidence else {}
    rows = []
    for name, value in found.model.general.numbers().items():
        per_byte = name.split()[0] in ("beta", "gamma")
        scale, unit = (1e9, "ns/B") if per_byte else (1e6, "µs")
        low, high = intervals.get(name, (value, value))
        spread = f"{low * scale:.4g} – {high * scale:.4g}"
        shown, said = ("–", refused[name]) if name in refused else (f"{value * scale:.4g}", spread)
        rows.append((name, shown, unit, said))
    heads = (
        Head("parameter", number=False),
        Head("value"),
        Head("unit", number=False),
        Head("95 % interval", number=False, fold=True),
    )
    return grid(heads, rows)


def regrets(found: Found) -> str:
    """What ways of choosing cost."""
    heads = (
        Head("chosen by", number=False),
        Head("calls"),
        Head("mean", "%"),
        Head("worst", "%"),
        Head("worst call", number=False, fold=True),
    )
    return grid(
        heads,
        (
            (
                *(way, str(r.n), f"{100 * r.mean:.2f}", f"{100 * r.worst:.1f}"),
                r.where if r.worst > 0 else "–",
            )
            for way, r in found.regrets.items()
        ),
    )


def advice(found: Sequence[Advice]) -> str:
    """What to choose, and what it gains."""
    heads = (
        Head("collective", number=False),
        Head("P"),
        Head("ranks are", number=False),
        Head("sizes", "B"),
        Head("choice", number=False),
        Head("gain over native", number=False, fold=True),
    )
    rows = (
        (
            one.collective,
            str(one.ranks),
            "within a node" if one.near else "by messages",
            column(*one.sizes) if one.sizes[1] else "",
            one.choice,
            one.worth,
        )
        for one in found
    )
    return grid(heads, rows)


def environment(runs: Sequence[Run]) -> str:
    """Where and how runs were made: what all have in common, and what differs between them."""
    known = [facts(run) for run in runs]
    names = [*dict.fromkeys(name for one in known for name in one)]
    common = {
        name: value for name, value in known[0].items() if all(o.get(name) == value for o in known)
    }
    cells = "".join(
        f"<tr><th>{escaped(name)}</th><td>{escaped(value)}</td></tr>"
        for name, value in common.items()
    )
    table_ = f'<div class="scroll"><table class="facts"><tbody>{cells}</tbody></table></div>'
    differing = [name for name in names if name not in common]
    if not differing:
        return table_
    rows = (
        (str(number), *(one.get(name, "–") for name in differing))
        for number, one in enumerate(known, start=1)
    )
    heads = [Head("launch"), *(Head(name, number=False) for name in differing)]
    return f"<h3>Common to all launches</h3>{table_}<h3>What differs</h3>{grid(heads, rows)}"


def facts(run: Run) -> dict[str, str]:
    """Where and how a run was made; of paths the last part alone, and nobody's name."""
    known, found = run.facts, {"run": run.name}
    for host, entry in known.get("hosts", {}).items():
        ranks, cores = plural(len(entry["ranks"]), "rank"), plural(len(entry["cores"]), "core")
        found[f"host {host}"] = f"{ranks}, {cores}"
    if "clock" in known:
        found["clock"] = f"{known['clock']['name']}, {known['clock']['cost'] * 1e9:.0f} ns"
    found |= {name: str(known[name]) for name in ("started", "mpi_standard") if name in known}
    if "mpi" in known:  # what follows the version names who built it, and where
        found["mpi"] = str(known["mpi"]).partition(", package: ")[0]
    plain = ("mpicoll", "commit", "python", "numpy", "mpi4py", "processor", "system")
    found |= {name: str(known[name]) for name in plain if name in known}
    if "arguments" in known:
        found["command"] = without_folders(" ".join(["mpicoll", *known["arguments"]]))
    for group in ("settings", "environment", "slurm"):
        for name, value in (known.get(group) or {}).items():
            found[f"{group}: {name}"] = without_folders(str(value))
    return found
