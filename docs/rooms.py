"""The map of the rooms for docs/architecture.rst: a picture and a table.

Floors and imports are those that tests/layers.py has and tests hold; what each room says is the
first sentence of its ``__init__``.  An arrow is left out where other arrows lead to the same room;
in a browser, pointing at a room shows all of its imports.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from html import escape
from itertools import chain

import layers
from tables import list_table

#: Pixels: of the picture, between boxes, between floors, and for an arrow that passes a floor.
WIDTH, GAP, STOREY, LANE = 736, 12, 26, 14
#: The height of a line of text, and the mean width of a character.
LINE, CHARACTER = 15, 6.5

STYLE = """
.rooms { width: 100%; height: auto; font-family: var(--font-stack, system-ui, sans-serif); }
.rooms text { fill: var(--color-content-foreground, #222); font-size: 12px; }
.rooms .name { font-size: 14px; font-weight: 600; }
.rooms rect { fill: var(--color-background-secondary, #f4f5f7); stroke-width: 1.2;
  stroke: var(--color-background-border, #c9ccd2); }
.rooms .file rect { fill: var(--color-background-primary, #fff); stroke-dasharray: 4 3; }
.rooms path { fill: none; stroke: var(--color-foreground-muted, #7d828c); stroke-width: 1.4; }
.rooms marker path { fill: var(--color-foreground-muted, #7d828c); stroke: none; }
.rooms g:hover rect { stroke: var(--color-brand-content, #2757dd); stroke-width: 2; }
"""


def floors() -> list[list[str]]:
    """Rooms and files of the top by floor, roof first."""
    return [line.split() for line in layers.ORDER["mpicoll"].strip().splitlines()]


def arrows() -> dict[str, set[str]]:
    """Which room imports which; all lie further down, or a test fails."""
    floor = {room: number for number, rooms in enumerate(floors()) for room in rooms}
    found: dict[str, set[str]] = {room: set() for room in floor}
    for file, targets in layers.package().items():
        here = file.split(".")[1]
        rooms = {target.split(".")[1] for target in targets}
        found[here] |= {room for room in rooms if floor[room] > floor[here]}
    return found


def reduced(found: dict[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that no way along other arrows says."""

    def reached(room: str) -> set[str]:
        return found[room].union(*(reached(target) for target in found[room]))

    return {
        room: targets - set(chain.from_iterable(reached(target) for target in targets))
        for room, targets in found.items()
    }


def is_room(name: str) -> bool:
    return f"mpicoll/{name}/__init__.py" in layers.sources()


def sentence(path: str) -> str:
    """The first sentence of a file's docstring."""
    text = layers.sources()[path]
    opening = re.match(r'"""(.*?)"""', text, re.S) if path.endswith(".pyx") else None
    said = opening[1] if opening else ast.get_docstring(ast.parse(text)) or ""
    return re.split(r"(?<=[.?])\s", " ".join(said.split()))[0]


def said(name: str) -> str:
    """What a room, or a file of the top, says of itself; without markup."""
    files = (f"mpicoll/{name}{end}" for end in ("/__init__.py", ".py", ".pyx"))
    found = sentence(next(path for path in files if path in layers.sources()))
    return re.sub(r"(:\w+:)?`+~?([^`]*)`+", r"\2", found)


def table() -> str:
    """The rooms and the files of the top, then the rooms of training, and what each holds."""

    def rows(package: str, names: Iterable[str], ends: dict[str, str]) -> list[list[str]]:
        paths = {
            f"{package}/{n}{shown}": f"{package}/{n}{end}"
            for n in names
            for end, shown in ends.items()
        }
        return [
            [f"``{name}``", sentence(path)]
            for name, path in paths.items()
            if path in layers.sources()
        ]

    room = {"/__init__.py": "/"}
    top = [name for name in chain.from_iterable(floors()) if not name.startswith("__")]
    found = rows("mpicoll", top, {**room, ".py": ".py", ".pyx": ".pyx"})
    found += rows("mpicoll/train", re.findall(r"\w+", layers.ORDER["mpicoll.train"]), room)
    return "\n".join(list_table(["room", "what it holds"], found))


# --- the picture ----------------------------------------------------------------------------------


class Box:
    """A room on its floor, or the place where arrows to a room pass a floor (``text`` is None)."""

    def __init__(self, name: str, floor: int, width: float, text: list[str] | None) -> None:
        self.name, self.floor, self.width, self.text = name, floor, width, text
        self.x = WIDTH / 2
        self.top = self.bottom = 0.0
        self.above: list[Box] = []
        self.below: list[Box] = []


def build() -> list[list[Box]]:
    """The floors with their boxes, joined by arrows; those to the same room run together."""
    rows: list[list[Box]] = []
    for number, names in enumerate(floors()):
        width = {1: 440, 2: 276}.get(len(names), 190)
        room = int((width - 24) / CHARACTER)
        rows.append([Box(n, number, width, _lines(said(n), room)) for n in names])
    places = {box.name: box for row in rows for box in row}
    for name, targets in reduced(arrows()).items():
        for target in sorted(targets):
            box = places[name]
            for number in range(box.floor + 1, places[target].floor):
                passing = next((b for b in rows[number] if b.name == target), None)
                if passing is None:
                    passing = Box(target, number, LANE, None)
                    rows[number].append(passing)
                _join(box, passing)
                box = passing
            _join(box, places[target])
    return rows


def _lines(text: str, most: int) -> list[str]:
    """A text in as few lines as fit, of about the same length."""
    wrapped = partial(textwrap.wrap, text, break_on_hyphens=False)
    few = len(wrapped(most))
    return next(lines for n in range(8, most + 1) if len(lines := wrapped(n)) == few)


def _join(above: Box, below: Box) -> None:
    if below not in above.below:
        above.below.append(below)
        below.above.append(above)


def place(rows: list[list[Box]]) -> float:
    """Give every box its place, near those it is joined to; returns the height of the picture."""
    for turn in range(40):
        for row in rows if turn % 2 else reversed(rows):
            wanted = {}
            for box in row:
                near = (box.above if turn % 2 else box.below) or [box]
                wanted[box] = sum(other.x for other in near) / len(near)
            row.sort(key=lambda box: wanted[box])
            _spread(row, wanted)
    y = 1.0
    for row in rows:
        height = max(len(box.text or ()) for box in row) * LINE + 31
        for box in row:
            box.top, box.bottom = y, y + height
        y += height + STOREY
    return y - STOREY + 2


def _spread(row: list[Box], wanted: dict[Box, float]) -> None:
    """Boxes of a floor side by side, where they want to be as far as there is room."""
    left = 1.0
    for box in row:
        box.x = max(left + box.width / 2, wanted[box])
        left = box.x + box.width / 2 + GAP
    right = WIDTH - 1.0
    for box in reversed(row):
        box.x = min(right - box.width / 2, box.x)
        right = box.x - box.width / 2 - GAP


def _line(above: Box, below: Box) -> str:
    """From the lower edge of a box to the upper edge of another, leaving and arriving upright."""
    start, end = _ends(above, below)
    y0, y1 = above.bottom, below.top - (5 if below.text is not None else 0)
    bend = 0.6 * (y1 - y0)
    path = f"M{start:.1f} {y0:.1f}C{start:.1f} {y0 + bend:.1f} {end:.1f} {y1 - bend:.1f} "
    head = "" if below.text is None else ' marker-end="url(#rooms-head)"'
    passing = f"V{below.bottom:.1f}" if below.text is None else ""
    return f'<path d="{path}{end:.1f} {y1:.1f}{passing}"{head}/>'


def _ends(above: Box, below: Box) -> tuple[float, float]:
    """Where an arrow leaves one box and reaches another: straight below, if they lie so."""
    free = [box.width / 2 - 20 if box.text is not None else 0 for box in (above, below)]
    left, right = [above.x - free[0], below.x - free[1]], [above.x + free[0], below.x + free[1]]
    low, high = max(left), min(right)
    if low <= high:
        return (low + high) / 2, (low + high) / 2
    return (right[0], left[1]) if right[0] < left[1] else (left[0], right[1])


def svg() -> str:
    """The picture, as it stands in a page: its colours are those of the page's theme."""
    rows = build()
    height = place(rows)
    boxes = [box for row in rows for box in row]
    importers = defaultdict(list)
    for name, targets in arrows().items():
        for target in sorted(targets):
            importers[target].append(name)
    rules = "".join(
        f".rooms:has(#rooms-{box.name}:hover) .by-{box.name} rect {{ "
        "fill: var(--color-highlight-on-target, #ffffcc); }\n"
        for box in boxes
        if box.text is not None
    )
    return "\n".join(
        [
            f'<svg class="rooms" xmlns="http://www.w3.org/2000/svg" role="img" '
            f'viewBox="0 0 {WIDTH} {height:.0f}">',
            "<title>The rooms of mpicoll, and what they import</title>",
            f"<style>{STYLE}{rules}</style>",
            '<defs><marker id="rooms-head" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="6" '
            'markerHeight="6" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>',
            *(_line(box, below) for box in boxes for below in box.below),
            *(_drawn(box, box.text, importers[box.name]) for box in boxes if box.text is not None),
            "</svg>",
            "",
        ]
    )


def _drawn(box: Box, text: Iterable[str], importers: Iterable[str]) -> str:
    kind = " ".join(["room" if is_room(box.name) else "file", *(f"by-{n}" for n in importers)])
    ends = "" if is_room(box.name) else ".pyx" if box.name == "_kernels" else ".py"
    lines = "".join(
        f'<text x="{box.x:.1f}" y="{box.top + 36 + LINE * number:.1f}" text-anchor="middle">'
        f"{escape(line)}</text>"
        for number, line in enumerate(text)
    )
    return (
        f'<g id="rooms-{box.name}" class="{kind}"><rect x="{box.x - box.width / 2:.1f}" '
        f'y="{box.top:.1f}" width="{box.width:.0f}" height="{box.bottom - box.top:.1f}" rx="6"/>'
        f'<text class="name" x="{box.x:.1f}" y="{box.top + 20:.1f}" text-anchor="middle">'
        f"{box.name}{ends}</text>{lines}</g>"
    )
